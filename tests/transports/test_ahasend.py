"""AhaSend: how a mail is written for it, what each of its answers means for whom, its keys, and asking it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.ahasend import AhaSendSettings, AhaSendTransport, classify
from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient
from sendonce.activities.transports.http_answer import Answer
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Refused, Unanswered
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.ahasend_server import ACCOUNT, AhaSendServer
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.http_request import HttpRequest

OFFER = f"sendonce-{hashlib.sha256(b'k1').hexdigest()}"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "O'Neil@example.org"
EVERYBODY = (Recipient(0, A), Recipient(1, B), Recipient(2, C))


@pytest.fixture
async def ahasend() -> AsyncIterator[AhaSendServer]:
    async with AhaSendServer(api_key="aha-sk-1") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: AhaSendServer | None = None, **settings: Any) -> AhaSendTransport:
    url = {"base_url": server.origin} if server else {}
    made = {"api_key": SecretStr("aha-sk-1"), "account_id": ACCOUNT, **url, **settings}
    return AhaSendTransport(AhaSendSettings(**made), now=lambda: NOW)


async def send(server: AhaSendServer, content: OutgoingEmail | None = None, **settings: Any) -> AttemptResult:
    transport = transport_for(server, **settings)
    try:
        return await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    finally:
        await transport.close()


async def asked(server: AhaSendServer, provider_key: str = "k1") -> dict[int, Accepted | Refused]:
    transport = transport_for(server)
    assert isinstance(transport, LooksUp)
    try:
        return await transport.look_up(Question("id-k1", "k1", "<m>", provider_key, NOW, EVERYBODY))
    finally:
        await transport.close()


def kinds(result: AttemptResult) -> list[str]:
    return [outcome.kind for _, outcome in sorted(result.outcomes.items())]


def answer(status: int, message: str = "", *, stored: bool = False, **body: Any) -> Answer:
    headers = {"Retry-After": "7", **({"Idempotent-Replayed": "true"} if stored else {})}
    return Answer(status, headers, json.dumps({"message": message, **body}).encode(), NOW)


def entry(email: str, status: str = "queued", number: str | None = "x") -> dict[str, Any]:
    return {"object": "message", "recipient": {"email": email}, "status": status, "id": number, "error": None}


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop <shop@example.org>",
        to=["Jörg <jörg@bücher.example>"],
        cc=[B],
        bcc=[C],
        reply_to=["help@example.org"],
        html="<img src='cid:logo'>",
        headers={"X-Order": "17"},
        attachments=[
            Attachment(filename="a.txt", content=b"abc", content_type="text/plain"),
            Attachment(filename="l.png", content=b"abc", content_type="image/png", inline=True, content_id="logo"),
        ],
    )
    rendering = make_job(transport_for(), content).rendering
    assert rendering.url == f"https://api.ahasend.com/v2/accounts/{ACCOUNT}/messages/conversation"
    assert json.loads(rendering.body) == {
        "from": {"email": "shop@example.org", "name": "Shop"},
        "to": [{"email": "jörg@xn--bcher-kva.example", "name": "Jörg"}],
        "cc": [{"email": B}],
        "bcc": [{"email": C}],
        "reply_to": {"email": "help@example.org"},
        "subject": "Hi",
        "text_content": "Hi.\n",
        "html_content": "<img src='cid:logo'>",
        "attachments": [
            {"file_name": "a.txt", "data": "YWJj", "base64": True, "content_type": "text/plain"},
            {
                "file_name": "l.png",
                "data": "YWJj",
                "base64": True,
                "content_type": "image/png",
                "content_id": "<logo>",
            },
        ],
        "headers": {"X-Order": "17", "Auto-Submitted": "auto-generated"},
        "tags": [OFFER, "sendonce_id-id-k1", "sendonce_key-k1"],
    }


def test_only_the_envelope_is_named_and_somebody_is_in_to() -> None:
    body = json.loads(make_job(transport_for(), mail(cc=[B], bcc=[C]), ordinals=(1, 2)).rendering.body)
    found = {name: body.get(name) for name in ("to", "cc", "bcc")}
    assert found == {"to": [{"email": B}], "cc": None, "bcc": [{"email": C}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"to": (), "bcc": [B, C]}, "to: this provider needs somebody in To"),
        ({"reply_to": [B, C]}, "reply_to: AhaSend takes one address"),
        ({"text": None, "attachments": [Attachment(filename="a.txt", content=b"abc")]}, "text: AhaSend takes no mail"),
    ],
)
def test_what_it_cannot_carry_is_refused_before_it_is_sent(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidEmail, match=says):
        make_job(transport_for(), mail(**changes))


async def test_key_and_credentials_travel_as_headers_only(ahasend: AhaSendServer) -> None:
    assert kinds(await send(ahasend, mail(key="k" * 100))) == ["accepted"]
    [request] = ahasend.requests
    assert (request.headers["authorization"], request.key) == ("Bearer aha-sk-1", "k" * 100)
    assert b"aha-sk-1" not in request.body


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(400, "invalid request body"), "refused", None),
        (answer(400, error={"type": "validation_error", "message": "x"}), "refused", None),
        (answer(401, "Invalid API key"), "account_fault", "account"),
        (answer(401, "Account is suspended"), "account_fault", "account"),
        (answer(403, "Insufficient permissions for the required scope"), "account_fault", "account"),
        (answer(403, "sender domain not found in api key scopes"), "account_fault", "sender"),
        (answer(403, "Domain is not verified"), "account_fault", "sender"),
        (answer(404, "account not found"), "account_fault", "account"),
        (answer(409, "A request with this idempotency key is already in progress"), "unanswered", None),
        (
            answer(412, "The original request with this idempotency key failed and cannot be retried"),
            "unanswered",
            None,
        ),
        (answer(413), "refused", None),
        (answer(422, "idempotency key was already used with a different request payload"), "unanswered", None),
        (answer(422, "something else"), "refused", None),
        (answer(429, "Too many requests, rate limited."), "deferred", None),
        (answer(302), "account_fault", "account"),
        (answer(408), "unanswered", None),
        (answer(500, "Internal server error"), "unanswered", None),
        (answer(500, "domain"), "unanswered", None),
        (answer(202), "unanswered", None),
        (answer(202, data=[]), "unanswered", None),
        (answer(202, data={}), "unanswered", None),
        (
            answer(202, data=[None, "x", {"status": "queued", "id": "x"}, {"recipient": A, "id": "x"}]),
            "unanswered",
            None,
        ),
    ],
)
def test_what_each_answer_means_for_everybody(found: Answer, kind: str, scope: str | None) -> None:
    result = classify(found, EVERYBODY)
    assert kinds(result) == [kind] * 3
    assert getattr(result.outcomes[0], "scope", None) == scope
    assert {one.reply.code for one in result.outcomes.values()} == {found.status}


def test_the_codes_that_are_ours_and_the_wish_to_wait() -> None:
    mismatch = classify(answer(422, "Idempotency key was already used"), EVERYBODY).outcomes[0]
    in_progress = classify(answer(409, "in progress"), EVERYBODY).outcomes[0]
    assert mismatch.reply.enhanced == "key_mismatch"
    assert getattr(in_progress, "retry_after", None) == 7.0


@pytest.mark.parametrize("body", [b"", b"OK", b"[]", b'"x"'])
def test_a_success_that_cannot_be_read_settles_nothing(body: bytes) -> None:
    [outcome] = set(classify(Answer(202, {}, body, NOW), EVERYBODY).outcomes.values())
    assert (outcome.kind, outcome.reply.enhanced) == ("unanswered", "no_id")


def test_each_recipient_has_an_answer_of_their_own() -> None:
    found = answer(
        202, data=[entry("o'neil@EXAMPLE.org", "scheduled", "3"), entry(A, number="1"), entry(B, "error", None)]
    )
    result = classify(found, EVERYBODY)
    assert kinds(result) == ["accepted", "deferred", "accepted"]
    assert [getattr(one, "provider_id", None) for _, one in sorted(result.outcomes.items())] == ["1", None, "3"]
    assert result.outcomes[1].reply.enhanced == "error"


@pytest.mark.parametrize(
    "entries",
    [
        [entry(A, number="1")],
        [entry(A, number="1"), entry(B, "queued", None), entry(C, "queued", "")],
        [entry(A, number="1"), entry(B, "delivered", "2"), entry("c@example.net", number="3")],
    ],
)
def test_whoever_is_not_named_as_taken_is_unanswered(entries: list[dict[str, Any]]) -> None:
    assert kinds(classify(answer(202, data=entries), EVERYBODY)) == ["accepted", "unanswered", "unanswered"]


@pytest.mark.parametrize(
    ("found", "kind", "replayed"),
    [
        (answer(202, stored=True, data=[entry(A)]), "accepted", True),
        (answer(202, data=[entry(A)]), "accepted", False),
        (answer(400, stored=True), "refused", True),
        (answer(400), "refused", False),
        (answer(401, stored=True), "unanswered", None),
        (answer(403, "Domain is not verified", stored=True), "unanswered", None),
        (answer(429, stored=True), "unanswered", None),
        (answer(500, stored=True), "unanswered", None),
        (answer(422, "idempotency key was already used", stored=True), "unanswered", None),
    ],
)
def test_a_stored_answer_is_about_the_first_request(found: Answer, kind: str, replayed: bool | None) -> None:
    [outcome] = classify(found, EVERYBODY[:1]).outcomes.values()
    assert (outcome.kind, getattr(outcome, "replayed", None)) == (kind, replayed)


async def test_one_that_fails_is_tried_again_alone(ahasend: AhaSendServer) -> None:
    ahasend.failing = frozenset({B})
    result = await send(ahasend, mail(cc=[B], bcc=[C]))
    assert kinds(result) == ["accepted", "deferred", "accepted"]
    assert ahasend.mailbox.mails()[0].recipients == (A, C)


async def test_set_up_that_is_wrong_blames_no_recipient(ahasend: AhaSendServer) -> None:
    ahasend.verified = frozenset({"example.com"})
    found = [await send(ahasend), await send(ahasend, api_key=SecretStr("other"))]
    assert [(kinds(one), getattr(one.outcomes[0], "scope", "")) for one in found] == [
        (["account_fault"], "sender"),
        (["account_fault"], "account"),
    ]
    assert ahasend.mailbox.mails() == []


# Keys


async def test_an_unanswered_mail_is_settled_by_its_replay(ahasend: AhaSendServer) -> None:
    ahasend.script.add(bad.lose_answer(times=1))
    first, second = await send(ahasend), await send(ahasend)
    [stored] = ahasend.mailbox.mails()
    assert kinds(first) == ["unanswered"]
    assert second.outcomes[0] == Accepted(second.outcomes[0].reply, stored.provider_id, replayed=True)


async def test_a_refusal_whose_answer_was_lost_is_settled_too(ahasend: AhaSendServer) -> None:
    ahasend.script.add(bad.answer(400, at="refuse", times=1), bad.cut_in_answer(after=10, times=1))
    first, second = await send(ahasend), await send(ahasend)
    assert kinds(first) == ["unanswered"]
    assert second.outcomes[0] == Refused(second.outcomes[0].reply, replayed=True)


async def test_a_stored_account_fault_pauses_nothing_once_the_domain_is_verified(ahasend: AhaSendServer) -> None:
    ahasend.verified = frozenset({"example.com"})
    ahasend.script.add(bad.cut_in_answer(after=10, times=1))
    assert kinds(await send(ahasend)) == ["unanswered"]
    ahasend.verified = None
    assert kinds(await send(ahasend)) == ["unanswered"]
    assert ahasend.mailbox.mails() == []
    assert kinds(await send(ahasend, mail(key="k2"))) == ["accepted"]


async def test_after_the_window_the_key_is_new(ahasend: AhaSendServer) -> None:
    await send(ahasend)
    window = transport_for(ahasend).key_window
    assert window == 86400
    ahasend.advance(window)
    await send(ahasend)
    assert ahasend.mailbox.copies(A) == 2


async def test_a_key_with_other_content_is_a_mismatch(ahasend: AhaSendServer) -> None:
    await send(ahasend)
    outcome = (await send(ahasend, mail(subject="Other"))).outcomes[0]
    assert isinstance(outcome, Unanswered)
    assert (outcome.reply.code, outcome.reply.enhanced) == (422, "key_mismatch")
    assert ahasend.mailbox.copies(A) == 1


async def test_a_request_in_progress_is_waited_for(ahasend: AhaSendServer) -> None:
    release, accepted = asyncio.Event(), asyncio.Event()
    ahasend.script.add(bad.late_answer(release, times=1))

    async def on_event(name: str, _: HttpRequest) -> None:
        if name == "accepted":
            accepted.set()

    ahasend.on_event = on_event
    first = asyncio.create_task(send(ahasend))
    await accepted.wait()
    second = (await send(ahasend)).outcomes[0]
    release.set()
    assert second == Unanswered(second.reply, 5.0)
    assert kinds(await first) == ["accepted"]
    assert ahasend.mailbox.copies(A) == 1


# Questions


async def test_a_lost_answer_is_found_by_recipient_once_the_list_knows_of_it(ahasend: AhaSendServer) -> None:
    ahasend.search_lag, ahasend.failing = 30.0, frozenset({B})
    ahasend.script.add(bad.lose_answer(times=1))
    assert kinds(await send(ahasend, mail(cc=[B], bcc=[C]))) == ["unanswered"] * 3
    assert await asked(ahasend) == {}
    ahasend.advance(30)
    found = await asked(ahasend)
    assert {ordinal: one.kind for ordinal, one in found.items()} == {0: "accepted", 2: "accepted"}
    assert getattr(found[0], "provider_id", "") == ahasend.mailbox.mails()[0].provider_id
    assert await asked(ahasend, "k1-of-another-generation") == {}


@pytest.mark.parametrize(
    "messages",
    [
        [{"id": "x", "recipient": A, "tags": ["other"]}],
        [{"id": "x", "recipient": A}, {"id": "x", "recipient": A, "tags": None}, None, "x"],
        [{"id": "x", "recipient": A, "tags": OFFER}],
        [{"recipient": A, "tags": [OFFER]}],
        [{"id": "x", "recipient": "c@example.net", "tags": [OFFER]}],
    ],
)
async def test_what_is_found_is_read_back(ahasend: AhaSendServer, messages: list[Any]) -> None:
    ahasend.script.add(bad.answer(200, body=json.dumps({"data": messages}).encode()))
    assert await asked(ahasend) == {}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (bad.answer(403), "http_403"),
        (bad.too_many_requests("7"), "http_429"),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_messages"),
        (bad.answer(200, body=b'{"data": {}}'), "not_a_list_of_messages"),
        (bad.cut_at_headers(), "ReadError"),
    ],
)
async def test_a_question_without_a_usable_answer(ahasend: AhaSendServer, rule: bad.HttpRule, why: str) -> None:
    rule.times = None
    ahasend.script.rules = [rule]
    with pytest.raises(Asked, match=why):
        await asked(ahasend)


# Settings


def test_the_scope_is_the_account() -> None:
    assert transport_for(account_id=ACCOUNT.upper()).identity == f"ahasend:{ACCOUNT}"
    assert transport_for(scope="acme").identity == "ahasend:acme"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"account_id": "acme"}, "account_id"), ({"key_window": 0}, "key_window"), ({"url": "x"}, "not permitted")],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AhaSendSettings(**{"api_key": SecretStr("aha-sk-1"), "account_id": ACCOUNT, **settings})
    assert says in str(caught.value)
