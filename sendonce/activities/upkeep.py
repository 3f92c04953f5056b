"""What every worker looks after, whoever's mail it is: silent offers, alarms, heartbeats. Never by way of Temporal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import psycopg

from sendonce.activities.failures import where
from sendonce.activities.inflight import Poker
from sendonce.activities.leases import StoreHealth
from sendonce.activities.transports.base import Transport
from sendonce.policy import LanePolicy
from sendonce.store import Store
from sendonce.store.alarms import Alarm
from sendonce.store.events import JOIN_SECONDS, PARKED_SECONDS, Terms
from sendonce.workflows.port import Wake, workflow_id

logger = logging.getLogger(__name__)
alarm_logger = logging.getLogger("sendonce.alarms")
"""Every alarm is logged here at ERROR, its end at WARNING: kind, ids and codes."""

UPKEEP_SECONDS = 5.0
WAKE_SECONDS = 1.0
"""Between two looks for workflows to wake: somebody may be watching."""
LONG_LOOK = 120
"""Of so many looks for a mail that an event belongs to, one goes back as far as events are kept."""
STUCK_SECONDS = 60.0
"""A round that takes longer is given up and said to be stuck."""


async def forever(name: str, seconds: float, body: Callable[[], Awaitable[object]], health: StoreHealth) -> None:
    """Call ``body`` again and again, ``seconds`` after its last end, until cancelled.

    A store that is away is logged when it goes and when it comes back; any other error is logged each time.
    """
    away = False
    while True:
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                await body()
            if away:
                logger.warning("%s: the store is back", name)
            away = False
        except (psycopg.OperationalError, TimeoutError) as error:
            health.away()
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
        served: Sequence[str],
    ) -> None:
        """``lanes`` are all of the installation, ``served`` those of this process."""
        self._terms = {
            name: Terms(lanes, worker, all_or_nothing=one.capability.all_or_nothing) for name, one in transports.items()
        }
        self._rounds = 0
        self._store = store
        self._served = list(served)
        self._poker = poker
        self._lanes = lanes
        self._worker = worker

    async def sweep(self) -> None:
        """Offers whose process went silent become unknown, unknowns that are too old are closed, alarms fall due."""
        for row in await self._store.sweep_silent(self._lanes, actor=self._worker):
            await self._poker.wake(workflow_id(row.key, row.account), Wake())
        await self._store.raise_due_alarms()

    async def wake(self) -> None:
        """Wake the workflows of mails that somebody decided about, or that something came back for."""
        for row in await self._store.take_wakes():
            await self._poker.wake(workflow_id(row.key, row.account), Wake())

    async def join_events(self) -> None:
        """Events that came before their mail had its provider's id: usually by seconds, now and then by hours."""
        within = PARKED_SECONDS if self._rounds % LONG_LOOK == 0 else JOIN_SECONDS
        self._rounds += 1
        await self._store.join_parked_events(self._terms, Terms(self._lanes, self._worker), within=within)

    async def deliver_alarms(self) -> None:
        """Log the alarms that nobody has logged yet."""
        await self._store.deliver_alarms(_log)

    async def beat(self) -> None:
        """Say that this process is alive."""
        await self._store.beat(self._worker, "worker", self._served)


async def _log(alarm: Alarm) -> None:
    alarm_logger.log(
        logging.ERROR if alarm.closes is None else logging.WARNING,
        "alarm %d%s: kind=%s account=%s key=%s email_id=%s detail=%s",
        alarm.id,
        "" if alarm.closes is None else f" ends alarm {alarm.closes}",
        alarm.kind,
        alarm.account or "-",
        alarm.key or "-",
        alarm.email_id or "-",
        alarm.detail,
    )
