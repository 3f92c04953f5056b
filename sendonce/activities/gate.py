"""The way from a transport to the store's begin, and what is known when something goes wrong around it."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from enum import Enum

import psycopg
import psycopg_pool

from sendonce.activities.failures import where
from sendonce.activities.inflight import Flight, Flights, lease_margin
from sendonce.activities.leases import StoreHealth
from sendonce.activities.redirect import Envelope
from sendonce.activities.transports.base import Fenced, StoreAway
from sendonce.activities.witness import HALTED
from sendonce.store import Store
from sendonce.store.records import BeginRefused, Begun, Claimed, Pinned

logger = logging.getLogger(__name__)


FAULT = "fault"
"""Why a claim goes back that a fault of ours has kept from being offered."""


class Offer(Enum):
    """What is certain about the offer."""

    NOT_BEGUN = 1
    UNCERTAIN = 2
    """Begin was sent and its answer is unknown; nothing was offered."""
    BEGUN = 3
    """Committed, and nothing was offered."""
    OFFERED = 4


@dataclass(frozen=True, slots=True)
class Terms:
    """What the offer is made under; the same for every attempt of a generation."""

    slot: str
    digest: bytes
    provider_key: str
    identity: str
    key_window: float | None
    window_margin: float
    """Seconds before the end of the provider's window in which no replay is begun any more."""
    keep: Pinned | None = None
    """The rendering, where it is not pinned yet."""


class StoreGate:
    """The gate of one attempt."""

    def __init__(
        self,
        store: Store,
        flights: Flights,
        health: StoreHealth,
        flight: Flight,
        claimed: Claimed,
        envelope: Envelope,
        terms: Terms,
        *,
        worker: str,
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._flights = flights
        self._health = health
        self._flight = flight
        self._claimed = claimed
        self._envelope = envelope
        self._terms = terms
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._limit = lease_seconds - lease_margin(lease_seconds)
        self._sent = 0.0
        self.state = Offer.NOT_BEGUN
        self.refused = ""
        self.ordinals: tuple[int, ...] = ()

    async def begin(self, offered: tuple[int, ...]) -> None:
        """Commit that these are about to be offered.

        A cancellation waits until the store has answered, so that it is known whether the offer was begun. Raises
        :class:`Fenced` or :class:`StoreAway`.
        """
        if self.state is not Offer.NOT_BEGUN:
            raise RuntimeError("begin was called twice for one attempt")
        if self._flight.stop_why:
            raise Fenced(self._flight.stop_why)
        if self._flights.halted:
            self.refused = HALTED
            raise Fenced(HALTED)
        self.ordinals = self._envelope.ordinals(offered)
        loop = asyncio.get_running_loop()
        self._flight.beginning()
        self._sent, sent = _now(), loop.time()
        self.state = Offer.UNCERTAIN
        task = asyncio.create_task(self._begin())
        cancelled = False
        while not task.done() and (left := sent + self._limit - loop.time()) > 0:
            try:
                await asyncio.wait({task}, timeout=left)
            except asyncio.CancelledError:
                cancelled = True
        if not task.done():
            task.cancel()
            raise StoreAway
        self._take(task, sent)
        if cancelled:
            raise asyncio.CancelledError

    async def _begin(self) -> Begun | BeginRefused:
        claimed, terms = self._claimed, self._terms
        return await self._store.begin(
            claimed.email_id,
            claimed.attempt_id,
            worker=self._worker,
            generation=claimed.generation,
            slot=terms.slot,
            digest=terms.digest,
            offered=self.ordinals,
            provider_key=terms.provider_key,
            identity=terms.identity,
            key_window=terms.key_window,
            window_margin=terms.window_margin,
            answer_seconds=self._flight.lane.answer_seconds,
            lease_seconds=self._lease_seconds,
            timeline=self._flights.timeline,
            keep=terms.keep,
        )

    def _take(self, task: asyncio.Task[Begun | BeginRefused], sent: float) -> None:
        try:
            answer = task.result()
        except (psycopg.errors.LockNotAvailable, psycopg_pool.PoolTimeout) as error:
            # Certainly rolled back, or never sent.
            self.state = Offer.NOT_BEGUN
            raise StoreAway from error
        except psycopg.OperationalError as error:
            self._health.away()
            raise StoreAway from error
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
            # The server has refused the statement, which is rolled back then.
            logger.error("begin refused: email_id=%s %s", self._claimed.email_id, where(error))
            self.state, self.refused = Offer.NOT_BEGUN, FAULT
            raise Fenced(FAULT) from None
        except Exception as error:
            logger.error("begin failed: email_id=%s %s", self._claimed.email_id, where(error))
            raise StoreAway from None
        if isinstance(answer, BeginRefused):
            self.state, self.refused = Offer.NOT_BEGUN, answer.why
            raise Fenced(answer.why)
        self.state = Offer.BEGUN
        self._flight.begun(sent, answer.answer_seconds)

    def offered(self) -> None:
        """The write that can lead to acceptance comes now.

        Raises :class:`Fenced` when begin was not committed, or was sent so long ago that the lease may have lapsed.
        """
        if self.state is not Offer.BEGUN or _now() - self._sent > self._limit:
            raise Fenced("late")
        self.state = Offer.OFFERED


def _now() -> float:
    """Seconds on a clock that also counts the time a machine was suspended, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
