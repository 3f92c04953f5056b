"""The pure parts of an attempt: provider keys, redirects, and what crosses to the workflow."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter

from sendonce.activities.answers import from_carried, to_answer, to_carried
from sendonce.activities.provider_key import provider_key
from sendonce.activities.redirect import Guard
from sendonce.activities.transports.base import Mail
from sendonce.activities.transports.json_template import fill_template
from sendonce.message import Address, OutgoingEmail
from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    Deferred,
    NotOffered,
    Outcome,
    Refused,
    Reply,
    Unanswered,
)
from sendonce.stages import Stage
from sendonce.store.records import Busy, EnvelopeRecipient, Finished, Held, NoSuchRow, Paused, Wait
from sendonce.workflows.port import (
    AttemptAnswer,
    Carried,
    Ended,
    Finding,
    InFlight,
    Missing,
    Sleep,
    Ticket,
    Unrecorded,
    task_queue,
    workflow_id,
)

ONE, TWO = UUID(int=1), UUID(int=2)
KEYS = st.from_regex(r"[A-Za-z0-9._:-]{1,100}(@[a-z0-9_-]{1,50})?", fullmatch=True)
PEOPLE = (
    EnvelopeRecipient(0, "ann@example.org"),
    EnvelopeRecipient(1, "bob@staff.example"),
    EnvelopeRecipient(2, "eve@example.net"),
)


@given(KEYS, st.integers(1, 10**6))
def test_a_provider_key_is_short_and_plain(workflow: str, generation: int) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,100}", provider_key(ONE, workflow, generation))


def test_a_provider_key_is_stable_readable_and_everybodys_own() -> None:
    key = provider_key(ONE, "order-7", 1)
    assert key == provider_key(ONE, "order-7", 1) == "order-7-1-a00e43d688a5931b04c88a10ef1cc572"
    long = "k" * 99
    others = [
        provider_key(TWO, "order-7", 1),
        provider_key(ONE, "order-7", 2),
        provider_key(ONE, "order.7", 1),
        provider_key(ONE, "order:7", 1),
        provider_key(ONE, "order@7", 1),
        provider_key(ONE, long + "a", 1),
        provider_key(ONE, long + "b", 1),
    ]
    assert len({key, *others}) == 8


def test_workflow_ids_and_queues() -> None:
    assert workflow_id("order-7") == "order-7"
    assert Ticket("id", "order-7", "default", "other").workflow_id == "order-7@other"
    assert task_queue("sendonce", "bulk") == "sendonce-bulk"


def test_without_limits_everybody_is_reached() -> None:
    envelope = Guard().envelope(PEOPLE)
    assert [(r.ordinal, r.mailbox) for r in envelope.recipients] == [(p.ordinal, p.mailbox) for p in PEOPLE]
    assert not envelope.refused
    assert not Guard().active


def test_redirected_recipients_share_one_mailbox_and_its_answer() -> None:
    envelope = Guard("qa@test.example", frozenset({"staff.example"})).envelope(PEOPLE)
    assert [(r.ordinal, r.mailbox) for r in envelope.recipients] == [(0, "qa@test.example"), (1, "bob@staff.example")]
    assert envelope.ordinals((0,)) == (0, 2)
    accepted, refused = Accepted(Reply(250)), Refused(Reply(550))
    spread = envelope.spread(AttemptResult({0: accepted, 1: refused, 9: refused}))
    assert spread.outcomes == {0: accepted, 2: accepted, 1: refused}


def test_strangers_are_refused_and_stay_refused_whatever_the_answer() -> None:
    envelope = Guard(None, frozenset({"staff.example"})).envelope(PEOPLE)
    assert [r.mailbox for r in envelope.recipients] == ["bob@staff.example"]
    spread = envelope.spread(AttemptResult({1: Accepted(Reply(250)), 0: Accepted(Reply(250))}))
    assert {o: v.kind for o, v in spread.outcomes.items()} == {0: "refused", 1: "accepted", 2: "refused"}
    assert Guard(None, frozenset()).envelope(PEOPLE).recipients == ()


def test_a_request_that_names_its_recipients_names_the_redirect() -> None:
    guard = Guard("qa@test.example", frozenset({"staff.example"}))
    content = OutgoingEmail(
        key="k",
        sender=Address(email="shop@example.com"),
        to=(Address(email="ann@example.org", name="Ann"), Address(email="bob@staff.example", name="Bob")),
        bcc=(Address(email="eve@example.net"),),
        subject="s",
        text="t",
    )
    mail = Mail("id", "k", "default", "<m@example.com>", datetime(2030, 1, 1, tzinfo=UTC), guard.content(content))
    template = {"to": "{to}", "cc": "{cc}", "bcc": "{bcc}"}
    body = json.loads(fill_template(template, mail, guard.envelope(PEOPLE).recipients, "pk"))
    assert body == {"to": ["qa@test.example", "Bob <bob@staff.example>"]}
    assert Guard().content(content) is content


OUTCOMES: list[Outcome] = [
    Accepted(Reply(250, "2.0.0", "text"), "Q1", True),
    Deferred(Reply(451, "4.7.1", "text"), 30.0),
    Refused(Reply(550, "5.1.1", "text"), True),
    AccountFault(Reply(535, "5.7.8", "text"), 60.0),
    Unanswered(Reply(500, "", "text"), 5.0),
    NotOffered(Reply(0, "connect", "text"), False, 7.0),
]


def test_a_carried_outcome_loses_its_text_and_nothing_else() -> None:
    result = AttemptResult(dict(enumerate(OUTCOMES)))
    carried = to_carried("attempt", result)
    back = from_carried(carried).outcomes
    for ordinal, outcome in enumerate(OUTCOMES):
        found = back[ordinal]
        assert found.kind == outcome.kind
        assert found.reply == Reply(outcome.reply.code, outcome.reply.enhanced)
        for name in ("provider_id", "replayed", "retry_after", "counted"):
            assert getattr(found, name, None) == getattr(outcome, name, None)


def test_an_outcome_of_another_release_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        from_carried(Carried("attempt", [Finding(0, "teleported")]))


@pytest.mark.parametrize(
    ("standing", "answer"),
    [
        (Finished(Stage.SENT, 250, "2.0.0", True, False, 3), Ended("sent", 250, "2.0.0", True, False, 3)),
        (Finished(Stage.DEAD, 451, "see ann@example.org"), Ended("dead", 451, "")),
        (Wait(5.0, "deferred", Stage.PENDING, 451, "4.7.1", 2), Sleep(5.0, "deferred", "pending", 451, "4.7.1", 2)),
        (
            Held(9.0, "operator said: wait", Stage.UNKNOWN),
            Sleep(9.0, "held", "unknown", held=True, awaits="operator"),
        ),
        (
            Wait(9.0, "unanswered", Stage.UNKNOWN, awaits="replay"),
            Sleep(9.0, "unanswered", "unknown", awaits="replay"),
        ),
        (Busy(6.0, Stage.TRANSMITTING), Sleep(6.0, "busy", "transmitting")),
        (NoSuchRow(), Missing()),
    ],
)
def test_what_the_store_says_becomes_what_the_workflow_does(standing: Any, answer: AttemptAnswer) -> None:
    assert to_answer(standing) == answer


def test_a_pause_is_spread_out() -> None:
    answers = [to_answer(Paused(100.0, False, "default")) for _ in range(50)]
    seconds = [a.seconds for a in answers if isinstance(a, Sleep) and a.why == "paused"]
    assert len(set(seconds)) > 10
    assert all(100.0 <= s <= 125.0 for s in seconds)


@pytest.mark.parametrize(
    "answer",
    [
        Ended("sent", 250),
        Sleep(1.0, "deferred"),
        InFlight(30.0, "transmitting"),
        Unrecorded(Carried("a", [Finding(0, "accepted", 250)]), 5.0),
        Missing(),
    ],
    ids=lambda a: str(a.kind),
)
async def test_every_answer_arrives_as_what_it_is(answer: AttemptAnswer) -> None:
    payloads: list[Payload] = await DataConverter.default.encode([answer])
    [back] = await DataConverter.default.decode(payloads, [AttemptAnswer])  # type: ignore[list-item]
    assert back == answer
