"""Work on a mail's bytes: in a thread when there are many, so that the others do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LONG = 65536
"""Octets from which a thread is worth its price, which is that of some 10 kB of work."""

T = TypeVar("T")


async def aside(octets: int, work: Callable[[], T]) -> T:
    """What ``work`` returns; called in a thread when it is about :data:`LONG` octets or more."""
    return await asyncio.to_thread(work) if octets >= LONG else work()
