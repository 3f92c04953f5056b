"""The upkeep by way of Temporal: its schedule, its workflow, what their histories hold, and codecs."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from temporalio import activity
from temporalio.client import Client, ScheduleHandle, WorkflowExecutionStatus
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from sendonce.activities import retention
from sendonce.activities.failures import client_options
from sendonce.activities.retention import settle_schedule
from sendonce.activities.witness import Run, may_have_offered
from sendonce.errors import ConfigurationError
from sendonce.outcome import Accepted, AttemptResult, Reply, Unanswered, same_for_all
from sendonce.policy import LanePolicy
from sendonce.retention import Retention
from sendonce.store import erasure
from sendonce.store.continuity import Unsent
from sendonce.store.naming import Person
from sendonce.workflows.port import Wake
from sendonce.workflows.upkeep import UPKEEP_NAME, Upkeep, UpkeepSteps, Went, upkeep_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sendonce.activities.transports.base import Gate, Job
    from tests.flow.conftest import Flow, Relay

RULES = Retention(content_days=0)
CANARY = "ann.canary@example.org"


@pytest.fixture
async def schedule(flow: Flow) -> AsyncIterator[ScheduleHandle]:
    """The schedule of this test's installation; the shared server is not left with it."""
    handle = flow.client.get_schedule_handle(upkeep_id(flow.prefix))
    yield handle
    if await exists(handle):
        await handle.delete()


async def exists(handle: ScheduleHandle) -> bool:
    try:
        await handle.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def rounds(flow: Flow) -> list[str]:
    """Ids of the upkeep's completed runs."""
    return [
        run.id
        async for run in flow.client.list_workflows(f"WorkflowType = '{UPKEEP_NAME}'")
        if run.id.startswith(upkeep_id(flow.prefix)) and run.status is WorkflowExecutionStatus.COMPLETED
    ]


async def test_a_worker_makes_the_schedule_which_erases(
    flow: Flow, relay: type[Relay], schedule: ScheduleHandle
) -> None:
    key = await flow.enqueue(to=[CANARY])
    async with flow.worker(relay()):
        await flow.until_stage(key, "sent")
    async with flow.worker(relay(), retention=RULES):
        await flow.rows_until("SELECT id FROM sendonce.email WHERE content_erased_at IS NOT NULL")
        described = await schedule.describe()
        assert described.schedule.spec.intervals[0].every.total_seconds() == 300
    assert await flow.rows("SELECT content FROM sendonce.email_content") == [{"content": {}}]


async def test_the_schedule_is_settled_again_and_again(
    flow: Flow, relay: type[Relay], schedule: ScheduleHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers make one; new settings are taken over, a pause is left alone, a missing one comes back."""
    await asyncio.gather(*(settle_schedule(flow.client, flow.prefix, RULES) for _ in range(3)))
    await schedule.pause(note="while we look")
    await settle_schedule(flow.client, flow.prefix, Retention(every_minutes=60))
    described = await schedule.describe()
    assert described.schedule.spec.intervals[0].every.total_seconds() == 3600
    assert (described.schedule.state.paused, described.schedule.state.note) == (True, "while we look")
    await settle_schedule(flow.client, flow.prefix, RULES, update=False)
    assert (await schedule.describe()).schedule.spec == described.schedule.spec
    monkeypatch.setattr(retention, "LOOK_SECONDS", 0.1)
    async with flow.worker(relay(), retention=RULES):
        await schedule.delete()
        await flow.until(lambda: exists(schedule), "the schedule again")


class Scripted(UpkeepSteps):
    """Rounds that do what the test says."""

    def __init__(self, *rounds: Went) -> None:
        self.rounds = list(rounds)

    @activity.defn(name="upkeep")
    async def round(self) -> Went:
        return self.rounds.pop(0)


async def test_round_follows_round_until_nothing_is_left(flow: Flow) -> None:
    queue = upkeep_id(flow.prefix)
    steps = Scripted(Went(over=False, contents=100), Went(over=False, mails=3), Went(contents=1, erased=2))
    async with Worker(flow.client, task_queue=queue, workflows=[Upkeep], activities=[steps.round]):
        handle = await flow.client.start_workflow(UPKEEP_NAME, id=f"{queue}-by-hand", task_queue=queue)
        result = await asyncio.wait_for(handle.result(), 30)
    assert result == asdict(Went(contents=101, mails=3, erased=2))
    flow.others.append(handle.id)


async def test_without_a_schedule_mail_goes_on(flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise RPCError("no schedules here", RPCStatusCode.UNIMPLEMENTED, b"")

    monkeypatch.setattr(retention, "settle_schedule", refused)
    monkeypatch.setattr(retention, "RETRY_SECONDS", 0.01)
    async with flow.worker(relay(), retention=RULES):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")


async def test_a_store_that_is_away_costs_one_round(flow: Flow, relay: type[Relay], schedule: ScheduleHandle) -> None:
    async with flow.worker(relay(), retention=RULES):

        async def one() -> bool:
            return bool(await rounds(flow))

        await flow.until(one, "the first round")
        async with flow.store_away():
            handle = await flow.client.start_workflow(
                UPKEEP_NAME, id=f"{upkeep_id(flow.prefix)}-by-hand", task_queue=upkeep_id(flow.prefix)
            )
            assert (await asyncio.wait_for(handle.result(), 30))["away"] is True


async def test_no_history_names_anybody_whom_an_erasure_concerns(
    flow: Flow, relay: type[Relay], schedule: ScheduleHandle, database_url: str
) -> None:
    """Neither the mail's own, nor the upkeep's that finishes the erasure."""
    key = await flow.enqueue(to=[CANARY], subject="subject canary", send_after="2999-01-01T00:00:00Z")
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as conn:
        person = Person.of(CANARY)
        found = await erasure.search(conn, person)
        await erasure.erase(conn, person, found, lanes={}, actor="me", because=None, withdraw=False)
    async with flow.worker(relay(), retention=RULES):
        await flow.rows("UPDATE sendonce.email SET next_attempt_at = now(), send_after = NULL")
        await flow.until_stage(key, "sent")
        await flow.until_event(key, "workflow_execution_completed")
        await schedule.trigger()
        await flow.rows_until("SELECT id FROM sendonce.erasure WHERE finished_at IS NOT NULL")

        async def over() -> bool:
            return bool(await rounds(flow))

        await flow.until(over, "the end of a round")
    ids = [key, *await rounds(flow)]
    for one in ids:
        history = await flow.handle(one).fetch_history()
        whole = b"".join(event.SerializeToString() for event in history.events)
        assert b"canary" not in whole.lower()
        assert b"erased:" not in whole


async def test_a_person_erased_in_mid_offer_is_out_of_the_mail_seconds_after_its_end(
    flow: Flow, relay: type[Relay], schedule: ScheduleHandle, database_url: str
) -> None:
    """By a loop of the worker; the schedule comes in an hour."""
    answered = asyncio.Event()

    async def slow(job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        await answered.wait()
        return same_for_all(ordinals, Accepted(Reply(250, "2.0.0", f"queued for {CANARY}")))

    rules = Retention(content_days=7, every_minutes=60)
    async with flow.worker(relay(slow), retention=rules, hand_off_seconds=0.2):

        async def one() -> bool:
            return bool(await rounds(flow))

        await flow.until(one, "the first round")
        key = await flow.enqueue(to=[CANARY])
        await flow.until_stage(key, "transmitting")
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as conn:
            person = Person.of(CANARY)
            found = await erasure.search(conn, person)
            done = await erasure.erase(conn, person, found, lanes={}, actor="me", because=None, withdraw=True)
        assert (done.waiting, done.withdrawn) == (1, 0)
        answered.set()
        await flow.rows_until("SELECT id FROM sendonce.erasure WHERE finished_at IS NOT NULL")
        assert len(await rounds(flow)) == 1
    assert (await flow.email(key))["stage"] == "sent"
    assert await flow.rows("SELECT FROM sendonce.recipient WHERE mailbox NOT LIKE 'erased:%'") == []
    assert await flow.rows("SELECT content FROM sendonce.email_content") == [{"content": {}}]


def documented_codec() -> PayloadCodec:
    """The one that the documentation shows."""
    page = (Path(__file__).parents[2] / "docs" / "retention.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    codec = names["make"]()
    assert isinstance(codec, PayloadCodec)
    return codec


async def test_with_a_codec_nothing_of_ours_is_plain(
    flow: Flow, relay: type[Relay], schedule: ScheduleHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs, results of activities, results of workflows; whoever has the key reads them."""
    monkeypatch.setenv("TEMPORAL_PAYLOAD_KEY", "5e" * 32)
    client = await Client.connect(flow.target, **client_options(documented_codec()))
    async with flow.worker(relay(), client=client, retention=RULES):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
        await flow.until_event(key, "workflow_execution_completed")

        async def over() -> bool:
            return bool(await rounds(flow))

        await flow.until(over, "the end of a round")
    for one in [key, *await rounds(flow)]:
        history = await flow.handle(one).fetch_history()
        whole = b"".join(event.SerializeToString() for event in history.events)
        assert str(flow.ids[key]).encode() not in whole
        assert b'"contents"' not in whole
        ours = [
            *history.events[0].workflow_execution_started_event_attributes.input.payloads,
            *history.events[-1].workflow_execution_completed_event_attributes.result.payloads,
        ]
        for event in history.events:
            ours += event.marker_recorded_event_attributes.details["result"].payloads
        assert len(ours) >= 2
        assert {payload.metadata["encoding"] for payload in ours} == {b"binary/encrypted"}
    result = await client.get_workflow_handle(key).result()
    assert result["email_id"] == str(flow.ids[key])


async def unanswered(job: Job, gate: Gate) -> AttemptResult:
    await gate.begin(tuple(r.ordinal for r in job.recipients))
    gate.offered()
    return same_for_all(tuple(r.ordinal for r in job.recipients), Unanswered())


async def test_after_a_restore_what_is_encrypted_is_read(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was told of silence says so to whoever has the key. Whoever has not is told, not misled."""
    monkeypatch.setenv("TEMPORAL_PAYLOAD_KEY", "5e" * 32)
    client = await Client.connect(flow.target, **client_options(documented_codec()))
    async with flow.worker(relay(unanswered), client=client):
        key = await flow.enqueue()
        await flow.until_stage(key, "unknown")
        await flow.until_event(key, "timer_started")
    found = await flow.handle(key).describe()
    assert found.status is not None
    run = Run("default", key, key, found.run_id, found.status, found.start_time)
    # As a store has it that was restored to before the attempt.
    mail = Unsent("default", key, flow.ids[key], "pending", recipients=1)
    assert await may_have_offered(client, run, mail)
    with pytest.raises(ConfigurationError, match="payload_codec"):
        await may_have_offered(flow.client, run, mail)


async def test_after_a_restore_a_silence_counts_that_a_full_worker_was_asked_about_later(
    flow: Flow, relay: type[Relay]
) -> None:
    """That there was no free place says nothing of the mail."""
    stall = asyncio.Event()

    async def stalls(job: Job, gate: Gate) -> AttemptResult:
        await stall.wait()
        return await unanswered(job, gate)

    lanes = {"default": LanePolicy("default", places=1)}
    async with flow.worker(relay(unanswered, stalls), lanes=lanes, hand_off_seconds=0.2, drain_seconds=0.1):
        key = await flow.enqueue()
        await flow.until_stage(key, "unknown")
        await flow.until_event(key, "timer_started")
        other = await flow.enqueue("other")
        await flow.until_event(other, "timer_started")
        asked = (await flow.events(key)).count("timer_started")
        await flow.handle(key).signal("wake", Wake())

        async def asked_again() -> bool:
            return (await flow.events(key)).count("timer_started") > asked

        await flow.until(asked_again, "another sleep")
        found = await flow.handle(key).describe()
        stall.set()
    assert found.status is not None
    run = Run("default", key, key, found.run_id, found.status, found.start_time)
    # As a store has it that was restored to before the attempt.
    assert await may_have_offered(flow.client, run, Unsent("default", key, flow.ids[key], "pending", recipients=1))
