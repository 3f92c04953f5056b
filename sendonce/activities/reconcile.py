"""After a restore or a failover: what Temporal and the providers still know is written into the store that forgot.

Reads runs page by page and at a stated pace, so it can go over any number of them beside a busy server. Everything is
recorded as evidence or as a silence, idempotent and never refused: it may be broken off and repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from sendonce.activities import witness
from sendonce.activities.look_ups import LookUps
from sendonce.activities.poke import SignalPoker
from sendonce.activities.provider_key import provider_key
from sendonce.activities.transports.base import Transport
from sendonce.activities.witness import Run
from sendonce.policy import LanePolicy
from sendonce.stages import Stage
from sendonce.store import Store
from sendonce.store.continuity import Unsent
from sendonce.store.sweeps import lane_of
from sendonce.workflows.port import Sent, workflow_id

LOOK_UP_PAUSE = 0.5
"""Seconds between two rounds of look-ups: providers limit such requests."""

COUNTED = 1000
"""Mails without a run are counted up to about here, unless something is done about them."""

SENT = "sent"
"""A run completed: the mail is recorded as sent."""
UNANSWERED = "unanswered"
"""It may have been offered, and nobody knows what came of it: unknown from here on."""
MISSING = "missing"
"""The store has no mail under that key any more. Enqueued again, it is held if its run completed."""
OTHER = "other_mail"
"""Another mail was sent under that key before: the store's mail is held when it is started."""


@dataclass
class Report:
    """What was found."""

    runs: int = 0
    sent: int = 0
    unanswered: int = 0
    missing: int = 0
    other_mail: int = 0
    asked: int = 0
    """Mails about which a provider was asked."""
    unwitnessed: int = 0
    """Mails that were due and that neither the store nor Temporal knows as offered; nothing tells whether they were."""


class Reconciliation:
    """One pass."""

    def __init__(
        self,
        store: Store,
        client: Client,
        transports: Mapping[str, Transport],
        lanes: Mapping[str, LanePolicy],
        queues: Sequence[str],
        *,
        actor: str,
        per_second: float = 50.0,
        tell: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        """``per_second``: requests to Temporal. ``tell`` hears what was found, with account and key."""
        self._store = store
        self._client = client
        self._transports = transports
        self._lanes = lanes
        self._queues = list(queues)
        self._actor = actor
        self._gap = 1 / per_second
        self._next = 0.0
        self._tell = tell
        self.report = Report()

    async def run(self, since: datetime, until: datetime, *, lost_temporal: bool = False) -> Report:
        """Read the runs that are open or closed after ``since``, then ask the providers that can be asked.

        ``until``: when the store was restored; what was enqueued later is new. ``lost_temporal``: Temporal lost its
        too, so an older mail that is due and has no run is taken as offered and unanswered. Raises RPCError and
        :class:`psycopg.OperationalError`.
        """
        async for page in witness.pages(self._client, self._queues, since):
            self.report.runs += len(page)
            await self._page(page)
        await self._unwitnessed(until, at=since, recall=lost_temporal)
        await self._ask_providers()
        return self.report

    async def _page(self, page: list[Run]) -> None:
        mails = {(run.account, run.key) for run in page}
        unsent = {(one.account, one.key): one for one in await self._store.unsent(sorted(mails))}
        for run in page:
            mail = unsent.get((run.account, run.key))
            if mail is None:
                continue
            found = await self._found(run, mail)
            if found:
                setattr(self.report, found, getattr(self.report, found) + 1)
                self._tell(found, run.account, run.key)

    async def _found(self, run: Run, mail: Unsent) -> str:
        if run.status is WorkflowExecutionStatus.COMPLETED:
            if mail.email_id is None:
                return MISSING
            await self._pace()
            handle = self._client.get_workflow_handle(run.workflow_id, run_id=run.run_id, result_type=Sent)
            sent = await handle.result(rpc_timeout=witness.ANSWER_TIMEOUT)
            if sent.email_id != str(mail.email_id):
                return OTHER
            lane = lane_of(self._lanes, mail.lane)
            await self._store.record_completed_run(mail.email_id, lane=lane, actor=self._actor)
            return SENT
        if mail.email_id is None:
            return MISSING
        if mail.stage not in (Stage.PENDING, Stage.CLAIMED):
            # It is final, or the store knows that it is unanswered.
            return ""
        await self._pace()
        if not await witness.may_have_offered(self._client, run, mail):
            return ""
        return (
            UNANSWERED if await self._recall(mail.email_id, mail.account, mail.key, mail.lane, run.started_at) else ""
        )

    async def _recall(self, email_id: UUID, account: str, key: str, lane: str, at: datetime) -> bool:
        transport = self._transports.get(account)
        name = workflow_id(key, account)
        return await self._store.recall_offer(
            email_id,
            at=at,
            # As it was, if it was the first generation. A provider that can be asked may know it by that.
            provider_key=provider_key(
                await self._store.installation(), name, 1, transport.capability.key_format if transport else "text"
            ),
            identity=transport.identity if transport else "",
            lane=lane_of(self._lanes, lane),
            actor=self._actor,
        )

    async def _unwitnessed(self, until: datetime, *, at: datetime, recall: bool) -> None:
        after = UUID(int=0)
        while rows := await self._store.unwitnessed(after, until, witness.PAGE):
            after = rows[-1].email_id
            for row in rows:
                await self._pace()
                if await self._has_run(workflow_id(row.key, row.account)):
                    continue
                self.report.unwitnessed += 1
                if recall and await self._recall(row.email_id, row.account, row.key, row.lane, at):
                    self.report.unanswered += 1
                    self._tell(UNANSWERED, row.account, row.key)
            if not recall and self.report.unwitnessed >= COUNTED:
                # A backlog that was never started is long, and only a number is wanted.
                break

    async def _has_run(self, name: str) -> bool:
        try:
            await self._client.get_workflow_handle(name).describe(rpc_timeout=witness.ANSWER_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def _ask_providers(self) -> None:
        poker = SignalPoker()
        poker.client = self._client
        look_ups = LookUps(self._store, self._transports, poker, self._lanes, self._actor)
        await self._store.ask_providers_now()
        while asked := await look_ups.round():
            self.report.asked += asked
            await asyncio.sleep(LOOK_UP_PAUSE)

    async def _pace(self) -> None:
        now = time.monotonic()
        self._next = max(self._next + self._gap, now)
        if self._next > now:
            await asyncio.sleep(self._next - now)
