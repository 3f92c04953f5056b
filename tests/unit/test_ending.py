"""Background tasks end, also one that lost its cancellation."""

from __future__ import annotations

import asyncio

from sendonce.ending import end
from tests.waiting import awaited


async def deaf(times: int, heard: list[int]) -> None:
    """Lose so many cancellations, as ``asyncio.wait_for`` may on Python 3.11."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(times)
            times -= 1
            if times < 0:
                raise


async def test_one_that_lost_its_cancellation_is_cancelled_again() -> None:
    heard: list[int] = []
    task = asyncio.create_task(deaf(2, heard))
    await asyncio.sleep(0)
    await end([task], again_seconds=0.01)
    assert heard == [2, 1, 0]
    assert task.cancelled()


async def test_what_one_raises_is_dropped_and_the_others_end() -> None:
    async def bad() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    tasks = [asyncio.create_task(bad()), asyncio.create_task(deaf(0, []))]
    await asyncio.sleep(0)
    await end(tasks)
    assert all(task.done() for task in tasks)
    await end([])


async def test_a_test_that_hangs_shows_what_it_waits_for() -> None:
    task = asyncio.create_task(deaf(0, []), name="the deaf one")
    await asyncio.sleep(0)
    shown = awaited()
    assert "the deaf one" in shown
    assert "test_ending.py" in shown
    assert " deaf\n" in shown
    await end([task])
