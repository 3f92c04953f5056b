"""Many mails through one installation: does anything grow, or slow down?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psycopg

from bench import grow, stack
from bench.feed import mail
from bench.measure import memory_mb, peak_mb
from bench.part import PartFailed
from bench.stack import Machine, Ours
from sendonce.policy import LanePolicy
from sendonce.store import Store, open_pool
from sendonce.store.intake import enqueue_many
from sendonce.store.records import Claimed

SHORT, LONG = 3_000, 20_000
STEPS = 20
"""Equal parts, after each of which is looked."""

WARM_STEPS = 4
"""After so many of them everything is loaded, and every connection made: growth counts from here."""

PROBES = 60
"""Claims to time, before and after."""

PROBE_LANE = LanePolicy("probe")
"""Served by nobody: its mails wait for the probe."""


@dataclass
class Soak:
    """What was seen."""

    mails: int
    worker_mb: list[float] = field(default_factory=list)
    """Memory of the process that is worker and starter, after each step."""
    worker_peak_mb: float = 0.0
    connections: list[int] = field(default_factory=list)
    """Open connections of the installation, after each step."""
    table_bytes_per_mail: list[float] = field(default_factory=list)
    """Of the table ``email`` with its indexes, after each step: dead rows included."""
    claim_ms: tuple[float, float] = (0.0, 0.0)
    """Before and after, with nothing else going on."""
    per_second: float = 0.0

    @property
    def growth(self) -> float:
        """How much more memory the worker has at the end than after the warm-up; 0.05 is 5 %."""
        warm, end = self.worker_mb[WARM_STEPS : 2 * WARM_STEPS], self.worker_mb[-WARM_STEPS:]
        return median(end) / median(warm) - 1

    @property
    def claim_growth(self) -> float:
        """How many times as long a claim takes at the end."""
        before, after = self.claim_ms
        return after / before


async def _look(ours: Ours, connection: psycopg.AsyncConnection[Any], soak: Soak) -> None:
    soak.worker_mb.append(memory_mb(ours.worker.pid))
    row = await (
        await connection.execute(
            "SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sendonce %%'"
            " AND datname = current_database()),"
            " pg_total_relation_size('sendonce.email')::float8 / (SELECT count(*) FROM sendonce.email)"
        )
    ).fetchone()
    assert row is not None
    soak.connections.append(row[0])
    soak.table_bytes_per_mail.append(row[1])


async def _claim_ms(machine: Machine, url: str) -> float:
    """Time claims of mails that nobody else serves, and settle them."""
    prefix = f"probe{machine.number()}"
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        enqueued = await enqueue_many(connection, [mail(f"{prefix}-{n}", lane=PROBE_LANE.name) for n in range(PROBES)])
    times = []
    async with open_pool(url, name="probe", max_size=1) as pool:
        store = Store(pool)
        for one in enqueued:
            begun = time.perf_counter()
            claimed = await store.claim(one.id, one.key, lane=PROBE_LANE, worker=grow.WORKER, lease_seconds=20)
            times.append(time.perf_counter() - begun)
            assert isinstance(claimed, Claimed)
            await grow.pin(store, claimed)
            await grow.begin(store, claimed)
            await grow.settle(store, claimed)
    return median(times) * 1000


async def run(machine: Machine, mails: int, say: Callable[[str], None]) -> Soak:
    """``mails`` through one worker, a part of them waiting at all times."""
    soak = Soak(mails)
    step = max(1, mails // STEPS)
    async with stack.ours(machine) as ours:
        url = ours.url
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with connection:
            first = await _claim_ms(machine, url)
            begun = time.monotonic()
            await ours.feeder.call(do="bulk", prefix=f"soak{machine.number()}", number=step)
            for number in range(1, STEPS + 1):
                if number < STEPS:
                    await ours.feeder.call(do="bulk", prefix=f"soak{machine.number()}", number=step)
                arrived = await ours.sink.call(wait=number * step, seconds=300)
                if arrived < number * step:
                    raise PartFailed(f"{number * step - arrived} mails did not arrive within 5 minutes")
                await _look(ours, connection, soak)
                if number % 5 == 0:
                    say(f"soak: {arrived:,} mails, worker {soak.worker_mb[-1]:.0f} MB")
            await ours.drained()
            soak.per_second = step * STEPS / (time.monotonic() - begun)
            await asyncio.sleep(1.0)
            soak.claim_ms = (first, await _claim_ms(machine, url))
            soak.worker_peak_mb = peak_mb(ours.worker.pid)
    return soak
