"""Mailjet: how a mail is written for it, what each of its answers means for whom, and asking it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.mailjet import MailjetSettings, MailjetTransport, classify
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Refused
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.mailjet_server import MailjetServer, mailjet_error

OFFER = hashlib.sha256(b"k1").hexdigest()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "O'Neil@example.org"
EVERYBODY = (Recipient(0, A), Recipient(1, B), Recipient(2, C))


@pytest.fixture
async def mailjet() -> AsyncIterator[MailjetServer]:
    async with MailjetServer(api_key="public:private") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: MailjetServer | None = None, **settings: Any) -> MailjetTransport:
    url = {"base_url": server.origin} if server else {}
    made = {"api_key": SecretStr("public"), "secret_key": SecretStr("private"), **url, **settings}
    return MailjetTransport(MailjetSettings(**made), now=lambda: NOW)


async def send(server: MailjetServer, content: OutgoingEmail | None = None, **settings: Any) -> AttemptResult:
    transport = transport_for(server, **settings)
    try:
        return await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    finally:
        await transport.close()


async def asked(server: MailjetServer, provider_key: str = "k1") -> dict[int, Accepted | Refused]:
    transport = transport_for(server)
    assert isinstance(transport, LooksUp)
    recipients = (Recipient(0, A), Recipient(2, B))
    try:
        return await transport.look_up(Question("id-k1", "k1", "<m>", provider_key, NOW, recipients))
    finally:
        await transport.close()


def kinds(result: AttemptResult) -> list[str]:
    return [outcome.kind for _, outcome in sorted(result.outcomes.items())]


def answer(status: int, content: Any = None) -> Answer:
    return Answer(status, {"Retry-After": "7"}, json.dumps(content).encode(), NOW)


def refused(status: int, *errors: dict[str, Any]) -> Answer:
    return answer(status, {"Messages": [{"Status": "error", "Errors": list(errors)}]})


def taken(status: str = "success", **lists: list[Any]) -> Answer:
    return answer(200, {"Messages": [{"Status": status, **lists}]})


def one(email: str, number: Any = 1) -> dict[str, Any]:
    return {"Email": email, "MessageID": number, "MessageUUID": "u"}


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop <shop@example.org>",
        to=["Jörg <jörg@bücher.example>"],
        cc=[B],
        bcc=[C],
        reply_to=["Help <help@example.org>"],
        html="<img src='cid:logo'>",
        headers={"X-Order": "17"},
        attachments=[
            Attachment(filename="a.txt", content=b"abc", content_type="text/plain"),
            Attachment(filename="l.png", content=b"abc", content_type="image/png", inline=True, content_id="logo"),
        ],
    )
    rendering = make_job(transport_for(), content).rendering
    assert (rendering.method, rendering.url) == ("POST", "https://api.mailjet.com/v3.1/send")
    assert json.loads(rendering.body) == {
        "Messages": [
            {
                "From": {"Email": "shop@example.org", "Name": "Shop"},
                "To": [{"Email": "jörg@xn--bcher-kva.example", "Name": "Jörg"}],
                "Cc": [{"Email": B}],
                "Bcc": [{"Email": C}],
                "ReplyTo": {"Email": "help@example.org", "Name": "Help"},
                "Subject": "Hi",
                "TextPart": "Hi.\n",
                "HTMLPart": "<img src='cid:logo'>",
                "Headers": {"X-Order": "17", "Auto-Submitted": "auto-generated"},
                "Attachments": [{"Filename": "a.txt", "ContentType": "text/plain", "Base64Content": "YWJj"}],
                "InlinedAttachments": [
                    {"Filename": "l.png", "ContentType": "image/png", "Base64Content": "YWJj", "ContentID": "logo"}
                ],
                "CustomID": OFFER,
                "EventPayload": '{"sendonce_id":"id-k1","sendonce_key":"k1"}',
            }
        ]
    }


def test_only_the_envelope_is_named_and_somebody_is_in_to() -> None:
    [message] = json.loads(make_job(transport_for(), mail(cc=[B], bcc=[C]), ordinals=(1, 2)).rendering.body)["Messages"]
    found = {name: message.get(name) for name in ("To", "Cc", "Bcc")}
    assert found == {"To": [{"Email": B}], "Cc": None, "Bcc": [{"Email": C}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"to": (), "bcc": [B, C]}, "to: this provider needs somebody in To"),
        ({"reply_to": [B, C]}, "reply_to: Mailjet takes one address"),
        ({"text": None, "attachments": [Attachment(filename="a.txt", content=b"abc")]}, "text: Mailjet takes no mail"),
    ],
)
def test_what_it_cannot_carry_is_refused_before_it_is_sent(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidEmail, match=says):
        make_job(transport_for(), mail(**changes))


async def test_the_keys_travel_as_a_header_only_and_no_key_of_ours_does(mailjet: MailjetServer) -> None:
    assert kinds(await send(mailjet)) == ["accepted"]
    [request] = mailjet.requests
    scheme, _, pair = request.headers["authorization"].partition(" ")
    assert (scheme, base64.b64decode(pair)) == ("Basic", b"public:private")
    assert "idempotency-key" not in request.headers
    assert b"private" not in request.body


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope", "code"),
    [
        (refused(400, mailjet_error("send-0003")), "refused", None, "send-0003"),
        (refused(400, mailjet_error("send-0011")), "refused", None, "send-0011"),
        (refused(400, mailjet_error("mj-0004"), mailjet_error("mj-0005")), "refused", None, "mj-0004"),
        (refused(403, mailjet_error("send-0008", 403)), "account_fault", "sender", "send-0008"),
        (refused(400, mailjet_error("mj-0004"), mailjet_error("send-0008")), "account_fault", "sender", "send-0008"),
        (refused(403, mailjet_error("send-0007", 403)), "account_fault", "sender", "send-0007"),
        (refused(403, mailjet_error("send-0006", 403)), "account_fault", "account", "send-0006"),
        (answer(401, mailjet_error("mj-0001", 401)), "account_fault", "account", "mj-0001"),
        (answer(401, mailjet_error("mj-0015", 401)), "account_fault", "account", "mj-0015"),
        (answer(400, mailjet_error("mj-0015", 401)), "account_fault", "account", "mj-0015"),
        (answer(400, mailjet_error("mj-0002")), "refused", None, "mj-0002"),
        (answer(401, {"ErrorMessage": "no"}), "account_fault", "account", ""),
        (answer(400), "refused", None, ""),
        (answer(403), "account_fault", "account", ""),
        (answer(404), "account_fault", "account", ""),
        (answer(302), "account_fault", "account", ""),
        (answer(413), "refused", None, ""),
        (answer(429), "deferred", None, ""),
        (answer(408), "unanswered", None, ""),
        (answer(500, mailjet_error("mj-0015", 401)), "unanswered", None, ""),
        (answer(503), "unanswered", None, ""),
        (taken("error", To=[one(A)]), "unanswered", None, "no_id"),
        (taken(), "unanswered", None, "no_id"),
        (taken(To=[one(A, 0), None, "x"]), "unanswered", None, "no_id"),
        (answer(200, {"Messages": []}), "unanswered", None, "no_id"),
        (answer(200, {"Messages": {}}), "unanswered", None, "no_id"),
        (answer(200, []), "unanswered", None, "no_id"),
    ],
)
def test_what_each_answer_means_for_everybody(found: Answer, kind: str, scope: str | None, code: str) -> None:
    result = classify(found, EVERYBODY)
    assert kinds(result) == [kind] * 3
    outcome = result.outcomes[0]
    assert getattr(outcome, "scope", None) == scope
    assert (outcome.reply.code, outcome.reply.enhanced) == (found.status, code)


def test_a_success_is_one_for_those_who_are_listed() -> None:
    result = classify(taken(To=[one("A@EXAMPLE.org", 11)], Cc=[], Bcc=[one(C, 13)]), EVERYBODY)
    assert kinds(result) == ["accepted", "unanswered", "accepted"]
    assert [getattr(each, "provider_id", None) for _, each in sorted(result.outcomes.items())] == ["11", None, "13"]


@pytest.mark.parametrize(
    ("found", "expected", "reply"),
    [
        (refused(200, mailjet_error("send-0003")), ["refused"] * 3, (400, "send-0003")),
        (refused(200, mailjet_error("send-0008", 403)), ["account_fault"] * 3, (403, "send-0008")),
        (
            refused(200, mailjet_error("mj-0013", 400, f'"{B}" is an invalid email address.', "Cc[0].Email")),
            ["deferred", "refused", "deferred"],
            (400, "mj-0013"),
        ),
        (refused(200, mailjet_error("send-0003", 500)), ["unanswered"] * 3, (200, "no_id")),
        (refused(200, {"ErrorCode": "send-0003"}), ["unanswered"] * 3, (200, "no_id")),
        (refused(200), ["unanswered"] * 3, (200, "no_id")),
    ],
)
def test_a_call_that_worked_can_hold_a_message_that_did_not(
    found: Answer, expected: list[str], reply: tuple[int, str]
) -> None:
    result = classify(found, EVERYBODY)
    assert kinds(result) == expected
    assert (result.outcomes[0].reply.code, result.outcomes[0].reply.enhanced) == reply


def malformed(email: str, place: str = "To[0].Email") -> dict[str, Any]:
    return mailjet_error("mj-0013", 400, f'"{email}" is an invalid email address.', place)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (refused(400, malformed(B, "Cc[0].Email")), ["deferred", "refused", "deferred"]),
        (refused(400, malformed(A), malformed("o'neil@example.org", "Bcc[0]")), ["refused", "deferred", "refused"]),
        (refused(400, malformed("somebody@example.net")), ["refused"] * 3),
        (refused(400, malformed(A, "From.Email")), ["refused"] * 3),
        (refused(400, malformed(A), malformed(A, "ReplyTo.Email")), ["refused"] * 3),
        (refused(400, malformed(A), mailjet_error("mj-0004")), ["refused"] * 3),
        (refused(400, mailjet_error("mj-0013")), ["refused"] * 3),
    ],
)
def test_malformed_addresses_are_told_apart(found: Answer, expected: list[str]) -> None:
    assert kinds(classify(found, EVERYBODY)) == expected


async def test_a_malformed_recipient_is_refused_and_the_others_wait(mailjet: MailjetServer) -> None:
    result = await send(mailjet, mail(cc=["b@123.4"], bcc=[C]))
    assert kinds(result) == ["deferred", "refused", "deferred"]
    assert mailjet.mailbox.mails() == []


async def test_each_recipient_has_an_id_of_their_own(mailjet: MailjetServer) -> None:
    result = await send(mailjet, mail(cc=[B], bcc=[C]))
    ids = [getattr(each, "provider_id", "") for _, each in sorted(result.outcomes.items())]
    assert len(set(ids)) == 3
    assert ids[0].endswith(mailjet.mailbox.mails()[0].provider_id)


async def test_set_up_that_is_wrong_blames_no_recipient(mailjet: MailjetServer) -> None:
    mailjet.senders = frozenset({"example.com"})
    found = [await send(mailjet), await send(mailjet, secret_key=SecretStr("other"))]
    assert [(kinds(each), getattr(each.outcomes[0], "scope", "")) for each in found] == [
        (["account_fault"], "sender"),
        (["account_fault"], "account"),
    ]
    assert mailjet.mailbox.mails() == []


# No keys, but questions


async def test_a_second_request_is_a_second_mail(mailjet: MailjetServer) -> None:
    assert transport_for().key_window is None
    assert transport_for().capability.key == ""
    await send(mailjet)
    await send(mailjet)
    assert mailjet.mailbox.copies(A) == 2


async def test_a_lost_answer_is_found_once_the_list_knows_of_it(mailjet: MailjetServer) -> None:
    mailjet.search_lag = 30.0
    mailjet.script.add(bad.lose_answer(times=1))
    assert kinds(await send(mailjet, mail(cc=[B]))) == ["unanswered"] * 2
    assert await asked(mailjet) == {}
    mailjet.advance(30)
    found = await asked(mailjet)
    assert {ordinal: each.kind for ordinal, each in found.items()} == {0: "accepted", 2: "accepted"}
    assert await asked(mailjet, "k1-of-another-generation") == {}


async def test_the_question_reaches_back_to_before_the_offer(mailjet: MailjetServer) -> None:
    await asked(mailjet)
    [request] = mailjet.requests
    parts = urlsplit(request.path)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert parts.path == "/v3/REST/message"
    assert query["CustomID"] == OFFER
    assert query["ShowCustomID"] == "true"
    assert 0 < NOW.timestamp() - int(query["FromTS"]) <= 86400


@pytest.mark.parametrize(
    "messages",
    [
        [{"ID": 1, "CustomID": "other"}, {"ID": 1, "CustomID": ""}, {"ID": 1}, None, "x"],
        [{"CustomID": OFFER}, {"ID": 0, "CustomID": OFFER}],
    ],
)
async def test_what_is_found_is_read_back(mailjet: MailjetServer, messages: list[Any]) -> None:
    mailjet.script.add(bad.answer(200, body=json.dumps({"Count": 1, "Data": messages}).encode()))
    assert await asked(mailjet) == {}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (bad.answer(401), "http_401"),
        (bad.too_many_requests("7"), "http_429"),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_messages"),
        (bad.answer(200, body=b'{"Data": {}}'), "not_a_list_of_messages"),
        (bad.cut_at_headers(), "ReadError"),
    ],
)
async def test_a_question_without_a_usable_answer(mailjet: MailjetServer, rule: bad.HttpRule, why: str) -> None:
    rule.times = None
    mailjet.script.rules = [rule]
    with pytest.raises(Asked, match=why):
        await asked(mailjet)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"secret_key": SecretStr("private\n")}, "secret_key: must be printable"),
        ({"key_window": 60}, "not permitted"),
        ({"base_url": "api.mailjet.com"}, "base_url: write an absolute URL"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        MailjetSettings(**{"api_key": SecretStr("public"), "secret_key": SecretStr("private"), **settings})
    assert says in str(caught.value)
