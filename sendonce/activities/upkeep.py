"""What every worker looks after, whoever's mail it is: silent offers, due alarms, events. Never by way of Temporal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import psycopg

from sendonce.activities.failures import where
from sendonce.activities.inflight import Poker
from sendonce.activities.leases import StoreHealth
from sendonce.activities.pulse import Pulse
from sendonce.activities.transports.base import Transport
from sendonce.ending import end
from sendonce.policy import LanePolicy
from sendonce.store import Store
from sendonce.store.events import JOIN_SECONDS, PARKED_SECONDS, Terms
from sendonce.store.records import Startable
from sendonce.workflows.port import Wake, workflow_id

logger = logging.getLogger(__name__)

UPKEEP_SECONDS = 5.0
WAKE_SECONDS = 1.0
"""Between two looks for workflows to wake: somebody may be watching."""
WOKEN_AT_ONCE = 50
WAKE_ROUND_SECONDS = 30.0
"""After so long a round wakes nobody else: a Temporal that swallows calls must not make it stuck. The workflows' own
timers wake the rest."""
LONG_LOOK = 120
"""Of so many looks for a mail that an event belongs to, one goes back as far as events are kept."""
ERASE_SECONDS = 10.0
"""After so long a round of erasing leaves the rest to the next one."""
STUCK_SECONDS = 60.0
"""A round that takes longer is given up and said to be stuck."""


def patience(seconds: float) -> float:
    """How long a loop that goes round every so many seconds may give no sign of life: a stuck round, and a few more."""
    return STUCK_SECONDS + 3 * max(5.0, seconds)


class Loops:
    """Background tasks that end together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, body: Awaitable[None]) -> None:
        """Run this until :meth:`end`."""
        self._tasks.append(asyncio.ensure_future(body))

    async def end(self) -> None:
        """Cancel all, and wait for that."""
        await end(self._tasks)


async def forever(
    name: str, seconds: float, body: Callable[[], Awaitable[object]], health: StoreHealth, pulse: Pulse
) -> None:
    """Call ``body`` again and again, ``seconds`` after its last end, until cancelled.

    A store that is away is logged when it goes and when it comes back; any other error is logged each time. Each round
    is a sign of life, also without the store; one that is stuck or fails by a fault of ours is none.
    """
    away = False
    pulse.expect(name, patience(seconds))
    while True:
        try:
            async with asyncio.timeout(STUCK_SECONDS) as limit:
                await body()
            pulse.beat(name)
            if away:
                logger.warning("%s: the store is back", name)
            away = False
        except psycopg.errors.LockNotAvailable:
            # The store is there: nothing is to be forgiven for that.
            pulse.beat(name)
            logger.warning("%s: somebody's open transaction holds a row; trying on", name)
        except (psycopg.OperationalError, TimeoutError) as error:
            health.away()
            if not limit.expired():
                pulse.beat(name)
            if not away:
                logger.warning("%s: the store cannot be reached (%s); trying on", name, type(error).__name__)
            away = True
        except Exception as error:
            logger.error("%s failed and goes on: %s", name, where(error))
        await asyncio.sleep(seconds)


class Upkeep:
    """The rounds; each is to be called every :data:`UPKEEP_SECONDS`, by every worker."""

    def __init__(
        self,
        store: Store,
        poker: Poker,
        lanes: Mapping[str, LanePolicy],
        transports: Mapping[str, Transport],
        worker: str,
    ) -> None:
        """``lanes`` are all of the installation."""
        self._terms = {
            name: Terms(lanes, worker, all_or_nothing=one.capability.all_or_nothing) for name, one in transports.items()
        }
        self._rounds = 0
        self._store = store
        self._poker = poker
        self._lanes = lanes
        self._worker = worker

    async def sweep(self) -> None:
        """Offers whose process went silent become unknown, unknowns that are too old are closed, alarms fall due."""
        rows = await self._store.sweep_silent(self._lanes, actor=self._worker)
        # Before anybody is woken: Temporal may be what is down.
        await self._store.raise_due_alarms()
        await self._wake(rows)

    async def erase(self) -> None:
        """Persons who were erased while a mail to them was in flight are taken out of it when it has ended."""
        end = time.monotonic() + ERASE_SECONDS
        erased = await self._store.finish_erasures(
            self._lanes, actor=self._worker, leave=lambda: time.monotonic() > end
        )
        if erased:
            logger.info("upkeep: erased=%d", erased)

    async def wake(self) -> None:
        """Wake the workflows of mails that somebody decided about, or that something came back for."""
        await self._wake(await self._store.take_wakes())

    async def _wake(self, rows: Sequence[Startable]) -> None:
        """All beside each other: while Temporal is away each takes its time."""
        end = time.monotonic() + WAKE_ROUND_SECONDS
        for start in range(0, len(rows), WOKEN_AT_ONCE):
            if time.monotonic() > end:
                logger.warning("upkeep: %d workflows are left to their own timers", len(rows) - start)
                break
            some = rows[start : start + WOKEN_AT_ONCE]
            await asyncio.gather(*(self._poker.wake(workflow_id(row.key, row.account), Wake()) for row in some))

    async def join_events(self) -> None:
        """Events that came before their mail had its provider's id: usually by seconds, now and then by hours."""
        within = PARKED_SECONDS if self._rounds % LONG_LOOK == 0 else JOIN_SECONDS
        self._rounds += 1
        await self._store.join_parked_events(self._terms, Terms(self._lanes, self._worker), within=within)
