"""Azure Communication Services: the request and its signature, what each answer means, repetitions, and asking it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.azure import AzureSettings, AzureTransport, classify
from sendonce.activities.transports.base import Asked, Job, LooksUp, Question, Recipient
from sendonce.activities.transports.http_answer import Answer
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, Deferred, Outcome, Refused, Unanswered
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.azure_server import AzureServer
from sendonce.testing.http_request import HttpRequest

NOW = datetime(2026, 1, 1, 12, 30, 45, tzinfo=UTC)
SECRET = base64.b64encode(b"access key").decode()
KEY = str(uuid5(NAMESPACE_URL, "k1"))
A, B, C = "a@example.org", "b@example.org", "c@example.org"


class Clock:
    """The time of day of both sides."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def azure(clock: Clock) -> AsyncIterator[AzureServer]:
    async with AzureServer(api_key=SECRET) as server:
        server.wall = clock
        yield server


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(server: AzureServer | None = None, clock: Clock | None = None, **settings: Any) -> AzureTransport:
    endpoint = server.origin if server else "https://shop.communication.azure.com"
    made = {"api_key": SecretStr(f"endpoint={endpoint}/;accesskey={SECRET}"), **settings}
    return AzureTransport(AzureSettings(**made), now=clock or Clock())


def job_for(transport: AzureTransport, content: OutgoingEmail | None = None) -> Job:
    return make_job(transport, content or mail(), provider_key=KEY)


async def send(
    server: AzureServer,
    content: OutgoingEmail | None = None,
    *,
    job: Job | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Outcome:
    transport = transport_for(server, clock, **settings)
    result = await transport.transmit(job or job_for(transport, content), RecordingGate())
    await transport.close()
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


async def asked(server: AzureServer, provider_key: str = KEY) -> dict[int, Accepted | Refused]:
    transport = transport_for(server)
    assert isinstance(transport, LooksUp)
    recipients = (Recipient(0, A), Recipient(2, B))
    try:
        return await transport.look_up(Question("id-k1", "k1", "<m>", provider_key, NOW, recipients))
    finally:
        await transport.close()


def answer(http: int, code: str = "", headers: dict[str, str] | None = None, /, **body: Any) -> Answer:
    content = {"error": {"code": code, "message": "prose"}} if code else body
    return Answer(http, headers or {}, json.dumps(content).encode(), NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(
        sender="Shop <shop@example.org>",
        to=["Jörg <jörg@bücher.example>"],
        cc=[B],
        bcc=[C],
        reply_to=["Help <help@example.org>", "more@example.org"],
        html="<img src='cid:logo'>",
        headers={"X-Order": "17"},
        attachments=[
            Attachment(filename="a.txt", content=b"abc", content_type="text/plain"),
            Attachment(filename="l.png", content=b"abc", content_type="image/png", inline=True, content_id="logo"),
        ],
    )
    rendering = job_for(transport_for(), content).rendering
    endpoint = "https://shop.communication.azure.com"
    assert (rendering.method, rendering.url) == ("POST", f"{endpoint}/emails:send?api-version=2025-09-01")
    assert dict(rendering.headers) == {
        "Content-Type": "application/json",
        "Operation-Id": KEY,
        "Repeatability-Request-Id": KEY,
        "Repeatability-First-Sent": "Thu, 01 Jan 2026 12:30:00 GMT",
    }
    assert json.loads(rendering.body) == {
        "senderAddress": "shop@example.org",
        "recipients": {
            "to": [{"address": "jörg@xn--bcher-kva.example", "displayName": "Jörg"}],
            "cc": [{"address": B}],
            "bcc": [{"address": C}],
        },
        "content": {"subject": "Hi", "plainText": "Hi.\n", "html": "<img src='cid:logo'>"},
        "attachments": [
            {"name": "a.txt", "contentType": "text/plain", "contentInBase64": "YWJj"},
            {"name": "l.png", "contentType": "image/png", "contentInBase64": "YWJj", "contentId": "logo"},
        ],
        "replyTo": [{"address": "help@example.org", "displayName": "Help"}, {"address": "more@example.org"}],
        "headers": {"Message-ID": "<k1@sendonce.test>", "X-Order": "17", "Auto-Submitted": "auto-generated"},
    }


def test_only_the_envelope_is_named_and_somebody_is_in_to() -> None:
    body = json.loads(make_job(transport_for(), mail(cc=[B], bcc=[C]), ordinals=(1, 2)).rendering.body)
    assert body["recipients"] == {"to": [{"address": B}], "bcc": [{"address": C}]}
    with pytest.raises(InvalidEmail, match="to: this provider needs somebody in To"):
        job_for(transport_for(), mail(to=(), bcc=[B, C]))


def test_a_request_is_the_same_within_its_minute_and_kept_apart_from_the_next_ones(clock: Clock) -> None:
    transport = transport_for(clock=clock)
    first, slot = job_for(transport).rendering, transport.slot(1)
    clock.now += timedelta(seconds=14)
    assert (job_for(transport).rendering, transport.slot(1)) == (first, slot)
    clock.now += timedelta(seconds=1)
    assert job_for(transport).rendering != first
    assert len({slot, transport.slot(1), transport.slot(2)}) == 3


def test_its_keys_are_uuids() -> None:
    assert transport_for().capability.key_format == "uuid"


# The signature


def test_the_signature_is_what_azure_documents() -> None:
    """Computed by hand from the documented string to sign, for a key of eight zero octets."""
    transport = transport_for(
        api_key=SecretStr("endpoint=https://contoso.communication.azure.com/;accesskey=AAAAAAAAAAA=")
    )
    url = "https://contoso.communication.azure.com/emails:send?api-version=2023-03-31"
    assert transport._signature("POST", url, b"{}") == {
        "x-ms-date": "Thu, 01 Jan 2026 12:30:45 GMT",
        "x-ms-content-sha256": "RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=",
        "Authorization": "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256"
        "&Signature=ScTTSjr3B32kHuyZg00yxVuBHrdGZLajcEHKPbaQUe8=",
    }


async def test_each_attempt_is_signed_anew_and_nothing_of_it_is_pinned(azure: AzureServer, clock: Clock) -> None:
    job = job_for(transport_for(azure, clock))
    azure.script.add(bad.unavailable(times=1))
    await send(azure, job=job, clock=clock)
    clock.now += timedelta(seconds=30)
    assert isinstance(await send(azure, job=job, clock=clock), Accepted)
    first, second = azure.requests
    assert first.headers["x-ms-date"] != second.headers["x-ms-date"]
    assert first.headers["repeatability-first-sent"] == second.headers["repeatability-first-sent"]
    pinned = {name.lower() for name, _ in job.rendering.headers}
    assert not {"authorization", "x-ms-date", "x-ms-content-sha256"} & pinned
    assert all(SECRET not in f"{one.path}{one.headers}{one.body!r}" for one in azure.requests)


async def test_another_access_key_is_the_accounts_fault(azure: AzureServer) -> None:
    other = SecretStr(f"endpoint={azure.origin}/;accesskey={base64.b64encode(b'other').decode()}")
    outcome = await send(azure, api_key=other)
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert outcome.reply.enhanced == "Denied"


async def test_a_request_for_another_host_is_not_signed_away(azure: AzureServer) -> None:
    job = job_for(transport_for())
    outcome = await send(azure, job=job)
    assert (outcome.kind, outcome.reply.enhanced) == ("account_fault", "url_changed")
    assert azure.requests == []


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(202, id="x", status="NotStarted"), "accepted", None),
        (answer(202, id="x", status="Running"), "accepted", None),
        (answer(202, id="x", status="Succeeded"), "accepted", None),
        (answer(202, id="x", status="Failed"), "refused", None),
        (answer(202, id="x", status="Canceled"), "refused", None),
        (answer(202, id="x", status="Other"), "unanswered", None),
        (answer(202, id="x"), "unanswered", None),
        (answer(202, status="Running"), "unanswered", None),
        (answer(202), "unanswered", None),
        (answer(400, "BadRequest"), "refused", None),
        (answer(400, "BadRequest", {"Repeatability-Result": "accepted"}), "refused", None),
        (answer(400, "BadRequest", {"Repeatability-Result": "rejected"}), "unanswered", None),
        (answer(400, "InvalidSenderUserName"), "account_fault", "sender"),
        (answer(404, "DomainNotLinked"), "account_fault", "sender"),
        (answer(403, "", {"x-ms-error-code": "DomainNotLinked"}), "account_fault", "sender"),
        (answer(401, "Denied"), "account_fault", "account"),
        (answer(403, "SubscriptionBlocked"), "account_fault", "account"),
        (answer(404, "NotFound"), "account_fault", "account"),
        (answer(302), "account_fault", "account"),
        (answer(409, "Conflict"), "unanswered", None),
        (answer(412, "PreconditionFailed"), "deferred", None),
        (answer(413), "refused", None),
        (answer(429, "TooManyRequests", {"Retry-After": "7"}), "deferred", None),
        (answer(408), "unanswered", None),
        (answer(500, "DomainNotLinked"), "unanswered", None),
        (answer(503), "unanswered", None),
    ],
)
def test_what_each_answer_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status
    assert getattr(outcome, "retry_after", None) == (7.0 if found.status == 429 else None)


def test_the_codes_that_are_ours_and_the_one_of_a_failed_operation() -> None:
    failed = answer(202, id="x", status="Failed", error={"code": "EmailDroppedAllRecipientsSuppressed"})
    found = [answer(400, "BadRequest", {"Repeatability-Result": "rejected"}), failed]
    codes = [classify(one).reply.enhanced for one in found]
    assert codes == ["key_mismatch", "EmailDroppedAllRecipientsSuppressed"]


@pytest.mark.parametrize(
    ("date", "kind"),
    [
        (NOW + timedelta(seconds=119), "deferred"),
        (NOW - timedelta(seconds=119), "deferred"),
        (NOW + timedelta(seconds=121), "account_fault"),
        (NOW - timedelta(seconds=121), "account_fault"),
    ],
)
def test_a_wrong_clock_of_ours_costs_no_mail_an_attempt(date: datetime, kind: str) -> None:
    outcome = classify(answer(412, "PreconditionFailed", {"Date": format_datetime(date, usegmt=True)}))
    assert outcome.kind == kind
    assert (outcome.reply.enhanced == "clock") == (kind == "account_fault")


def test_a_date_that_cannot_be_read_says_nothing() -> None:
    assert isinstance(classify(answer(412, "", {"Date": "soon"})), Deferred)


async def test_a_domain_that_is_not_linked_is_the_senders_fault(azure: AzureServer) -> None:
    azure.linked = frozenset({"example.com"})
    outcome = await send(azure)
    assert outcome == AccountFault(outcome.reply, None, "sender")
    azure.linked = None
    other = str(uuid5(NAMESPACE_URL, "the next generation"))
    assert isinstance(await send(azure, job=make_job(transport_for(azure), mail(), provider_key=other)), Accepted)


async def test_the_id_and_the_message_id_are_ours(azure: AzureServer) -> None:
    outcome = await send(azure)
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id == KEY
    assert azure.mailbox.copies(A, message_id="<k1@sendonce.test>") == 1


# Repetitions


async def test_an_unanswered_mail_is_settled_by_its_repetition(azure: AzureServer, clock: Clock) -> None:
    job = job_for(transport_for(azure, clock))
    azure.script.add(bad.lose_answer(times=1))
    assert isinstance(await send(azure, job=job, clock=clock), Unanswered)
    clock.now += timedelta(seconds=240)
    azure.advance(240)
    assert isinstance(await send(azure, job=job, clock=clock), Accepted)
    assert azure.mailbox.copies(A) == 1


async def test_a_repetition_that_comes_too_late_is_not_carried_out(azure: AzureServer, clock: Clock) -> None:
    window = transport_for(azure).key_window
    assert window == 300
    job = job_for(transport_for(azure, clock))
    await send(azure, job=job, clock=clock)
    clock.now += timedelta(seconds=window)
    azure.advance(window)
    assert isinstance(await send(azure, job=job, clock=clock), Deferred)
    assert azure.mailbox.copies(A) == 1


async def test_a_mail_of_yesterday_is_sent_today(azure: AzureServer, clock: Clock) -> None:
    clock.now += timedelta(days=1)
    assert isinstance(await send(azure, clock=clock), Accepted)


async def test_a_wrong_clock_is_seen(azure: AzureServer) -> None:
    fast = Clock()
    fast.now += timedelta(minutes=10)
    outcome = await send(azure, clock=fast)
    assert (outcome.kind, outcome.reply.enhanced) == ("account_fault", "clock")
    assert azure.mailbox.mails() == []


async def test_a_key_with_other_content_is_a_mismatch(azure: AzureServer) -> None:
    await send(azure)
    outcome = await send(azure, mail(subject="Other"))
    assert isinstance(outcome, Unanswered)
    assert (outcome.reply.code, outcome.reply.enhanced) == (400, "key_mismatch")
    assert azure.mailbox.copies(A) == 1


async def test_a_request_in_progress_is_waited_for(azure: AzureServer) -> None:
    release, accepted = asyncio.Event(), asyncio.Event()
    azure.script.add(bad.late_answer(release, times=1))

    async def on_event(name: str, _: HttpRequest) -> None:
        if name == "accepted":
            accepted.set()

    azure.on_event = on_event
    first = asyncio.create_task(send(azure))
    await accepted.wait()
    second = await send(azure)
    release.set()
    assert isinstance(second, Unanswered)
    assert second.reply.code == 409
    assert isinstance(await first, Accepted)
    assert azure.mailbox.copies(A) == 1


async def test_a_key_that_is_no_uuid_would_be_refused(azure: AzureServer) -> None:
    transport = transport_for(azure)
    result = await transport.transmit(make_job(transport, mail()), RecordingGate())
    await transport.close()
    assert result.outcomes[0].reply.enhanced == "key_mismatch"


# Questions


async def test_a_lost_answer_is_found_once_the_operation_is_known(azure: AzureServer) -> None:
    azure.search_lag = 30.0
    azure.script.add(bad.lose_answer(times=1))
    assert isinstance(await send(azure), Unanswered)
    assert await asked(azure) == {}
    azure.advance(30)
    found = await asked(azure)
    assert {ordinal: getattr(one, "provider_id", "") for ordinal, one in found.items()} == {0: KEY, 2: KEY}
    assert await asked(azure, str(uuid5(NAMESPACE_URL, "another generation"))) == {}
    assert azure.requests[-1].path.startswith("/emails/operations/")


async def test_an_operation_that_failed_is_a_refusal(azure: AzureServer) -> None:
    azure.suppressed = frozenset({A})
    assert isinstance(await send(azure), Accepted)
    found = await asked(azure)
    assert {one.kind for one in found.values()} == {"refused"}
    assert found[0].reply.enhanced == "EmailDroppedAllRecipientsSuppressed"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (bad.answer(200, body=b'{"id": "other", "status": "Succeeded"}'), "not_the_operation"),
        (bad.answer(200, body=json.dumps({"id": KEY, "status": "Other"}).encode()), "state_unknown"),
        (bad.answer(200, body=json.dumps({"id": KEY}).encode()), "state_unknown"),
        (bad.answer(200, body=b"no JSON"), "not_the_operation"),
        (bad.answer(401), "http_401"),
        (bad.too_many_requests("7"), "http_429"),
        (bad.cut_at_headers(), "ReadError"),
    ],
)
async def test_a_question_without_a_usable_answer(azure: AzureServer, rule: bad.HttpRule, why: str) -> None:
    rule.times = None
    azure.script.rules = [rule]
    with pytest.raises(Asked, match=why):
        await asked(azure)


# Settings


@pytest.mark.parametrize(
    ("settings", "url", "identity"),
    [
        ({"api_key": f"endpoint=https://a.example/;accesskey={SECRET}"}, "https://a.example", "azure:a.example"),
        ({"api_key": f"AccessKey={SECRET};Endpoint=https://a.example"}, "https://a.example", "azure:a.example"),
        ({"api_key": SECRET, "base_url": "https://b.example/"}, "https://b.example", "azure:b.example"),
        (
            {"api_key": f"endpoint=https://a.example/;accesskey={SECRET}", "base_url": "https://b.example"},
            "https://b.example",
            "azure:b.example",
        ),
    ],
)
def test_the_endpoint_comes_from_the_connection_string(settings: dict[str, Any], url: str, identity: str) -> None:
    made = AzureSettings(**settings)
    assert (made.base_url, made.identity()) == (url, identity)
    assert SECRET not in f"{made!r}{made!s}"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"api_key": SECRET}, "base_url: write an absolute URL"),
        ({"api_key": "endpoint=https://a.example/;accesskey="}, "api_key: no access key is in it"),
        ({"api_key": "endpoint=https://a.example/;accesskey=no base64!"}, "api_key: no access key is in it"),
        ({"api_key": f"endpoint=http://a.example/;accesskey={SECRET}"}, "base_url: http would send"),
        ({"api_key": SECRET, "base_url": "https://a.example", "api_version": "newest"}, "api_version"),
        ({"api_key": SECRET, "base_url": "https://a.example", "connection": "x"}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AzureSettings(**settings)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
