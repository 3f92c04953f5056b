"""Brevo: how a mail is written for it, what each of its answers means, its keys, and asking it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient
from sendonce.activities.transports.brevo import BrevoSettings, BrevoTransport, classify
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.http_client import FOUND_LIMIT
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Refused, Unanswered
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.brevo_server import KEY_WINDOW, BrevoServer, brevo_error

OFFER = f"sendonce-offer-{hashlib.sha256(b'k1').hexdigest()[:32]}"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"


@pytest.fixture
async def brevo() -> AsyncIterator[BrevoServer]:
    async with BrevoServer(api_key="xkeysib") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: BrevoServer | None = None, **settings: Any) -> BrevoTransport:
    url = {"base_url": server.origin} if server else {}
    return BrevoTransport(BrevoSettings(**{"api_key": SecretStr("xkeysib"), **url, **settings}), now=lambda: NOW)


async def send(server: BrevoServer, content: OutgoingEmail | None = None, **settings: Any) -> Outcome:
    transport = transport_for(server, **settings)
    result: AttemptResult = await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


async def asked(server: BrevoServer, provider_key: str = "k1", *mailboxes: str) -> dict[int, Accepted | Refused]:
    transport = transport_for(server)
    assert isinstance(transport, LooksUp)
    recipients = tuple(Recipient(2 * index, one) for index, one in enumerate(mailboxes or (A, B)))
    try:
        return await transport.look_up(Question("id-k1", "k1", "<k1@sendonce.test>", provider_key, NOW, recipients))
    finally:
        await transport.close()


def written(content: OutgoingEmail, ordinals: tuple[int, ...] | None = None) -> dict[str, Any]:
    body = make_job(transport_for(), content, ordinals=ordinals).rendering.body
    found: dict[str, Any] = json.loads(body)
    return found


def answer(status: int, code: str = "", message: str = "", headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, headers or {}, brevo_error(code, message), NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop, Inc. <shop@example.org>",
        to=["Jörg <jörg@bücher.example>", '"Jörg, B." <a@example.org>', '"Ann, B." <d@example.org>'],
        cc=["b@example.org", "JÖRG <jörg@BÜCHER.example>"],
        bcc=["c@example.org"],
        reply_to=["help@example.org"],
        html="<p>Hi.</p>",
        headers={"X-Order": "17"},
        attachments=[Attachment(filename="a.txt", content=b"abc", content_type="text/plain")],
    )
    rendering = make_job(transport_for(), content).rendering
    assert (rendering.method, rendering.url) == ("POST", "https://api.brevo.com/v3/smtp/email")
    assert rendering.headers == (("Content-Type", "application/json"),)
    assert json.loads(rendering.body) == {
        "sender": {"name": "Shop, Inc.", "email": "shop@example.org"},
        "to": [
            {"name": "Jörg", "email": "jörg@xn--bcher-kva.example"},
            {"name": "=?utf-8?b?SsO2cmcsIEIu?=", "email": "a@example.org"},
            {"name": "Ann, B.", "email": "d@example.org"},
        ],
        "cc": [{"email": "b@example.org"}],
        "bcc": [{"email": "c@example.org"}],
        "replyTo": {"email": "help@example.org"},
        "subject": "Hi",
        "htmlContent": "<p>Hi.</p>",
        "textContent": "Hi.\n",
        "headers": {"X-Order": "17", "Auto-Submitted": "auto-generated", "idempotencyKey": "k1"},
        "attachment": [{"name": "a.txt", "content": "YWJj"}],
        "tags": [OFFER, "sendonce-id-id-k1", "sendonce-key-k1"],
    }


def test_a_mail_without_html_gets_the_html_that_brevo_insists_on() -> None:
    body = written(mail(text='1 < 2 & "3"\n'))
    assert body["textContent"] == '1 < 2 & "3"\n'
    assert body["htmlContent"] == '<div style="white-space: pre-wrap">1 &lt; 2 &amp; &quot;3&quot;\n</div>'


def test_nobody_can_bring_a_key_of_their_own() -> None:
    headers = written(mail(headers={"IdempotencyKey": "other", "X-A": "b"}))["headers"]
    assert headers == {"X-A": "b", "Auto-Submitted": "auto-generated", "idempotencyKey": "k1"}


@pytest.mark.parametrize(
    ("ordinals", "expected"),
    [
        ((0,), {"to": [A]}),
        ((0, 2), {"to": [A], "bcc": [C]}),
        ((1, 2), {"to": [B], "bcc": [C]}),
        ((2,), {"to": [C]}),
    ],
)
def test_only_the_envelope_is_named_and_somebody_is_in_to(ordinals: tuple[int, ...], expected: dict[str, Any]) -> None:
    body = written(mail(cc=[B], bcc=[C]), ordinals)
    named = {name: [one["email"] for one in body[name]] for name in ("to", "cc", "bcc") if name in body}
    assert named == expected


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"to": (), "bcc": [B, C]}, "to"),
        ({"reply_to": [B, C]}, "reply_to"),
        ({"headers": {"X-Shop": "Bücher"}}, "headers"),
        (
            {
                "html": "<img src='cid:logo'>",
                "attachments": [
                    Attachment(filename="l.png", content=b"a", content_type="image/png", inline=True, content_id="logo")
                ],
            },
            "attachments",
        ),
    ],
)
def test_what_brevo_cannot_carry_is_refused_before_it_is_sent(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEmail) as caught:
        written(mail(**changes))
    assert caught.value.field == field


async def test_the_api_key_travels_as_a_header_only(brevo: BrevoServer) -> None:
    assert isinstance(await send(brevo), Accepted)
    [request] = brevo.requests
    assert (request.method, request.path, request.headers["api-key"]) == ("POST", "/smtp/email", "xkeysib")
    assert b"xkeysib" not in request.body
    assert "idempotency-key" not in request.headers


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(400, "invalid_parameter", "email is not valid in to"), "refused", None),
        (answer(400, "missing_parameter", "subject is missing"), "refused", None),
        (answer(400, "out_of_range"), "refused", None),
        (answer(400, "bad_request"), "refused", None),
        (answer(400), "refused", None),
        (answer(400, "invalid_parameter", "the Sender you used is not valid"), "account_fault", "sender"),
        (answer(400, "invalid_parameter", "valid sender email required"), "account_fault", "sender"),
        (answer(400, "unauthorized", "sender"), "account_fault", "account"),
        (answer(400, "not_enough_credits"), "account_fault", "account"),
        (answer(400, "duplicate_parameter"), "unanswered", None),
        (answer(409, "duplicate_request"), "unanswered", None),
        (answer(401, "unauthorized", "Key not found"), "account_fault", "account"),
        (answer(402, "not_enough_credits"), "account_fault", "account"),
        (answer(402), "account_fault", "account"),
        (answer(403, "permission_denied"), "account_fault", "account"),
        (answer(403, "account_under_validation"), "account_fault", "account"),
        (answer(403, "reseller_permission_denied"), "account_fault", "account"),
        (answer(404, "document_not_found"), "account_fault", "account"),
        (answer(405, "method_not_allowed"), "account_fault", "account"),
        (answer(406, "not_acceptable"), "account_fault", "account"),
        (answer(408), "unanswered", None),
        (answer(409), "unanswered", None),
        (answer(413), "refused", None),
        (answer(422, "unprocessable_entity"), "refused", None),
        (answer(429), "deferred", None),
        (answer(500, "unauthorized"), "unanswered", None),
        (answer(502), "unanswered", None),
        (answer(302), "account_fault", "account"),
        (Answer(201, {}, b'{"messageId": "<1@x>"}', NOW), "accepted", None),
        (Answer(202, {}, b'{"messageId": "<1@x>"}', NOW), "accepted", None),
        (Answer(201, {}, b'{"messageId": ""}', NOW), "unanswered", None),
        (Answer(200, {}, b"", NOW), "unanswered", None),
        (Answer(200, {}, b"[]", NOW), "unanswered", None),
        (answer(200, "unauthorized"), "unanswered", None),
    ],
)  # fmt: skip
def test_what_each_answer_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "7", "x-sib-ratelimit-reset": "9"}, 7.0),
        ({"Retry-After": "0", "x-sib-ratelimit-reset": "9"}, 0.0),
        ({"x-sib-ratelimit-reset": "9"}, 9.0),
        ({"x-sib-ratelimit-reset": "soon"}, None),
        ({}, None),
    ],
)
def test_a_wish_to_wait_is_handed_on(headers: dict[str, str], wait: float | None) -> None:
    assert getattr(classify(answer(429, headers=headers)), "retry_after", -1) == wait


async def test_a_wrong_key_is_the_accounts_fault(brevo: BrevoServer) -> None:
    outcome = await send(brevo, api_key=SecretStr("other"))
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert outcome.reply.enhanced == "unauthorized"
    assert brevo.mailbox.mails() == []


async def test_what_the_server_refuses_is_refused(brevo: BrevoServer) -> None:
    nameless = mail(attachments=[Attachment(filename="report", content=b"abc")])
    outcome = await send(brevo, nameless)
    assert isinstance(outcome, Refused)
    assert outcome.reply.enhanced == "invalid_parameter"


# Keys, which guarantee nothing


async def test_a_known_key_is_a_reason_to_ask_and_no_answer(brevo: BrevoServer) -> None:
    brevo.script.add(bad.lose_answer(times=1))
    first, second = await send(brevo), await send(brevo)
    assert isinstance(first, Unanswered)
    assert isinstance(second, Unanswered)
    assert (second.reply.code, second.reply.enhanced) == (400, "duplicate_parameter")
    assert brevo.mailbox.copies(A) == 1


async def test_nothing_is_replayed_on_the_strength_of_a_key(brevo: BrevoServer) -> None:
    transport = transport_for()
    assert transport.key_window is None
    assert (transport.capability.key_format, transport.capability.key_assumed) == ("uuid", True)
    await send(brevo)
    brevo.advance(KEY_WINDOW)
    await send(brevo)
    assert brevo.mailbox.copies(A) == 2


# Questions


async def test_a_lost_answer_is_found_once_the_report_knows_of_it(brevo: BrevoServer) -> None:
    brevo.search_lag = 30.0
    brevo.script.add(bad.lose_answer(times=1))
    outcome = await send(brevo, mail(cc=[B]))
    [stored] = brevo.mailbox.mails()
    assert isinstance(outcome, Unanswered)
    assert await asked(brevo) == {}
    brevo.advance(30)
    found = await asked(brevo)
    assert set(found) == {0, 2}
    assert {(one.kind, getattr(one, "provider_id", "")) for one in found.values()} == {("accepted", stored.provider_id)}


async def test_one_event_answers_for_everybody_in_the_request(brevo: BrevoServer) -> None:
    await send(brevo)
    assert {ordinal: one.kind for ordinal, one in (await asked(brevo)).items()} == {0: "accepted", 2: "accepted"}


async def test_another_offer_is_not_taken_for_this_one(brevo: BrevoServer) -> None:
    await send(brevo)
    assert await asked(brevo, "k1-of-another-generation") == {}
    path = brevo.requests[-1].path
    assert path.startswith("/smtp/statistics/events?limit=100&offset=0&sort=desc&tags=sendonce-offer-")


async def test_events_that_do_not_say_whose_they_are_prove_nothing(brevo: BrevoServer) -> None:
    brevo.shows_tags = False
    await send(brevo)
    assert await asked(brevo) == {}


async def test_whoever_is_blocked_gets_nothing_and_the_others_theirs(brevo: BrevoServer) -> None:
    brevo.blocked = frozenset({B})
    assert isinstance(await send(brevo, mail(cc=[B])), Accepted)
    assert brevo.mailbox.mails()[0].recipients == (A,)
    found = await asked(brevo)
    assert {ordinal: (one.kind, one.reply.enhanced) for ordinal, one in found.items()} == {
        0: ("accepted", "found"),
        2: ("refused", "blocked"),
    }


async def test_mail_that_was_dropped_is_not_called_sent(brevo: BrevoServer) -> None:
    brevo.validated = frozenset({"example.com"})
    assert isinstance(await send(brevo), Accepted)
    assert brevo.mailbox.copies(A) == 0
    assert await asked(brevo) == {}


def events(*kinds: str, mailbox: str = A, **more: Any) -> list[dict[str, Any]]:
    return [{"email": mailbox, "event": kind, "messageId": "<1@x>", "tag": OFFER, **more} for kind in kinds]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({}, {}),
        ({"events": []}, {}),
        ({"events": events("requests")}, {0: "accepted", 2: "accepted"}),
        ({"events": events("hardBounces")}, {0: "accepted", 2: "accepted"}),
        ({"events": events("someday")}, {0: "accepted", 2: "accepted"}),
        ({"events": events("invalid", "requests", mailbox=A.upper())}, {0: "refused", 2: "accepted"}),
        ({"events": events("delivered", "blocked")}, {0: "accepted", 2: "accepted"}),
        ({"events": events("delivered", "error")}, {}),
        ({"events": events("delivered", tag=json.dumps([OFFER, "x"]))}, {0: "accepted", 2: "accepted"}),
        ({"events": events("delivered", tag="", tags=[OFFER])}, {0: "accepted", 2: "accepted"}),
        ({"events": events("delivered", tag="other")}, {}),
        ({"events": events("delivered", tag=None)}, {}),
        ({"events": events("delivered", messageId=None)}, {}),
        ({"events": [None, "x", 1]}, {}),
    ],
)
async def test_what_the_report_says_of_whom(brevo: BrevoServer, report: Any, expected: dict[int, str]) -> None:
    brevo.script.add(bad.answer(200, body=json.dumps(report).encode()))
    assert {ordinal: one.kind for ordinal, one in (await asked(brevo)).items()} == expected


@pytest.mark.parametrize(
    ("rule", "why", "wait"),
    [
        (bad.answer(401, body=brevo_error("unauthorized")), "http_401", None),
        (bad.too_many_requests("7"), "http_429", 7.0),
        (bad.unavailable(), "http_503", None),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_events", None),
        (bad.answer(200, body=b"[]"), "not_a_list_of_events", None),
        (bad.answer(200, body=b'{"events": {}}'), "not_a_list_of_events", None),
        (bad.answer(200, body=b" " * FOUND_LIMIT), "answer_too_long", None),
        (bad.cut_in_answer(after=40), "ReadError", None),
    ],
)
async def test_a_question_without_a_usable_answer(
    brevo: BrevoServer, rule: bad.HttpRule, why: str, wait: float | None
) -> None:
    rule.times = None
    brevo.script.rules = [rule]
    with pytest.raises(Asked) as caught:
        await asked(brevo)
    assert (caught.value.why, caught.value.retry_after) == (why, wait)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"base_url": "http://api.brevo.com/v3"}, "base_url: http would send the mail and the credentials in clear"),
        ({"api_key": SecretStr("xkeysib ")}, "api_key: must be printable"),
        ({"key_window": 60}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BrevoSettings(**{"api_key": SecretStr("xkeysib"), **settings})
    assert says in str(caught.value)
    assert "xkeysib" not in str(caught.value)
