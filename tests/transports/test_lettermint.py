"""Lettermint: how a mail is written for it, what each of its answers means, its keys, and asking it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.lettermint import LettermintSettings, LettermintTransport, classify
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Refused, Unanswered
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.http_request import HttpRequest
from sendonce.testing.lettermint_server import LettermintServer

OFFER = hashlib.sha256(b"k1").hexdigest()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"


@pytest.fixture
async def lettermint() -> AsyncIterator[LettermintServer]:
    async with LettermintServer(api_key="lm_secret") as server:
        server.team_token = "lm_team"
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: LettermintServer | None = None, **settings: Any) -> LettermintTransport:
    url = {"base_url": f"{server.origin}/v1"} if server else {}
    made = {"api_key": SecretStr("lm_secret"), "team_token": SecretStr("lm_team"), **url, **settings}
    return LettermintTransport(LettermintSettings(**made), now=lambda: NOW)


async def send(server: LettermintServer, content: OutgoingEmail | None = None, **settings: Any) -> Outcome:
    transport = transport_for(server, **settings)
    result: AttemptResult = await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


async def asked(server: LettermintServer, provider_key: str = "k1", **settings: Any) -> dict[int, Accepted | Refused]:
    transport = transport_for(server, **settings)
    assert isinstance(transport, LooksUp)
    question = Question("id-k1", "k1", "<m>", provider_key, NOW, (Recipient(0, A), Recipient(2, B)))
    try:
        return await transport.look_up(question)
    finally:
        await transport.close()


def answer(code: int, error: Any = None, /, **body: Any) -> Answer:
    content = {"error": error, **body} if error else body
    return Answer(code, {"Retry-After": "7"}, json.dumps(content).encode(), NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop, Inc. <shop@example.org>",
        to=["Jörg <jörg@bücher.example>"],
        cc=[B],
        bcc=[C],
        reply_to=["help@example.org", "more@example.org"],
        html="<img src='cid:logo'>",
        headers={"X-Order": "17"},
        attachments=[
            Attachment(filename="a.txt", content=b"abc", content_type="text/plain"),
            Attachment(filename="l.png", content=b"abc", content_type="image/png", inline=True, content_id="logo"),
        ],
    )
    rendering = make_job(transport_for(route="receipts"), content).rendering
    assert (rendering.method, rendering.url) == ("POST", "https://api.lettermint.co/v1/send")
    assert rendering.headers == (("Content-Type", "application/json"),)
    assert json.loads(rendering.body) == {
        "route": "receipts",
        "from": '"Shop, Inc." <shop@example.org>',
        "to": ["Jörg <jörg@xn--bcher-kva.example>"],
        "cc": [B],
        "bcc": [C],
        "reply_to": ["help@example.org", "more@example.org"],
        "subject": "Hi",
        "html": "<img src='cid:logo'>",
        "text": "Hi.\n",
        "headers": {"X-Order": "17", "Auto-Submitted": "auto-generated"},
        "attachments": [
            {"filename": "a.txt", "content": "YWJj", "content_type": "text/plain"},
            {"filename": "l.png", "content": "YWJj", "content_type": "image/png", "content_id": "logo"},
        ],
        "metadata": {"sendonce_id": "id-k1", "sendonce_key": "k1"},
        "tag": OFFER,
    }


def test_only_the_envelope_is_named_and_somebody_is_in_to() -> None:
    body = json.loads(make_job(transport_for(), mail(cc=[B], bcc=[C]), ordinals=(1, 2)).rendering.body)
    assert {name: body.get(name) for name in ("to", "cc", "bcc")} == {"to": [B], "cc": None, "bcc": [C]}
    with pytest.raises(InvalidEmail, match="to: this provider needs somebody in To"):
        make_job(transport_for(), mail(to=(), bcc=[B, C]))


async def test_key_and_token_travel_as_headers_only(lettermint: LettermintServer) -> None:
    assert isinstance(await send(lettermint, mail(key="k" * 100)), Accepted)
    [request] = lettermint.requests
    assert (request.headers["x-lettermint-token"], request.key) == ("lm_secret", "k" * 100)
    assert "authorization" not in request.headers
    assert b"lm_secret" not in request.body
    assert b"lm_team" not in request.body


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(202, message_id="x", status="pending"), "accepted", None),
        (answer(202, message_id="x", status="suppressed"), "accepted", None),
        (answer(202), "unanswered", None),
        (answer(202, message_id=""), "unanswered", None),
        (answer(202, "ValidationError"), "unanswered", None),
        (answer(409, "invalid_idempotent_request"), "unanswered", None),
        (answer(409, "concurrent_idempotent_requests"), "unanswered", None),
        (answer(409), "unanswered", None),
        (answer(422, message="This idempotency key has been used with a different payload."), "unanswered", None),
        (answer(422, {"code": "invalid_idempotent_request"}), "unanswered", None),
        (answer(400, "invalid_idempotency_key"), "account_fault", "account"),
        (answer(422, "DailyLimitExceeded"), "account_fault", "account"),
        (answer(429, "monthly_limit_exceeded"), "account_fault", "account"),
        (answer(402, "QuotaExceeded"), "account_fault", "account"),
        (answer(422, "DomainNotVerified"), "account_fault", "sender"),
        (answer(403, {"code": "sender_not_allowed", "message": "no"}), "account_fault", "sender"),
        (answer(422, "ValidationError", errors={"from": ["The from domain is not yours."]}), "account_fault", "sender"),
        (answer(422, "ValidationError", errors={"to.0": ["must be an address"]}), "refused", None),
        (answer(422, "ValidationError"), "refused", None),
        (answer(400, "ClientError"), "refused", None),
        (answer(413), "refused", None),
        (answer(401, "Unauthorized"), "account_fault", "account"),
        (answer(403), "account_fault", "account"),
        (answer(404), "account_fault", "account"),
        (answer(302), "account_fault", "account"),
        (answer(429, "rate_limit_exceeded"), "deferred", None),
        (answer(429), "deferred", None),
        (answer(408), "unanswered", None),
        (answer(500, "DailyLimitExceeded"), "unanswered", None),
        (answer(503), "unanswered", None),
    ],
)
def test_what_each_answer_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (answer(409, "invalid_idempotent_request"), "key_mismatch"),
        (answer(422, message="This idempotency key has been used with a different payload."), "key_mismatch"),
        (answer(409, "ConflictError", message="This idempotency key is in use."), "ConflictError"),
        (answer(409), ""),
    ],
)
def test_a_mismatch_is_told_from_a_request_in_progress(found: Answer, code: str) -> None:
    assert classify(found).reply.enhanced == code


@pytest.mark.parametrize("status", ["suppressed", "blocked", "policy_rejected"])
def test_what_is_not_sent_is_refused_when_there_is_no_doubt_who_is_meant(status: str) -> None:
    found = answer(202, message_id="x", status=status)
    alone = transport_for().classify(found, (Recipient(0, A),))
    several = transport_for().classify(found, (Recipient(0, A), Recipient(1, B)))
    assert [one.kind for one in alone.outcomes.values()] == ["refused"]
    assert alone.outcomes[0].reply.enhanced == status
    assert [one.kind for one in several.outcomes.values()] == ["accepted", "accepted"]


async def test_set_up_that_is_wrong_blames_no_recipient(lettermint: LettermintServer) -> None:
    lettermint.verified = frozenset({"example.com"})
    wrong_domain = await send(lettermint)
    lettermint.verified, lettermint.daily_limit = None, 0
    found = [wrong_domain, await send(lettermint), await send(lettermint, api_key=SecretStr("other"))]
    assert [getattr(one, "scope", "") for one in found] == ["sender", "account", "account"]
    assert all(isinstance(one, AccountFault) for one in found)
    assert lettermint.mailbox.mails() == []


# Keys


async def test_an_unanswered_mail_is_settled_by_its_replay(lettermint: LettermintServer) -> None:
    lettermint.script.add(bad.lose_answer(times=1))
    first, second = await send(lettermint), await send(lettermint)
    [stored] = lettermint.mailbox.mails()
    assert isinstance(first, Unanswered)
    assert isinstance(second, Accepted)
    assert second.provider_id == stored.provider_id


async def test_after_the_window_the_key_is_new(lettermint: LettermintServer) -> None:
    await send(lettermint)
    window = transport_for(lettermint).key_window
    assert window == 86400
    lettermint.advance(window)
    await send(lettermint)
    assert lettermint.mailbox.copies(A) == 2


async def test_a_key_with_other_content_is_a_mismatch(lettermint: LettermintServer) -> None:
    await send(lettermint)
    outcome = await send(lettermint, mail(subject="Other"))
    assert isinstance(outcome, Unanswered)
    assert (outcome.reply.code, outcome.reply.enhanced) == (409, "key_mismatch")
    assert lettermint.mailbox.copies(A) == 1


async def test_a_request_in_progress_is_waited_for(lettermint: LettermintServer) -> None:
    release, accepted = asyncio.Event(), asyncio.Event()
    lettermint.script.add(bad.late_answer(release, times=1))

    async def on_event(name: str, _: HttpRequest) -> None:
        if name == "accepted":
            accepted.set()

    lettermint.on_event = on_event
    first = asyncio.create_task(send(lettermint))
    await accepted.wait()
    second = await send(lettermint)
    release.set()
    assert isinstance(second, Unanswered)
    assert second.reply.enhanced == "concurrent_idempotent_requests"
    assert isinstance(await first, Accepted)
    assert lettermint.mailbox.copies(A) == 1


# Questions


async def test_a_lost_answer_is_found_once_the_list_knows_of_it(lettermint: LettermintServer) -> None:
    lettermint.search_lag = 30.0
    lettermint.script.add(bad.lose_answer(times=1))
    assert isinstance(await send(lettermint), Unanswered)
    [stored] = lettermint.mailbox.mails()
    assert await asked(lettermint) == {}
    lettermint.advance(30)
    found = await asked(lettermint)
    assert {ordinal: getattr(one, "provider_id", "") for ordinal, one in found.items()} == dict.fromkeys(
        (0, 2), stored.provider_id
    )
    assert await asked(lettermint, "k1-of-another-generation") == {}


async def test_without_the_teams_token_nothing_is_asked(lettermint: LettermintServer) -> None:
    assert transport_for(team_token=None).capability.look_up == ""
    assert transport_for().capability.look_up == "tag"
    with pytest.raises(Asked, match="no_team_token"):
        await asked(lettermint, team_token=None)
    assert lettermint.requests == []


@pytest.mark.parametrize(
    "messages",
    [
        [{"id": "x", "tag": "other"}, {"id": "x"}, {"id": "x", "tag": None}, None, "x"],
        [{"tag": OFFER}],
    ],
)
@pytest.mark.parametrize("bare", [True, False])
async def test_what_is_found_is_read_back(lettermint: LettermintServer, messages: list[Any], bare: bool) -> None:
    body = json.dumps(messages if bare else {"data": messages}).encode()
    lettermint.script.add(bad.answer(200, body=body))
    assert await asked(lettermint) == {}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (bad.answer(401), "http_401"),
        (bad.too_many_requests("7"), "http_429"),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_messages"),
        (bad.answer(200, body=b'{"data": {}}'), "not_a_list_of_messages"),
        (bad.cut_at_headers(), "ReadError"),
    ],
)
async def test_a_question_without_a_usable_answer(lettermint: LettermintServer, rule: bad.HttpRule, why: str) -> None:
    rule.times = None
    lettermint.script.rules = [rule]
    with pytest.raises(Asked, match=why):
        await asked(lettermint)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"team_token": SecretStr("lm secret\n")}, "team_token: must be printable"),
        ({"route": "Receipts of today"}, "route"),
        ({"key_window": 0}, "key_window"),
        ({"url": "https://api.lettermint.co"}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LettermintSettings(**{"api_key": SecretStr("lm_secret"), **settings})
    assert says in str(caught.value)
    assert "lm secret" not in str(caught.value)
