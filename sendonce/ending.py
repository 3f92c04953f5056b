"""Background tasks end when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_SECONDS = 10.0
"""A driver's own clean-up after a cancellation takes 5 s at most."""


async def end(tasks: Iterable[asyncio.Task[Any]], *, again_seconds: float = AGAIN_SECONDS) -> None:
    """Cancel ``tasks`` and return once all have ended, however; what they raise is dropped.

    One that goes on is cancelled again every ``again_seconds``: on Python 3.11 ``asyncio.wait_for`` loses a
    cancellation that comes in the same turn of the loop as its result, and whoever waits once waits for ever
    (https://github.com/python/cpython/issues/81839).
    """
    left = all_tasks = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_seconds)
    await asyncio.gather(*all_tasks, return_exceptions=True)
