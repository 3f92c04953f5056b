"""Mailgun: the form that carries a mail, what each of its answers means, and asking it for events."""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient, Rendering
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.mailgun import MailgunSettings, MailgunTransport, classify
from sendonce.activities.transports.mime import render_mime
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Outcome, Refused, Unanswered
from sendonce.settings import build_transports, load
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job, make_mail
from sendonce.testing.mailgun_server import MailgunServer, mailgun_error

OFFER = hashlib.sha256(b"k1").hexdigest()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"
DOMAIN = "mg.example.org"
READY = b"From: shop@example.org\nTo: a@example.org\nCc: b@example.org\nBcc: c@example.org\nSubject: Hi\n\nHi.\n"


@pytest.fixture
async def mailgun() -> AsyncIterator[MailgunServer]:
    async with MailgunServer(api_key="secret", domain=DOMAIN) as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: MailgunServer | None = None, **settings: Any) -> MailgunTransport:
    url = {"base_url": server.origin} if server else {}
    given = {"api_key": SecretStr("secret"), "domain": DOMAIN, **url, **settings}
    return MailgunTransport(MailgunSettings(**given), now=lambda: NOW)


async def send(
    server: MailgunServer, content: OutgoingEmail | None = None, provider_key: str | None = None, **settings: Any
) -> Outcome:
    transport = transport_for(server, **settings)
    job = make_job(transport, content or mail(), provider_key=provider_key)
    result: AttemptResult = await transport.transmit(job, RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


async def asked(
    server: MailgunServer, provider_key: str = "k1", recipients: tuple[str, ...] = (A,)
) -> dict[int, Accepted | Refused]:
    transport = transport_for(server)
    assert isinstance(transport, LooksUp)
    named = tuple(Recipient(ordinal, mailbox) for ordinal, mailbox in enumerate(recipients))
    try:
        return await transport.look_up(Question("id-k1", "k1", "<k1@sendonce.test>", provider_key, NOW, named))
    finally:
        await transport.close()


def parts(rendering: Rendering) -> list[tuple[str, str | None, bytes]]:
    """Name, file name and content of each part of the form, split by hand."""
    [(_, kind)] = rendering.headers
    [boundary] = re.findall(r'^multipart/form-data; boundary="([0-9a-f]{64})"$', kind)
    first, *between, last = rendering.body.split(b"--" + boundary.encode())
    assert (first, last) == (b"", b"--\r\n")
    found = []
    for part in between:
        head, _, content = part.removeprefix(b"\r\n").removesuffix(b"\r\n").partition(b"\r\n\r\n")
        fields = email.message_from_bytes(head, policy=email.policy.HTTP)
        assert fields.get_content_disposition() == "form-data"
        name = fields.get_param("name", header="content-disposition")
        found.append((str(name), fields.get_filename(), content))
    return found


# The request


def test_a_mail_as_it_is_written() -> None:
    invitation = Attachment.calendar("BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nEND:VCALENDAR\r\n")
    content = mail(
        to=['"Jörg (Shop)" <jörg@bücher.example>'], cc=[B], bcc=[C], headers={"X-Order": "17"}, attachments=[invitation]
    )
    rendering = make_job(transport_for(), content).rendering
    assert (rendering.method, rendering.url) == ("POST", f"https://api.mailgun.net/v3/{DOMAIN}/messages.mime")
    message = render_mime(make_mail(content))
    assert parts(rendering) == [
        ("to", None, "jörg@xn--bcher-kva.example".encode()),
        ("to", None, B.encode()),
        ("to", None, C.encode()),
        ("v:sendonce-offer", None, OFFER.encode()),
        ("v:sendonce-id", None, b"id-k1"),
        ("v:sendonce-key", None, b"k1"),
        ("message", "message.eml", message),
    ]
    assert b"text/calendar; method=REQUEST" in message
    assert C.encode() not in message


def test_only_the_envelope_is_named_and_the_message_stays_the_same() -> None:
    whole, part = (make_job(transport_for(), mail(cc=[B], bcc=[C]), ordinals=o).rendering for o in (None, (2,)))
    assert [content for name, _, content in parts(part) if name == "to"] == [C.encode()]
    assert parts(part)[-1] == parts(whole)[-1]


def test_each_envelope_is_pinned_on_its_own() -> None:
    transport = transport_for()
    assert transport.slot(1) != transport.slot(2)


async def test_ready_made_mime_travels_as_it_is(mailgun: MailgunServer) -> None:
    content = OutgoingEmail.from_mime(READY, key="k1", recipients=[B, C])
    assert transport_for().capability.takes_mime
    assert isinstance(await send(mailgun, content), Accepted)
    [stored] = mailgun.mailbox.mails()
    assert stored.recipients == (B, C)
    assert (stored.headers["to"], stored.headers["cc"], stored.headers.get("bcc")) == (A, B, None)
    rendering = make_job(transport_for(), content).rendering
    assert parts(rendering)[-1][2].endswith(READY.replace(b"Bcc: c@example.org\n", b"").replace(b"\n", b"\r\n"))


async def test_eight_bit_text_travels_as_it_is(mailgun: MailgunServer) -> None:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = "shop@example.org", A, "Hi"
    made.set_content("für Ann\n", charset="latin-1", cte="8bit")
    content = OutgoingEmail.from_mime(bytes(made), key="k1")
    assert isinstance(await send(mailgun, content), Accepted)
    assert "für Ann".encode("latin-1") in parts(make_job(transport_for(), content).rendering)[-1][2]


async def test_the_key_travels_as_a_header_only(mailgun: MailgunServer) -> None:
    assert isinstance(await send(mailgun), Accepted)
    [request] = mailgun.requests
    assert request.headers["authorization"] == f"Basic {base64.b64encode(b'api:secret').decode()}"
    assert "idempotency-key" not in request.headers
    assert b"secret" not in request.body


# Answers


def answer(status: int, **body: Any) -> Answer:
    return Answer(status, {"Retry-After": "7"}, json.dumps(body).encode(), NOW)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (answer(200, id="<k1@sendonce.test>", message="Queued. Thank you."), "accepted"),
        (answer(200, message="Queued. Thank you."), "unanswered"),
        (Answer(200, {}, b"Mailgun Magnificent API", NOW), "unanswered"),
        (answer(400, message="to parameter is not a valid address. please check documentation"), "refused"),
        (answer(401, message="Invalid private key"), "account_fault"),
        (answer(402, message="no"), "account_fault"),
        (answer(403, message="Domain mg.example.org is not allowed to send: activate your account"), "account_fault"),
        (answer(404, message="Domain not found: mg.example.org"), "account_fault"),
        (answer(405), "account_fault"),
        (answer(413), "refused"),
        (answer(420, message="hourly limit reached"), "account_fault"),
        (answer(429), "deferred"),
        (answer(302), "account_fault"),
        (answer(408), "unanswered"),
        (answer(409), "unanswered"),
        (answer(500, id="x"), "unanswered"),
        (answer(502), "unanswered"),
    ],
)
def test_what_each_answer_means(found: Answer, kind: str) -> None:
    outcome = classify(found)
    assert (outcome.kind, outcome.reply.code) == (kind, found.status)
    assert getattr(outcome, "scope", "account") == "account"
    if kind in ("deferred", "account_fault"):
        assert getattr(outcome, "retry_after", None) == 7.0


async def test_set_up_that_is_wrong_blames_no_recipient(mailgun: MailgunServer) -> None:
    found = [await send(mailgun, api_key=SecretStr("other")), await send(mailgun, domain="other.example.org")]
    mailgun.disabled = True
    found.append(await send(mailgun))
    assert [(outcome.kind, outcome.reply.code) for outcome in found] == [
        ("account_fault", 401),
        ("account_fault", 404),
        ("account_fault", 403),
    ]
    assert mailgun.mailbox.mails() == []


async def test_a_wrong_url_is_answered_and_not_taken_for_success(mailgun: MailgunServer) -> None:
    outcome = await send(mailgun, base_url=f"{mailgun.origin}/api")
    assert isinstance(outcome, Unanswered)
    assert (outcome.reply.code, outcome.reply.enhanced) == (200, "no_id")


async def test_the_message_id_is_ours(mailgun: MailgunServer) -> None:
    outcome = await send(mailgun)
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id == "<k1@sendonce.test>"
    assert mailgun.mailbox.copies(A, message_id="<k1@sendonce.test>") == 1


# No keys, but questions


async def test_a_second_request_is_a_second_mail(mailgun: MailgunServer) -> None:
    assert transport_for().key_window is None
    assert transport_for().capability.key == ""
    await send(mailgun)
    await send(mailgun)
    assert mailgun.mailbox.copies(A) == 2


async def test_a_lost_answer_is_found_once_its_events_are_there(mailgun: MailgunServer) -> None:
    mailgun.search_lag = 1800.0
    mailgun.script.add(bad.lose_answer(times=1))
    assert isinstance(await send(mailgun), Unanswered)
    assert await asked(mailgun) == {}
    lag = transport_for().capability.look_up_lag
    assert lag is not None
    mailgun.advance(lag)
    found = await asked(mailgun)
    assert {(o, one.kind, getattr(one, "provider_id", "")) for o, one in found.items()} == {
        (0, "accepted", "<k1@sendonce.test>")
    }
    query = parse_qs(urlsplit(mailgun.requests[-1].path).query)
    assert query["message-id"] == ["k1@sendonce.test"]
    assert query["begin"] == [str(int(NOW.timestamp()) - 900)]


async def test_another_offer_of_the_same_mail_is_not_taken_for_this_one(mailgun: MailgunServer) -> None:
    await send(mailgun, provider_key="k1-1")
    assert await asked(mailgun, "k1-2") == {}
    assert set(await asked(mailgun, "k1-1")) == {0}


async def test_each_recipient_is_answered_by_events_of_their_own(mailgun: MailgunServer) -> None:
    mailgun.rejected = frozenset({B})
    await send(mailgun, mail(cc=[B]))
    found = await asked(mailgun, recipients=(A, B, C))
    assert {ordinal: one.kind for ordinal, one in found.items()} == {0: "accepted", 1: "refused", 2: "accepted"}


async def test_events_are_read_page_by_page(mailgun: MailgunServer) -> None:
    everybody = tuple(f"r{number}@example.org" for number in range(601))
    mailgun.rejected = frozenset({everybody[-1]})
    await send(mailgun, mail(bcc=everybody, to=()))
    found = await asked(mailgun, recipients=everybody)
    assert [one.kind for _, one in sorted(found.items())] == ["accepted"] * 600 + ["refused"]
    assert len(mailgun.requests) == 1 + 3


async def test_a_next_page_of_another_host_is_left_alone(mailgun: MailgunServer) -> None:
    body = {"items": [{}] * 300, "paging": {"next": "https://elsewhere.invalid/events"}}
    mailgun.script.add(bad.answer(200, body=json.dumps(body).encode()))
    assert await asked(mailgun) == {}
    assert len(mailgun.requests) == 1


@pytest.mark.parametrize(
    "event",
    [
        {"event": "accepted", "recipient": A},
        {"event": "accepted", "recipient": A, "user-variables": []},
        {"event": "accepted", "recipient": A, "user-variables": {"sendonce-offer": "other"}},
        "x",
        None,
    ],
)
async def test_what_is_found_is_read_back(mailgun: MailgunServer, event: Any) -> None:
    mailgun.script.add(bad.answer(200, body=json.dumps({"items": [event]}).encode()))
    assert await asked(mailgun) == {}


@pytest.mark.parametrize(
    ("rule", "why", "wait"),
    [
        (bad.answer(401, body=b"Forbidden"), "http_401", None),
        (bad.answer(404, body=mailgun_error("Domain not found")), "http_404", None),
        (bad.too_many_requests("7"), "http_429", 7.0),
        (bad.answer(200, body=b"Mailgun Magnificent API"), "not_a_list_of_events", None),
        (bad.cut_at_headers(), "ReadError", None),
    ],
)
async def test_a_question_without_a_usable_answer(
    mailgun: MailgunServer, rule: bad.HttpRule, why: str, wait: float | None
) -> None:
    mailgun.script.rules = [rule]
    with pytest.raises(Asked) as caught:
        await asked(mailgun)
    assert (caught.value.why, caught.value.retry_after) == (why, wait)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"domain": "mg.example.org/../x"}, "domain"),
        ({"domain": "MG.example.org"}, "domain"),
        ({"domain": None}, "domain"),
        ({"base_url": "http://api.mailgun.net"}, "base_url: http would send the mail and the credentials in clear"),
        ({"key_window": 60}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        MailgunSettings(**{"api_key": SecretStr("secret"), "domain": DOMAIN, **settings})
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_account_of_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text(
        '[accounts.default]\ntransport = "mailgun"\napi_key_env = "KEY"\ndomain = "mg.example.org"\n'
        'base_url = "https://api.eu.mailgun.net"\nscope = "acme"\n'
    )
    built = build_transports(load(file, {"KEY": "secret"}))["default"]
    assert isinstance(built, MailgunTransport)
    assert built.identity == "mailgun:acme:mg.example.org"
    assert make_job(built, mail()).rendering.url == "https://api.eu.mailgun.net/v3/mg.example.org/messages.mime"
