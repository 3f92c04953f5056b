"""Neither Temporal nor the logs learn an address, a subject, a reply's text or an exception's."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError
from temporalio.converter import DataConverter, PayloadConverter
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from sendonce.activities.failures import CodesOnlyFailureConverter, safe_code, where
from sendonce.activities.transports.base import Gate, Job
from sendonce.outcome import Accepted, AttemptResult, Deferred, Outcome, Refused, Reply, same_for_all
from sendonce.starter import start_delivery
from sendonce.workflows.port import Ticket

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay, Step

CANARY = "ann.canary@example.org"
SECRETS: dict[str, Any] = {
    "to": [CANARY],
    "subject": "subject canary",
    "text": "text canary",
    "headers": {"X-Note": "header canary"},
}
TEXT = f"5.1.1 <{CANARY}> reply canary"


def answer(outcome: Outcome) -> Step:
    async def step(job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        return same_for_all(ordinals, outcome)

    return step


def offered_and_broken(job: Job, gate: Gate) -> AttemptResult:
    raise RuntimeError(f"could not send to {job.recipients[0].mailbox}: reply canary")


async def broken(job: Job, gate: Gate) -> AttemptResult:
    ordinals = tuple(r.ordinal for r in job.recipients)
    await gate.begin(ordinals)
    gate.offered()
    return offered_and_broken(job, gate)


@pytest.mark.parametrize(
    ("stage", "steps"),
    [
        ("sent", [Accepted(Reply(250, "2.0.0", TEXT), "Q1")]),
        ("sent", [Deferred(Reply(451, TEXT, TEXT)), Accepted(Reply(250, "", TEXT), TEXT)]),
        ("failed", [Refused(Reply(550, TEXT, TEXT))]),
        ("unknown", [None]),
    ],
    ids=["accepted", "deferred", "refused", "fault"],
)
async def test_histories_and_logs_hold_codes_only(
    flow: Flow,
    relay: type[Relay],
    caplog: pytest.LogCaptureFixture,
    stage: str,
    steps: list[Outcome | None],
) -> None:
    caplog.set_level(logging.INFO)
    async with flow.worker(relay(*(broken if step is None else answer(step) for step in steps))):
        key = await flow.enqueue(**SECRETS)
        await flow.until_stage(key, stage)
        told = await flow.until_details(key, f"**{stage}**")
        assert "canary" not in told
        assert CANARY not in told
        await flow.until_event(
            key,
            {"unknown": "timer_started", "failed": "workflow_execution_failed"}.get(
                stage, "workflow_execution_completed"
            ),
        )
    history = await flow.handle(key).fetch_history()
    whole = b"".join(event.SerializeToString() for event in history.events)
    assert key.encode() in whole
    assert b"canary" not in whole
    assert "canary" not in caplog.text
    # What people see beside the history, and keep: attributes, memo, summary.
    described = await flow.handle(key).describe()
    assert described.raw_description.workflow_execution_info.search_attributes.indexed_fields
    assert b"canary" not in described.raw_description.SerializeToString()
    # What people need stands in the store.
    assert (await flow.rows("SELECT mailbox FROM sendonce.recipient")) == [{"mailbox": CANARY}]


async def test_an_activity_that_fails_says_its_type_only(
    flow: Flow, relay: type[Relay], caplog: pytest.LogCaptureFixture
) -> None:
    async with flow.worker(relay()):
        key = f"{flow.prefix}-k"
        # An id that cannot be read is a fault of ours: a ValueError.
        await start_delivery(flow.client, Ticket("no-uuid", key, "default"), prefix=flow.prefix)
        await flow.until_event(key, "timer_started")
        await flow.handle(key).terminate()
    history = await flow.handle(key).fetch_history()
    marker = next(e for e in history.events if e.HasField("marker_recorded_event_attributes"))
    failure = marker.marker_recorded_event_attributes.failure
    assert (failure.application_failure_info.type, failure.message) == ("ValueError", "ValueError")
    assert failure.stack_trace == ""
    assert "ValueError at attempt.py" in caplog.text
    assert "badly formed" not in caplog.text


def _failure(error: BaseException) -> Failure:
    failure = Failure()
    converter = CodesOnlyFailureConverter()
    converter.to_failure(error, PayloadConverter.default, failure)
    return failure


def _raised(error: Exception, cause: Exception | None) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError(TEXT),
        ApplicationError(TEXT, {"address": CANARY}, type="Bug"),
        ActivityError(
            TEXT,
            scheduled_event_id=1,
            started_event_id=2,
            identity="worker",
            activity_type="attempt",
            activity_id="1",
            retry_state=None,
        ),
    ],
)
def test_failures_keep_type_and_drop_text_details_stack_and_causes_text(error: Exception) -> None:
    failure = _failure(_raised(error, KeyError(TEXT)))
    assert b"canary" not in failure.SerializeToString()
    assert failure.cause.application_failure_info.type == "KeyError"


def test_a_failure_that_came_from_elsewhere_is_stripped_with_its_causes() -> None:
    foreign = Failure(message=TEXT, stack_trace=TEXT, cause=Failure(message=TEXT, stack_trace=TEXT))
    foreign.application_failure_info.type = "Foreign"
    foreign.cause.application_failure_info.type = "Cause"
    error = DataConverter.default.failure_converter.from_failure(foreign, PayloadConverter.default)
    failure = _failure(error)
    assert (failure.message, failure.cause.message) == ("Foreign", "Cause")
    assert b"canary" not in failure.SerializeToString()


def test_an_ending_keeps_its_codes_and_reads_back_as_its_type() -> None:
    failure = _failure(ApplicationError("failed: 1 attempts, last reply 550 5.1.1", type="failed", non_retryable=True))
    back = DataConverter(failure_converter_class=CodesOnlyFailureConverter).failure_converter.from_failure(
        failure, PayloadConverter.default
    )
    assert isinstance(back, ApplicationError)
    assert (back.type, back.message, back.non_retryable) == ("failed", "failed: 1 attempts, last reply 550 5.1.1", True)
    assert isinstance(back, FailureError)


def test_what_looks_like_no_code_is_no_code() -> None:
    assert safe_code("5.7.1") == "5.7.1"
    assert safe_code("invalid:to[0].email") == "invalid:to[0].email"
    assert safe_code(TEXT) == safe_code("a" * 101) == safe_code("Daily quota") == ""


def test_a_place_names_files_and_lines_but_no_values() -> None:
    place = where(_raised(ValueError(TEXT), None))
    assert place.startswith("ValueError at ")
    assert "test_privacy.py:" in place
    assert "canary" not in place


async def test_the_failure_of_a_whole_workflow_carries_no_trace(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(answer(Refused(Reply(550, "5.1.1", TEXT))))):
        key = await flow.enqueue()
        await flow.until_stage(key, "failed")
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(flow.handle(key).result(), 10)
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.failure is not None
    assert cause.failure.stack_trace == ""


async def test_updates_keep_what_people_write_out_of_temporal_unless_it_is_harmless(
    flow: Flow, relay: type[Relay], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with flow.worker(relay(answer(Deferred(Reply(451, TEXT, TEXT))))):
        key = await flow.enqueue(**SECRETS, template="template canary", retry={"delays": [300]}, rendered=True)
        await flow.until_event(key, "timer_started")
        for name, given in (
            ("retry_now", {"by": CANARY}),
            ("cancel", {"because": f"asked by {CANARY}"}),
            ("resolve", {"decision": "sent", "by": "Ann", "because": TEXT}),
            ("cancel", {"canary": "x"}),
        ):
            kind, said = await flow.refused(key, name, given)
            assert kind == "invalid"
            assert "canary" not in said
        await flow.refused(key, "resolve", {"decision": "sent", "by": "Ann", "because": "the log shows it"})
        await flow.update(key, "cancel", {"by": "Ann", "because": "asked by phone"})
        await flow.until_closed(key)
    history = await flow.handle(key).fetch_history()
    whole = b"".join(event.SerializeToString() for event in history.events)
    assert b"asked by phone" in whole
    assert b"canary" not in whole
    assert "canary" not in caplog.text
