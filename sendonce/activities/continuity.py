"""Stops a process from sending out of a store that may have forgotten: after a restore, a failover, a copy.

Every new connection is looked at before anything uses it, and every few seconds one is asked again. While halted,
nothing is started, claimed or begun; what was offered before is still recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sendonce.activities import witness
from sendonce.store import Store
from sendonce.store.continuity import COMPLETED_RUNS, OTHER_TIMELINE, REASONS, WENT_BACK, Identity, difference

logger = logging.getLogger(__name__)

NEWEST_RUNS = 50
"""So many completed runs are compared with the store at each start of a process, and after each of the server."""

SEEN_SECONDS = 30.0
"""How exactly a restored store knows until when it knows everything."""

Failover = Literal["halt", "go_on"]


class Continuity:
    """One for each process that sends."""

    def __init__(self, queues: Sequence[str], *, failover: Failover = "halt", kept_days: float | None = None) -> None:
        """``queues``: the task queues of all lanes. ``failover="go_on"``: a standby that was promoted lost nothing, so
        another timeline of the same cluster does not halt, unless Temporal knows better. ``kept_days``: keys are
        forgotten once their mail has been removed, so many days after its end: a run that ended before then need not be
        known. None: keys are never forgotten.
        """
        self._kept_days = kept_days
        self._queues = list(queues)
        self._failover = failover
        self._known: Identity | None = None
        """What this process saw last: a witness besides the row, which a restored store carries along."""
        self._known_at = 0.0
        self._epoch: int | None = None
        self._asked_of: datetime | None = None
        """The start of the server for which Temporal was asked."""
        self._unanswered = False
        self._suspicion = ""
        self._halted = True

    @property
    def halted(self) -> bool:
        """Whether nothing may be started, claimed or begun; true until the first look."""
        return self._halted or bool(self._suspicion)

    @property
    def timeline(self) -> int | None:
        """The timeline at the last look. Begin refuses another one, which connections that a pooler keeps hide until
        the next look. None: unknown, or a failover does not halt.
        """
        return None if self._known is None or self._failover == "go_on" else self._known.timeline

    def connected(self, now: Identity) -> None:
        """A new connection leads to this server. Halts at once if that is another one than before."""
        why = difference(self._known, now)
        if why == WENT_BACK and now.asked <= self._known_at:
            # Its answer was on its way while a later one arrived: it tells nothing about the order.
            return
        if why and not (why == OTHER_TIMELINE and self._failover == "go_on"):
            self._suspicion = self._suspicion or why

    async def look(self, store: Store, client: Client | None = None) -> None:
        """Compare the server with what is known, and halt or go on; ``client``: with Temporal's newest runs too.

        Raises :class:`psycopg.OperationalError` when the store is away.
        """
        row, now = await store.server()
        if row.epoch != self._epoch:
            # The first look, or somebody let it go on since.
            self._epoch, self._known, self._suspicion, self._asked_of = row.epoch, None, "", None
        why = self._suspicion or difference(row, now) or difference(self._known, now)
        moved = why == OTHER_TIMELINE and self._failover == "go_on"
        if client is not None and (not why or moved) and row.halted_at is None and self._asked_of != now.started_at:
            why = await self._contradicted(store, client, now) or why
        if why and not (why == OTHER_TIMELINE and self._failover == "go_on"):
            self._suspicion = why
            # Not once more what an operator has let go on while this was looked at.
            if await store.halt(why, epoch=row.epoch):
                logger.error(
                    "halted: %s. Nothing is sent until: sendonce reconcile --after-restore", REASONS.get(why, why)
                )
        else:
            if moved:
                logger.warning(
                    "the server is on another timeline: a standby was promoted; going on as the settings say"
                )
            if moved or (row.system_id, row.timeline, row.database_oid) != (
                now.system_id,
                now.timeline,
                now.database_oid,
            ):
                await store.adopt(now)
            self._known, self._known_at = now, time.monotonic()
            await store.seen(SEEN_SECONDS)
        if self._halted and row.halted_at is None and not self._suspicion and self._asked_of is not None:
            logger.info("the store is the one that it was")
        self._halted = row.halted_at is not None or bool(self._suspicion)

    async def _contradicted(self, store: Store, client: Client, now: Identity) -> str:
        """Ask the other witness once for each start of the server. Without an answer it is asked again."""
        try:
            since = await store.answers_since()
            if self._kept_days is not None:
                # An hour less: the clocks of two servers differ.
                since = max(since, datetime.now(UTC) - timedelta(days=self._kept_days, hours=-1))
            runs = await witness.newest_completed(client, self._queues, since, NEWEST_RUNS)
        except RPCError as error:
            if error.status is RPCStatusCode.UNIMPLEMENTED:
                # A server without Visibility, such as the one that skips time.
                self._asked_of = now.started_at
            elif not self._unanswered:
                logger.warning("Temporal cannot be asked what was sent (%s); asking again", error.status.name)
                self._unanswered = True
            return ""
        self._unanswered = False
        self._asked_of = now.started_at
        forgotten = await store.unsent([(run.account, run.key) for run in runs])
        if forgotten:
            logger.error(
                "of the last %d mails that Temporal knows as sent, the store does not know %d",
                len(runs),
                len(forgotten),
            )
        return COMPLETED_RUNS if forgotten else ""
