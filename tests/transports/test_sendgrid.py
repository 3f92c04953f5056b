"""SendGrid: how a mail is written for it, what each of its answers means, and asking an account that can be asked."""

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
from sendonce.activities.transports.sendgrid import SendGridSettings, SendGridTransport, classify
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Refused, Unanswered
from sendonce.settings import build_transports, load
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.sendgrid_server import SendGridServer, sendgrid_error

OFFER = hashlib.sha256(b"k1").hexdigest()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"


@pytest.fixture
async def sendgrid() -> AsyncIterator[SendGridServer]:
    async with SendGridServer(api_key="SG.secret") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: SendGridServer | None = None, **settings: Any) -> SendGridTransport:
    url = {"base_url": server.origin} if server else {}
    given = {"api_key": SecretStr("SG.secret"), "email_activity": True, **url, **settings}
    return SendGridTransport(SendGridSettings(**given), now=lambda: NOW)


async def send(server: SendGridServer, content: OutgoingEmail | None = None, **settings: Any) -> Outcome:
    transport = transport_for(server, **settings)
    result: AttemptResult = await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


async def asked(server: SendGridServer, provider_key: str = "k1", **settings: Any) -> dict[int, Accepted | Refused]:
    transport = transport_for(server, **settings)
    assert isinstance(transport, LooksUp)
    recipients = (Recipient(0, A), Recipient(2, B))
    try:
        return await transport.look_up(Question("id-k1", "k1", "<k1@sendonce.test>", provider_key, NOW, recipients))
    finally:
        await transport.close()


def written(content: OutgoingEmail, ordinals: tuple[int, ...] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make_job(transport_for(), content, ordinals=ordinals).rendering.body)
    return found


def answer(status: int, message: str = "", field: str | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, sendgrid_error(message, field) if status > 299 else b"", NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop, Inc. <shop@example.org>",
        to=["Jörg <jörg@bücher.example>", '"Ann, B." <a@example.org>'],
        cc=["b@example.org", "JÖRG <jörg@BÜCHER.example>"],
        bcc=["c@example.org"],
        reply_to=["help@example.org"],
        html="<img src='cid:logo'>",
        headers={"X-Order": "17", "X-Note": "für Ann"},
        attachments=[
            Attachment(filename="a.txt", content=b"abc", content_type="text/plain; charset=utf-8"),
            Attachment(filename="l.png", content=b"abc", content_type="image/png", inline=True, content_id="logo"),
        ],
    )
    rendering = make_job(transport_for(), content).rendering
    assert (rendering.method, rendering.url) == ("POST", "https://api.sendgrid.com/v3/mail/send")
    assert rendering.headers == (("Content-Type", "application/json"),)
    assert json.loads(rendering.body) == {
        "personalizations": [
            {
                "to": [
                    {"email": "jörg@xn--bcher-kva.example", "name": "Jörg"},
                    {"email": "a@example.org", "name": "Ann, B."},
                ],
                "cc": [{"email": "b@example.org"}],
                "bcc": [{"email": "c@example.org"}],
            }
        ],
        "from": {"email": "shop@example.org", "name": "Shop, Inc."},
        "reply_to_list": [{"email": "help@example.org"}],
        "subject": "Hi",
        "content": [{"type": "text/plain", "value": "Hi.\n"}, {"type": "text/html", "value": "<img src='cid:logo'>"}],
        "attachments": [
            {"content": "YWJj", "type": "text/plain", "filename": "a.txt", "disposition": "attachment"},
            {
                "content": "YWJj",
                "type": "image/png",
                "filename": "l.png",
                "disposition": "inline",
                "content_id": "logo",
            },
        ],
        "headers": {
            "Message-ID": "<k1@sendonce.test>",
            "X-Order": "17",
            "X-Note": "=?utf-8?b?ZsO8ciBBbm4=?=",
            "Auto-Submitted": "auto-generated",
        },
        "custom_args": {"sendonce_offer": OFFER, "sendonce_id": "id-k1", "sendonce_key": "k1"},
    }


async def test_no_text_is_empty(sendgrid: SendGridServer) -> None:
    content = mail(text=None, attachments=[Attachment(filename="a.txt", content=b"abc")])
    assert written(content)["content"] == [{"type": "text/plain", "value": " "}]
    assert written(mail(text=None, html="<p>Hi"))["content"] == [{"type": "text/html", "value": "<p>Hi"}]
    assert isinstance(await send(sendgrid, content), Accepted)


def test_a_mail_without_a_subject_cannot_be_sent() -> None:
    with pytest.raises(InvalidEmail, match="subject: SendGrid takes no mail without"):
        written(mail(subject=""))


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
    [one] = written(mail(cc=[B], bcc=[C]), ordinals)["personalizations"]
    assert {name: [to["email"] for to in group] for name, group in one.items()} == expected


async def test_the_key_travels_as_a_header_only(sendgrid: SendGridServer) -> None:
    assert isinstance(await send(sendgrid), Accepted)
    [request] = sendgrid.requests
    assert request.headers["authorization"] == "Bearer SG.secret"
    assert "idempotency-key" not in request.headers
    assert b"SG.secret" not in request.body


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(202, X_Message_Id="x"), "accepted", None),
        (answer(202), "unanswered", None),
        (answer(200, X_Message_Id="x"), "unanswered", None),
        (answer(400, "The subject is required.", "subject"), "refused", None),
        (answer(400), "refused", None),
        (answer(401, "Maximum credits exceeded"), "account_fault", "account"),
        (answer(401, "The provided authorization grant is invalid"), "account_fault", "account"),
        (answer(403, "The from address does not match", "from"), "account_fault", "sender"),
        (answer(403, "Too many bad requests. Temporary block"), "account_fault", "account"),
        (answer(403, "access forbidden"), "account_fault", "account"),
        (answer(404), "account_fault", "account"),
        (answer(405), "account_fault", "account"),
        (answer(406), "account_fault", "account"),
        (answer(413), "refused", None),
        (answer(429), "deferred", None),
        (answer(302), "account_fault", "account"),
        (answer(408), "unanswered", None),
        (answer(409), "unanswered", None),
        (answer(500, "no", "from"), "unanswered", None),
        (answer(503), "unanswered", None),
    ],
)
def test_what_each_answer_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status


def test_the_field_at_fault_is_kept_as_the_code_and_prose_is_not() -> None:
    assert (
        classify(answer(400, "no", "personalizations.0.to.0.email")).reply.enhanced == "personalizations.0.to.0.email"
    )
    assert classify(answer(400, "no", "to ann@example.org")).reply.enhanced == ""


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"X_RateLimit_Reset": str(int(NOW.timestamp()) + 9)}, 9.0),
        ({"X_RateLimit_Reset": str(int(NOW.timestamp()) - 9)}, 0.0),
        ({"X_RateLimit_Reset": "soon"}, None),
        ({"Retry_After": "7", "X_RateLimit_Reset": str(int(NOW.timestamp()) + 9)}, 7.0),
        ({}, None),
    ],
)
def test_a_wish_to_wait_is_handed_on(headers: dict[str, str], wait: float | None) -> None:
    assert getattr(classify(answer(429, **headers)), "retry_after", "none") == wait


async def test_the_id_is_that_of_the_header(sendgrid: SendGridServer) -> None:
    outcome = await send(sendgrid)
    [stored] = sendgrid.mailbox.mails()
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id == stored.provider_id == "sg-00000001"


async def test_a_sender_without_an_identity_is_the_senders_fault(sendgrid: SendGridServer) -> None:
    sendgrid.senders = frozenset({"example.com"})
    outcome = await send(sendgrid)
    assert outcome == AccountFault(outcome.reply, None, "sender")
    assert isinstance(await send(sendgrid, mail(sender="shop@example.com")), Accepted)


async def test_a_wrong_key_is_the_accounts_fault(sendgrid: SendGridServer) -> None:
    outcome = await send(sendgrid, api_key=SecretStr("SG.other"))
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert sendgrid.mailbox.mails() == []


# No keys, but questions where the account can be asked


async def test_a_second_request_is_a_second_mail(sendgrid: SendGridServer) -> None:
    assert transport_for().key_window is None
    assert transport_for().capability.key == ""
    await send(sendgrid)
    await send(sendgrid)
    assert sendgrid.mailbox.copies(A) == 2


async def test_an_account_without_the_history_is_not_asked(sendgrid: SendGridServer) -> None:
    assert transport_for(email_activity=False).capability.look_up == ""
    assert transport_for().capability.look_up == "custom argument"
    assert SendGridSettings(api_key=SecretStr("x")).email_activity is False
    with pytest.raises(Asked, match="email_activity_is_off"):
        await asked(sendgrid, email_activity=False)
    assert sendgrid.requests == []


async def test_a_lost_answer_is_found_once_the_search_knows_of_it(sendgrid: SendGridServer) -> None:
    sendgrid.search_lag = 30.0
    sendgrid.script.add(bad.lose_answer(times=1))
    assert isinstance(await send(sendgrid), Unanswered)
    [stored] = sendgrid.mailbox.mails()
    assert await asked(sendgrid) == {}
    sendgrid.advance(30)
    found = await asked(sendgrid)
    assert set(found) == {0, 2}
    [accepted] = set(found.values())
    assert isinstance(accepted, Accepted)
    assert accepted.provider_id == stored.provider_id


async def test_another_offer_is_not_taken_for_this_one(sendgrid: SendGridServer) -> None:
    await send(sendgrid)
    assert await asked(sendgrid, "k1-of-another-generation") == {}


async def test_a_search_that_overlooks_its_filter_proves_nothing(sendgrid: SendGridServer) -> None:
    sendgrid.search_filters = False
    await send(sendgrid)
    assert await asked(sendgrid, "k1-of-another-generation") == {}
    assert [request.path.partition("?")[0] for request in sendgrid.requests[1:]] == [
        "/v3/messages",
        "/v3/messages/sg-00000001.filter-0",
    ]
    assert set(await asked(sendgrid)) == {0, 2}


@pytest.mark.parametrize("messages", [[{"msg_id": "../x"}, {"msg_id": 7}, {}, None, "x"], []])
async def test_an_id_that_is_none_is_not_asked_for(sendgrid: SendGridServer, messages: list[Any]) -> None:
    sendgrid.script.add(bad.answer(200, body=json.dumps({"messages": messages}).encode()))
    assert await asked(sendgrid) == {}
    assert len(sendgrid.requests) == 1


@pytest.mark.parametrize(
    ("rule", "why", "wait"),
    [
        (bad.answer(403, body=sendgrid_error("access forbidden")), "http_403", None),
        (bad.too_many_requests("7"), "http_429", 7.0),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_messages", None),
        (bad.answer(200, body=b'{"messages": {}}'), "not_a_list_of_messages", None),
        (bad.cut_at_headers(), "ReadError", None),
    ],
)
async def test_a_question_without_a_usable_answer(
    sendgrid: SendGridServer, rule: bad.HttpRule, why: str, wait: float | None
) -> None:
    sendgrid.script.rules = [rule]
    with pytest.raises(Asked) as caught:
        await asked(sendgrid)
    assert (caught.value.why, caught.value.retry_after) == (why, wait)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"base_url": "http://api.sendgrid.com"}, "base_url: http would send the mail and the credentials in clear"),
        ({"api_key": SecretStr("SG.secret\n")}, "api_key: must be printable"),
        ({"email_activity": "perhaps"}, "email_activity"),
        ({"key_window": 60}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SendGridSettings(**{"api_key": SecretStr("SG.secret"), **settings})
    assert says in str(caught.value)
    assert "SG.secret" not in str(caught.value)


def test_an_account_of_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text(
        '[accounts.default]\ntransport = "sendgrid"\napi_key_env = "KEY"\n'
        'base_url = "https://api.eu.sendgrid.com"\nemail_activity = true\n'
    )
    built = build_transports(load(file, {"KEY": "SG.secret"}))["default"]
    assert isinstance(built, SendGridTransport)
    assert (built.identity, built.settings.email_activity) == ("sendgrid:api.eu.sendgrid.com", True)
    assert make_job(built, mail()).rendering.url == "https://api.eu.sendgrid.com/v3/mail/send"
