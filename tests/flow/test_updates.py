"""What people do to a mail by updates of its workflow, as the Temporal UI sends them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateStage
from temporalio.service import RPCError, RPCStatusCode

from sendonce.outcome import Accepted, AttemptResult, Deferred, Outcome, Reply, Unanswered, same_for_all
from sendonce.store import actions

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Gate, Job
    from tests.flow.conftest import Flow, Relay, Step

ACCEPTED = Accepted(Reply(250, "2.0.0"), "Q1")
LATER = Deferred(Reply(451, "4.7.1"))
WAITS: dict[str, Any] = {"retry": {"delays": [300]}}
ANN = {"by": "Ann Miller", "because": "the relay is back"}


def answers(*outcomes: Outcome) -> list[Step]:
    def step(outcome: Outcome) -> Step:
        async def run(job: Job, gate: Gate) -> AttemptResult:
            ordinals = tuple(r.ordinal for r in job.recipients)
            await gate.begin(ordinals)
            gate.offered()
            return same_for_all(ordinals, outcome)

        return run

    return [step(outcome) for outcome in outcomes]


class Slow:
    """Answers when the test says so."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.offered, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        self.offered.set()
        await self.go.wait()
        return same_for_all(ordinals, self.outcome)


async def logged(flow: Flow) -> list[tuple[str, str, str | None]]:
    """What operators did, as the store has it."""
    rows = await flow.rows(
        "SELECT cause, actor, because FROM sendonce.transition WHERE cause LIKE 'operator:%' ORDER BY id"
    )
    return [(row["cause"], row["actor"], row["because"]) for row in rows]


async def test_a_mail_that_waits_is_tried_now(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answers(LATER, ACCEPTED))):
        key = await flow.enqueue(**WAITS)
        await flow.until_event(key, "timer_started")
        assert await flow.update(key, "retry_now", ANN) == {"said": "it is tried now", "stage": "pending"}
        await flow.until_closed(key)
    assert (await flow.email(key))["stage"] == "sent"
    assert await logged(flow) == [("operator:retry_now", "temporal-ui:Ann Miller", "the relay is back")]


async def test_a_mail_that_waits_is_withdrawn(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(*answers(LATER))
    async with flow.worker(transport):
        key = await flow.enqueue(**WAITS)
        await flow.until_event(key, "timer_started")
        assert await flow.update(key, "cancel") == {"said": "it is withdrawn", "stage": "cancelled"}
        await flow.until_closed(key)
        # Nobody cancelled the workflow: Temporal shows a failure, typed by the stage.
        assert (await flow.handle(key).describe()).status is WorkflowExecutionStatus.FAILED
        assert (await flow.attributes(key))["SendStage"] == "cancelled"
        with pytest.raises(RPCError) as error:
            await flow.update(key, "cancel")
        assert error.value.status is RPCStatusCode.NOT_FOUND
    assert await logged(flow) == [("operator:cancel", "temporal-ui:unnamed", None)]
    assert len(transport.jobs) == 1


@pytest.mark.parametrize(("outcome", "stage"), [(ACCEPTED, "sent"), (LATER, "cancelled")], ids=["accepted", "deferred"])
async def test_what_is_being_offered_is_not_cut_and_the_answer_says_so(
    flow: Flow, relay: type[Relay], outcome: Outcome, stage: str
) -> None:
    slow = Slow(outcome)
    transport = relay(slow)
    async with flow.worker(transport, hand_off_seconds=0.2):
        key = await flow.enqueue(**WAITS)
        await slow.offered.wait()
        kind, said = await flow.refused(key, "cancel")
        assert (kind, said) == ("refused", f"{actions.REFUSALS['begun']} (it is transmitting)")
        assert await flow.refused(key, "retry_now") == (
            "refused",
            f"{actions.REFUSALS['under_way']} (it is transmitting)",
        )
        slow.go.set()
        await flow.until_stage(key, stage)
        await flow.until_closed(key)
    assert len(transport.jobs) == 1


@pytest.mark.parametrize(
    ("decision", "transmissions"), [("sent", 1), ("not-sent", 2), ("resend", 2)], ids=["sent", "not-sent", "resend"]
)
async def test_an_unknown_is_decided(flow: Flow, relay: type[Relay], decision: str, transmissions: int) -> None:
    transport = relay(*answers(Unanswered(), ACCEPTED))
    async with flow.worker(transport):
        key = await flow.enqueue(retry={"delays": [0.25]})
        await flow.until_attribute(key, "SendStage", "unknown")
        assert await flow.refused(key, "retry_now") == ("refused", f"{actions.REFUSALS['unknown']} (it is unknown)")
        said = await flow.update(key, "resolve", {"decision": decision, **ANN})
        assert said["said"].startswith("recorded: ")
        await flow.until_stage(key, "sent")
        await flow.until_closed(key)
        assert (await flow.handle(key).describe()).status is WorkflowExecutionStatus.COMPLETED
        assert (await flow.attributes(key))["SendStage"] == "sent"
    assert len(transport.jobs) == transmissions
    assert await logged(flow) == [(f"operator:{decision}", "temporal-ui:Ann Miller", "the relay is back")]


async def test_the_same_action_twice_is_done_once_and_answered_alike(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(*answers(Unanswered(), Unanswered(), ACCEPTED))
    once = {"decision": "resend", "action_id": "ticket-7", **ANN}
    async with flow.worker(transport):
        key = await flow.enqueue(retry={"delays": [0.25]})
        await flow.until_attribute(key, "SendStage", "unknown")
        first = await flow.update(key, "resolve", once)
        # It is sent once more, and stays unknown.
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE stage = 'unknown' AND resends = 1")
        assert await flow.update(key, "resolve", once) == first
        assert await flow.update(key, "resolve", {**once, "by": "Somebody Else"}) == first
        kind, said = await flow.refused(key, "cancel", {"action_id": "ticket-7"})
        assert (kind, said) == ("refused", f"{actions.REFUSALS['id_taken']} (it is unknown)")
        # The id of the update serves where none is given.
        refused = await flow.refused(key, "cancel", id="click-1")
        assert refused == ("refused", f"{actions.REFUSALS['unanswered']} (it is unknown)")
        assert await flow.refused(key, "cancel", id="click-1") == refused
        # Whatever still was to come of these would have come before this.
        await flow.rows_until("SELECT 1 WHERE NOT EXISTS (SELECT FROM sendonce.wake)")
    assert len(transport.jobs) == 2
    assert [cause for cause, _, _ in await logged(flow)] == ["operator:resend", "operator:cancel"]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("retry_now", "now", "write a JSON object with by, because, action_id"),
        ("retry_now", {"when": "now"}, "there are only the members by, because, action_id"),
        ("cancel", {"decision": "sent"}, "there are only the members by, because, action_id"),
        ("cancel", {"by": "ann@example.org"}, "by: "),
        ("cancel", {"by": 7}, "by: "),
        ("cancel", {"because": "ann@example.org asked"}, "because: "),
        ("cancel", {"because": "x" * 301}, "because: "),
        ("cancel", {"action_id": "a b"}, "action_id: "),
        ("resolve", None, "decision, by and because are needed"),
        ("resolve", {"decision": "sent", "by": "Ann"}, "decision, by and because are needed"),
        ("resolve", {"decision": "lost", **ANN}, "decision: one of sent, not-sent, resend"),
        ("resolve", [1], "write a JSON object with by, because, action_id, decision"),
    ],
)
async def test_nonsense_is_refused_with_a_reason(waiting: tuple[Flow, str], name: str, given: Any, said: str) -> None:
    flow, key = waiting
    before = await flow.events(key)
    kind, message = await flow.refused(key, name, given)
    assert kind == "invalid"
    assert message.startswith(said)
    assert "@" not in message.replace("an @", "")
    # Nothing of it is kept: no event was written about the update.
    assert [name for name in (await flow.events(key))[len(before) :] if "update" in name] == []


async def test_an_update_that_nobody_knows_does_no_harm(waiting: tuple[Flow, str]) -> None:
    flow, key = waiting
    kind, _ = await flow.refused(key, "explode", {"by": "Ann"})
    assert kind == "RuntimeError"
    assert await flow.refused(key, "resolve", {"decision": "sent", **ANN}) == (
        "refused",
        f"{actions.REFUSALS['not_unknown']} (it is pending)",
    )
    assert await flow.update(key, "cancel") == {"said": "it is withdrawn", "stage": "cancelled"}


async def test_an_update_is_carried_out_once_the_store_is_back(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answers(LATER, ACCEPTED))):
        key = await flow.enqueue(**WAITS)
        await flow.until_event(key, "timer_started")
        async with flow.store_away():
            update = await flow.handle(key).start_update(
                "retry_now", wait_for_stage=WorkflowUpdateStage.ACCEPTED, id="patient"
            )

            async def waits() -> bool:
                return (await flow.events(key)).count("timer_started") > 1

            await flow.until(waits, "a second timer")
        assert await update.result() == {"said": "it is tried now", "stage": "pending"}
        await flow.until_closed(key)
    assert (await flow.email(key))["stage"] == "sent"


async def test_a_workflow_ends_after_the_updates_that_it_carries_out(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    act, there, go = actions.act, asyncio.Event(), asyncio.Event()

    async def slow_act(*args: Any, **more: Any) -> actions.Acted:
        there.set()
        await go.wait()
        return await act(*args, **more)

    monkeypatch.setattr("sendonce.store.actions.act", slow_act)
    # While an activity of the update runs, a timer reaches the workflow only when its task is renewed.
    monkeypatch.setattr("sendonce.starter.TASK_TIMEOUT", timedelta(seconds=2))
    async with flow.worker(relay(*answers(LATER, ACCEPTED))):
        key = await flow.enqueue(retry={"delays": [1.5]})
        await flow.until_event(key, "timer_started")
        update = await flow.handle(key).start_update("cancel", wait_for_stage=WorkflowUpdateStage.ACCEPTED, id="late")
        await there.wait()
        # The mail is sent meanwhile, and the workflow has nothing left to do but to answer.
        await flow.until_stage(key, "sent")
        go.set()
        with pytest.raises(Exception, match="Workflow update failed") as failure:
            await update.result()
        assert str(failure.value.__cause__) == f"refused: {actions.REFUSALS['final']} (it is sent)"
        await flow.until_closed(key)
        events = await flow.events(key)
    assert events.index("workflow_execution_update_completed") < events.index("workflow_execution_completed")


async def test_a_cancelled_mail_whose_workflow_was_terminated_is_not_started_again(
    flow: Flow, relay: type[Relay]
) -> None:
    async with flow.worker(relay(*answers(LATER)), overdue_seconds=0.5):
        cancelled, kept = await flow.enqueue("cancelled", retry={"delays": [1]}), await flow.enqueue("kept", **WAITS)
        for key in (cancelled, kept):
            await flow.until_event(key, "timer_started")
        await flow.update(cancelled, "cancel")
        await flow.until_closed(cancelled)
        await flow.handle(kept).terminate()
        await flow.rows("UPDATE sendonce.email SET next_attempt_at = clock_timestamp() WHERE id = %s", [flow.ids[kept]])
        # The one that was not cancelled comes back; the other has had the same time.
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE id = %s AND attempts = 2", [flow.ids[kept]])
        described = await flow.handle(cancelled).describe()
        assert described.status is WorkflowExecutionStatus.FAILED
    assert (await flow.email(cancelled))["stage"] == "cancelled"
    assert len(await flow.attempts(cancelled)) == 1


async def test_a_mail_whose_time_has_not_come_is_not_hurried(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay()):
        [row] = await flow.rows("SELECT (clock_timestamp() + interval '50 seconds')::text AS at")
        key = await flow.enqueue(send_after=row["at"])
        await flow.until_event(key, "timer_started")
        assert await flow.refused(key, "retry_now") == (
            "refused",
            f"{actions.REFUSALS['scheduled']} (it is pending)",
        )
        await flow.rows("UPDATE sendonce.email SET send_after = NULL, held_why = 'key_sent_before'")
        assert await flow.refused(key, "retry_now") == ("refused", f"{actions.REFUSALS['held']} (it is pending)")
        await flow.update(key, "cancel")


@pytest.fixture
async def waiting(flow: Flow, relay: type[Relay]) -> Any:
    """A world with a mail that waits for its second attempt."""
    async with flow.worker(relay(*answers(LATER))):
        key = await flow.enqueue(**WAITS)
        await flow.until_event(key, "timer_started")
        yield flow, key
