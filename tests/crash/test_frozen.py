"""A worker freezes (SIGSTOP) for longer than its lease, at each phase of an attempt, while another one works on.

One copy; what the others took for silence is settled by the worker's own late answer, which closes the alarm too.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.crash.conftest import MakeWorld
    from tests.crash.forks import Worker
    from tests.crash.world import World

LONG_SECONDS = 60.0

PHASES = {
    # What freezes the worker, and where the mail gets to meanwhile.
    "before begin": ("data", "sent"),
    "in begin": ("before begin", "sent"),
    "between begin and the dot": ("after begin", "unknown"),
    "after the dot": ("dot", "unknown"),
    "after the reply": ("before settle", "unknown"),
}


def freezing(worker: Worker) -> Callable[[], Awaitable[None]]:
    async def freeze() -> None:
        worker.signal(signal.SIGSTOP)

    return freeze


async def frozen(world: World, phase: str, seconds: float = 0.0) -> None:
    """Freeze a worker at ``phase`` of a mail until the other has seen its silence, and for so many seconds."""
    at, meanwhile = PHASES[phase]
    key = await world.enqueue()
    when, _, method = at.partition(" ")
    first = world.worker(*((when, method) if method else ()))
    if not method:
        world.once["default", at] = freezing(first)
    await world.is_frozen(first)
    started = time.monotonic()
    second = world.worker()
    await world.until_stage(key, meanwhile)
    if seconds and meanwhile == "unknown":
        await world.until_alarm("unknown")
    await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))
    first.signal(signal.SIGCONT)
    await world.until_stage(key, "sent")
    await world.handle(key).result()
    assert world.copies(key) == 1, phase
    assert await world.open_alarms() == [], phase
    for worker in (first, second):
        worker.signal(signal.SIGTERM)
        assert await world.ended(worker) == 0, world.logs()
    assert world.copies(key) == 1, phase


@pytest.mark.slow
async def test_a_worker_frozen_beyond_its_lease_costs_no_copy(make_world: MakeWorld) -> None:
    first, second = await make_world(), await make_world()
    await asyncio.gather(frozen(first, "before begin"), frozen(second, "after the dot"))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("phase", PHASES)
async def test_a_worker_frozen_for_a_minute_costs_no_copy(world: World, phase: str) -> None:
    await frozen(world, phase, LONG_SECONDS)
