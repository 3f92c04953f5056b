"""Workflows of an application's own that send mail, and that are told how mail ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from sendonce.activities import telling
from sendonce.outcome import Accepted, Deferred, Outcome, Refused, Reply, same_for_all
from sendonce.policy import DEFAULT_LANES, LanePolicy
from sendonce.starter import start_delivery
from sendonce.store import Store, open_pool
from sendonce.workflows.port import Ticket

if TYPE_CHECKING:
    from tests.consumer import orders as consumer
    from tests.flow.conftest import Flow, Relay, Step, Virtual

NO = Refused(Reply(550, "5.1.1", "no such ann@example.org"))
LATER = Deferred(Reply(451, "4.7.1", "greylisted"))

Serve = Callable[[Client], AbstractAsyncContextManager[str]]


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "consumer"))
    return import_module("orders")


@pytest.fixture
def serve(orders: Any) -> Serve:
    """The application's own worker, with Temporal's default sandbox; gives its task queue."""

    @asynccontextmanager
    async def serve(client: Client) -> AsyncIterator[str]:
        queue = f"shop-{uuid4().hex[:8]}"
        workflows = [orders.Confirm, orders.ConfirmAll, orders.Listen]
        async with Worker(client, task_queue=queue, workflows=workflows):
            yield queue

    return serve


def answer(*outcomes: Outcome) -> list[Step]:
    def step_of(outcome: Outcome) -> Step:
        async def step(job: Any, gate: Any) -> Any:
            ordinals = tuple(r.ordinal for r in job.recipients)
            await gate.begin(ordinals)
            gate.offered()
            return same_for_all(ordinals, outcome)

        return step

    return [step_of(outcome) for outcome in outcomes]


(ACCEPT,) = answer(Accepted(Reply(250, "2.0.0", "queued"), "Q1"))


def confirm(flow: Flow, orders: Any, key: str, **more: Any) -> Any:
    mail: consumer.Mail = orders.Mail(key, flow.prefix, **more)
    return mail


async def outcome_of(flow: Flow, parent: str) -> str:
    """The id of the child workflow that waits for a parent."""
    found: list[str] = []

    async def there() -> bool:
        history = await flow.handle(parent).fetch_history()
        started = [event.child_workflow_execution_started_event_attributes for event in history.events]
        found[:] = [one.workflow_execution.workflow_id for one in started if one.workflow_execution.workflow_id]
        return bool(found)

    await flow.until(there, "the child workflow")
    return found[0]


async def test_a_mail_whose_workflow_runs_already_is_waited_for(
    flow: Flow, relay: type[Relay], orders: Any, serve: Serve
) -> None:
    leave = asyncio.Event()

    async def slow(job: Any, gate: Any) -> Any:
        await leave.wait()
        return await ACCEPT(job, gate)

    async with flow.worker(relay(slow)), serve(flow.client) as queue:
        key = await flow.enqueue(subject="Order for Ann")
        # The starter was first: a workflow with the mail's id runs.
        await flow.until_event(key, "workflow_task_completed")
        handle = await flow.client.start_workflow(
            orders.Confirm.run, confirm(flow, orders, key), id=f"{key}-parent", task_queue=queue
        )
        flow.others.append(await outcome_of(flow, handle.id))
        await flow.rows_until("SELECT 1 FROM sendonce.final_watch")
        leave.set()
        final = await handle.result()
    assert (final.key, final.stage, final.code, final.attempts) == (key, "sent", 250, 1)
    history = await handle.fetch_history()
    assert len(history.events) <= 14
    # The parent's whole history holds no address, no subject, no reply text.
    child = await flow.handle(flow.others[0]).fetch_history()
    for text in (history.to_json(), child.to_json()):
        decoded = text + json.dumps(json.loads(text))
        assert not any(word in decoded for word in ("example.org", "example.com", "Order for Ann", "queued"))


async def test_what_became_of_each_is_a_typed_error(flow: Flow, relay: type[Relay], orders: Any, serve: Serve) -> None:
    async with serve(flow.client) as queue:
        old = await flow.enqueue("o", topic="t", send_after="2050-01-01T00:00:00Z")
        new = await flow.enqueue("n", topic="t")
        late = await flow.enqueue("late", expires_at="2000-01-01T00:00:00Z")
        keys = [old, new, late, f"{flow.prefix}-none"]
        handle = await flow.client.start_workflow(
            orders.ConfirmAll.run, [confirm(flow, orders, key) for key in keys], id=f"{new}-parent", task_queue=queue
        )
        async with flow.worker(relay(*answer(NO))):
            said = await handle.result()
    assert said == ["replaced by n", "refused 550", "expired, maybe accepted: False", "no_such_row"]


async def test_uncaught_it_fails_the_workflow_with_the_stage_as_type(
    flow: Flow, relay: type[Relay], orders: Any, serve: Serve
) -> None:
    async with flow.worker(relay(*answer(NO))), serve(flow.client) as queue:
        key = await flow.enqueue()
        with pytest.raises(WorkflowFailureError) as failure:
            await flow.client.execute_workflow(
                orders.Confirm.run, confirm(flow, orders, key), id=f"{key}-parent", task_queue=queue
            )
        # It is final: whoever asks later is told at once, and the same.
        with pytest.raises(WorkflowFailureError) as again:
            await flow.client.execute_workflow(
                orders.Confirm.run, confirm(flow, orders, key), id=f"{key}-again", task_queue=queue
            )
    for failed in (failure, again):
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert (cause.type, cause.non_retryable) == ("failed", True)
        assert "example" not in str(cause)


@pytest.mark.parametrize("ending", ["cancel", "terminate"])
async def test_the_mail_goes_on_when_whoever_waits_is_ended(
    flow: Flow, relay: type[Relay], orders: Any, serve: Serve, ending: str
) -> None:
    leave = asyncio.Event()

    async def slow(job: Any, gate: Any) -> Any:
        await leave.wait()
        return await ACCEPT(job, gate)

    async with flow.worker(relay(slow)), serve(flow.client) as queue:
        key = await flow.enqueue()
        handle = await flow.client.start_workflow(
            orders.Confirm.run, confirm(flow, orders, key), id=f"{key}-parent", task_queue=queue
        )
        child = flow.handle(await outcome_of(flow, handle.id))
        await flow.rows_until("SELECT 1 FROM sendonce.final_watch")
        # Whoever was first: the mail's own workflow runs too.
        await flow.until_event(key, "workflow_execution_started")
        await (handle.cancel() if ending == "cancel" else handle.terminate())
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        with pytest.raises(WorkflowFailureError):
            await child.result()
        assert (await child.describe()).status is WorkflowExecutionStatus.CANCELED
        assert (await flow.handle(key).describe()).status is WorkflowExecutionStatus.RUNNING
        leave.set()
        await flow.until_stage(key, "sent")
        await flow.rows_until("SELECT 1 FROM sendonce.final WHERE handed_at IS NOT NULL")
    # A waiter of ours that is gone is nobody's alarm.
    assert await flow.alarms() == []


async def test_any_lane_that_is_served_will_do(flow: Flow, relay: type[Relay], orders: Any, serve: Serve) -> None:
    lanes = {"default": LanePolicy("default"), "codes": LanePolicy("codes")}
    async with flow.worker(relay(), lanes=lanes, served=("codes",)), serve(flow.client) as queue:
        key = await flow.enqueue(lane="codes")
        final = await flow.client.execute_workflow(
            orders.Confirm.run, confirm(flow, orders, key, lane="codes"), id=f"{key}-parent", task_queue=queue
        )
    assert final.stage == "sent"


async def test_days_of_retries_leave_little_in_the_histories(
    flow: Flow, relay: type[Relay], orders: Any, serve: Serve, time_skipping: WorkflowEnvironment, virtual: Virtual
) -> None:
    client = await virtual(flow, time_skipping)
    # As if every signal were lost: what the waiter looks up by itself is enough.
    await flow.rows("ALTER TABLE sendonce.email DISABLE TRIGGER tell_final")
    lanes = {"default": LanePolicy("default", DEFAULT_LANES["bulk"].retry)}
    transport = relay(*answer(LATER))
    async with (
        flow.worker(transport, client=client, lanes=lanes, hand_off_seconds=None, with_starter=False),
        serve(client) as queue,
    ):
        key = await flow.enqueue()
        begun = await time_skipping.get_current_time()
        await start_delivery(client, Ticket(str(flow.ids[key]), key, "default"), prefix=flow.prefix)
        handle = await client.start_workflow(
            orders.ConfirmAll.run, [confirm(flow, orders, key)], id=f"{key}-parent", task_queue=queue
        )
        said = await handle.result()
        ended = (await handle.describe()).close_time
    assert said == ["dead, maybe accepted: False"]
    assert ended is not None
    assert timedelta(days=4) < ended - begun < timedelta(days=5, hours=2)
    assert len((await handle.fetch_history()).events) <= 14
    child = await flow.handle(await outcome_of(flow, handle.id)).fetch_history()
    assert len(child.events) < 1100


async def test_a_workflow_is_told_and_one_that_is_gone_stops_nobody(
    flow: Flow, relay: type[Relay], orders: Any, serve: Serve
) -> None:
    async with flow.worker(relay(*answer(NO), ACCEPT)), serve(flow.client) as queue:
        listener = f"{flow.prefix}-listener"
        handle = await flow.client.start_workflow(orders.Listen.run, 2, id=listener, task_queue=queue)
        keys = []
        for name, to in (("a", listener), ("gone", f"{flow.prefix}-gone"), ("b", listener)):
            keys.append(await flow.enqueue(name, on_final={"workflow_id": to, "signal": "mail_ended"}))
            await flow.until_stage(keys[-1], "sent", "failed")
        ends = await handle.result()
        await flow.rows_until("SELECT 1 FROM sendonce.alarm WHERE kind = 'nobody_told'")
        await flow.rows_until("SELECT count(*) FROM sendonce.final HAVING count(*) = count(handed_at)")
    assert [(end.key, end.stage) for end in ends] == [(keys[0], "failed"), (keys[2], "sent")]
    assert (ends[0].code, ends[0].enhanced, ends[0].email_id) == (550, "5.1.1", str(flow.ids[keys[0]]))
    assert await flow.alarms() == ["nobody_told"]
    assert "example" not in (await handle.fetch_history()).to_json()


async def test_while_temporal_is_away_the_news_waits(
    flow: Flow, orders: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "RPC_TIMEOUT", timedelta(seconds=0.3))
    await flow.own_clock()
    pool = open_pool(flow.database_url, name="telling", max_size=1)
    await pool.open()
    news = telling.Telling(Store(pool))
    listener = f"{flow.prefix}-listener"
    for name in ("a", "b"):
        key = await flow.enqueue(name, on_final={"workflow_id": listener, "signal": "mail_ended"})
        lane = LanePolicy("default")
        await Store(pool).withdraw(flow.ids[key], key, lane=lane, actor="shop")
    async with serve(flow.client) as queue:
        handle = await flow.client.start_workflow(orders.Listen.run, 2, id=listener, task_queue=queue)
        await news.round()  # no client yet
        news.client = await Client.connect("127.0.0.1:1", lazy=True)
        await news.round()
        assert await flow.rows("SELECT tries FROM sendonce.final ORDER BY id") == [{"tries": 1}, {"tries": 1}]
        news.client = flow.client
        await news.round()  # not due again
        assert await flow.rows("SELECT 1 FROM sendonce.final WHERE handed_at IS NOT NULL") == []
        await flow.advance(5)
        await news.round()
        ends = await handle.result()
    await pool.close()
    assert [(end.stage, end.attempts) for end in ends] == [("cancelled", 0), ("cancelled", 0)]
