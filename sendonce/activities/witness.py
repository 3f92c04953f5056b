"""What Temporal remembers of deliveries: the second witness, should the store have forgotten.

Runs are found by Visibility, a page at a time, so memory stays small however many there are; what a run was told last
is read from its history.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError, RPCStatusCode

from sendonce.errors import ConfigurationError
from sendonce.stages import Stage
from sendonce.store.continuity import Unsent
from sendonce.workflows.port import WORKFLOW_NAME

PAGE = 200
"""Runs asked for at once."""

ANSWER_TIMEOUT = timedelta(seconds=10)

HALTED = "halted"
"""Why a workflow sleeps that asked while nothing is begun. It says nothing about the mail."""

FAULT = "fault"
"""Why a workflow sleeps whose attempt failed by a fault of ours."""

_CLOSED_IN_DOUBT = "may have been accepted"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a mail's workflow."""

    account: str
    key: str
    workflow_id: str
    run_id: str
    status: WorkflowExecutionStatus
    started_at: datetime


def mail_of(workflow_id: str) -> tuple[str, str]:
    """Account and key behind a workflow's id.

    >>> mail_of("order-7"), mail_of("order-7@bulk")
    (('default', 'order-7'), ('bulk', 'order-7'))
    """
    key, _, account = workflow_id.partition("@")
    return account or "default", key


def _query(queues: Sequence[str], *conditions: str) -> str:
    names = ", ".join(f"'{queue}'" for queue in queues)
    return " AND ".join((f"WorkflowType = '{WORKFLOW_NAME}'", f"TaskQueue IN ({names})", *conditions))


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def newest_completed(client: Client, queues: Sequence[str], since: datetime, most: int) -> list[Run]:
    """The runs that completed last, of those that began after ``since``: their mails were sent.

    Raises RPCError when Temporal cannot be asked.
    """
    query = _query(queues, "ExecutionStatus = 'Completed'", f"StartTime >= '{_instant(since)}'")
    return [
        _run(found)
        async for found in client.list_workflows(query, page_size=most, limit=most, rpc_timeout=ANSWER_TIMEOUT)
    ]


async def pages(client: Client, queues: Sequence[str], since: datetime) -> AsyncIterator[list[Run]]:
    """Every run that is open, or that closed after ``since``, page by page. Raises RPCError."""
    closed = f"CloseTime >= '{_instant(since)}'"
    for condition in (closed, "ExecutionStatus = 'Running'"):
        page: list[Run] = []
        query = _query(queues, condition)
        async for found in client.list_workflows(query, page_size=PAGE, rpc_timeout=ANSWER_TIMEOUT):
            page.append(_run(found))
            if len(page) == PAGE:
                yield page
                page = []
        if page:
            yield page


def _run(found: WorkflowExecution) -> Run:
    assert found.status is not None
    return Run(*mail_of(found.id), found.id, found.run_id, found.status, found.start_time)


async def may_have_offered(client: Client, run: Run, mail: Unsent) -> bool:
    """Does what this run was told say that the mail may have been offered, beyond what the store knows of it?

    Yes when it was told of silence, or of an attempt that the store does not know, or has not heard of its last one. No
    when it was told that nothing was offered, or of answers for the only recipient. Raises RPCError, and
    :class:`~sendonce.errors.ConfigurationError` when the client has not the codec that the history was written with.
    """
    run_id: str | None = run.run_id
    while run_id:
        try:
            history = await client.get_workflow_handle(run.workflow_id, run_id=run_id).fetch_history()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                # Temporal has removed it: nothing is known of it any more.
                return False
            raise
        seen = _Told()
        for event in history.events:
            await seen.take(event, client.data_converter.payload_codec)
        if seen.maybe_accepted or seen.lost:
            return True
        if seen.answer is not None:
            return _beyond(seen.answer, mail)
        run_id = seen.before
    return False


class _Told:
    """What a run was told, read from its history event by event."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = None
        """The last one that says something about the mail."""
        self.lost = False
        """An attempt was asked for after it, and nobody heard what came of that."""
        self.maybe_accepted = False
        self.before: str | None = None
        """The run that this one continues."""
        self._before_task = False

    async def take(self, event: HistoryEvent, codec: PayloadCodec | None) -> None:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                self.before = event.workflow_execution_started_event_attributes.continued_execution_run_id
            case EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._before_task = self.lost
                self.lost = True
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                self.lost = self._before_task
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                answer = await _answer(event.marker_recorded_event_attributes.details, codec)
                if answer is not None and _is_about_the_mail(answer):
                    self.answer, self.lost = answer, False
                elif answer is not None and answer.get("why") == FAULT:
                    # What came of the attempt was not said.
                    self.lost = True
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
                message = event.workflow_execution_failed_event_attributes.failure.message
                self.maybe_accepted = _CLOSED_IN_DOUBT in message
            case _:
                pass


async def _answer(details: Any, codec: PayloadCodec | None) -> dict[str, Any] | None:
    """What a local activity answered, as the SDK records it in a marker."""
    if "result" not in details or not details["result"].payloads:
        return None
    payloads = details["result"].payloads
    (payload, *_) = payloads if codec is None else await codec.decode(payloads)
    encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
    if encoding == "binary/null":
        return None
    if encoding != "json/plain":
        # Taken for no answer, it would let a mail be sent again that was offered.
        raise ConfigurationError(
            f"what Temporal was told of deliveries is encoded as {encoding!r}: name the workers' payload_codec in "
            "[temporal]"
        )
    try:
        found = json.loads(payload.data)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "kind" in found else None


def _is_about_the_mail(answer: dict[str, Any]) -> bool:
    """False for a sleep that tells of the worker, which is halted or has no free place, or of another attempt's lease:
    it must not hide what was told before.
    """
    return answer["kind"] != "sleep" or answer.get("stage", "") not in ("", str(Stage.CLAIMED))


def _beyond(told: dict[str, Any], mail: Unsent) -> bool:
    match told["kind"]:
        case "in_flight":
            return told.get("attempt_id", "") not in mail.attempt_ids
        case "unrecorded":
            return told["carried"]["attempt_id"] not in mail.attempt_ids
        case "ended":
            return bool(told.get("maybe_accepted")) or told.get("stage") == Stage.SENT
        case "missing":
            return False
        case _:
            if told.get("stage") in (Stage.UNKNOWN, Stage.TRANSMITTING):
                return True
            # Answers that the store has forgotten: somebody of several may have been served.
            return int(told.get("attempts", 0)) > mail.attempts and mail.recipients > 1
