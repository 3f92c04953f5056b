"""What people see of a mail in the Temporal UI without opening its events: attributes, details, summaries."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionStatus

from sendonce.activities.transports.base import Capability, Gate, Job
from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    Deferred,
    Outcome,
    Refused,
    Reply,
    Unanswered,
    same_for_all,
)
from sendonce.stages import Stage
from sendonce.starter import start_now
from sendonce.store.intake import Enqueued
from sendonce.workflows.details import AWAITS

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay, Step

ACCEPTED = Accepted(Reply(250, "2.0.0"), "Q1")
LATER = Deferred(Reply(451, "4.7.1"))
OTHER = Deferred(Reply(421, "4.3.2"))
REFUSED = Refused(Reply(550, "5.1.1"))
LOST = Unanswered()


def answers(*outcomes: Outcome) -> list[Step]:
    def step(outcome: Outcome) -> Step:
        async def run(job: Job, gate: Gate) -> AttemptResult:
            ordinals = tuple(r.ordinal for r in job.recipients)
            await gate.begin(ordinals)
            gate.offered()
            return same_for_all(ordinals, outcome)

        return run

    return [step(outcome) for outcome in outcomes]


async def summaries(flow: Flow, key: str, kind: str) -> list[str]:
    """Of the events of this type."""
    history = await flow.handle(key).fetch_history()
    return [
        json.loads(event.user_metadata.summary.data)
        for event in history.events
        if event.event_type == EventType.Value(f"EVENT_TYPE_{kind}")
    ]


async def test_a_mail_that_is_sent_at_once_is_filterable_and_costs_no_event_more(
    flow: Flow, relay: type[Relay], tmp_path: Any
) -> None:
    async with flow.worker(relay()):
        key = await flow.enqueue()
        await flow.until_closed(key)
        assert await flow.attributes(key) == {"SendStage": "started", "SendLane": "default", "SendAccount": "default"}
        described = await flow.handle(key).describe()
        assert described.status is WorkflowExecutionStatus.COMPLETED
        assert await described.static_summary() == "default · default"
        assert await flow.events(key) == [
            "workflow_execution_started",
            "workflow_task_scheduled",
            "workflow_task_started",
            "workflow_task_completed",
            "marker_recorded",
            "workflow_execution_completed",
        ]
        assert await summaries(flow, key, "MARKER_RECORDED") == ["attempt 1"]
        # The details of a closed workflow come from its history.
        told = await flow.details(key)
    assert told.startswith("**sent**\n")
    assert re.search(r"^\| 1 \| 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \| `250 2\.0\.0` \| sent \|$", told, re.MULTILINE)
    assert f"`sendonce show {key}`" in told
    assert "resolve" not in told


async def test_what_it_was_made_from_is_shown_and_nothing_that_is_no_name(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(), relay()):
        keys = {}
        for name, template in (("named", "order/confirmation"), ("odd", "Dear ann@example.org")):
            key = await flow.enqueue(name, account="other", template=template, text=None, subject="")
            keys[name] = f"{key}@other"
            # Nobody can render it: there are no templates.
            await flow.until_attribute(keys[name], "SendStage", "held")
        assert (await flow.attributes(keys["named"]))["SendTemplate"] == "order/confirmation"
        summary = await (await flow.handle(keys["named"]).describe()).static_summary()
        assert summary == "order/confirmation · default · other"
        assert "SendTemplate" not in await flow.attributes(keys["odd"])
        assert await (await flow.handle(keys["odd"]).describe()).static_summary() == "default · other"
        told = await flow.until_details(keys["named"], "template")
        assert "**held: its template is missing or broken**" in told
        assert f"`sendonce show {keys['named'].removesuffix('@other')} --account other`" in told


async def test_start_now_shows_the_template_too(flow: Flow) -> None:
    key = await flow.enqueue(template="welcome", text=None)
    enqueued = Enqueued(flow.ids[key], key, "default", "default", True, Stage.PENDING, "welcome")
    assert await start_now(flow.client, enqueued, task_queue_prefix=flow.prefix)
    assert await flow.attributes(key) == {
        "SendStage": "started",
        "SendLane": "default",
        "SendAccount": "default",
        "SendTemplate": "welcome",
    }
    await flow.handle(key).terminate()


async def test_a_deferred_mail_shows_its_attempts_and_when_it_goes_on(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answers(LATER, LATER, OTHER, ACCEPTED))):
        key = await flow.enqueue(retry={"delays": [0.3, 0.3, 300]})
        await flow.until_attribute(key, "SendReplyCode", "421 4.3.2")
        assert (await flow.attributes(key))["SendStage"] == "deferred"
        told = await flow.until_details(key, "| 3 |")
        assert re.match(r"\*\*deferred\*\*\. Next (20\d\d-\d\d-\d\d )?\d\d:\d\d:\d\d\n", told)
        assert [row.split(" | ")[2] for row in told.splitlines() if re.match(r"\| \d", row)] == [
            "`451 4.7.1`",
            "`451 4.7.1`",
            "`421 4.3.2`",
        ]
        timers = await summaries(flow, key, "TIMER_STARTED")
        assert re.fullmatch(r"attempt 1 · 451 4\.7\.1 · next (\S+ )?\d\d:\d\d:\d\d", timers[0])
        assert re.fullmatch(r"attempt 3 · 421 4\.3\.2 · next (\S+ )?\d\d:\d\d:\d\d", timers[2])
        assert await summaries(flow, key, "MARKER_RECORDED") == ["attempt 1", "attempt 2", "attempt 3"]
        # The second 451 changed nothing that anybody looks for.
        assert (await flow.events(key)).count("upsert_workflow_search_attributes") == 2

        assert await flow.update(key, "retry_now") == {"said": "it is tried now", "stage": "pending"}
        await flow.until_closed(key)
        assert (await flow.attributes(key))["SendStage"] == "sent"
        assert (await flow.attributes(key))["SendReplyCode"] == "250 2.0.0"
        assert (await flow.handle(key).describe()).status is WorkflowExecutionStatus.COMPLETED


@pytest.mark.parametrize(
    ("outcome", "stage", "fields"),
    [
        (REFUSED, "failed", {}),
        (LATER, "dead", {"retry": {"delays": [0.25], "max_attempts": 1}}),
        (LATER, "expired", {"retry": {"delays": [60]}}),
    ],
    ids=["failed", "dead", "expired"],
)
async def test_what_was_not_sent_is_red_and_filterable_by_stage_and_code(
    flow: Flow, relay: type[Relay], outcome: Refused | Deferred, stage: str, fields: dict[str, Any]
) -> None:
    await flow.own_clock()
    if stage == "expired":
        [row] = await flow.rows("SELECT (sendonce.clock() + interval '10 minutes')::text AS at")
        fields = fields | {"expires_at": row["at"]}
    async with flow.worker(relay(*answers(outcome))):
        key = await flow.enqueue(**fields)
        if stage == "expired":
            await flow.until_attribute(key, "SendStage", "deferred")
            await flow.advance(601)
            await flow.update(key, "retry_now")
        await flow.until_closed(key)
        assert (await flow.handle(key).describe()).status is WorkflowExecutionStatus.FAILED
        attributes = await flow.attributes(key)
        assert attributes["SendStage"] == stage
        assert attributes["SendReplyCode"] == f"{outcome.reply.code} {outcome.reply.enhanced}"
        assert (await flow.details(key)).startswith(f"**{stage}**")


async def test_a_mail_that_was_sent_to_some_says_so(flow: Flow, relay: type[Relay]) -> None:
    async def some(job: Job, gate: Gate) -> AttemptResult:
        await gate.begin((0, 1))
        gate.offered()
        return AttemptResult({0: ACCEPTED, 1: REFUSED})

    async with flow.worker(relay(some)):
        key = await flow.enqueue(to=["ann@example.org", "bob@example.org"])
        await flow.until_closed(key)
        assert (await flow.attributes(key))["SendStage"] == "partial"
        assert (await flow.details(key)).startswith("**sent**, not to everybody\n")


@pytest.mark.parametrize(
    ("awaits", "fields", "able"),
    [
        ("operator", {}, {}),
        ("resend", {"unknown": "resend"}, {}),
        ("look_up", {}, {"look_up": "metadata"}),
        ("replay", {"retry": {"delays": [300]}}, {"replay": True}),
    ],
)
async def test_an_unknown_says_what_it_awaits_and_how_to_decide(
    flow: Flow, relay: type[Relay], awaits: str, fields: dict[str, Any], able: dict[str, Any]
) -> None:
    transport = relay(*answers(LOST), key_window=3600.0 if able.pop("replay", False) else None)
    transport.capability = Capability(**able)

    async def look_up(question: object) -> dict[int, Outcome]:
        return {}

    transport.look_up = look_up  # type: ignore[attr-defined]
    async with flow.worker(transport):
        key = await flow.enqueue(**fields)
        await flow.until_attribute(key, "SendStage", "unknown")
        told = await flow.until_details(key, "**unknown**")
        assert AWAITS[awaits] in told
        assert f'`sendonce resolve {key} --sent --because "…"`' in told
        assert re.search(rf"^\| 1 \| .* \| unknown, awaits {awaits} \|$", told, re.MULTILINE)
        assert f"awaits {awaits}" in (await summaries(flow, key, "TIMER_STARTED"))[-1]


async def test_a_transmission_in_flight_is_told(flow: Flow, relay: type[Relay]) -> None:
    go = asyncio.Event()

    async def slow(job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        await go.wait()
        return same_for_all(ordinals, ACCEPTED)

    async with flow.worker(relay(slow), hand_off_seconds=0.2):
        key = await flow.enqueue()
        await flow.until_details(key, "**being offered to its provider**: its answer is awaited until ")
        assert (await summaries(flow, key, "TIMER_STARTED"))[0].startswith("being offered to its provider · answer ")
        go.set()
        await flow.until_closed(key)
        # It was sent by its first attempt: nothing to look for has changed.
        assert (await flow.attributes(key))["SendStage"] == "started"
        assert "| 1 |" in await flow.details(key)


async def test_a_mail_of_a_paused_account_says_so_and_is_not_counted(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answers(AccountFault(Reply(535, "5.7.8"))))):
        key = await flow.enqueue()
        await flow.until_attribute(key, "SendStage", "deferred")
        await flow.update(key, "retry_now")
        await flow.until_attribute(key, "SendStage", "paused")
        assert (await flow.attributes(key))["SendReplyCode"] == "535 5.7.8"
        told = await flow.until_details(key, "its account is paused**")
        assert "| · |" in told


async def test_the_list_can_be_filtered(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answers(LATER, LOST))):
        key = await flow.enqueue()
        await flow.until_attribute(key, "SendStage", "unknown")
        ours = f'TaskQueue = "{flow.prefix}-default"'
        for question in ('SendStage = "unknown" AND SendAccount = "default"', 'SendReplyCode STARTS_WITH "451"'):

            async def listed(query: str = f"{question} AND {ours}") -> bool:
                return [one.id async for one in flow.client.list_workflows(query)] == [key]

            await flow.until(listed, f"the mail in the list of {question}")


async def test_a_new_run_knows_the_attempts_of_the_last_one(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.workflows.delivery.MANY_EVENTS", 10)
    monkeypatch.setattr("sendonce.workflows.details.MOST_SEEN", 4)
    async with flow.worker(relay(*answers(*[LATER] * 6, OTHER))):
        key = await flow.enqueue(retry={"delays": [0.25] * 6 + [300], "max_attempts": 60})
        await flow.until_attribute(key, "SendReplyCode", "421 4.3.2")
        history = await flow.handle(key).fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        assert started.continued_execution_run_id
        told = await flow.until_details(key, "| 7 |")
        rows = [row for row in told.splitlines() if re.match(r"\| \d", row)]
        assert [int(row.split(" | ")[0][2:]) for row in rows] == [4, 5, 6, 7]
        assert (await flow.attributes(key))["SendAccount"] == "default"
        await flow.update(key, "cancel")
        await flow.until_closed(key)


async def test_the_updates_are_described_for_people(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay(*answers(LATER))):
        key = await flow.enqueue(retry={"delays": [300]})
        await flow.until_event(key, "timer_started")
        found: WorkflowMetadata = await flow.handle(key).query(
            "__temporal_workflow_metadata", result_type=WorkflowMetadata
        )
    described = {update.name: update.description for update in found.definition.update_definitions}
    assert described.keys() == {"retry_now", "cancel", "resolve"}
    assert all("because" in text for text in described.values())
    assert '"decision": "sent"' in described["resolve"]
