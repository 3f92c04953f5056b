"""Backlogs that must not stop anybody: what waits takes no place, and what resumes does so by pace."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sendonce.outcome import Deferred, Outcome, Reply, Unanswered
from sendonce.rates import Rate, shares
from sendonce.store import Store
from sendonce.store.records import Claimed

if TYPE_CHECKING:
    from tests.store.conftest import Bench

MANY = 500
PLACES = 20


async def enqueue(bench: Bench, number: int, **fields: object) -> list[str]:
    keys = [f"mail-{n}" for n in range(number)]
    for key in keys:
        await bench.enqueue(key, **fields)
    return keys


async def attempt_all(bench: Bench, keys: list[str], outcome: Outcome) -> None:
    for first in range(0, len(keys), 8):
        await asyncio.gather(*(bench.attempt(outcome, key) for key in keys[first : first + 8]))


@pytest.mark.parametrize(
    "outcome", [Deferred(Reply(451, "4.7.1"), greylisted=True), Unanswered()], ids=["greylisted", "unknown"]
)
async def test_many_that_wait_leave_every_place_to_others(bench: Bench, outcome: Outcome) -> None:
    keys = await enqueue(bench, MANY)
    while started := await bench.store.unstarted("default", limit=PLACES, ceiling=PLACES):
        await attempt_all(bench, [row.key for row in started], outcome)
    assert {row["stage"] for row in await bench.rows("SELECT DISTINCT stage FROM sendonce.email")} <= {
        "pending",
        "unknown",
    }
    assert (await bench.rows("SELECT count(*) FROM sendonce.attempt"))[0]["count"] == len(keys)
    await bench.enqueue("elsewhere", account="second")
    for n in range(PLACES):
        await bench.enqueue(f"fresh-{n}")
    got = await bench.store.unstarted("default", limit=100, ceiling=PLACES)
    assert sorted(row.key for row in got) == sorted(["elsewhere", *(f"fresh-{n}" for n in range(PLACES))])


async def test_a_pause_of_three_hours_ends_in_a_paced_resume(bench: Bench) -> None:
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    await enqueue(bench, MANY)
    for _ in range(12):
        # Every quarter of an hour a probe, and nothing else.
        await bench.advance(900)
        probes = await bench.store.unstarted("default", limit=100, ceiling=PLACES)
        assert len(probes) <= 1
        for probe in probes:
            assert await bench.store.take_probe("default", probe.email_id)
            await bench.store.account_fault("default", code=535, enhanced="5.7.8", probe=True)
    assert await bench.store.account_works("default")
    first = await bench.store.unstarted("default", limit=1000, ceiling=PLACES)
    assert len(first) <= PLACES, "as many as there are places, however long the backlog"
    assert await bench.store.unstarted("default", limit=1000, ceiling=PLACES) == []


async def test_after_a_pause_the_rate_holds_from_the_first_mail_on(bench: Bench) -> None:
    lanes = {"default": 0.0}
    paced = Store(bench.pool, {"default": "settings-1"}, pools={"default": shares((Rate.parse("10/s"),), lanes)})
    await bench.store.account_fault("default", code=421, enhanced="")
    keys = await enqueue(bench, 40)
    await bench.advance(3 * 3600)
    await bench.store.account_works("default")
    given = await paced.take_slots(("default",), "default", len(keys))
    # Slots of the pause are not saved up: at most what a second ahead holds.
    assert len(given.delays) <= 11
    assert list(given.delays) == sorted(given.delays)
    assert given.delays[-1] <= 1.0


async def test_started_mail_does_not_storm_the_account_that_resumes(bench: Bench) -> None:
    lanes = {"default": 0.0}
    bench.store = Store(bench.pool, {"default": "settings-1"}, pools={"default": shares((Rate.parse("5/s"),), lanes)})
    keys = await enqueue(bench, 60)
    await bench.run("UPDATE sendonce.email SET started_at = sendonce.clock(), seen_at = sendonce.clock()")
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    await bench.advance(3 * 3600)
    await bench.store.account_works("default")
    # All workflows ask at the same moment: each needs a slot, and those of the next second are few.
    answers = await asyncio.gather(*(bench.ask(key) for key in keys))
    assert not [answer for answer in answers if isinstance(answer, Claimed)]
    begun = time.monotonic()
    slots = [await bench.store.take_slots(("default",), "default", 1) for _ in keys]
    # Five for each second that this took, and those of a second ahead.
    assert sum(len(given.delays) for given in slots) <= 5 * (time.monotonic() - begun) + 7


async def test_a_lane_keeps_its_places_whatever_another_has_in_flight(bench: Bench) -> None:
    keys = await enqueue(bench, PLACES, lane="bulk")
    bench.lane = replace(bench.lane, name="bulk")
    assert len(await bench.store.unstarted("bulk", limit=100, ceiling=PLACES)) == PLACES
    for key in keys:
        await bench.begin(await bench.claim(key))
    await bench.enqueue("code", lane="critical")
    assert [row.key for row in await bench.store.unstarted("critical", limit=100, ceiling=PLACES)] == ["code"]
