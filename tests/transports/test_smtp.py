"""SMTP: verdicts per recipient and per phase, against a real server at the level of octets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from sendonce.activities.transports.base import Job
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTimeouts, SmtpTransport
from sendonce.activities.transports.smtp_transaction import wire
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import (
    Accepted,
    AttemptResult,
)
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.certificate import Certificate
from sendonce.testing.smtp_server import SmtpServer

A, B, C = "a@example.org", "b@example.org", "c@example.org"


def mail(to: Sequence[str] = (A, B, C), **changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": to, "subject": "Hello", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def large(octets: int) -> OutgoingEmail:
    return mail([A], attachments=[Attachment(filename="a.bin", content=bytes(octets))])


async def send(
    server: SmtpServer,
    content: OutgoingEmail | None = None,
    *,
    gate: RecordingGate | None = None,
    answer_seconds: float = 20.0,
    job: Job | None = None,
    hear: bool = False,
    **settings: Any,
) -> AttemptResult:
    """One attempt. With ``hear`` begin lasts until the server's reply, or the connection's end, has arrived."""
    # Connections are not kept: the server's end of each is awaited.
    pool = {"idle_seconds": 0}
    settings = {"host": "127.0.0.1", "port": server.port, "tls": "none", "pool": pool, **settings}
    transport = SmtpTransport(SmtpSettings(**settings))
    gate = gate or RecordingGate()

    async def heard() -> None:
        [line] = transport._pool._busy
        while line.protocol._response_pending and not line.protocol.replied:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.001)

    if hear:
        gate.on_begin = heard
    try:
        job = job or make_job(transport, content or mail(), answer_seconds=answer_seconds)
        result = await transport.transmit(job, gate)
        await server.idle()
        return result
    finally:
        await transport.close()


def kinds(result: AttemptResult) -> list[str]:
    return [result.outcomes[ordinal].kind for ordinal in sorted(result.outcomes)]


def codes(result: AttemptResult) -> list[int]:
    return [result.outcomes[ordinal].reply.code for ordinal in sorted(result.outcomes)]


# Recipients


async def test_each_recipient_gets_its_own_verdict(smtp: SmtpServer) -> None:
    smtp.script.add(bad.reject_mailbox(B), bad.reject_mailbox(C, 451, "4.7.1 later"))
    gate = RecordingGate()
    result = await send(smtp, gate=gate)
    assert kinds(result) == ["accepted", "refused", "deferred"]
    assert codes(result) == [250, 550, 451]
    assert result.outcomes[1].reply.enhanced == "5.1.1"
    assert gate.begun == [(0,)]
    assert [stored.recipients for stored in smtp.mailbox.mails()] == [(A,)]


async def test_when_nobody_is_accepted_there_is_no_data_and_no_begin(smtp: SmtpServer) -> None:
    smtp.script.add(bad.answer("rcpt", 550, "5.1.1 no"))
    gate = RecordingGate()
    result = await send(smtp, gate=gate)
    assert kinds(result) == ["refused"] * 3
    assert gate.begun == []
    assert ("DATA" in smtp.sessions[0].verbs()) is smtp.pipelining
    assert smtp.sessions[0].verbs()[-1] == "QUIT"
    assert smtp.mailbox.mails() == []


@pytest.mark.parametrize(
    ("code", "text"), [(452, "4.5.3 enough"), (452, "enough"), (552, "enough"), (552, "5.5.3 enough")]
)
async def test_recipients_beyond_the_servers_limit_are_deferred(smtp: SmtpServer, code: int, text: str) -> None:
    smtp.script.add(bad.too_many_recipients(2, code, text))
    result = await send(smtp, mail([A, B, C, "d@example.org", "e@example.org"]))
    assert kinds(result) == ["accepted", "accepted", "deferred", "deferred", "deferred"]
    assert codes(result)[2:] == [code] * 3


@pytest.mark.parametrize(("text", "kind"), [("5.2.2 full", "refused"), ("5.3.4 too big", "refused")])
async def test_552_with_another_reason_refuses(smtp: SmtpServer, text: str, kind: str) -> None:
    smtp.script.add(bad.reject_mailbox(B, 552, text))
    assert kinds(await send(smtp)) == ["accepted", kind, "accepted"]


async def test_a_bare_552_refuses_when_nobody_else_was_accepted(smtp: SmtpServer) -> None:
    smtp.script.add(bad.reject_mailbox(A, 552, "storage exceeded"))
    assert kinds(await send(smtp, mail([A]))) == ["refused"]


async def test_greylisting_defers_once(smtp: SmtpServer) -> None:
    smtp.script.add(bad.greylist())
    assert kinds(await send(smtp)) == ["deferred"] * 3
    assert kinds(await send(smtp)) == ["accepted"] * 3


@pytest.mark.parametrize(("code", "kind"), [(451, "deferred"), (452, "deferred"), (550, "refused"), (554, "refused")])
@pytest.mark.parametrize("at", ["mail", "data", "dot"])
async def test_a_refusal_of_the_message_counts_for_all_who_were_left(
    smtp: SmtpServer, at: str, code: int, kind: str
) -> None:
    smtp.script.add(bad.reject_mailbox(B), bad.answer(at, code))
    gate = RecordingGate()
    result = await send(smtp, gate=gate)
    assert kinds(result) == [kind, kind if at == "mail" else "refused", kind]
    assert gate.begun == ([(0, 2)] if at == "dot" else [])
    assert smtp.mailbox.mails() == []


async def test_one_refused_mail_harms_no_neighbour(smtp: SmtpServer) -> None:
    transport = SmtpTransport(SmtpSettings(host="127.0.0.1", port=smtp.port, tls="none"))
    found = []
    for key in ("r1", "r2", "r3"):
        smtp.script.clear()
        if key == "r2":
            smtp.script.add(bad.refuse_sender(554, "5.1.0 not this one"))
        found += kinds(await transport.transmit(make_job(transport, mail([A], key=key)), RecordingGate()))
    await transport.close()
    assert found == ["accepted", "refused", "accepted"]
    assert smtp.mailbox.copies(A) == 2


# 421 and lost connections


@pytest.mark.parametrize(
    ("at", "expected", "begun"),
    [
        ("connect", ["not_offered"] * 3, False),
        ("ehlo", ["deferred"] * 3, False),
        ("mail", ["deferred"] * 3, False),
        ("rcpt", ["deferred"] * 3, False),
        ("data", ["deferred"] * 3, False),
        ("dot", ["deferred"] * 3, True),
    ],
)
async def test_421_is_temporary_wherever_it_comes(smtp: SmtpServer, at: str, expected: list[str], begun: bool) -> None:
    smtp.script.add(bad.shut_down(at))
    gate = RecordingGate()
    result = await send(smtp, gate=gate)
    assert kinds(result) == expected
    assert codes(result) == [421] * 3
    assert bool(gate.begun) is begun
    assert "QUIT" not in smtp.sessions[0].verbs()


@pytest.mark.parametrize("at", ["connect", "ehlo", "mail", "rcpt", "data", "dot"])
async def test_after_a_421_nothing_more_is_said(smtp: SmtpServer, at: str) -> None:
    # This server does not close, as it should.
    smtp.script.add(bad.answer(at, 421))
    await send(smtp, mail([A]))
    said = ["EHLO", "MAIL", "RCPT", "DATA"]
    last = ["connect", "ehlo", "mail", "rcpt", "data", "dot"].index(at)
    assert smtp.sessions[0].verbs() == said[: 4 if smtp.pipelining and last > 1 else last]


async def test_421_leaves_earlier_verdicts_alone(smtp: SmtpServer) -> None:
    smtp.script.add(bad.reject_mailbox(A), bad.reject_mailbox(C, 421, "4.7.0 slow down"))
    result = await send(smtp)
    assert kinds(result) == ["refused", "deferred", "deferred"]
    assert codes(result) == [550, 421, 421]
    assert smtp.mailbox.mails() == []


@pytest.mark.parametrize("at", ["connect", "ehlo", "mail", "rcpt", "data"])
async def test_a_cut_before_the_dot_is_not_offered(smtp: SmtpServer, at: str) -> None:
    smtp.script.add(bad.cut(at))
    gate = RecordingGate()
    result = await send(smtp, gate=gate)
    assert kinds(result) == ["not_offered"] * 3
    assert codes(result) == [0] * 3
    assert gate.begun == []


async def test_a_cut_at_the_second_recipient_keeps_the_first_ones_refusal(smtp: SmtpServer) -> None:
    smtp.script.add(bad.reject_mailbox(A), bad.SmtpRule("rcpt", bad.SmtpAct(then="cut")))
    found = kinds(await send(smtp))
    assert found[1:] == ["not_offered", "not_offered"]
    # A reset may overtake a reply that nobody waited for; then it is as if it had not been said.
    assert found[0] in (("refused", "not_offered") if smtp.pipelining else ("refused",))


@pytest.mark.parametrize("at", ["connect", "ehlo", "mail", "rcpt", "data"])
async def test_silence_before_the_dot_is_not_offered(smtp: SmtpServer, at: str) -> None:
    smtp.script.add(bad.silent(at))
    name = "greeting" if at == "connect" else at
    result = await send(smtp, timeouts=SmtpTimeouts(**{name: 0.2}))
    assert kinds(result) == ["not_offered"] * 3


@pytest.mark.parametrize("at", ["connect", "ehlo", "mail", "rcpt", "data", "dot"])
@pytest.mark.parametrize("reply", [b"hello\r\n", b"999 what\r\n", b"100 wait\r\n", b"\r\n", b"-12 x\r\n"])
async def test_what_is_no_reply_is_judged_by_phase(smtp: SmtpServer, at: str, reply: bytes) -> None:
    smtp.script.add(bad.SmtpRule(at, bad.SmtpAct(reply, store=at == "dot")))
    result = await send(smtp)
    assert kinds(result) == ["unanswered" if at == "dot" else "not_offered"] * 3
    assert smtp.mailbox.copies(A) == (1 if at == "dot" else 0)


@pytest.mark.parametrize(
    ("at", "reply"),
    [("mail", b"354 go\r\n"), ("rcpt", b"354 go\r\n"), ("data", b"250 fine\r\n"), ("ehlo", b"220 hi\r\n")],
)
async def test_a_reply_out_of_place_is_not_offered(smtp: SmtpServer, at: str, reply: bytes) -> None:
    smtp.script.add(bad.answer_raw(at, reply))
    gate = RecordingGate()
    assert kinds(await send(smtp, gate=gate)) == ["not_offered"] * 3
    assert gate.begun == []


@pytest.mark.parametrize("at", ["connect", "ehlo", "mail", "rcpt", "data"])
async def test_a_second_reply_is_never_taken_for_the_next_commands(smtp: SmtpServer, at: str) -> None:
    usual = {"connect": b"220 hi\r\n", "ehlo": b"250 loopback.test\r\n", "data": b"354 go\r\n"}
    smtp.script.add(bad.answer_raw(at, usual.get(at, b"250 Ok\r\n") + b"250 2.0.0 Ok: queued as FALSE\r\n"))
    gate = RecordingGate()
    assert kinds(await send(smtp, gate=gate)) == ["not_offered"] * 3
    assert gate.begun == []
    assert smtp.mailbox.mails() == []


async def test_replies_in_pieces_are_put_together(smtp: SmtpServer) -> None:
    smtp.script.add(*bad.in_pieces("connect", "ehlo", "mail", "rcpt", "data", "dot"))
    result = await send(smtp)
    assert kinds(result) == ["accepted"] * 3


# The body and the dot


@pytest.mark.parametrize(
    ("code", "kind"), [(552, "refused"), (451, "deferred"), (421, "deferred"), (250, "not_offered")]
)
async def test_an_early_reply_in_the_body_ends_it(smtp: SmtpServer, code: int, kind: str) -> None:
    smtp.script.add(bad.early_reply(code, after=1000, close=code == 421))
    gate = RecordingGate()
    result = await send(smtp, large(3_000_000), gate=gate, hear=True)
    assert kinds(result) == [kind]
    assert codes(result) == [code]
    assert gate.offers == 0
    assert smtp.mailbox.mails() == []


async def test_a_refusal_that_arrives_during_begin_stops_the_dot(smtp: SmtpServer) -> None:
    smtp.script.add(bad.early_reply(552, after=1))
    gate = RecordingGate()
    result = await send(smtp, mail([A]), gate=gate, hear=True)
    assert kinds(result) == ["refused"]
    assert gate.begun == [(0,)]
    assert gate.offers == 0


async def test_a_cut_in_the_body_is_not_offered(smtp: SmtpServer) -> None:
    smtp.script.add(bad.cut_in_body(after=1000))
    gate = RecordingGate()
    result = await send(smtp, large(3_000_000), gate=gate, hear=True)
    assert kinds(result) == ["not_offered"]
    assert gate.offers == 0
    assert smtp.mailbox.mails() == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_reader_that_stalls_is_not_offered_and_not_begun(certificate: Certificate, encrypted: bool) -> None:
    tls = certificate.context if encrypted else None
    async with SmtpServer(None, bad.stalled_reader(after=1000), receive_buffer=4096, tls=tls) as server:
        transport = SmtpTransport(
            SmtpSettings(
                host="127.0.0.1",
                port=server.port,
                tls="starttls" if encrypted else "none",
                ca_file=certificate.file,
                timeouts=SmtpTimeouts(block=0.5),
            )
        )
        gate = RecordingGate()
        result = await transport.transmit(make_job(transport, large(12_000_000)), gate)
        await transport.close()
    assert kinds(result) == ["not_offered"]
    assert gate.begun == []


@pytest.mark.parametrize("tls", ["none", "starttls", "implicit"])
async def test_begin_waits_until_the_body_has_left(certificate: Certificate, tls: str) -> None:
    context = None if tls == "none" else certificate.context
    left: list[tuple[int, int]] = []
    async with SmtpServer(tls=context, implicit_tls=tls == "implicit") as server:
        transport = SmtpTransport(SmtpSettings(host="127.0.0.1", port=server.port, tls=tls, ca_file=certificate.file))

        async def look() -> None:
            [line] = transport._pool._busy
            stream: Any = line.protocol.transport
            # Nothing waits, and whatever is left is noticed: the transport says so from the first octet on.
            left.append((stream.get_write_buffer_size(), stream.get_write_buffer_limits()[0]))

        result = await transport.transmit(make_job(transport, large(12_000_000)), RecordingGate(on_begin=look))
        await transport.close()
    assert kinds(result) == ["accepted"]
    assert left == [(0, 0)]


@pytest.mark.parametrize(("rule", "copies"), [(bad.cut_after_dot, 1), (bad.cut_before_storing, 0)])
async def test_a_cut_after_the_dot_is_unanswered_stored_or_not(smtp: SmtpServer, rule: Any, copies: int) -> None:
    smtp.script.add(rule())
    assert kinds(await send(smtp)) == ["unanswered"] * 3
    assert smtp.mailbox.copies(A) == copies


async def test_a_late_reply_is_waited_for(smtp: SmtpServer) -> None:
    release = asyncio.Event()
    smtp.script.add(bad.late_reply(release))

    async def on_event(name: str, _: object) -> None:
        if name == "dot":
            # Longer than every other timer of this transport.
            asyncio.get_running_loop().call_later(0.5, release.set)

    smtp.on_event = on_event
    brief = SmtpTimeouts(**dict.fromkeys(("greeting", "ehlo", "mail", "rcpt", "data", "block"), 0.2))
    assert kinds(await send(smtp, timeouts=brief)) == ["accepted"] * 3


async def test_hooks_are_called_at_every_point(smtp: SmtpServer) -> None:
    seen: list[tuple[str, int]] = []

    async def on_event(name: str, _: object) -> None:
        seen.append((name, len(smtp.mailbox.mails())))

    smtp.on_event = on_event
    await send(smtp, mail([A]))
    names = ["connect", "ehlo", "mail", "rcpt", "data", "body"]
    assert seen == [*((name, 0) for name in names), ("dot", 1), ("replied", 1), ("quit", 1)]


async def test_a_text_that_is_not_utf8_refuses_all_the_same(smtp: SmtpServer) -> None:
    smtp.script.add(bad.not_utf8())
    result = await send(smtp, mail([A]))
    assert kinds(result) == ["refused"]
    assert result.outcomes[0].reply.enhanced == "5.1.1"
    assert result.outcomes[0].reply.text == "5.1.1 \\xd3\\xca\\xcf\\xe4? unknown"


async def test_the_verdict_follows_the_code_not_the_text(smtp: SmtpServer) -> None:
    smtp.script.add(
        bad.reject_mailbox(A, 550, "4.2.0 please try again later"), bad.reject_mailbox(B, 450, "5.1.1 gone")
    )
    assert kinds(await send(smtp)) == ["refused", "deferred", "accepted"]


@pytest.mark.parametrize(
    ("text", "provider_id"),
    [
        ("2.0.0 Ok: queued as 4F2A17B3C", "4F2A17B3C"),
        ("OK id=1rXyZa-0004f2-Qh", "1rXyZa-0004f2-Qh"),
        ("Ok 0102018f3c1b2a4d-5e6f", "0102018f3c1b2a4d-5e6f"),
        ("2.6.0 <x1@mx.example> [InternalId=7, Hostname=h] Queued mail for delivery", "x1@mx.example"),
        ("thank you", ""),
    ],
)
async def test_the_queue_id_is_kept(smtp: SmtpServer, text: str, provider_id: str) -> None:
    smtp.script.add(bad.answer("dot", 250, text))
    outcome = (await send(smtp, mail([A]))).outcomes[0]
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id == provider_id


async def test_dots_and_line_ends_arrive_unchanged(smtp: SmtpServer) -> None:
    await send(smtp, mail([A], text=".\n..x\n.hidden\n\nend"))
    [stored] = smtp.mailbox.mails()
    assert stored.content.partition(b"\r\n\r\n")[2] == b".\r\n..x\r\n.hidden\r\n\r\nend\r\n"


def test_the_wire_has_no_bare_line_ends() -> None:
    assert wire(b"a\nb\rc\r\n.d") == b"a\r\nb\r\nc\r\n..d\r\n"


# Account, TLS, log-in


@pytest.mark.parametrize(("at", "code"), [("connect", 554), ("ehlo", 502), ("mail", 530), ("rcpt", 530), ("data", 530)])
async def test_our_own_fault_blames_nobody(smtp: SmtpServer, at: str, code: int) -> None:
    smtp.script.add(bad.answer(at, code))
    gate = RecordingGate()
    result = await send(smtp, gate=gate)
    assert kinds(result) == ["account_fault"] * 3
    assert codes(result) == [code] * 3
    assert gate.begun == []


async def test_a_log_in_that_is_missed_at_a_recipient_is_every_recipients(smtp: SmtpServer) -> None:
    smtp.script.add(bad.reject_mailbox(A), bad.reject_mailbox(B, 530, "5.7.0 log in first"))
    gate = RecordingGate()
    assert kinds(await send(smtp, gate=gate)) == ["refused", "account_fault", "account_fault"]
    assert gate.begun == []


async def test_a_port_that_speaks_no_tls_is_our_fault(smtp: SmtpServer) -> None:
    result = await send(smtp, tls="implicit")
    assert kinds(result) == ["account_fault"] * 3
    assert result.outcomes[0].reply.enhanced == "tls"


async def test_what_was_offered_in_clear_is_void_after_starttls(certificate: Certificate) -> None:
    offers = bad.answer_raw("ehlo", b"250-loopback.test\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n", times=1)
    async with SmtpServer(None, offers, tls=certificate.context) as server:
        result = await send(server, tls="starttls", ca_file=certificate.file, username="shop", password="hunter2")
        assert result.outcomes[0].reply.enhanced == "auth_missing"
        assert server.sessions[0].verbs() == ["EHLO", "STARTTLS", "EHLO"]


async def test_stripped_starttls_sends_nothing_in_clear() -> None:
    async with SmtpServer(credentials={"shop": "hunter2"}) as server:
        result = await send(server, tls="starttls", username="shop", password="hunter2")
        assert kinds(result) == ["account_fault"] * 3
        assert result.outcomes[0].reply.enhanced == "starttls_missing"
        assert set(server.sessions[0].verbs()) <= {"EHLO", "QUIT"}


@pytest.mark.parametrize("code", [454, 502])
async def test_starttls_that_is_refused_sends_nothing_in_clear(certificate: Certificate, code: int) -> None:
    async with SmtpServer(None, bad.answer("starttls", code), tls=certificate.context) as server:
        result = await send(server, tls="starttls", username="shop", password="hunter2", ca_file=certificate.file)
        assert kinds(result) == ["account_fault"] * 3
        assert codes(result) == [code] * 3
        assert server.sessions[0].verbs() == ["EHLO", "STARTTLS"]


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.parametrize("fault", ["unknown issuer", "other name"])
async def test_a_certificate_that_does_not_verify_is_our_fault(
    certificate: Certificate, foreign_certificate: Certificate, tls: str, fault: str
) -> None:
    shown = certificate if fault == "unknown issuer" else foreign_certificate
    trusted = None if fault == "unknown issuer" else foreign_certificate.file
    async with SmtpServer(tls=shown.context, implicit_tls=tls == "implicit", credentials={"shop": "x"}) as server:
        result = await send(server, tls=tls, ca_file=trusted, username="shop", password="x")
        assert kinds(result) == ["account_fault"] * 3
        assert result.outcomes[0].reply.enhanced == "certificate"
        assert all({"AUTH", "MAIL"}.isdisjoint(session.verbs()) for session in server.sessions)


async def test_what_a_stranger_says_before_the_handshake_is_ignored(certificate: Certificate) -> None:
    injected = b"220 go ahead\r\n250-loopback.test\r\n250 AUTH PLAIN\r\n"
    async with SmtpServer(None, bad.answer_raw("starttls", injected), tls=certificate.context) as server:
        result = await send(server, tls="starttls", ca_file=certificate.file, username="shop", password="hunter2")
        # The real server offers no log-in over TLS: the one that was injected is not believed.
        assert kinds(result) == ["account_fault"] * 3
        assert result.outcomes[0].reply.enhanced == "auth_missing"
        assert "AUTH" not in server.sessions[0].verbs()


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_mail_goes_out_over_tls_and_logged_in(certificate: Certificate, tls: str) -> None:
    async with SmtpServer(
        tls=certificate.context, implicit_tls=tls == "implicit", credentials={"shop": "hünter"}
    ) as server:
        result = await send(
            server, mail([A]), tls=tls, host="localhost", ca_file=certificate.file, username="shop", password="hünter"
        )
        assert kinds(result) == ["accepted"]
        assert (server.sessions[0].tls, server.sessions[0].user) == (True, "shop")


async def test_log_in_by_the_login_method(smtp: SmtpServer) -> None:
    smtp.credentials = {"shop": "hunter2"}
    smtp.script.add(bad.answer_raw("ehlo", b"250-loopback.test\r\n250 AUTH LOGIN\r\n"))
    assert kinds(await send(smtp, mail([A]), username="shop", password="hunter2")) == ["accepted"]
    assert smtp.sessions[0].user == "shop"
    assert kinds(await send(smtp, mail([A]), username="shop", password="wrong")) == ["account_fault"]


@pytest.mark.parametrize("code", [535, 534, 530, 538, 432, 500])
async def test_a_refused_log_in_is_our_fault(smtp: SmtpServer, code: int) -> None:
    smtp.credentials = {"shop": "hunter2"}
    smtp.script.add(bad.auth_refused(code))
    result = await send(smtp, username="shop", password="hunter2")
    assert kinds(result) == ["account_fault"] * 3
    assert codes(result) == [code] * 3
    assert "MAIL" not in smtp.sessions[0].verbs()
    assert "hunter2" not in repr(result)


async def test_a_cut_or_a_stall_in_the_handshake_is_not_offered(certificate: Certificate) -> None:
    # A server that says 220 to STARTTLS and then hangs up, and one that says nothing more.
    for rule in (bad.SmtpRule("starttls", bad.SmtpAct(b"220 go\r\n", "close")), bad.silent("starttls")):
        async with SmtpServer(None, rule, tls=certificate.context) as server:
            result = await send(server, tls="starttls", ca_file=certificate.file, timeouts=SmtpTimeouts(tls=0.3))
            assert kinds(result) == ["not_offered"] * 3


async def test_a_stalled_implicit_handshake_is_not_offered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = SmtpSettings(
            host="127.0.0.1",
            port=listener.getsockname()[1],
            tls="implicit",
            timeouts=SmtpTimeouts(connect=0.2, tls=0.2),
        )
        transport = SmtpTransport(settings)
        result = await transport.transmit(make_job(transport, mail()), RecordingGate())
    assert kinds(result) == ["not_offered"] * 3


async def test_a_name_that_does_not_resolve_is_not_offered() -> None:
    transport = SmtpTransport(SmtpSettings(host="relay.invalid", tls="none"))
    result = await transport.transmit(make_job(transport, mail()), RecordingGate())
    assert kinds(result) == ["not_offered"] * 3
    assert "example.org" not in result.outcomes[0].reply.text


# The envelope


async def test_the_envelope_and_its_parameters(smtp: SmtpServer) -> None:
    await send(smtp, mail([A], envelope_sender="bounce@example.org"))
    await send(smtp, mail([A], envelope_sender="", subject="x"))
    assert [session.sender for session in smtp.sessions] == ["bounce@example.org", ""]
    assert smtp.sessions[0].parameters.startswith("SIZE=")
    assert smtp.sessions[0].ehlo == "[127.0.0.1]"


async def test_blind_copies_are_in_the_envelope_only(smtp: SmtpServer) -> None:
    await send(smtp, mail([A], bcc=[B, C]))
    [stored] = smtp.mailbox.mails()
    assert stored.recipients == (A, B, C)
    assert b"bcc" not in stored.content.lower()
    assert B.encode() not in stored.content


async def test_one_mailbox_is_named_once(smtp: SmtpServer) -> None:
    await send(
        smtp, mail(["Ann <ann@example.org>"], cc=["ann@EXAMPLE.org"], bcc=["ann@example.org", "Ann@example.org"])
    )
    [stored] = smtp.mailbox.mails()
    assert stored.recipients == ("ann@example.org", "Ann@example.org")


async def test_internationalised_mailboxes_need_smtputf8(smtp: SmtpServer) -> None:
    content = mail([A], bcc=["jörg@bücher.example"])
    assert kinds(await send(smtp, content)) == ["accepted", "accepted"]
    assert smtp.sessions[0].parameters.endswith("SMTPUTF8")
    assert smtp.mailbox.copies("jörg@xn--bcher-kva.example") == 1
    smtp.smtputf8 = False
    result = await send(smtp, content)
    assert kinds(result) == ["accepted", "refused"]
    assert result.outcomes[1].reply.enhanced == "5.6.7"


async def test_internationalised_headers_need_smtputf8_for_everyone(smtp: SmtpServer) -> None:
    smtp.smtputf8 = False
    result = await send(smtp, mail([A, "jörg@example.org"]))
    assert kinds(result) == ["refused", "refused"]
    assert "MAIL" not in smtp.sessions[0].verbs()
    smtp.smtputf8 = True
    assert kinds(await send(smtp, mail([A, "jörg@example.org"]))) == ["accepted", "accepted"]
    assert smtp.mailbox.mails()[0].parsed()["To"] is not None


async def test_a_mailbox_that_would_end_its_command_is_refused(smtp: SmtpServer) -> None:
    transport = SmtpTransport(SmtpSettings(host="127.0.0.1", port=smtp.port, tls="none"))
    good = make_job(transport, mail([A]))
    for mailbox in ("x> SIZE=1@example.org", "@example.org", "a@ex ample.org", "a\r\nRCPT@example.org", "a@b>c"):
        recipient = type(good.recipients[0])(0, mailbox)
        job = Job(good.rendering, good.envelope_sender, (recipient,), "k", 5.0)
        result = await send(smtp, job=job)
        assert kinds(result) == ["refused"]
        assert result.outcomes[0].reply.enhanced == "5.1.3"
    assert all("RCPT" not in session.verbs() for session in smtp.sessions)


# Cancellation and reuse


@pytest.mark.parametrize("at", ["connect", "ehlo", "mail", "rcpt", "data", "dot", "starttls"])
async def test_cancelled_while_waiting_the_line_is_closed(certificate: Certificate, at: str) -> None:
    waiting = asyncio.Event()
    tls = certificate.context if at == "starttls" else None
    async with SmtpServer(tls=tls) as server:
        rule = bad.silent(at)

        def reached(_: str) -> bool:
            waiting.set()
            return True

        rule.when = reached
        server.script.add(rule)
        task = asyncio.create_task(
            send(server, tls="starttls" if tls else "none", ca_file=certificate.file if tls else None)
        )
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.idle()
        assert len(server.sessions) == 1


async def test_after_a_timeout_the_late_reply_is_nobodys(smtp: SmtpServer) -> None:
    release = asyncio.Event()
    smtp.script.add(bad.late_reply(release, times=1))
    transport = SmtpTransport(SmtpSettings(host="127.0.0.1", port=smtp.port, tls="none"))
    first = await transport.transmit(make_job(transport, mail([A]), answer_seconds=0.3), RecordingGate())
    release.set()
    second = await transport.transmit(make_job(transport, mail([A], key="k2")), RecordingGate())
    await transport.close()
    await smtp.idle()
    assert (kinds(first), kinds(second)) == (["unanswered"], ["accepted"])
    assert smtp.sessions[0].verbs()[-1] == "DATA"
    assert isinstance(second.outcomes[0], Accepted)
    assert second.outcomes[0].provider_id == smtp.mailbox.mails()[1].provider_id


async def test_the_result_does_not_wait_for_the_good_bye(smtp: SmtpServer) -> None:
    smtp.script.add(bad.silent("quit"))
    settings = SmtpSettings(host="127.0.0.1", port=smtp.port, tls="none", timeouts=SmtpTimeouts(quit=3600))
    transport = SmtpTransport(settings)
    async with asyncio.timeout(60):
        result = await transport.transmit(make_job(transport, mail([A])), RecordingGate())
    assert kinds(result) == ["accepted"]
    await transport.close()
    await smtp.idle()


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "relay.example.org", "tls": "none", "username": "u", "password": "p"},
        {"host": "relay.example.org", "username": "u"},
        {"host": "relay.example.org", "password": "p"},
        {"host": "a b"},
        {"host": ""},
        {"host": "relay.example.org", "port": 70000},
        {"host": "relay.example.org", "tls": "maybe"},
        {"host": "relay.example.org", "ehlo_name": "a b"},
        {"host": "relay.example.org", "timeouts": {"mail": 0}},
        {"host": "relay.example.org", "verify": False},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SmtpSettings(**settings)


def test_defaults_are_those_of_the_standard() -> None:
    assert SmtpTimeouts().model_dump() == {
        "connect": 30, "tls": 30, "greeting": 300, "ehlo": 300, "auth": 300, "mail": 300, "rcpt": 300,
        "data": 120, "block": 180, "quit": 5,
    }  # fmt: skip
    ports = {tls: SmtpSettings(host="h", tls=tls).port for tls in ("none", "starttls", "implicit")}
    assert ports == {"none": 25, "starttls": 587, "implicit": 465}


async def test_8bit_text_needs_8bitmime(smtp: SmtpServer) -> None:
    head = b"From: shop@example.org\r\nTo: ann@example.org\r\nContent-Type: text/plain; charset=utf-8\r\n"
    data = head + b"Content-Transfer-Encoding: 8bit\r\n\r\nZa\xc5\xbc\xc3\xb3\xc5\x82\xc4\x87\r\n"
    content = OutgoingEmail.from_mime(data, key="eight")
    assert kinds(await send(smtp, content)) == ["accepted"]
    assert smtp.sessions[0].parameters.split()[1] == "BODY=8BITMIME"
    assert smtp.mailbox.mails()[0].content.endswith(data)
    smtp.script.add(bad.answer_raw("ehlo", b"250 loopback.test\r\n"))
    result = await send(smtp, content)
    assert kinds(result) == ["refused"]
    assert result.outcomes[0].reply.enhanced == "5.6.3"
    assert "MAIL" not in smtp.sessions[1].verbs()
