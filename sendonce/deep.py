"""Compares mails and workflows both ways, through Temporal's Visibility: what the overdue rule cannot see.

Page by page, so that memory is bounded, and no faster than asked. Visibility lags behind: whatever it says is missing
or running is described before it is believed, and the mail is read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from psycopg import AsyncConnection
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from sendonce.stages import FINAL
from sendonce.starter import RPC_TIMEOUT, start_delivery
from sendonce.store import comparing
from sendonce.workflows.port import WAKE_SIGNAL, WORKFLOW_NAME, Ticket, Wake, task_queue, workflow_id

IDS_AT_ONCE = 50
"""Workflow ids in one query: a query has a limit of its own."""

RUNS_AT_ONCE = 200

Finding = Literal["no_workflow", "other_queue", "completed", "row_ended", "no_row"]


@dataclass(frozen=True, slots=True)
class Found:
    """Something that does not fit."""

    finding: Finding
    key: str
    account: str
    mended: bool


class Comparison:
    """One comparison. ``rows`` and ``runs`` count what was looked at."""

    def __init__(
        self, connection: AsyncConnection[Any], client: Client, *, prefix: str, per_second: float, mend: bool
    ) -> None:
        """``prefix``: of the task queues. ``per_second``: calls of Temporal at most. ``mend``: act, not only tell."""
        self._connection = connection
        self._client = client
        self._prefix = prefix
        self._gap = 1 / per_second
        self._next = 0.0
        self._mend = mend
        self.rows = 0
        self.runs = 0

    async def run(self) -> AsyncIterator[Found]:
        """What does not fit, as it is found."""
        for stage in comparing.OPEN_STAGES:
            async for found in self._mails(stage):
                yield found
        async for found in self._workflows():
            yield found

    async def _pace(self) -> None:
        now = time.monotonic()
        self._next = max(self._next, now) + self._gap
        if self._next - self._gap > now:
            await asyncio.sleep(self._next - self._gap - now)

    # From the mails to their workflows.

    async def _mails(self, stage: str) -> AsyncIterator[Found]:
        last = None
        while True:
            page = await comparing.open_mails(self._connection, stage, after=last, limit=IDS_AT_ONCE)
            self.rows += len(page)
            running = await self._running(page)
            for mail in page:
                ticket = Ticket(str(mail.id), mail.key, mail.lane, mail.account)
                queue = task_queue(self._prefix, mail.lane)
                if running.get(ticket.workflow_id) == queue:
                    continue
                found = await self._look_at(ticket, queue)
                if found is None or not await comparing.is_open(self._connection, mail.id):
                    continue
                yield Found(found, mail.key, mail.account, self._mend and await self._start(found, ticket))
            if len(page) < IDS_AT_ONCE:
                return
            last = page[-1]

    async def _running(self, page: Sequence[comparing.OpenMail]) -> dict[str, str]:
        """The running workflows of these mails, with their task queues."""
        if not page:
            return {}
        names = ", ".join(f"'{workflow_id(mail.key, mail.account)}'" for mail in page)
        query = f"WorkflowType = '{WORKFLOW_NAME}' AND ExecutionStatus = 'Running' AND WorkflowId IN ({names})"
        await self._pace()
        return {found.id: found.task_queue async for found in self._client.list_workflows(query)}

    async def _look_at(self, ticket: Ticket, queue: str) -> Finding | None:
        found = await self._described(ticket.workflow_id)
        if found is None:
            return "no_workflow"
        if found.status is WorkflowExecutionStatus.COMPLETED:
            return "completed"
        if found.status is not WorkflowExecutionStatus.RUNNING:
            return "no_workflow"
        return None if found.task_queue == queue else "other_queue"

    async def _described(self, name: str) -> WorkflowExecutionDescription | None:
        await self._pace()
        try:
            return await self._client.get_workflow_handle(name).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def _start(self, found: Finding, ticket: Ticket) -> bool:
        """Have a workflow of ours look after the mail. What has completed was sent: the starters read its result."""
        if found == "completed":
            return False
        if found == "other_queue":
            await self._pace()
            await self._client.get_workflow_handle(ticket.workflow_id).terminate(
                reason="on another task queue", rpc_timeout=RPC_TIMEOUT
            )
        await self._pace()
        try:
            await start_delivery(self._client, ticket, prefix=self._prefix, wake=True)
        except WorkflowAlreadyStartedError:
            return False
        return True

    # From the workflows to their mails.

    async def _workflows(self) -> AsyncIterator[Found]:
        query = f"WorkflowType = '{WORKFLOW_NAME}' AND ExecutionStatus = 'Running'"
        quiet = datetime.now(UTC) - timedelta(seconds=comparing.QUIET_SECONDS)
        page: list[str] = []
        await self._pace()
        async for run in self._client.list_workflows(query, page_size=RUNS_AT_ONCE):
            # Another prefix is another installation.
            if not run.task_queue.startswith(f"{self._prefix}-") or run.start_time > quiet:
                continue
            page.append(run.id)
            if len(page) == RUNS_AT_ONCE:
                for found in await self._without_mail(page):
                    yield found
                page.clear()
                await self._pace()
        for found in await self._without_mail(page):
            yield found

    async def _without_mail(self, names: Sequence[str]) -> list[Found]:
        self.runs += len(names)
        mails = [_mail_of(name) for name in names]
        stages = await comparing.stages(self._connection, mails)
        wrong: list[Found] = []
        for name, (account, key) in zip(names, mails, strict=True):
            stage = stages.get((account, key))
            if stage is not None and stage not in FINAL:
                continue
            described = await self._described(name)
            if described is None or described.status is not WorkflowExecutionStatus.RUNNING:
                continue
            finding: Finding = "no_row" if stage is None else "row_ended"
            wrong.append(Found(finding, key, account, self._mend and await self._wake(name)))
        return wrong

    async def _wake(self, name: str) -> bool:
        """It asks the store, and ends by what that says."""
        await self._pace()
        try:
            await self._client.get_workflow_handle(name).signal(WAKE_SIGNAL, Wake(), rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return True


def _mail_of(name: str) -> tuple[str, str]:
    """Account and key of a workflow's id. A key holds no ``@``."""
    key, _, account = name.partition("@")
    return account or "default", key
