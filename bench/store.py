"""What each statement on a mail's way costs, beside 10,000, 100,000 and 1,000,000 mails that are there already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

import psycopg

from bench import grow
from bench.feed import MANY, mail
from bench.grow import LANE, WORKER
from bench.stack import Machine
from sendonce.store import Store, open_pool
from sendonce.store.intake import enqueue, enqueue_many
from sendonce.store.records import Claimed, Startable

SIZES = {"10k": (10_000, 0), "100k": (100_000, 10_000), "1m": (1_000_000, 100_000)}
"""By name, how many mails were sent, and how many are for later."""

BATCH = 20
"""Rows that the starter looks at and marks at once."""

TURNS = 8
"""Per round; in each turn as many mails are enqueued in a transaction each, and a batch goes all the way."""

WARM_TURNS = 12
"""Before anything counts: a connection has prepared a statement for good after ten executions (psycopg after five, and
PostgreSQL plans the next five anew)."""

T = TypeVar("T")

ENQUEUE, ENQUEUE_MANY, LOOK = "enqueue", f"enqueue, {MANY} per transaction", f"starter, {BATCH} per batch"


@dataclass
class StoreTimes:
    """Milliseconds per mail, by size and operation; one number, the median, for each round."""

    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, size: str, operation: str, seconds: list[float]) -> None:
        """One round's."""
        self.rounds.setdefault(size, {}).setdefault(operation, []).append(median(seconds) * 1000)

    def ratios(self, size: str, base: str) -> dict[str, float]:
        """By operation, how many times as long it takes with ``size`` as with ``base``: the median over rounds."""
        grown, small = self.rounds.get(size, {}), self.rounds.get(base, {})
        return {
            operation: median(a / b for a, b in zip(times, small[operation], strict=True))
            for operation, times in grown.items()
        }

    def per_second(self, size: str, operation: str) -> float | None:
        """How many a second, one after the other; None when it was not measured."""
        times = self.rounds.get(size, {}).get(operation)
        return 1000 / median(times) if times else None


class _Clock:
    """Collects what each operation took."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    async def of(self, operation: str, doing: Awaitable[T], mails: int = 1) -> T:
        begun = time.perf_counter()
        done = await doing
        self.seconds.setdefault(operation, []).append((time.perf_counter() - begun) / mails)
        return done


async def _many(machine: Machine, connection: psycopg.AsyncConnection[Any], clock: _Clock) -> None:
    async def many(prefix: str) -> None:
        await enqueue_many(connection, [mail(f"{prefix}-{n}") for n in range(MANY)])
        await connection.commit()

    await clock.of(ENQUEUE_MANY, many(f"many-{machine.number()}"), MANY)


async def _turn(machine: Machine, connection: psycopg.AsyncConnection[Any], store: Store, clock: _Clock) -> None:
    async def one(key: str) -> None:
        await enqueue(connection, mail(key))
        await connection.commit()

    for _ in range(BATCH):
        await clock.of(ENQUEUE, one(f"single-{machine.number()}"))
    rows = await clock.of(LOOK, store.unstarted(LANE.name, limit=BATCH, ceiling=1000), BATCH)
    for row in rows:
        await _go_all_the_way(store, clock, row)
    await clock.of("overdue", store.overdue(LANE.name, limit=100))
    await clock.of("sweep", store.sweep_silent({LANE.name: LANE}, actor=WORKER))


async def _go_all_the_way(store: Store, clock: _Clock, row: Startable) -> None:
    claimed = await clock.of("claim", store.claim(row.email_id, row.key, lane=LANE, worker=WORKER, lease_seconds=20))
    assert isinstance(claimed, Claimed)
    await clock.of("pin", grow.pin(store, claimed))
    await clock.of("begin", grow.begin(store, claimed))
    await clock.of("settle", grow.settle(store, claimed))


@dataclass
class _Grown:
    """One database of a size."""

    store: Store
    connection: psycopg.AsyncConnection[Any]
    """The application's."""


@asynccontextmanager
async def _grown(machine: Machine, finished: int, future: int) -> AsyncIterator[_Grown]:
    url = await machine.database()
    try:
        await asyncio.to_thread(grow.grow, url, finished, future)
        connection = await psycopg.AsyncConnection.connect(url)
        async with connection, open_pool(url, name="bench", max_size=1) as pool:
            yield _Grown(Store(pool), connection)
    finally:
        await machine.drop(url)


async def run(
    machine: Machine,
    rounds: int,
    say: Callable[[str], None],
    *,
    sizes: Mapping[str, tuple[int, int]] = SIZES,
    turns: int = TURNS,
    warm_turns: int = WARM_TURNS,
) -> StoreTimes:
    """Fill a database of each size, then measure by turns, ``rounds`` times and once to warm up."""
    found = StoreTimes()
    async with AsyncExitStack() as closing:
        stores = {}
        for size, (finished, future) in sizes.items():
            say(f"filling a store with {finished:,} finished mails and {future:,} future ones")
            stores[size] = await closing.enter_async_context(_grown(machine, finished, future))
        await machine.checkpoint()
        for number in range(rounds + 1):
            clocks = {size: _Clock() for size in stores}
            for size, grown in stores.items():
                await _many(machine, grown.connection, clocks[size])
            for _ in range(turns if number else warm_turns):
                # Turn by turn, so that what the machine does meanwhile falls on all alike.
                for size, grown in stores.items():
                    await _turn(machine, grown.connection, grown.store, clocks[size])
            if number:
                for size, clock in clocks.items():
                    for operation, seconds in clock.seconds.items():
                        found.add(size, operation, seconds)
                say(f"round {number}: store measured")
    return found
