"""Is this process alive, and is it ready? Reasons are codes, for machines and people alike.

Alive: the event loop turns. Ready: everything runs, every loop comes round, the store and Temporal answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from sendonce.activities.pulse import Pulse
from sendonce.watching.endpoint import Answer, said

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
HANG_SECONDS = 30.0
"""An event loop that has not turned for so long hangs: only a new process helps."""

TEMPORAL_SECONDS = 5.0
"""Between two looks whether Temporal answers, and how long an answer may take."""


class Health:
    """The answers of ``/healthz`` and ``/readyz``; read by other threads than the event loop's."""

    def __init__(self, pulse: Pulse, clock: Callable[[], float] = time.monotonic) -> None:
        self._pulse = pulse
        self._clock = clock
        self._ticked_at = clock()

    def tick(self) -> None:
        """The event loop turns; to be called every :data:`TICK_SECONDS`."""
        self._ticked_at = self._clock()

    def alive(self) -> Answer:
        """200, or 503 when the event loop hangs."""
        age = self._clock() - self._ticked_at
        if age > HANG_SECONDS:
            return said(503, status="hangs", seconds=round(age))
        return said(200, status="ok")

    def readiness(self) -> Answer:
        """200, or 503 with the reasons."""
        reasons = self.reasons()
        return said(503, status="not ready", reasons=reasons) if reasons else said(200, status="ok")

    def reasons(self) -> list[str]:
        """Why it is not ready: ``hangs``, ``stopping``, ``starting``, ``store_away``, ``temporal_away``,
        ``loop_dead:NAME``.
        """
        pulse = self._pulse
        found = []
        if self._clock() - self._ticked_at > HANG_SECONDS:
            found.append("hangs")
        if pulse.stopping:
            found.append("stopping")
        elif not pulse.ready:
            found.append("starting")
        if not pulse.store_up:
            found.append("store_away")
        if not pulse.temporal_up:
            found.append("temporal_away")
        return found + [f"loop_dead:{name}" for name in pulse.dead()]


async def watch_temporal(ask: Callable[[], Awaitable[object]], pulse: Pulse, *, seconds: float) -> None:
    """Ask Temporal whether it is there, every so many seconds, until cancelled; say when that changes."""
    was_up = True
    while True:
        try:
            async with asyncio.timeout(TEMPORAL_SECONDS):
                await ask()
            pulse.temporal_up = True
        except Exception as error:
            pulse.temporal_up = False
            if was_up:
                logger.warning("Temporal does not answer (%s); asking on", type(error).__name__)
        if pulse.temporal_up and not was_up:
            logger.warning("Temporal answers again")
        was_up = pulse.temporal_up
        await asyncio.sleep(seconds)
