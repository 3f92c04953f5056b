"""Resend: how a mail is written for it, what each of its answers means, and its keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import Capability, LooksUp
from sendonce.activities.transports.capability_table import capability_table
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.resend import ResendSettings, ResendTransport, classify
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Unanswered
from sendonce.settings import build_transports, load
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.http_request import HttpRequest
from sendonce.testing.resend_server import ResendServer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"


@pytest.fixture
async def resend() -> AsyncIterator[ResendServer]:
    async with ResendServer(api_key="re_secret") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: ResendServer | None = None, **settings: Any) -> ResendTransport:
    url = {"base_url": server.origin} if server else {}
    return ResendTransport(ResendSettings(**{"api_key": SecretStr("re_secret"), **url, **settings}), now=lambda: NOW)


async def send(server: ResendServer, content: OutgoingEmail | None = None, **settings: Any) -> Outcome:
    transport = transport_for(server, **settings)
    result: AttemptResult = await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


def written(content: OutgoingEmail, ordinals: tuple[int, ...] | None = None) -> dict[str, Any]:
    body = make_job(transport_for(), content, ordinals=ordinals).rendering.body
    found: dict[str, Any] = json.loads(body)
    return found


def answer(status: int, name: str = "", headers: dict[str, str] | None = None, **body: Any) -> Answer:
    content = {"statusCode": status, "name": name, **body} if name else body
    return Answer(status, headers or {}, json.dumps(content).encode(), NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop, Inc. <shop@example.org>",
        to=["Jörg <jörg@bücher.example>", '"Ann, B." <a@example.org>'],
        cc=["b@example.org", "JÖRG <jörg@BÜCHER.example>"],
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
    assert (rendering.method, rendering.url) == ("POST", "https://api.resend.com/emails")
    assert rendering.headers == (("Content-Type", "application/json"),)
    assert json.loads(rendering.body) == {
        "from": '"Shop, Inc." <shop@example.org>',
        "to": ["Jörg <jörg@xn--bcher-kva.example>", "=?utf-8?b?QW5uLCBCLg==?= <a@example.org>"],
        "cc": ["b@example.org"],
        "bcc": ["c@example.org"],
        "reply_to": ["help@example.org"],
        "subject": "Hi",
        "html": "<img src='cid:logo'>",
        "text": "Hi.\n",
        "headers": {"X-Order": "17", "Auto-Submitted": "auto-generated"},
        "attachments": [
            {"filename": "a.txt", "content": "YWJj"},
            {"filename": "l.png", "content": "YWJj", "content_id": "logo"},
        ],
        "tags": [{"name": "sendonce_id", "value": "id-k1"}, {"name": "sendonce_key", "value": "k1"}],
    }


def test_what_is_empty_is_left_out_and_what_is_required_is_not() -> None:
    content = mail(subject="", text=None, attachments=[Attachment(filename="a.txt", content=b"abc")])
    assert written(content).keys() == {"from", "to", "subject", "text", "attachments", "headers", "tags"}


def test_tags_hold_what_the_key_may_and_tags_may_not() -> None:
    assert written(mail(key="order:1.a"))["tags"][1] == {"name": "sendonce_key", "value": "order_1_a"}


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
    assert {name: body[name] for name in ("to", "cc", "bcc") if name in body} == expected


def test_several_in_bcc_alone_would_see_each_other() -> None:
    with pytest.raises(InvalidEmail, match="to: this provider needs somebody in To"):
        written(mail(to=(), bcc=[B, C]))


async def test_key_and_credentials_travel_as_headers_only(resend: ResendServer) -> None:
    assert isinstance(await send(resend), Accepted)
    [request] = resend.requests
    assert (request.method, request.path) == ("POST", "/emails")
    assert (request.headers["authorization"], request.key) == ("Bearer re_secret", "k1")
    assert b"re_secret" not in request.body


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(400, "validation_error"), "refused", None),
        (answer(400, "validation_error", message="API key is invalid"), "account_fault", "account"),
        (answer(400, "invalid_idempotency_key"), "account_fault", "account"),
        (answer(401, "missing_api_key"), "account_fault", "account"),
        (answer(401, "validation_error", message="API key is invalid"), "account_fault", "account"),
        (answer(401, "restricted_api_key"), "account_fault", "account"),
        (answer(403, "invalid_api_key"), "account_fault", "account"),
        (answer(403, "suspended_api_key"), "account_fault", "account"),
        (answer(403, "validation_error"), "account_fault", "sender"),
        (answer(403), "account_fault", "account"),
        (answer(404, "not_found"), "account_fault", "account"),
        (answer(405, "method_not_allowed"), "account_fault", "account"),
        (answer(409, "invalid_idempotent_request"), "unanswered", None),
        (answer(409, "concurrent_idempotent_requests"), "unanswered", None),
        (answer(409, "resource_locked"), "unanswered", None),
        (answer(413), "refused", None),
        (answer(422, "invalid_from_address"), "account_fault", "sender"),
        (answer(422, "invalid_attachment"), "refused", None),
        (answer(422, "missing_required_field"), "refused", None),
        (answer(422), "refused", None),
        (answer(429, "rate_limit_exceeded"), "deferred", None),
        (answer(429), "deferred", None),
        (answer(429, "daily_quota_exceeded"), "account_fault", "account"),
        (answer(429, "monthly_quota_exceeded"), "account_fault", "account"),
        (answer(451, "security_error"), "account_fault", "sender"),
        (answer(500, "application_error"), "unanswered", None),
        (answer(500, "invalid_api_key"), "unanswered", None),
        (answer(503, "service_unavailable"), "unanswered", None),
        (answer(302), "account_fault", "account"),
        (answer(200, id=""), "unanswered", None),
        (answer(202), "unanswered", None),
    ],
)
def test_what_each_answer_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status


def test_a_wish_to_wait_is_handed_on() -> None:
    for status, name in ((429, "rate_limit_exceeded"), (429, "daily_quota_exceeded"), (503, "service_unavailable")):
        assert getattr(classify(answer(status, name, {"Retry-After": "7"})), "retry_after", None) == 7.0


async def test_an_unverified_domain_is_the_senders_fault(resend: ResendServer) -> None:
    resend.verified = frozenset({"example.com"})
    outcome = await send(resend)
    assert outcome == AccountFault(outcome.reply, None, "sender")
    assert outcome.reply.enhanced == "validation_error"
    assert isinstance(await send(resend, mail(sender="shop@example.com")), Accepted)


async def test_a_wrong_key_is_the_accounts_fault(resend: ResendServer) -> None:
    outcome = await send(resend, api_key=SecretStr("re_other"))
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert resend.mailbox.mails() == []


# Keys


async def test_an_unanswered_mail_is_settled_by_its_replay(resend: ResendServer) -> None:
    resend.script.add(bad.lose_answer(times=1))
    first, second = await send(resend), await send(resend)
    [stored] = resend.mailbox.mails()
    assert isinstance(first, Unanswered)
    assert isinstance(second, Accepted)
    assert second.provider_id == stored.provider_id


async def test_after_the_window_the_key_is_new(resend: ResendServer) -> None:
    await send(resend)
    window = transport_for(resend).key_window
    assert window == 86400
    resend.advance(window)
    await send(resend)
    assert resend.mailbox.copies(A) == 2


async def test_a_key_with_other_content_is_a_mismatch(resend: ResendServer) -> None:
    await send(resend)
    outcome = await send(resend, mail(subject="Other"))
    assert isinstance(outcome, Unanswered)
    assert (outcome.reply.code, outcome.reply.enhanced) == (409, "key_mismatch")
    assert resend.mailbox.copies(A) == 1


async def test_a_request_in_progress_is_waited_for(resend: ResendServer) -> None:
    release, accepted = asyncio.Event(), asyncio.Event()
    resend.script.add(bad.late_answer(release, times=1))

    async def on_event(name: str, _: HttpRequest) -> None:
        if name == "accepted":
            accepted.set()

    resend.on_event = on_event
    first = asyncio.create_task(send(resend))
    await accepted.wait()
    second = await send(resend)
    release.set()
    assert isinstance(second, Unanswered)
    assert second.reply.enhanced == "concurrent_idempotent_requests"
    assert isinstance(await first, Accepted)
    assert isinstance(await send(resend), Accepted)
    assert resend.mailbox.copies(A) == 1


def test_it_is_not_asked() -> None:
    assert not isinstance(transport_for(), LooksUp)
    assert transport_for().capability.look_up == ""


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"base_url": "http://api.resend.com"}, "base_url: http would send the mail and the credentials in clear"),
        ({"base_url": "https://key@api.resend.com"}, "base_url: no user"),
        ({"api_key": SecretStr("re_secret\n")}, "api_key: must be printable"),
        ({"api_key": SecretStr("")}, "api_key: must be printable"),
        ({"scope": "a team"}, "scope"),
        ({"key_window": 0}, "key_window"),
        ({"url": "https://api.resend.com"}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ResendSettings(**{"api_key": SecretStr("re_secret"), **settings})
    assert says in str(caught.value)
    assert "re_secret" not in str(caught.value)


def test_an_account_of_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text(
        '[accounts.default]\ntransport = "resend"\napi_key_env = "KEY"\nscope = "acme"\nkey_window = false\n'
    )
    built = build_transports(load(file, {"KEY": "re_secret"}))["default"]
    assert isinstance(built, ResendTransport)
    assert (built.identity, built.key_window) == ("resend:acme", None)
    assert built.secrets("k1")["Authorization"] == "Bearer re_secret"


def test_the_table_says_what_is_assumed_and_how_soon_a_mail_is_found() -> None:
    other = Capability(key="body", key_assumed=True, look_up="tag", look_up_lag=30, keeps_message_id=True)
    row = capability_table({"other": other}).splitlines()[-1]
    assert row == (
        "| other | body (not confirmed: never relied on) | may be a second mail | by tag; found after 30 s"
        " | kept | no | no | not read |"
    )
