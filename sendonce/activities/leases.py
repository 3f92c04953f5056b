"""Keeping the leases of a process alive, and knowing when the store was last out of reach."""

from __future__ import annotations

import asyncio

import psycopg

from sendonce.activities.inflight import Flights, Phase
from sendonce.store import Store


class StoreHealth:
    """When this process last saw the store out of reach. Lapses from before that do not blame a mail."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._away_at: float | None = None

    def away(self) -> None:
        """A statement could not reach the store."""
        self._away_at = self._loop.time()

    def ago(self) -> float | None:
        """Seconds since then; None when it was always there."""
        return None if self._away_at is None else self._loop.time() - self._away_at


class LeaseKeeper:
    """Renews every lease of the process in one statement, on a connection of its own."""

    def __init__(
        self, store: Store, flights: Flights, health: StoreHealth, *, lease_seconds: float, renew_seconds: float
    ) -> None:
        """``store`` must be over a connection that nothing else uses, so that a full pool cannot delay a renewal."""
        self._store = store
        self._flights = flights
        self._health = health
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._loop = asyncio.get_running_loop()

    async def renew(self) -> None:
        """Renew once. What turns out to be lost before begin is stopped; what has begun goes on."""
        flights = self._flights.leases()
        if not flights:
            return
        sent = self._loop.time()
        try:
            async with asyncio.timeout(self._renew_seconds):
                held = await self._store.renew(list(flights), self._lease_seconds)
        except (psycopg.OperationalError, TimeoutError):
            self._health.away()
            raise
        for lease, flight in flights.items():
            if held.get(lease):
                flight.confirm(sent)
            elif lease in held:
                # Locked by somebody at this moment: neither renewed nor lost; the next round tells.
                continue
            elif flight.phase is Phase.CLAIMED:
                flight.stop("lease_lost")
