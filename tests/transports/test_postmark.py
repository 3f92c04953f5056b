"""Postmark: how a mail is written for it, what each of its answers means for whom, and asking it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.http_client import FOUND_LIMIT
from sendonce.activities.transports.postmark import PostmarkSettings, PostmarkTransport, classify
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Refused, Unanswered
from sendonce.settings import build_transports, load
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.http_server import HttpServer
from sendonce.testing.postmark_server import PostmarkServer, postmark_error

OFFER = hashlib.sha256(b"k1").hexdigest()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"
EVERYBODY = tuple(Recipient(ordinal, mailbox) for ordinal, mailbox in enumerate((A, B, "O'Neil@example.org")))


@pytest.fixture
async def postmark() -> AsyncIterator[PostmarkServer]:
    async with PostmarkServer(api_key="token") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: HttpServer | None = None, **settings: Any) -> PostmarkTransport:
    url = {"base_url": server.origin} if server else {}
    return PostmarkTransport(PostmarkSettings(**{"api_key": SecretStr("token"), **url, **settings}), now=lambda: NOW)


async def send(server: HttpServer, content: OutgoingEmail | None = None, **settings: Any) -> AttemptResult:
    transport = transport_for(server, **settings)
    try:
        return await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    finally:
        await transport.close()


async def asked(server: HttpServer, provider_key: str = "k1", **settings: Any) -> dict[int, Accepted | Refused]:
    transport = transport_for(server, **settings)
    assert isinstance(transport, LooksUp)
    recipients = (Recipient(0, A), Recipient(2, B))
    question = Question("id-k1", "k1", "<k1@sendonce.test>", provider_key, NOW, recipients)
    try:
        return await transport.look_up(question)
    finally:
        await transport.close()


def kinds(result: AttemptResult) -> dict[int, str]:
    return {ordinal: outcome.kind for ordinal, outcome in sorted(result.outcomes.items())}


def answer(status: int, code: int | None, message: str = "", **body: Any) -> Answer:
    content = {"ErrorCode": code, "Message": message, **body}
    return Answer(status, {"Retry-After": "7"}, json.dumps(content).encode(), NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop, Inc. <shop@example.org>",
        to=["Jörg <jörg@bücher.example>", '"Ann, B." <a@example.org>'],
        cc=["b@example.org"],
        bcc=["c@example.org"],
        reply_to=["help@example.org"],
        html="<img src='cid:logo'>",
        headers={"X-Order": "17"},
        attachments=[
            Attachment(filename="a.txt", content=b"abc", content_type="text/plain"),
            Attachment(filename="l.png", content=b"abc", content_type="image/png", inline=True, content_id="logo"),
        ],
    )
    rendering = make_job(transport_for(), content).rendering
    assert (rendering.method, rendering.url) == ("POST", "https://api.postmarkapp.com/email")
    assert json.loads(rendering.body) == {
        "From": '"Shop, Inc." <shop@example.org>',
        "To": 'Jörg <jörg@xn--bcher-kva.example>, "Ann, B." <a@example.org>',
        "Cc": "b@example.org",
        "Bcc": "c@example.org",
        "ReplyTo": "help@example.org",
        "Subject": "Hi",
        "HtmlBody": "<img src='cid:logo'>",
        "TextBody": "Hi.\n",
        "Headers": [
            {"Name": "Message-ID", "Value": "<k1@sendonce.test>"},
            {"Name": "X-PM-KeepID", "Value": "true"},
            {"Name": "X-Order", "Value": "17"},
            {"Name": "Auto-Submitted", "Value": "auto-generated"},
        ],
        "Attachments": [
            {"Name": "a.txt", "Content": "YWJj", "ContentType": "text/plain"},
            {"Name": "l.png", "Content": "YWJj", "ContentType": "image/png", "ContentID": "cid:logo"},
        ],
        "Metadata": {
            "sendonce-offer": OFFER,
            "sendonce-id": "id-k1",
            "sendonce-key": "k1",
        },
        "MessageStream": "outbound",
    }


def test_only_the_envelope_is_named() -> None:
    job = make_job(transport_for(), mail(cc=[B], bcc=[C]), ordinals=(2,))
    body = json.loads(job.rendering.body)
    assert {name: body.get(name) for name in ("To", "Cc", "Bcc")} == {"To": None, "Cc": None, "Bcc": C}


async def test_the_longest_key_keeps_to_the_limits_of_metadata(postmark: PostmarkServer) -> None:
    result = await send(postmark, mail(key="k" * 100))
    assert kinds(result) == {0: "accepted"}


async def test_the_token_travels_as_a_header_only_and_no_key_does(postmark: PostmarkServer) -> None:
    await send(postmark)
    [request] = postmark.requests
    assert request.headers["x-postmark-server-token"] == "token"
    assert "idempotency-key" not in request.headers
    assert b'"token"' not in request.body


# Answers


@pytest.mark.parametrize("status", [422, 200])
@pytest.mark.parametrize(
    ("code", "kind", "scope"),
    [
        (10, "account_fault", "account"),
        (100, "deferred", None),
        (300, "refused", None),
        (400, "account_fault", "sender"),
        (401, "account_fault", "sender"),
        (402, "refused", None),
        (403, "refused", None),
        (405, "account_fault", "account"),
        (406, "refused", None),
        (409, "refused", None),
        (410, "refused", None),
        (411, "refused", None),
        (412, "account_fault", "account"),
        (413, "account_fault", "account"),
        (429, "deferred", None),
        (1235, "account_fault", "account"),
        (1236, "account_fault", "account"),
        (9999, "account_fault", "sender"),
    ],
)
def test_the_error_code_decides_whatever_the_status(status: int, code: int, kind: str, scope: str | None) -> None:
    result = classify(answer(status, code, "prose", MessageID="x"), EVERYBODY)
    assert kinds(result) == dict.fromkeys((0, 1, 2), kind)
    outcome = result.outcomes[0]
    assert getattr(outcome, "scope", None) == scope
    assert (outcome.reply.code, outcome.reply.enhanced) == (status, str(code))
    assert getattr(outcome, "retry_after", 7.0) == 7.0


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, 10, "account_fault"),
        (500, 500, "unanswered"),
        (500, 300, "unanswered"),
        (500, 0, "unanswered"),
        (503, 100, "deferred"),
        (503, None, "unanswered"),
        (408, None, "unanswered"),
        (401, None, "account_fault"),
        (403, None, "account_fault"),
        (404, None, "account_fault"),
        (413, None, "refused"),
        (422, None, "refused"),
        (422, 0, "refused"),
        (429, None, "deferred"),
        (200, None, "unanswered"),
        (200, 0, "unanswered"),
    ],
)
def test_the_status_decides_where_there_is_no_code(status: int, code: int | None, kind: str) -> None:
    assert kinds(classify(answer(status, code), EVERYBODY)) == dict.fromkeys((0, 1, 2), kind)


@pytest.mark.parametrize(
    "body", [b"", b"OK", b"[]", b'{"ErrorCode": "x"}', b'{"ErrorCode": -1}', b'{"ErrorCode": true}']
)
def test_a_success_that_cannot_be_read_settles_nothing(body: bytes) -> None:
    [outcome] = set(classify(Answer(200, {}, body, NOW), EVERYBODY).outcomes.values())
    assert isinstance(outcome, Unanswered)
    assert outcome.reply.enhanced == "no_id"


ALL_OUT = (
    "You tried to send to a recipient that has been marked as inactive.\n"
    "Found inactive addresses: b@example.org, o'neil@example.org.\n"
    "Inactive recipients are ones that have generated a hard bounce or a spam complaint. "
)
SOME_OUT = (
    "Message OK, but will not deliver to these inactive addresses: b@example.org, o'neil@example.org. "
    "Inactive recipients are ones that have generated a hard bounce or a spam complaint."
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (answer(422, 406, ALL_OUT), ["deferred", "refused", "refused"]),
        (answer(200, 406, ALL_OUT), ["deferred", "refused", "refused"]),
        (answer(200, 0, SOME_OUT, MessageID="x"), ["accepted", "refused", "refused"]),
        (answer(200, 0, "Message OK, but will not deliver to these inactive addresses: b@example.org", MessageID="x"),
         ["accepted", "refused", "accepted"]),
        (answer(200, 0, "Message accepted, but delivery may be delayed.", MessageID="x"), ["accepted"] * 3),
        (answer(200, None, "Message accepted, but delivery may be delayed.", MessageID="x"), ["accepted"] * 3),
        (answer(422, 300, "Error parsing 'Cc': Illegal email domain 'example.org' in address 'b@example.org'."),
         ["deferred", "refused", "deferred"]),
        (answer(422, 300, "Error parsing 'To': Illegal email address 'o'neil@example.org'. It must contain the '@'."),
         ["deferred", "deferred", "refused"]),
        (answer(422, 300, "Invalid 'To' address: 'nobody@example.net'."), ["refused"] * 3),
        (answer(422, 300, "Invalid 'From' address: 'a@example.org'."), ["account_fault"] * 3),
        (answer(422, 300, "Error parsing 'Reply-To': Illegal email address 'a@example.org'."), ["refused"] * 3),
    ],
)  # fmt: skip
def test_those_who_are_named_are_told_apart(found: Answer, expected: list[str]) -> None:
    result = classify(found, EVERYBODY)
    assert list(kinds(result).values()) == expected


def test_a_from_address_is_the_senders_fault() -> None:
    [outcome] = set(classify(answer(422, 300, "Invalid 'From' address: 'x'."), EVERYBODY).outcomes.values())
    assert getattr(outcome, "scope", None) == "sender"


async def test_an_inactive_recipient_is_refused_and_the_others_get_theirs(postmark: PostmarkServer) -> None:
    postmark.inactive = frozenset({B})
    result = await send(postmark, mail(cc=[B], bcc=[C]))
    assert kinds(result) == {0: "accepted", 1: "refused", 2: "accepted"}
    assert postmark.mailbox.mails()[0].recipients == (A, C)
    postmark.inactive = frozenset({A, B, C})
    assert kinds(await send(postmark, mail(cc=[B], bcc=[C]))) == {0: "refused", 1: "refused", 2: "refused"}
    assert len(postmark.mailbox.mails()) == 1


async def test_set_up_that_is_wrong_blames_no_recipient(postmark: PostmarkServer) -> None:
    postmark.senders = frozenset({"example.com"})
    found = [
        await send(postmark),
        await send(postmark, api_key=SecretStr("other")),
        await send(postmark, message_stream="receipts"),
    ]
    assert [(kinds(result), getattr(result.outcomes[0], "scope", "")) for result in found] == [
        ({0: "account_fault"}, "sender"),
        ({0: "account_fault"}, "account"),
        ({0: "account_fault"}, "account"),
    ]
    assert [result.outcomes[0].reply.enhanced for result in found] == ["400", "10", "1235"]
    assert postmark.mailbox.mails() == []


async def test_the_message_id_is_ours(postmark: PostmarkServer) -> None:
    await send(postmark)
    assert postmark.mailbox.copies(A, message_id="<k1@sendonce.test>") == 1


# No keys, but questions


async def test_a_second_request_is_a_second_mail(postmark: PostmarkServer) -> None:
    assert transport_for().key_window is None
    assert transport_for().capability.key == ""
    await send(postmark)
    await send(postmark)
    assert postmark.mailbox.copies(A) == 2


async def test_a_lost_answer_is_found_once_the_search_knows_of_it(postmark: PostmarkServer) -> None:
    postmark.search_lag = 30.0
    postmark.script.add(bad.lose_answer(times=1))
    result = await send(postmark)
    [stored] = postmark.mailbox.mails()
    assert isinstance(result.outcomes[0], Unanswered)
    assert await asked(postmark) == {}
    postmark.advance(30)
    found = await asked(postmark)
    assert set(found) == {0, 2}
    assert {(one.kind, getattr(one, "provider_id", "")) for one in found.values()} == {("accepted", stored.provider_id)}


async def test_another_offer_is_not_taken_for_this_one(postmark: PostmarkServer) -> None:
    await send(postmark)
    assert await asked(postmark, "k1-of-another-generation") == {}
    request = postmark.requests[-1]
    assert request.path.startswith("/messages/outbound?count=10&offset=0&metadata_sendonce-offer=")


@pytest.mark.parametrize(
    "messages",
    [
        [{"MessageID": "x", "Metadata": {"sendonce-offer": "other"}}],
        [{"MessageID": "x"}, {"MessageID": "x", "Metadata": None}, None, "x"],
        [{"Metadata": {"sendonce-offer": OFFER}}],
    ],
)
async def test_what_is_found_is_read_back(postmark: PostmarkServer, messages: list[Any]) -> None:
    body = json.dumps({"TotalCount": len(messages), "Messages": messages}).encode()
    postmark.script.add(bad.answer(200, body=body))
    assert await asked(postmark) == {}


@pytest.mark.parametrize(
    ("rule", "why", "wait"),
    [
        (bad.answer(401, body=postmark_error(10)), "http_401", None),
        (bad.too_many_requests("7"), "http_429", 7.0),
        (bad.unavailable(), "http_503", None),
        (bad.answer(302, headers={"Location": "/elsewhere"}), "http_302", None),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_messages", None),
        (bad.answer(200, body=b'{"Messages": {}}'), "not_a_list_of_messages", None),
        (bad.answer(200, body=b" " * FOUND_LIMIT), "answer_too_long", None),
        (bad.cut_at_headers(), "ReadError", None),
        (bad.cut_in_answer(after=40), "ReadError", None),
    ],
)
async def test_a_question_without_a_usable_answer(
    postmark: PostmarkServer, rule: bad.HttpRule, why: str, wait: float | None
) -> None:
    rule.times = None
    postmark.script.rules = [rule]
    with pytest.raises(Asked) as caught:
        await asked(postmark)
    assert (caught.value.why, caught.value.retry_after) == (why, wait)


async def test_a_question_to_nobody(closed_port: int) -> None:
    transport = transport_for(base_url=f"http://127.0.0.1:{closed_port}")
    with pytest.raises(Asked, match="ConnectError"):
        await transport.look_up(Question("id", "k", "<m>", "k1", NOW, (Recipient(0, A),)))
    await transport.close()


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"message_stream": "Receipts of today"}, "message_stream"),
        ({"key_window": 60}, "not permitted"),
        ({"base_url": "api.postmarkapp.com"}, "base_url: write an absolute URL"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PostmarkSettings(**{"api_key": SecretStr("token"), **settings})
    assert says in str(caught.value)


def test_an_account_of_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text('[accounts.default]\ntransport = "postmark"\napi_key_env = "TOKEN"\nmessage_stream = "receipts"\n')
    built = build_transports(load(file, {"TOKEN": "token"}))["default"]
    assert isinstance(built, PostmarkTransport)
    assert built.identity == "postmark:api.postmarkapp.com"
    assert json.loads(make_job(built, mail()).rendering.body)["MessageStream"] == "receipts"
