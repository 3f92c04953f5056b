"""Locks, clocks, and workflows that a release has stranded: what must not cost a mail or a second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from sendonce.activities.failures import client_options
from sendonce.events import Event, EventKind
from sendonce.outcome import Accepted, AttemptResult, Deferred, Reply
from sendonce.store import Store, open_pool
from sendonce.store.events import Terms
from sendonce.store.records import Begun, Claimed
from sendonce.workflows.port import Ticket

if TYPE_CHECKING:
    from sendonce.policy import LanePolicy
    from tests.cases.conftest import Office

CRASHED = 0.25
"""Seconds until the lease of an attempt that nobody renews has lapsed."""


@asynccontextmanager
async def stores(office: Office) -> AsyncIterator[Store]:
    pool = open_pool(office.database_url, name="test", max_size=14)
    await pool.open()
    try:
        yield Store(pool, {"default": "settings-1"})
    finally:
        await pool.close()


async def test_claimers_sweepers_and_webhooks_side_by_side_never_deadlock(
    office: Office, lane: Callable[..., LanePolicy]
) -> None:
    """Everybody wants the same few rows, in any order, and half of the attempts crash."""
    chance = random.Random(37)
    policy = lane(unknown="hold")
    lanes = {policy.name: policy}
    keys = [await office.enqueue(str(n)) for n in range(40)]
    ids: dict[str, UUID] = {key: (await office.email(key))["id"] for key in keys}
    done = dict.fromkeys(("claimed", "lapsed", "swept", "events"), 0)
    end = time.monotonic() + 3.0

    async def claimer(store: Store, name: str) -> None:
        while time.monotonic() < end:
            key = chance.choice(keys)
            try:
                found = await store.claim(ids[key], key, lane=policy, worker=name, lease_seconds=CRASHED)
            except psycopg.errors.LockNotAvailable:
                # A webhook has ten of them for longer than a claim waits.
                continue
            if not isinstance(found, Claimed):
                continue
            done["claimed"] += 1
            if chance.random() < 0.3:
                continue
            await store.pin(found.email_id, "mime", body=b"", method="", url="", headers=(), digest=b"d")
            begun = await store.begin(
                found.email_id, found.attempt_id, worker=name, generation=found.generation, slot="mime", digest=b"d",
                offered=[0], provider_key="p", identity="i", key_window=None, window_margin=0.0, answer_seconds=600.0,
                lease_seconds=CRASHED,
            )  # fmt: skip
            if isinstance(begun, Begun) and chance.random() < 0.7:
                outcome = Accepted(Reply(250), key) if chance.random() < 0.1 else Deferred(Reply(451))
                await store.settle(
                    found.email_id, found.attempt_id, AttemptResult({0: outcome}), lane=policy, actor=name
                )

    async def sweeper(store: Store, name: str) -> None:
        while time.monotonic() < end:
            done["swept"] += len(await store.sweep_silent(lanes, actor=name))
            await store.raise_due_alarms()

    async def webhooks(store: Store, name: str) -> None:
        n = 0
        while time.monotonic() < end:
            some = chance.sample(keys, 10)
            n += 1
            found = [
                Event(source="webhook:test", event_id=f"{name}-{n}-{key}", kind=EventKind.DELAYED,
                      email_id=str(ids[key]), recipient="ann@example.org")
                for key in some
            ]  # fmt: skip
            done["events"] += await store.record_events("default", found, Terms(lanes, name))

    async with stores(office) as store:
        await asyncio.gather(
            *(claimer(store, f"w{n}") for n in range(8)),
            *(sweeper(store, f"s{n}") for n in range(3)),
            *(webhooks(store, f"h{n}") for n in range(2)),
        )
    [found] = await office.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert found["deadlocks"] == 0
    assert min(done["claimed"], done["swept"], done["events"]) > 0, done


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's local time is another one than the database's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize("ahead", [-600, 600])
async def test_the_databases_clock_alone_says_what_is_due(office: Office, ahead: int) -> None:
    """The host's clock is ten minutes off, its zone and the sessions' are not the same: on time, and once."""
    [database] = await office.rows("SELECT current_database() AS name")
    await office.rows(f"ALTER DATABASE \"{database['name']}\" SET timezone = 'America/New_York'")
    await office.rows(
        "CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE"
        f" AS $$ SELECT clock_timestamp() + interval '{ahead} seconds' $$"
    )
    [clock] = await office.rows("SELECT sendonce.clock() + interval '2 seconds' AS due")
    async with office.worker():
        key = await office.enqueue(send_after=clock["due"].isoformat())
        mail = await office.until_stage(key, "sent")
    [attempt] = await office.attempts(key)
    # Ten minutes early, or hours late, would be another clock or another zone; a busy machine is no fault.
    assert timedelta(0) <= attempt["claimed_at"] - mail["send_after"] < timedelta(minutes=5)
    assert office.relay.mailbox.copies() == 1


@workflow.defn(name="EmailDelivery")
class EarlierRelease:
    """What another release would have done: it sleeps first."""

    @workflow.run
    async def run(self, _: Ticket) -> None:
        await workflow.sleep(86400)


async def test_a_workflow_that_a_release_has_stranded_is_terminated_and_its_mail_sent_once(office: Office) -> None:
    key = await office.enqueue()
    mail = await office.email(key)
    another = await Client.connect(office.target, **client_options())
    queue = f"{office.prefix}-default"
    async with Worker(another, task_queue=queue, workflows=[EarlierRelease], max_cached_workflows=0):
        ticket = Ticket(str(mail["id"]), key, "default")
        handle = await another.start_workflow("EmailDelivery", ticket, id=key, task_queue=queue)
        await _until_event(handle, "timer_started_event_attributes")
    async with office.worker(overdue_seconds=1.0):
        # This release says something else at that place: the task fails, again and again, and the mail stays due.
        failed = await _until_event(handle, "workflow_task_failed_event_attributes")
        cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
        assert failed.workflow_task_failed_event_attributes.cause == cause
        assert (await office.email(key))["stage"] == "pending"
        await handle.terminate("stranded by a release")
        await office.until_stage(key, "sent")
    assert office.relay.mailbox.copies() == len(await office.attempts(key)) == 1


async def _until_event(handle: WorkflowHandle[Any, Any], attributes: str) -> HistoryEvent:
    """Nothing but its history says what the engine did with a workflow."""
    end = time.monotonic() + 30
    while True:
        async for event in handle.fetch_history_events(wait_new_event=False):
            if event.WhichOneof("attributes") == attributes:
                return event
        assert time.monotonic() < end, f"no {attributes}"
        await asyncio.sleep(0.05)
