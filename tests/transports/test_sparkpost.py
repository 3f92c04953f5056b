"""SparkPost: how a mail is written for it, what each of its answers means, its keys, and asking it for events."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.provider_key import provider_key
from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.mime import render_mime
from sendonce.activities.transports.sparkpost import SparkPostSettings, SparkPostTransport, classify
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Refused, Unanswered
from sendonce.settings import build_transports, load
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job, make_mail
from sendonce.testing.http_request import HttpRequest
from sendonce.testing.sparkpost_server import SparkPostServer, sparkpost_error

OFFER = hashlib.sha256(b"k1").hexdigest()
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"
READY = b"From: shop@example.org\nTo: a@example.org\nBcc: c@example.org\nSubject: Hi\n\nHi.\n"


@pytest.fixture
async def sparkpost() -> AsyncIterator[SparkPostServer]:
    async with SparkPostServer(api_key="secret") as server:
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: SparkPostServer | None = None, **settings: Any) -> SparkPostTransport:
    url = {"base_url": server.origin} if server else {}
    given = {"api_key": SecretStr("secret"), **url, **settings}
    return SparkPostTransport(SparkPostSettings(**given), now=lambda: NOW)


async def send(
    server: SparkPostServer, content: OutgoingEmail | None = None, key: str | None = None, **settings: Any
) -> Outcome:
    transport = transport_for(server, **settings)
    job = make_job(transport, content or mail(), provider_key=key)
    result: AttemptResult = await transport.transmit(job, RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


async def asked(
    server: SparkPostServer, key: str = "k1", recipients: tuple[str, ...] = (A,), begun_at: datetime = NOW
) -> dict[int, Accepted | Refused]:
    transport = transport_for(server)
    assert isinstance(transport, LooksUp)
    named = tuple(Recipient(ordinal, mailbox) for ordinal, mailbox in enumerate(recipients))
    try:
        return await transport.look_up(Question("id-k1", "k1", "<k1@sendonce.test>", key, begun_at, named))
    finally:
        await transport.close()


def written(content: OutgoingEmail, ordinals: tuple[int, ...] | None = None, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make_job(transport_for(**settings), content, ordinals=ordinals).rendering.body)
    return found


def answer(status: int, code: str = "", *, replayed: bool = False, **results: Any) -> Answer:
    body = json.dumps({"results": results}).encode() if status < 300 else sparkpost_error(code)
    return Answer(status, {"X-Idempotent-Replayed": "true"} if replayed else {}, body, NOW)


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
    assert (rendering.method, rendering.url) == ("POST", "https://api.sparkpost.com/api/v1/transmissions")
    to = 'Jörg <jörg@xn--bcher-kva.example>, "Ann, B." <a@example.org>'
    assert json.loads(rendering.body) == {
        "options": {"transactional": True, "open_tracking": False, "click_tracking": False},
        "campaign_id": OFFER,
        "metadata": {"sendonce_id": "id-k1", "sendonce_key": "k1"},
        "recipients": [
            {"address": {"email": mailbox, "header_to": to}}
            for mailbox in ("jörg@xn--bcher-kva.example", "a@example.org", "b@example.org", "c@example.org")
        ],
        "content": {
            "subject": "Hi",
            "from": {"email": "shop@example.org", "name": "Shop, Inc."},
            "reply_to": "help@example.org",
            "html": "<img src='cid:logo'>",
            "text": "Hi.\n",
            "headers": {
                "Cc": "b@example.org, JÖRG <jörg@xn--bcher-kva.example>",
                "X-Order": "17",
                "Auto-Submitted": "auto-generated",
            },
            "attachments": [{"name": "a.txt", "type": "text/plain", "data": "YWJj"}],
            "inline_images": [{"name": "logo", "type": "image/png", "data": "YWJj"}],
        },
    }


def test_only_the_envelope_is_posted_and_the_headers_name_everybody() -> None:
    body = written(mail(cc=[B], bcc=[C]), (1, 2))
    assert body["recipients"] == [
        {"address": {"email": B, "header_to": A}},
        {"address": {"email": C, "header_to": A}},
    ]
    assert body["content"]["headers"]["Cc"] == B


def test_those_in_bcc_alone_see_themselves_only() -> None:
    body = written(mail(to=(), bcc=[B, C]))
    assert body["recipients"] == [{"address": {"email": B}}, {"address": {"email": C}}]
    assert B not in json.dumps(body["content"])


async def test_no_text_is_empty(sparkpost: SparkPostServer) -> None:
    content = mail(text=None, subject="", attachments=[Attachment(filename="a.txt", content=b"abc")])
    assert written(content)["content"]["text"] == " "
    assert "text" not in written(mail(text=None, html="<p>Hi"))["content"]
    assert isinstance(await send(sparkpost, content), Accepted)


def test_what_looks_like_a_template_arrives_as_it_is() -> None:
    found = written(mail(subject="{{a}", text="{{{x}} {y}", html="a{b{c:d}}", headers={"X-A": "{{if}}"}))["content"]
    opened, closed = "{{opening_single_curly()}}", "{{closing_single_curly()}}"
    assert found["subject"] == f"{opened}{opened}a{closed}"
    assert found["text"] == f"{opened * 3}x{closed * 2} {opened}y{closed}"
    assert found["headers"]["X-A"] == f"{opened * 2}if{closed * 2}"
    assert found["html"] == "a{b{c:d}}"


def test_tracking_and_campaigns_can_be_chosen() -> None:
    body = written(mail(), tracking=True, campaigns=False)
    assert (body["options"]["open_tracking"], body["options"]["click_tracking"]) == (True, True)
    assert "campaign_id" not in body
    assert transport_for(campaigns=False).capability.look_up == ""


async def test_ready_made_mime_travels_as_it_is(sparkpost: SparkPostServer) -> None:
    content = OutgoingEmail.from_mime(READY, key="k1", recipients=[B, C])
    body = written(content)
    assert transport_for().capability.takes_mime
    assert body["content"] == {"email_rfc822": render_mime(make_mail(content)).decode()}
    assert C not in body["content"]["email_rfc822"]
    assert body["recipients"] == [{"address": {"email": B}}, {"address": {"email": C}}]
    assert isinstance(await send(sparkpost, content), Accepted)
    assert sparkpost.mailbox.mails()[0].recipients == (B, C)


@pytest.mark.parametrize(
    "data",
    [
        READY.replace(b"Hi.", b"{{name}}"),
        READY.replace(b"Subject: Hi", b"Subject: {{name}}"),
        READY.replace(b"Subject: Hi", b"Subject: =?utf-8?b?e3tuYW1lfX0=?="),
        READY.replace(b"Subject: Hi", b"Subject: Hi\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64").replace(
            b"Hi.", b"e3tuYW1lfX0="
        ),
    ],
)
def test_ready_made_mime_that_looks_like_a_template_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidEmail, match=r"mime: SparkPost would take \{\{"):
        written(OutgoingEmail.from_mime(data, key="k1"))


def test_ready_made_mime_has_to_be_text() -> None:
    def made(charset: str) -> OutgoingEmail:
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = "shop@example.org", A, "Hi"
        message.set_content("für Ann\n", charset=charset, cte="8bit")
        return OutgoingEmail.from_mime(bytes(message), key="k1")

    assert "für Ann" in written(made("utf-8"))["content"]["email_rfc822"]
    with pytest.raises(InvalidEmail, match="mime: SparkPost takes it as text"):
        written(made("latin-1"))


async def test_key_and_credentials_travel_as_headers_only(sparkpost: SparkPostServer) -> None:
    assert isinstance(await send(sparkpost), Accepted)
    [request] = sparkpost.requests
    assert (request.headers["authorization"], request.key) == ("secret", "k1")
    assert b"secret" not in request.body


def test_our_keys_are_of_its_alphabet() -> None:
    key = provider_key(UUID(int=7), "order:4711@" + "x" * 200, 12, transport_for().capability.key_format)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,255}", key)


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(400, "1502"), "deferred", None),
        (answer(400, "1602"), "account_fault", "account"),
        (answer(400, "1901"), "refused", None),
        (answer(400, "1902"), "refused", None),
        (answer(400, "1910"), "account_fault", "account"),
        (answer(400, "5002"), "refused", None),
        (answer(400, "7000"), "account_fault", "sender"),
        (answer(400, "7001"), "account_fault", "sender"),
        (answer(400), "refused", None),
        (answer(401), "account_fault", "account"),
        (answer(403, "1100"), "account_fault", "account"),
        (answer(403, "1601"), "account_fault", "account"),
        (answer(404, "1600"), "account_fault", "account"),
        (answer(409, "1600"), "unanswered", None),
        (answer(409, "1601"), "unanswered", None),
        (answer(409, "1602"), "unanswered", None),
        (answer(413), "refused", None),
        (answer(420, "2101"), "account_fault", "account"),
        (answer(420, "2102"), "account_fault", "account"),
        (answer(420, "2103"), "account_fault", "account"),
        (answer(420, "2105"), "account_fault", "account"),
        (answer(420), "account_fault", "account"),
        (answer(422, "1300"), "refused", None),
        (answer(422, "7001"), "refused", None),
        (answer(429), "deferred", None),
        (answer(302), "account_fault", "account"),
        (answer(408), "unanswered", None),
        (answer(500, "7001"), "unanswered", None),
        (answer(503, "1900"), "unanswered", None),
    ],
)
def test_what_each_error_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found, 2)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status


@pytest.mark.parametrize(
    ("accepted", "rejected", "provider_id", "kind", "code"),
    [
        (2, 0, "11668787484950529", "accepted", ""),
        (2, 0, 11668787484950529, "accepted", ""),
        ("2", "0", "1", "accepted", ""),
        (2, 0, "", "unanswered", "no_id"),
        (0, 2, "1", "refused", ""),
        (0, 2, "", "refused", ""),
        (1, 1, "1", "unanswered", "partial"),
        (1, 0, "1", "unanswered", "partial"),
        (0, 0, "1", "unanswered", "partial"),
        (3, 0, "1", "unanswered", "partial"),
        (None, None, "1", "unanswered", "partial"),
        (True, 0, "1", "unanswered", "partial"),
    ],
)
def test_a_success_is_counted(accepted: Any, rejected: Any, provider_id: Any, kind: str, code: str) -> None:
    counts = {"total_accepted_recipients": accepted, "total_rejected_recipients": rejected, "id": provider_id}
    outcome = classify(answer(200, **counts), 2)
    assert (outcome.kind, outcome.reply.enhanced) == (kind, code)
    if isinstance(outcome, Accepted):
        assert outcome.provider_id == str(provider_id)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"results": []}', b'{"id": "1"}'])
def test_a_success_that_cannot_be_read_settles_nothing(body: bytes) -> None:
    outcome = classify(Answer(200, {}, body, NOW), 2)
    assert isinstance(outcome, Unanswered)
    assert outcome.reply.enhanced == "no_id"


def test_what_is_replayed_says_so() -> None:
    counts: dict[str, Any] = {"total_accepted_recipients": 1, "total_rejected_recipients": 0, "id": "1"}
    none: dict[str, Any] = {"total_accepted_recipients": 0, "total_rejected_recipients": 1}
    for replayed in (True, False):
        for found in (
            answer(200, replayed=replayed, **counts),
            answer(200, replayed=replayed, **none),
            answer(422, "1300", replayed=replayed),
        ):
            assert getattr(classify(found, 1), "replayed", None) is replayed


def test_a_wish_to_wait_is_handed_on() -> None:
    for status, code in ((429, ""), (420, "2101"), (503, "1900"), (400, "1502"), (400, "7001")):
        found = Answer(status, {"Retry-After": "7"}, sparkpost_error(code), NOW)
        assert getattr(classify(found, 1), "retry_after", None) == 7.0


async def test_a_domain_that_is_not_verified_is_the_senders_fault(sparkpost: SparkPostServer) -> None:
    sparkpost.domains = frozenset({"example.com"})
    outcome = await send(sparkpost)
    assert outcome == AccountFault(outcome.reply, None, "sender")
    assert isinstance(await send(sparkpost, mail(sender="shop@example.com")), Accepted)


async def test_those_who_are_left_out_are_not_named(sparkpost: SparkPostServer) -> None:
    sparkpost.rejected = frozenset({B})
    outcome = await send(sparkpost, mail(cc=[B]))
    assert isinstance(outcome, Unanswered)
    assert outcome.reply.enhanced == "partial"
    assert sparkpost.mailbox.mails()[0].recipients == (A,)
    assert isinstance(await send(sparkpost, mail(to=[B]), key="k2"), Refused)


# Keys


async def test_an_unanswered_mail_is_settled_by_its_replay(sparkpost: SparkPostServer) -> None:
    sparkpost.script.add(bad.lose_answer(times=1))
    first, second = await send(sparkpost), await send(sparkpost)
    [stored] = sparkpost.mailbox.mails()
    assert isinstance(first, Unanswered)
    assert isinstance(second, Accepted)
    assert (second.provider_id, second.replayed) == (stored.provider_id, True)


async def test_after_the_window_the_key_is_new(sparkpost: SparkPostServer) -> None:
    await send(sparkpost)
    window = transport_for(sparkpost).key_window
    assert window == 86400
    sparkpost.advance(window)
    await send(sparkpost)
    assert sparkpost.mailbox.copies(A) == 2


async def test_a_key_with_other_content_is_a_mismatch(sparkpost: SparkPostServer) -> None:
    await send(sparkpost)
    outcome = await send(sparkpost, mail(subject="Other"))
    assert isinstance(outcome, Unanswered)
    assert (outcome.reply.code, outcome.reply.enhanced) == (409, "key_mismatch")
    assert sparkpost.mailbox.copies(A) == 1


async def test_a_key_that_is_malformed_is_nobodys_mail(sparkpost: SparkPostServer) -> None:
    outcome = await send(sparkpost, key="order:1")
    assert isinstance(outcome, AccountFault)
    assert outcome.reply.enhanced == "1602"


async def test_a_request_in_progress_is_waited_for(sparkpost: SparkPostServer) -> None:
    release, accepted = asyncio.Event(), asyncio.Event()
    sparkpost.script.add(bad.late_answer(release, times=1))

    async def on_event(name: str, _: HttpRequest) -> None:
        if name == "accepted":
            accepted.set()

    sparkpost.on_event = on_event
    first = asyncio.create_task(send(sparkpost))
    await accepted.wait()
    second = await send(sparkpost)
    release.set()
    assert isinstance(second, Unanswered)
    assert second.reply.enhanced == "1601"
    assert isinstance(await first, Accepted)
    assert sparkpost.mailbox.copies(A) == 1


# Questions


async def test_a_lost_answer_is_found_once_its_events_are_there(sparkpost: SparkPostServer) -> None:
    sparkpost.script.add(bad.lose_answer(times=1))
    assert isinstance(await send(sparkpost), Unanswered)
    [stored] = sparkpost.mailbox.mails()
    assert await asked(sparkpost) == {}
    sparkpost.advance(60)
    found = await asked(sparkpost)
    assert {(o, one.kind, getattr(one, "provider_id", "")) for o, one in found.items()} == {
        (0, "accepted", stored.provider_id)
    }
    query = parse_qs(urlsplit(sparkpost.requests[-1].path).query)
    assert query == {"campaigns": [OFFER], "from": ["2026-01-31T11:00:00Z"], "per_page": ["500"]}


async def test_no_question_goes_beyond_what_is_kept(sparkpost: SparkPostServer) -> None:
    await asked(sparkpost, begun_at=NOW - timedelta(days=12))
    query = parse_qs(urlsplit(sparkpost.requests[-1].path).query)
    assert query["from"] == ["2026-01-21T13:00:00Z"]


async def test_each_recipient_is_answered_by_events_of_their_own(sparkpost: SparkPostServer) -> None:
    sparkpost.rejected, sparkpost.suppressed = frozenset({B}), frozenset({C})
    await send(sparkpost, mail(to=["A@example.org"], cc=[B], bcc=[C]))
    sparkpost.advance(60)
    found = await asked(sparkpost, recipients=("A@example.org", B, C))
    assert {ordinal: (one.kind, one.reply.enhanced) for ordinal, one in found.items()} == {
        0: ("accepted", "found"),
        2: ("refused", "policy_rejection"),
    }
    assert not transport_for().capability.all_or_nothing


def event(kind: str, **changes: Any) -> dict[str, Any]:
    return {"type": kind, "campaign_id": OFFER, "transmission_id": "1", "rcpt_to": A, **changes}


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([event("injection"), event("policy_rejection")], "accepted"),
        ([event("policy_rejection"), event("delay")], "accepted"),
        ([event("bounce")], "accepted"),
        ([event("generation_failure")], "refused"),
        ([event("injection", campaign_id="other")], ""),
        ([event("injection", transmission_id=None), None, "x", {}], ""),
        ([event("injection", rcpt_to=B), event("injection", rcpt_to=None)], ""),
        ([event("injection", rcpt_to=B, raw_rcpt_to=A.upper())], "accepted"),
    ],
)
async def test_what_is_found_is_read_back(sparkpost: SparkPostServer, events: list[Any], kind: str) -> None:
    sparkpost.script.add(bad.answer(200, body=json.dumps({"results": events}).encode()))
    assert [one.kind for one in (await asked(sparkpost)).values()] == ([kind] if kind else [])


async def test_another_offer_is_not_taken_for_this_one(sparkpost: SparkPostServer) -> None:
    await send(sparkpost)
    sparkpost.advance(60)
    assert await asked(sparkpost, "k1-of-another-generation") == {}


@pytest.mark.parametrize(
    ("rule", "why", "wait"),
    [
        (bad.answer(403, body=sparkpost_error("1100")), "http_403", None),
        (bad.too_many_requests("7"), "http_429", 7.0),
        (bad.answer(200, body=b"no JSON"), "not_a_list_of_events", None),
        (bad.answer(200, body=b'{"results": {}}'), "not_a_list_of_events", None),
        (bad.cut_at_headers(), "ReadError", None),
    ],
)
async def test_a_question_without_a_usable_answer(
    sparkpost: SparkPostServer, rule: bad.HttpRule, why: str, wait: float | None
) -> None:
    sparkpost.script.rules = [rule]
    with pytest.raises(Asked) as caught:
        await asked(sparkpost)
    assert (caught.value.why, caught.value.retry_after) == (why, wait)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"base_url": "http://api.sparkpost.com"}, "base_url: http would send the mail and the credentials in clear"),
        ({"api_key": SecretStr("secret\n")}, "api_key: must be printable"),
        ({"key_window": 0}, "key_window"),
        ({"tracking": "perhaps"}, "tracking"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SparkPostSettings(**{"api_key": SecretStr("secret"), **settings})
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_account_of_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text(
        '[accounts.default]\ntransport = "sparkpost"\napi_key_env = "KEY"\nkey_window = false\n'
        'base_url = "https://api.eu.sparkpost.com"\n'
    )
    built = build_transports(load(file, {"KEY": "secret"}))["default"]
    assert isinstance(built, SparkPostTransport)
    assert (built.identity, built.key_window) == ("sparkpost:api.eu.sparkpost.com", None)
    assert built.secrets("k1") == {"Authorization": "secret", "Idempotency-Key": "k1"}
