"""One row, one workflow, one mail: the ordinary course, hand-off, retries, and what people do in the Temporal UI."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from sendonce.activities.transports.base import Gate, Job
from sendonce.outcome import Accepted, AttemptResult, Deferred, Refused, Reply, same_for_all
from sendonce.stages import Stage
from sendonce.starter import start_delivery, start_now
from sendonce.store.intake import Enqueued
from sendonce.workflows.port import Sent, Ticket, Wake

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay, Step

ACCEPTED = Accepted(Reply(250, "2.0.0"), "Q1")
LATER = Deferred(Reply(451, "4.7.1", "later"))


def answer(*outcomes: Accepted | Deferred | Refused) -> list[Step]:
    """A step for each outcome: offer the mail, get that answer."""

    def step(outcome: Accepted | Deferred | Refused) -> Step:
        async def run(job: Job, gate: Gate) -> AttemptResult:
            ordinals = tuple(r.ordinal for r in job.recipients)
            await gate.begin(ordinals)
            gate.offered()
            return same_for_all(ordinals, outcome)

        return run

    return [step(outcome) for outcome in outcomes]


class Gateway:
    """A provider that answers when the test says so."""

    def __init__(self) -> None:
        self.offered, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        self.offered.set()
        await self.go.wait()
        return same_for_all(ordinals, ACCEPTED)


async def test_one_row_is_one_mail_and_six_events(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
        result = await flow.client.get_workflow_handle(key, result_type=Sent).result()
    assert result == Sent(str(flow.ids[key]), 250, attempts=1)
    assert len(transport.jobs) == 1
    assert len(await flow.events(key)) <= 6
    history = await flow.handle(key).fetch_history()
    # Started by the worker's own starter: the first step ran without a trip through the task queue.
    assert history.events[0].workflow_execution_started_event_attributes.eager_execution_accepted
    assert transport.closed


async def test_a_refused_mail_fails_its_workflow_with_the_stage_as_type(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answer(Refused(Reply(550, "5.1.1", "no such user"))))):
        key = await flow.enqueue()
        await flow.until_stage(key, "failed")
        with pytest.raises(WorkflowFailureError) as failure:
            await flow.handle(key).result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "failed"
    assert cause.message == "failed: 1 attempts, last reply 550 5.1.1"


async def test_deferred_is_tried_again_with_the_same_bytes(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(*answer(LATER, LATER, ACCEPTED))
    async with flow.worker(transport):
        key = await flow.enqueue()
        assert (await flow.until_stage(key, "sent"))["attempts"] == 3
    assert len({job.rendering.body for job in transport.jobs}) == 1
    # A definite answer opens a new generation: the provider must not repeat its stored refusal.
    assert len({job.provider_key for job in transport.jobs}) == 3


async def test_a_slow_transmission_is_handed_off_and_wakes_its_workflow(flow: Flow, relay: type[Relay]) -> None:
    gateway = Gateway()
    async with flow.worker(relay(gateway), hand_off_seconds=0.2):
        key = await flow.enqueue()
        await flow.until_event(key, "timer_started")
        assert (await flow.email(key))["stage"] == "transmitting"
        gateway.go.set()
        # The safety timer would take ten minutes.
        await asyncio.wait_for(flow.handle(key).result(), 10)
        assert (await flow.email(key))["stage"] == "sent"
    assert "workflow_execution_signaled" in await flow.events(key)


async def test_a_fast_transmission_is_not_signalled(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answer(LATER, ACCEPTED))):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
        await flow.handle(key).result()
    assert "workflow_execution_signaled" not in await flow.events(key)


async def test_asking_again_joins_the_transmission_that_runs(flow: Flow, relay: type[Relay]) -> None:
    gateway = Gateway()
    transport = relay(gateway)
    async with flow.worker(transport, hand_off_seconds=0.2):
        key = await flow.enqueue()
        await flow.until_event(key, "timer_started")
        await flow.handle(key).signal("wake", Wake())
        # The attempt that the signal caused has been answered too.
        await flow.until_event(key, "timer_canceled")
        gateway.go.set()
        await flow.handle(key).result()
    assert len(transport.jobs) == 1
    assert len(await flow.attempts(key)) == 1


async def test_cancelling_the_workflow_withdraws_a_mail_that_waits(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(*answer(LATER, ACCEPTED))
    async with flow.worker(transport):
        key = await flow.enqueue(retry={"delays": [600]})
        await flow.until_event(key, "timer_started")
        await flow.handle(key).cancel()
        await flow.until_stage(key, "cancelled")
        with pytest.raises(WorkflowFailureError):
            await flow.handle(key).result()
    assert (await flow.handle(key).describe()).status is WorkflowExecutionStatus.CANCELED
    assert len(transport.jobs) == 1


async def test_a_mail_is_withdrawn_that_was_cancelled_while_no_worker_ran(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(*answer(LATER))
    deferred = await flow.enqueue("deferred", retry={"delays": [0.5]})
    async with flow.worker(transport):
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE attempts > 0 AND stage = 'pending'")
        await flow.until_event(deferred, "timer_started")
    tried = len(transport.jobs)
    fresh = await flow.enqueue("fresh")
    enqueued = Enqueued(flow.ids[fresh], fresh, "default", "default", True, Stage.PENDING)
    assert await start_now(flow.client, enqueued, task_queue_prefix=flow.prefix)
    # The timer fires first.
    await flow.until_event(deferred, "timer_fired")
    for key in (deferred, fresh):
        await flow.handle(key).cancel()
    async with flow.worker(transport):
        for key in (deferred, fresh):
            await flow.until_stage(key, "cancelled")
    assert len(transport.jobs) == tried


async def test_cancelling_the_workflow_cannot_cut_a_transmission(flow: Flow, relay: type[Relay]) -> None:
    gateway = Gateway()
    transport = relay(gateway)
    async with flow.worker(transport, hand_off_seconds=0.2):
        key = await flow.enqueue()
        await flow.until_event(key, "timer_started")
        await flow.handle(key).cancel()

        await flow.until_event(key, "workflow_execution_cancel_requested")
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE cancel_requested_at IS NOT NULL")
        gateway.go.set()
        result = await flow.client.get_workflow_handle(key, result_type=Sent).result()
    assert result.code == 250
    assert (await flow.email(key))["stage"] == "sent"
    assert len(transport.jobs) == 1


async def test_a_cancellation_during_the_attempt_does_not_reach_it(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.starter.TASK_TIMEOUT", timedelta(seconds=2))
    gateway = Gateway()
    async with flow.worker(relay(gateway), hand_off_seconds=None):
        key = await flow.enqueue()
        await gateway.offered.wait()
        await flow.handle(key).cancel()

        async def told() -> bool:
            # The workflow learns of it when its task is renewed, after four fifths of its time.
            return (await flow.events(key)).count("workflow_task_completed") > 1

        await flow.until(told, "a second workflow task")
        gateway.go.set()
        result = await flow.client.get_workflow_handle(key, result_type=Sent).result()
    assert result.code == 250
    # The attempt's own answer was waited for, and it was final: nothing was asked again, nothing left to withdraw.
    assert (await flow.events(key)).count("marker_recorded") == 1
    assert (await flow.email(key))["cancel_requested_at"] is None


async def test_terminating_the_workflow_cannot_cut_a_transmission(flow: Flow, relay: type[Relay]) -> None:
    gateway = Gateway()
    transport = relay(gateway)
    async with flow.worker(transport, hand_off_seconds=0.2, overdue_seconds=0.5):
        key = await flow.enqueue()
        await flow.until_event(key, "timer_started")
        await flow.handle(key).terminate()
        gateway.go.set()
        await flow.until_stage(key, "sent")
    assert len(transport.jobs) == 1


async def test_a_terminated_workflow_is_started_again(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(*answer(LATER, ACCEPTED))
    async with flow.worker(transport, overdue_seconds=0.5):
        key = await flow.enqueue(retry={"delays": [1]})
        await flow.until_event(key, "timer_started")
        await flow.handle(key).terminate()
        await flow.until_stage(key, "sent")
        assert (await flow.handle(key).describe()).status in (
            WorkflowExecutionStatus.RUNNING,
            WorkflowExecutionStatus.COMPLETED,
        )
    assert len(transport.jobs) == 2


async def test_a_workflow_without_a_row_ends_failed(flow: Flow) -> None:
    async with flow.worker():
        ticket = Ticket("00000000-0000-4000-8000-000000000000", f"{flow.prefix}-none", "default")
        await start_delivery(flow.client, ticket, prefix=flow.prefix)
        with pytest.raises(WorkflowFailureError) as failure:
            await flow.handle(ticket.key).result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "no_such_row"


async def test_other_accounts_have_other_workflows_for_the_same_key(flow: Flow, relay: type[Relay]) -> None:
    first, second = relay(), relay()
    async with flow.worker(first, second):
        one = await flow.enqueue()
        first_id = flow.ids[one]
        await flow.enqueue(account="other")
        await flow.until_stage(one, "sent")
        flow.ids[one] = first_id
        await flow.until_stage(one, "sent")
        await flow.handle(f"{one}@other").result()
    assert len(first.jobs) == len(second.jobs) == 1
