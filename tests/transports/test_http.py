"""The JSON gateway: what each answer means, and what no answer means in each phase."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from sendonce.activities.transports.base import Job
from sendonce.activities.transports.http import GatewaySettings, GatewayTransport
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Deferred, Outcome, Refused, Unanswered
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.certificate import Certificate
from sendonce.testing.http_gateway import HttpGateway, HttpRequest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = "a@example.org", "b@example.org"


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(gateway: HttpGateway, **settings: Any) -> GatewayTransport:
    return GatewayTransport(GatewaySettings(**{"url": gateway.url, **settings}), now=lambda: NOW)


async def send(
    gateway: HttpGateway,
    content: OutgoingEmail | None = None,
    *,
    key: str | None = None,
    gate: RecordingGate | None = None,
    answer_seconds: float = 20.0,
    job: Job | None = None,
    **settings: Any,
) -> Outcome:
    transport = transport_for(gateway, **settings)
    try:
        job = job or make_job(transport, content or mail(), provider_key=key, answer_seconds=answer_seconds)
        result: AttemptResult = await transport.transmit(job, gate or RecordingGate())
    finally:
        await transport.close()
    [outcome] = result.outcomes.values()
    return outcome


# Answers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, "unanswered"),
        (202, "unanswered"),
        (301, "account_fault"),
        (302, "account_fault"),
        (307, "account_fault"),
        (400, "refused"),
        (401, "account_fault"),
        (402, "account_fault"),
        (403, "account_fault"),
        (404, "refused"),
        (405, "refused"),
        (406, "account_fault"),
        (407, "account_fault"),
        (408, "unanswered"),
        (409, "unanswered"),
        (410, "account_fault"),
        (413, "refused"),
        (415, "account_fault"),
        (420, "account_fault"),
        (421, "unanswered"),
        (422, "refused"),
        (425, "unanswered"),
        (429, "deferred"),
        (500, "unanswered"),
        (502, "unanswered"),
        (503, "unanswered"),
        (599, "unanswered"),
        (799, "unanswered"),
    ],
)
async def test_the_status_decides(gateway: HttpGateway, status: int, kind: str) -> None:
    gateway.script.add(bad.answer(status, "some_error", headers={"Location": "/elsewhere"}))
    outcome = await send(gateway)
    assert (outcome.kind, outcome.reply.code) == (kind, status)
    assert outcome.reply.enhanced == "some_error"
    assert len(gateway.requests) == 1
    assert gateway.mailbox.mails() == []


@pytest.mark.parametrize("body", [b"", b"OK", b"[]", b'{"id": ""}', b'{"id": null}', b'{"id": true}', b"[" * 100_000])
async def test_success_is_read_from_the_body(gateway: HttpGateway, body: bytes) -> None:
    gateway.script.add(bad.answer(200, at="accepted", body=body))
    outcome = await send(gateway)
    assert isinstance(outcome, Unanswered)
    assert outcome.reply.code == 200


@pytest.mark.parametrize(
    ("settings", "body", "headers", "expected"),
    [
        ({"id_path": "data.0.id"}, b'{"data": [{"id": "x-1"}]}', {}, "x-1"),
        ({"id_path": "MessageID"}, b'{"MessageID": 17}', {}, "17"),
        ({"id_header": "X-Message-Id"}, b"", {"X-Message-Id": "x-2"}, "x-2"),
        ({"id_path": None}, b"", {}, ""),
    ],
)
async def test_where_the_id_is(
    gateway: HttpGateway, settings: dict[str, Any], body: bytes, headers: dict[str, str], expected: str
) -> None:
    gateway.script.add(bad.answer(202, at="accepted", body=body, headers=headers))
    outcome = await send(gateway, **settings)
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id == expected


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error": {"code": "bad_from"}}', "bad_from"),
        (b'{"errors": [{"code": 1902}]}', "1902"),
        (b'{"error": "nope"}', "nope"),
        (b'{"code": "a\\u0000b\\ud800"}', ""),
        (b'{"error": "ann@example.org is suppressed"}', ""),  # prose, and somebody's address
        (b"\xff\xfe", ""),
    ],
)
async def test_a_code_is_kept_and_prose_is_not(gateway: HttpGateway, body: bytes, code: str) -> None:
    gateway.script.add(bad.answer(400, body=body))
    outcome = await send(gateway)
    assert outcome.reply.enhanced == code


@pytest.mark.parametrize("status", [409, 422])
@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "invalid_idempotent_request"}',
        b'{"error": {"code": "IDEMPOTENCY_KEY_REUSED"}}',
        b'{"errors": [{"code": 1600}]}',
    ],
)
async def test_a_key_mismatch_never_settles_anything(gateway: HttpGateway, status: int, body: bytes) -> None:
    gateway.script.add(bad.answer(status, body=body))
    outcome = await send(gateway)
    assert isinstance(outcome, Unanswered)
    assert outcome.reply.enhanced == "key_mismatch"


async def test_a_used_up_quota_is_our_accounts_fault(gateway: HttpGateway) -> None:
    gateway.script.add(bad.answer(429, "daily_quota_exceeded", retry_after="3600"))
    outcome = await send(gateway)
    assert outcome.kind == "account_fault"
    assert getattr(outcome, "retry_after", None) == 3600


@pytest.mark.parametrize("status", [429, 503, 409])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 2026 00:01:30 GMT", 90.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1e999", None),
        ("9" * 5000, None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_retry_after_is_handed_on(gateway: HttpGateway, status: int, header: str, seconds: float | None) -> None:
    gateway.script.add(bad.answer(status, retry_after=header))
    outcome = await send(gateway)
    assert isinstance(outcome, (Deferred, Unanswered))
    assert outcome.retry_after == seconds


# Keys


async def test_a_replay_gives_the_first_answer_and_says_so(gateway: HttpGateway) -> None:
    gateway.script.add(bad.lose_answer(times=1))
    first = await send(gateway)
    second = await send(gateway)
    assert isinstance(first, Unanswered)
    assert isinstance(second, Accepted)
    assert second.replayed
    [stored] = gateway.mailbox.mails()
    assert (second.provider_id, stored.key) == (stored.provider_id, "k1")


async def test_beyond_the_key_window_it_is_a_second_mail(gateway: HttpGateway) -> None:
    await send(gateway)
    gateway.advance(86399)
    again = await send(gateway)
    assert isinstance(again, Accepted)
    assert again.replayed
    gateway.advance(1)
    late = await send(gateway)
    assert isinstance(late, Accepted)
    assert not late.replayed
    assert gateway.mailbox.copies(A) == 2


@pytest.mark.parametrize("status", [409, 422])
async def test_the_same_key_with_other_bytes_is_a_mismatch(gateway: HttpGateway, status: int) -> None:
    gateway.mismatch_status = status
    await send(gateway)
    outcome = await send(gateway, mail(subject="Other"))
    assert isinstance(outcome, Unanswered)
    assert outcome.reply == type(outcome.reply)(status, "key_mismatch", outcome.reply.text)
    assert gateway.mailbox.copies(A) == 1


async def test_a_request_still_in_progress_is_unanswered(gateway: HttpGateway) -> None:
    release, accepted = asyncio.Event(), asyncio.Event()
    gateway.script.add(bad.late_answer(release, times=1))

    async def on_event(name: str, _: HttpRequest) -> None:
        if name == "accepted":
            accepted.set()

    gateway.on_event = on_event
    first = asyncio.create_task(send(gateway))
    await accepted.wait()
    second = await send(gateway)
    release.set()
    assert isinstance(second, Unanswered)
    assert (second.reply.code, second.retry_after) == (409, 1.0)
    assert isinstance(await first, Accepted)
    assert isinstance(await send(gateway), Accepted)
    assert gateway.mailbox.copies(A) == 1


async def test_a_stored_refusal_is_replayed_as_such(gateway: HttpGateway) -> None:
    gateway.stores_refusals = True
    gateway.script.add(bad.answer(422, "validation_error", at="refuse", times=1))
    first, second, fresh = await send(gateway), await send(gateway), await send(gateway, key="k2")
    assert isinstance(first, Refused)
    assert not first.replayed
    assert isinstance(second, Refused)
    assert second.replayed
    assert isinstance(fresh, Accepted)


async def test_the_key_travels_in_the_header_that_is_set(gateway: HttpGateway) -> None:
    await send(gateway, key="deploy.k1.1")
    await send(gateway, key="deploy.k1.2", key_header="X-Key")
    await send(gateway, key="deploy.k1.3", key_header=None, key_window=None)
    assert [request.key for request in gateway.requests] == ["deploy.k1.1", "", ""]
    assert gateway.requests[1].headers["x-key"] == "deploy.k1.2"


# Phases


async def test_nothing_is_on_the_wire_before_begin(gateway: HttpGateway) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await release.wait()

    task = asyncio.create_task(send(gateway, gate=RecordingGate(on_begin=hold)))
    await begun.wait()
    assert gateway.requests == []
    release.set()
    assert isinstance(await task, Accepted)


@pytest.mark.parametrize(
    ("rule", "copies"),
    [
        (bad.cut_at_headers(), 0),
        (bad.cut_in_body(after=10), 0),
        (bad.lose_answer(), 1),
        (bad.cut_in_answer(after=0), 1),
        (bad.cut_in_answer(after=5), 1),
        (bad.cut_in_answer(after=40), 1),
        (bad.cut_in_answer(after=90), 1),
    ],
)
async def test_a_reset_after_the_offer_is_unanswered(gateway: HttpGateway, rule: bad.HttpRule, copies: int) -> None:
    rule.times = 1
    gateway.script.rules = [rule]
    assert isinstance(await send(gateway), Unanswered)
    assert gateway.mailbox.copies(A) == copies
    assert isinstance(await send(gateway), Accepted)
    assert gateway.mailbox.copies(A) == 1


async def test_a_reset_while_a_large_body_is_written_is_unanswered(gateway: HttpGateway) -> None:
    gateway.script.add(bad.cut_in_body(after=1000))
    content = mail(attachments=[Attachment(filename="a.bin", content=bytes(4_000_000))])
    assert isinstance(await send(gateway, content), Unanswered)
    assert gateway.mailbox.mails() == []


@pytest.mark.parametrize("key", [{}, {"key_header": None, "key_window": None}], ids=["with a key", "without a key"])
async def test_a_request_on_a_line_that_dies_is_not_made_again_unasked(key: dict[str, Any]) -> None:
    """RFC 9110 9.2.2: a client does not repeat a POST by itself. Some do, when a connection that they kept is dead."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                requests += 1
                if requests > 1:
                    break
                # Kept, whatever the client wishes.
                body = b'{"id": "1"}'
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body))
                writer.write(body)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/emails"
    transport = GatewayTransport(GatewaySettings(url=url, **key))
    found = [await transport.transmit(make_job(transport, mail(key=one)), RecordingGate()) for one in ("k1", "k2")]
    await transport.close()
    server.close()
    await server.wait_closed()
    assert [result.outcomes[0].kind for result in found] == ["accepted", "unanswered"]
    assert requests == 2


@pytest.mark.parametrize("rule", [bad.stalled(), bad.silent_after_accepting()])
async def test_the_answer_timer_ends_the_wait(gateway: HttpGateway, rule: bad.HttpRule) -> None:
    gateway.script.rules = [rule]
    outcome = await send(gateway, answer_seconds=0.3)
    assert isinstance(outcome, Unanswered)
    assert "in time" in outcome.reply.text
    await gateway.idle()


async def test_the_answer_timer_counts_from_the_offer(gateway: HttpGateway) -> None:
    # Connecting and begin take longer than the timer; the answer does not.
    gate = RecordingGate(on_begin=lambda: asyncio.sleep(1.2))
    assert isinstance(await send(gateway, gate=gate, answer_seconds=1.0), Accepted)


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.transport.abort()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    transport = GatewayTransport(GatewaySettings(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/emails"))
    result = await transport.transmit(make_job(transport, mail(), answer_seconds=10), RecordingGate())
    await transport.close()
    server.close()
    assert isinstance(result.outcomes[0], Unanswered)
    assert result.outcomes[0].reply.enhanced == "no_id"


async def test_503_until_the_provider_is_back(gateway: HttpGateway) -> None:
    back = asyncio.Event()
    gateway.script.add(bad.unavailable_until(back))
    assert isinstance(await send(gateway), Unanswered)
    back.set()
    assert isinstance(await send(gateway), Accepted)


@pytest.mark.parametrize("fault", ["unknown issuer", "other name"])
async def test_a_certificate_that_does_not_verify_is_our_fault(
    certificate: Certificate, foreign_certificate: Certificate, fault: str
) -> None:
    shown = certificate if fault == "unknown issuer" else foreign_certificate
    trusted = None if fault == "unknown issuer" else foreign_certificate.file
    gate = RecordingGate()
    async with HttpGateway(tls=shown.context) as gateway:
        outcome = await send(gateway, gate=gate, ca_file=trusted, headers={"Authorization": "Bearer hunter2"})
        assert gateway.requests == []
    assert (outcome.kind, outcome.reply.enhanced) == ("account_fault", "certificate")
    assert gate.begun == []


async def test_a_name_that_does_not_resolve_is_not_offered(gateway: HttpGateway) -> None:
    gate = RecordingGate()
    outcome = await send(gateway, gate=gate, url="https://gateway.invalid/emails")
    assert outcome.kind == "not_offered"
    assert gate.begun == []


async def test_a_stalled_tls_handshake_is_not_offered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/emails"
        transport = GatewayTransport(GatewaySettings(url=url, connect_seconds=0.3))
        result = await transport.transmit(make_job(transport, mail()), RecordingGate())
        await transport.close()
    assert [outcome.kind for outcome in result.outcomes.values()] == ["not_offered"]


async def test_no_proxy_from_the_environment_is_used(gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert isinstance(await send(gateway), Accepted)


# The request


async def test_exactly_the_pinned_bytes_are_sent_and_secrets_only_as_headers(gateway: HttpGateway) -> None:
    gateway.api_key = "hunter2"
    transport = transport_for(gateway, headers={"Authorization": "Bearer hunter2"})
    job = make_job(transport, mail())
    assert "hunter2" not in repr(job)
    await transport.transmit(job, RecordingGate())
    await transport.close()
    [request] = gateway.requests
    assert request.body == job.rendering.body
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer hunter2"
    assert gateway.mailbox.copies(A, message_id="<k1@sendonce.test>") == 1


async def test_a_request_pinned_for_another_host_keeps_its_credentials_home(gateway: HttpGateway) -> None:
    async with HttpGateway() as other:
        pinned = make_job(transport_for(other), mail())
        gate = RecordingGate()
        outcome = await send(gateway, job=pinned, gate=gate, headers={"Authorization": "Bearer hunter2"})
        assert (outcome.kind, outcome.reply.enhanced) == ("account_fault", "url_changed")
        assert (gate.begun, other.connections, gateway.connections) == ([], 0, 0)


def test_the_usual_body_names_everything_that_was_asked_for() -> None:
    transport = GatewayTransport(GatewaySettings(url="https://api.example.org/emails"))
    content = mail(
        sender="Shop, Inc. <shop@example.org>",
        to=["Jörg <jörg@bücher.example>"],
        cc=["b@example.org", "JÖRG <jörg@BÜCHER.example>"],
        bcc=["c@example.org"],
        reply_to=["help@example.org"],
        html="<p>{not a placeholder}</p>",
        headers={"X-Order": "17"},
        attachments=[Attachment(filename="a.txt", content=b"abc", content_type="text/plain")],
    )
    rendering = make_job(transport, content).rendering
    assert (rendering.method, rendering.url) == ("POST", "https://api.example.org/emails")
    assert json.loads(rendering.body) == {
        "from": '"Shop, Inc." <shop@example.org>',
        "to": ["Jörg <jörg@xn--bcher-kva.example>"],
        "cc": ["b@example.org"],
        "bcc": ["c@example.org"],
        "reply_to": ["help@example.org"],
        "subject": "Hi",
        "text": "Hi.\n",
        "html": "<p>{not a placeholder}</p>",
        "headers": {"Message-ID": "<k1@sendonce.test>", "X-Order": "17", "Auto-Submitted": "auto-generated"},
        "attachments": [{"filename": "a.txt", "content": "YWJj", "content_type": "text/plain"}],
    }


def test_a_body_of_another_shape() -> None:
    body = {
        "From": {"Email": "{from.email}", "Name": "{from.name}"},
        "To": {"$each": "to", "item": {"Email": "{item.email}", "Name": "{item.name}"}},
        "Cc": {"$each": "cc", "item": "{item.email}"},
        "Headers": {"$each": "all_headers", "item": {"Name": "{item.name}", "Value": "{item.value}"}},
        "Tag": "mail {key} of {account} {{as is}}",
        "Messages": [{"Text": "{text}", "Html": "{html}"}, "{html}"],
        "Tracking": False,
        "Nothing": None,
        "idempotencyKey": "{provider_key}",
    }
    transport = GatewayTransport(GatewaySettings(url="https://api.example.org/send", body=body, key_header=None))
    content = mail(sender="shop@example.org", to=["Ann <a@example.org>", B])
    assert json.loads(make_job(transport, content, provider_key="p.k1.1", ordinals=(1,)).rendering.body) == {
        "From": {"Email": "shop@example.org"},
        "To": [{"Email": B}],
        "Headers": [
            {"Name": "Message-ID", "Value": "<k1@sendonce.test>"},
            {"Name": "Auto-Submitted", "Value": "auto-generated"},
        ],
        "Tag": "mail k1 of default {as is}",
        "Messages": [{"Text": "Hi.\n"}],
        "Tracking": False,
        "Nothing": None,
        "idempotencyKey": "p.k1.1",
    }


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "http://api.example.org/emails"}, "clear"),
        ({"url": "https://user:secret@api.example.org/"}, "credentials"),
        ({"url": "api.example.org/emails"}, "absolute"),
        ({"url": "ftp://api.example.org/emails"}, "absolute"),
        ({"headers": {"Content-Length": "1"}}, "set from the request"),
        ({"headers": {"X Y": "1"}}, "no header name"),
        ({"headers": {"X-Key": "secret\r\nX-Other: 1"}}, "printable"),
        ({"headers": {"idempotency-key": "1"}}, "twice"),
        ({"key_header": None}, "no key is sent"),
        ({"id_path": "id", "id_header": "X-Id"}, "give one"),
        ({"key_window": 0}, "greater than 0"),
        ({"body": {"a": "{unknown}"}}, "body.a"),
        ({"body": {"a": {"b": ["{"]}}}, "body.a.b.0"),
        ({"body": {"a": "x {to}"}}, "stand alone"),
        ({"body": {"a": "{item.email}"}}, "no placeholder"),
        ({"body": {"a": {"$each": "attachments", "item": "{item.email}"}}}, "body.a.item"),
        ({"body": {"a": {"$each": "people", "item": "x"}}}, "$each"),
        ({"body": {"a": {"$each": "to", "item": {"$each": "cc", "item": "x"}}}}, "not inside another"),
        ({"body": {"a": {"$each": "to"}}}, "$each"),
        ({"body": {"a": NOW}}, "datetime"),
        ({"body": {"$each": "to", "item": "x"}}, "object"),
        ({"redirects": True}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GatewaySettings(**{"url": "https://api.example.org/emails", **settings})
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_identity_fits_whatever_the_url() -> None:
    long = "https://api.example.org/" + "x" * 400
    one, other = GatewaySettings(url=long + "1").identity(), GatewaySettings(url=long + "2").identity()
    assert one != other
    assert max(len(one), len(other)) <= 200
    assert GatewaySettings(url=long, scope="resend:team-7").identity() == "http:resend:team-7"


def test_each_gateway_has_renderings_of_its_own() -> None:
    one = GatewayTransport(GatewaySettings(url="https://one.example/emails"))
    two = GatewayTransport(GatewaySettings(url="https://two.example/emails"))
    assert one.slot(1) == GatewayTransport(GatewaySettings(url="https://one.example/emails")).slot(1)
    assert len({one.slot(1), one.slot(2), two.slot(1)}) == 3
