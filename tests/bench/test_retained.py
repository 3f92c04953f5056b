"""What was sent and is still kept makes no mail slower, and erasing it holds nobody up."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median

import pytest

from bench import grow
from sendonce.retention import Retention
from sendonce.store import Store, open_pool
from sendonce.store.migrate import migrate
from sendonce.store.records import Busy

FEW, MANY = 10_000, 300_000
MAILS = 200


async def times(url: str) -> dict[str, float]:
    """Milliseconds of each step of a mail, by the median. The claim is one that finds the mail held: it is refused by
    the same statement, which reads as much.
    """
    taken: dict[str, list[float]] = {"take_on": [], "claim": [], "pin": [], "begin": [], "settle": []}
    async with open_pool(url, name="test", max_size=2) as pool:
        store = Store(pool)
        for number in range(MAILS):
            key = f"timed-{number}"
            start = time.perf_counter()
            claimed = await grow.take_on(store, url, key)
            taken["take_on"].append(time.perf_counter() - start)
            assert claimed is not None
            start = time.perf_counter()
            answer = await store.claim(claimed.email_id, key, lane=grow.LANE, worker="w", lease_seconds=20)
            taken["claim"].append(time.perf_counter() - start)
            assert isinstance(answer, Busy)
            for name, step in (("pin", grow.pin), ("begin", grow.begin), ("settle", grow.settle)):
                start = time.perf_counter()
                await step(store, claimed)
                taken[name].append(time.perf_counter() - start)
    return {name: median(found) * 1000 for name, found in taken.items()}


async def erase_all(url: str) -> tuple[int, float, float]:
    """Mails emptied, the seconds of the longest batch, and those of all."""
    looks = [time.perf_counter()]

    def leave() -> bool:
        looks.append(time.perf_counter())
        return False

    async with open_pool(url, name="test", max_size=2) as pool:
        rules = Retention(content_days=0, record_days=1)
        over, done = await Store(pool).upkeep(rules, {"default": grow.LANE}, actor="w", leave=leave)
    assert over
    return done.mails, max(b - a for a, b in pairwise(looks)), looks[-1] - looks[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_kept_slows_nothing_and_goes_in_small_steps(database_url: str, empty_database_url: str) -> None:
    migrate(empty_database_url)
    began = time.perf_counter()
    grow.grow(database_url, FEW, 0)
    grow.grow(empty_database_url, MANY, 0)
    few, many = (asyncio.run(times(url)) for url in (database_url, empty_database_url))
    print(f"\nms with {FEW}: {few}\nms with {MANY}: {many}")
    for name in few:
        assert many[name] < few[name] * 1.5 + 0.5, name
    # One a second: those of the last day are kept; meanwhile one a second becomes a day old.
    mails, longest, whole = asyncio.run(erase_all(empty_database_url))
    took = time.perf_counter() - began
    print(f"{mails} emptied in {whole:.0f} s, the longest batch {longest * 1000:.0f} ms")
    assert MANY - 86_400 - MAILS - 10 <= mails <= MANY - 86_400 + 10 + took
    assert longest < 1.0
