"""Starting workflows: from polling, notification and the business code, by several starters, and after a restore."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from sendonce import embedded, start_now
from sendonce.activities.failures import client_options
from sendonce.stages import Stage
from sendonce.starter import listen, start_delivery
from sendonce.store.intake import Enqueued
from sendonce.workflows.port import Ticket

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay


async def test_a_notification_wakes_the_starter(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(), poll_seconds=30.0):
        await flow.rows_until(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        key = await flow.enqueue()
        await flow.until_stage(key, "sent", seconds=10)


class Hints:
    """A listener, and for which lanes it called."""

    def __init__(self) -> None:
        self.lanes: list[str] = []

    def wake(self, lane: str) -> None:
        self.lanes.append(lane)

    async def reaches(self, count: int) -> bool:
        return len(self.lanes) >= count


async def test_a_listener_calls_on_connect_and_for_each_commit(flow: Flow) -> None:
    hints = Hints()
    listener = asyncio.create_task(listen(flow.database_url, hints.wake))
    await flow.until(lambda: hints.reaches(1), "the first look")
    await flow.enqueue("one")
    await flow.until(lambda: hints.reaches(2), "a notification")
    await flow.enqueue("two", lane="bulk")
    await flow.until(lambda: hints.reaches(3), "another one")
    assert hints.lanes == ["", "default", "bulk"]
    listener.cancel()
    await asyncio.wait({listener})


async def test_a_lost_listener_listens_again_and_looks(flow: Flow) -> None:
    hints = Hints()
    listener = asyncio.create_task(listen(flow.database_url, hints.wake))
    await flow.until(lambda: hints.reaches(1), "the first look")
    await flow.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'sendonce listen'"
    )
    await flow.until(lambda: hints.reaches(2), "the look after the second LISTEN")
    await flow.enqueue()
    await flow.until(lambda: hints.reaches(3), "a notification")
    listener.cancel()
    await asyncio.wait({listener})


async def test_polling_alone_finds_every_row(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(), notify=False, poll_seconds=0.1):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent", seconds=10)


async def test_a_row_in_the_future_is_started_ahead_and_sent_on_time(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport):
        due = (await flow.rows("SELECT to_json(now() + interval '2 seconds') #>> '{}' AS at"))[0]["at"]
        key = await flow.enqueue(send_after=due)
        await flow.until_event(key, "timer_started", seconds=1.9)
        assert transport.jobs == []
        await flow.until_stage(key, "sent")
    rows = await flow.rows("SELECT t.claimed_at >= e.send_after AS late FROM sendonce.attempt t, sendonce.email e")
    assert rows == [{"late": True}]


async def test_starters_side_by_side_send_everything_once(flow: Flow, relay: type[Relay]) -> None:
    first, second = relay(), relay()
    keys = [await flow.enqueue(f"{n}") for n in range(60)]
    # Two workers of one queue cannot share a client.
    another = await Client.connect(flow.target, **client_options())
    async with flow.worker(first), flow.worker(second, client=another):
        for key in keys:
            await flow.until_stage(key, "sent", seconds=60)
    jobs = [job.provider_key for job in first.jobs + second.jobs]
    assert len(jobs) == len(set(jobs)) == 60
    counts = await flow.rows("SELECT count(*) AS n FROM sendonce.attempt")
    assert counts == [{"n": 60}]


async def test_a_workflow_on_another_task_queue_is_started_anew(flow: Flow, relay: type[Relay]) -> None:
    key = await flow.enqueue()
    enqueued = Enqueued(flow.ids[key], key, "default", "default", True, Stage.PENDING)
    assert await start_now(flow.client, enqueued, task_queue_prefix=f"other-{flow.prefix}")
    async with flow.worker(relay(), overdue_seconds=1.0):
        await flow.until_stage(key, "sent")


async def test_business_code_may_start_at_once(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(), with_starter=False):
        key = await flow.enqueue()
        enqueued = Enqueued(flow.ids[key], key, "default", "default", True, Stage.PENDING)
        assert await start_now(flow.client, enqueued, task_queue_prefix=flow.prefix)
        assert await start_now(flow.client, enqueued, task_queue_prefix=flow.prefix)
        await flow.until_stage(key, "sent")


async def test_starting_at_once_never_raises_into_business_code(flow: Flow) -> None:
    away = await Client.connect(f"127.0.0.1:{embedded.free_port()}", lazy=True)
    enqueued = Enqueued(uuid4(), "key", "default", "default", True, Stage.PENDING)
    assert not await start_now(away, enqueued)
    with pytest.raises((RPCError, RuntimeError)):
        await start_now(away, enqueued, raise_errors=True)
    assert not await start_now(flow.client, Enqueued(uuid4(), "key", "default", "default", False, Stage.SENT))


async def test_a_mail_that_was_there_is_not_started_in_the_lane_of_whoever_repeats_it(flow: Flow) -> None:
    key = await flow.enqueue(send_after="2090-01-01T00:00:00Z")
    again = Enqueued(flow.ids[key], key, "default", "bulk", False, Stage.PENDING)
    assert not await start_now(flow.client, again, task_queue_prefix=flow.prefix)
    assert await flow.events(key) == []


async def test_a_store_that_forgot_learns_from_the_completed_run(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
        await flow.handle(key).result()
        # A backup from before the mail was sent.
        await flow.rows("DELETE FROM sendonce.attempt")
        await flow.rows("UPDATE sendonce.recipient SET stage = 'outstanding', attempt_id = NULL")
        await flow.rows(
            "UPDATE sendonce.email SET stage = 'pending', attempts = 0, claims = 0, open_ordinals = '{0}',"
            " final_at = NULL, started_at = NULL, seen_at = NULL, next_attempt_at = sendonce.clock()"
        )
        await flow.until_stage(key, "sent")
    assert len(transport.jobs) == 1
    assert (await flow.rows("SELECT source, accepted FROM sendonce.evidence"))[0]["accepted"]


async def test_a_key_under_which_another_mail_was_sent_is_held(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
        await flow.handle(key).result()
        # A store that knows nothing of that mail.
        await flow.rows("DELETE FROM sendonce.email")
        await flow.rows("DELETE FROM sendonce.email_key")
        await flow.enqueue()
        held = await flow.rows_until("SELECT held_why FROM sendonce.email WHERE held_why IS NOT NULL")
    assert held == [{"held_why": "key_sent_before"}]
    assert "held" in await flow.alarms()
    assert len(transport.jobs) == 1


@workflow.defn(name="EmailDelivery", sandboxed=False)
class Stranger:
    """Somebody else's, under our name."""

    @workflow.run
    async def run(self) -> str:
        return "done"


async def test_a_result_that_cannot_be_read_holds_that_mail_and_no_other(flow: Flow, relay: type[Relay]) -> None:
    queue = f"{flow.prefix}-strange"
    async with Worker(flow.client, task_queue=queue, workflows=[Stranger]):
        await flow.client.execute_workflow(Stranger.run, id=f"{flow.prefix}-first", task_queue=queue)
    transport = relay()
    first, second = await flow.enqueue("first"), await flow.enqueue("second")
    async with flow.worker(transport):
        await flow.until_stage(second, "sent", seconds=10)
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE held_why = 'run_unreadable'")
    assert (await flow.email(first))["stage"] == "pending"
    assert await flow.alarms() == ["held"]
    assert len(transport.jobs) == 1


async def test_a_run_that_failed_does_not_block_a_new_start(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay()):
        key = f"{flow.prefix}-k"
        await start_delivery(flow.client, Ticket(str(uuid4()), key, "default"), prefix=flow.prefix)
        await asyncio.wait({asyncio.create_task(flow.handle(key).result())})
        await flow.enqueue()
        await flow.until_stage(key, "sent")
