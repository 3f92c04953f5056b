"""Credentials that are rotated while a process runs: a changed account is taken into use, and heals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from temporalio.client import Client

    from sendonce.activities.inflight import Flights
    from sendonce.activities.transports.base import Transport
    from sendonce.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rotation:
    """What is new since the last time."""

    accounts: Mapping[str, Callable[[], Transport]] = field(default_factory=dict)
    """What makes the account's transport, as it is now."""
    api_key: str | None = field(default=None, repr=False)
    """Temporal's, if it is another one."""


class Rotator:
    """The round that looks; one for each process."""

    def __init__(
        self,
        rotated: Callable[[], Rotation],
        transports: MutableMapping[str, Transport],
        stores: Sequence[Store],
        flights: Flights | None = None,
    ) -> None:
        """``transports`` is what the whole process uses, and is changed in place. ``flights``: who may still use those
        that were replaced.
        """
        self._rotated = rotated
        self._transports = transports
        self._stores = stores
        self._flights = flights
        self.client: Client | None = None
        self._replaced: set[tuple[str, str]] = set()
        """Accounts and digests whose pauses are to be ended; kept while the store is away."""

    async def round(self) -> None:
        """Take over what was rotated. The digest of the account's settings is another one then, so a pause that the
        old secret caused concerns nobody any more; attempts that run go on with the old one.
        """
        # Files may be on a slow disk.
        rotation = await asyncio.to_thread(self._rotated)
        for name, build in rotation.accounts.items():
            try:
                fresh = build()
            except (ConfigurationError, OSError) as error:
                logger.warning("account %r: not rotated: %s", name, type(error).__name__)
                continue
            old, self._transports[name] = self._transports[name], fresh
            self._replaced.add((name, old.settings_digest))
            for store in self._stores:
                store.use_digest(name, fresh.settings_digest)
            logger.info("account %r: its secret has changed, and the new one is in use", name)
            if self._flights is None:
                await old.close()
            else:
                self._flights.later(self._flights.after_those(old.close))
        if rotation.api_key is not None and self.client is not None:
            self.client.api_key = rotation.api_key
            logger.info("Temporal's API key has changed, and the new one is in use")
        for name, digest in sorted(self._replaced):
            await self._stores[0].retire_settings(name, digest)
            self._replaced.discard((name, digest))


async def close_all(transports: Mapping[str, Transport]) -> None:
    """Close those that are in use by now."""
    for transport in transports.values():
        await transport.close()
