"""The pace of a starter: slots for new mail, before its workflow is started."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from sendonce.store import Store
from sendonce.store.records import Startable

LONGEST_NO_SLOT = 60.0
"""Seconds after which slots are asked for again, however far the next one is."""


class Pace:
    """What one starter knows of the slots of accounts and destinations that have rates."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Lane and name of what has rates, and until when (monotonic) there is no slot for a new mail.
        self._none_until: dict[tuple[str, str], float] = {}
        # Lane and account: how many slots there were the last time that there were fewer than mails.
        self._last: dict[tuple[str, str], int] = {}

    def without_slots(self, lane: str) -> list[str]:
        """What has no slot near for the lane: accounts, and destinations by their names."""
        now = time.monotonic()
        return [name for (its, name), until in self._none_until.items() if its == lane and until > now]

    def caps(self, lane: str) -> dict[str, int]:
        """How many mails are worth asking slots for, by account: rows are not to be stamped in vain."""
        return {account: max(1, 2 * last) for (its, account), last in self._last.items() if its == lane}

    async def with_slots(self, lane: str, rows: Sequence[Startable]) -> list[tuple[Startable, float]]:
        """What may be started, in order, and in how many seconds; the rest waits in the store for slots.

        Raises what the store raises; then none of them is started, and they are given back if that can be done.
        """
        wanting: dict[tuple[str, ...], list[Startable]] = {}
        for row in rows:
            wanting.setdefault(self._store.limits(row.route, row.to_domains), []).append(row)
        delays = {row.email_id: 0.0 for row in wanting.pop((), [])}
        try:
            for names, several in wanting.items():
                delays |= await self._take(lane, names, several)
        except BaseException:
            await self._store.unstamp([row.email_id for row in rows])
            raise
        return [(row, delays[row.email_id]) for row in rows if row.email_id in delays]

    async def _take(self, lane: str, names: tuple[str, ...], several: list[Startable]) -> dict[UUID, float]:
        given = await self._store.take_slots(names, lane, len(several))
        delays = dict(zip((row.email_id for row in several), given.delays, strict=False))
        account = several[0].account
        if len(delays) < len(several):
            self._none_until[lane, given.lacking] = time.monotonic() + min(LONGEST_NO_SLOT, given.retry_in)
            self._last[lane, account] = len(delays)
            await self._store.unstamp([row.email_id for row in several[len(delays) :]])
        else:
            self._last.pop((lane, account), None)
        if delays:
            await self._store.mark_slots(several[0].route, delays)
        return delays
