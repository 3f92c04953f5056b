"""Connections that serve several mails: what is kept, what is not, and whose fault a used one's end is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from sendonce.activities.transports.base import Fenced
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.activities.transports.smtp_settings import SmtpPoolSettings
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import AttemptResult, NotOffered
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.smtp_server import SmtpServer

A, B = "a@example.org", "b@example.org"


def mail(number: int = 1, **changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": f"k{number}", "sender": "shop@example.org", "to": [A], "text": f"Mail {number}."}
    return OutgoingEmail(**{**content, **changes})


@asynccontextmanager
async def account(server: SmtpServer, **changes: Any) -> AsyncIterator[SmtpTransport]:
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "tls": "none"} | changes
    transport = SmtpTransport(SmtpSettings(**settings))
    try:
        yield transport
    finally:
        await transport.close()
        await server.idle()


async def send(transport: SmtpTransport, number: int = 1, **changes: Any) -> AttemptResult:
    return await transport.transmit(make_job(transport, mail(number, **changes)), RecordingGate())


def kinds(result: AttemptResult) -> list[str]:
    return [result.outcomes[ordinal].kind for ordinal in sorted(result.outcomes)]


async def settled(transport: SmtpTransport) -> None:
    """The pool has done with what it was given: reset, kept or left."""
    await asyncio.gather(*transport._pool._leaving, return_exceptions=True)


async def test_a_hundred_mails_share_a_connection(smtp: SmtpServer) -> None:
    async with account(smtp) as transport:
        for number in range(100):
            assert kinds(await send(transport, number)) == ["accepted"]
        await settled(transport)
        assert len(smtp.sessions) == 1
        assert kinds(await send(transport, 100)) == ["accepted"]
    assert len(smtp.sessions) == 2, "mails_per_connection is 100"
    assert smtp.sessions[0].verbs()[-1] == "QUIT"
    assert len(smtp.mailbox.mails()) == 101
    assert smtp.sessions[0].verbs().count("EHLO") == 1


@pytest.mark.parametrize(
    "refusal",
    [("mail", 554, "5.6.0 no"), ("rcpt", 550, "5.1.1 no"), ("data", 554, "5.6.0 no"), ("dot", 554, "5.6.0 no")],
    ids=lambda refusal: refusal[0],
)
async def test_after_a_refusal_in_order_the_connection_serves_the_next_mail(smtp: SmtpServer, refusal: Any) -> None:
    smtp.script.add(bad.answer(*refusal, times=1))
    async with account(smtp) as transport:
        assert kinds(await send(transport, 1)) == ["refused"]
        await settled(transport)
        assert kinds(await send(transport, 2)) == ["accepted"]
    assert len(smtp.sessions) == 1
    # The server is strict: a second MAIL without RSET would have been out of sequence.
    needs_reset = refusal[0] in ("rcpt", "data")
    assert ("RSET" in smtp.sessions[0].verbs()) is needs_reset
    assert [stored.recipients for stored in smtp.mailbox.mails()] == [(A,)]


async def test_a_reset_that_is_refused_ends_the_connection(smtp: SmtpServer) -> None:
    smtp.script.add(bad.answer("rcpt", 550, "5.1.1 no", times=1), bad.answer("rset", 502))
    async with account(smtp) as transport:
        await send(transport, 1)
        await settled(transport)
        assert kinds(await send(transport, 2)) == ["accepted"]
    assert len(smtp.sessions) == 2


async def test_a_connection_closed_while_idle_costs_nothing(smtp: SmtpServer) -> None:
    async with account(smtp) as transport:
        assert kinds(await send(transport, 1)) == ["accepted"]
        for task in list(smtp._tasks):
            task.cancel()
        await smtp.sessions[0].closed.wait()
        assert kinds(await send(transport, 2)) == ["accepted"]
    assert len(smtp.sessions) == 2


@pytest.mark.parametrize(
    ("at", "code", "text"),
    [
        ("mail", 421, "4.4.2 idle for too long"),
        ("mail", 451, "4.4.2 timeout"),
        ("mail", 452, "4.5.3 too many messages in this session"),
        ("mail", 503, "5.5.1 bad sequence"),
        ("rcpt", 421, "4.7.0 going away"),
        ("data", 421, "4.3.2 shutting down"),
    ],
)
async def test_what_a_used_connection_turns_away_goes_over_a_fresh_one_at_once(
    smtp: SmtpServer, at: str, code: int, text: str
) -> None:
    async with account(smtp) as transport:
        await send(transport, 1)
        smtp.script.add(bad.answer(at, code, text, times=1))
        gate = RecordingGate()
        result = await transport.transmit(make_job(transport, mail(2)), gate)
        assert (kinds(result), gate.begun) == (["accepted"], [(0,)])
    assert len(smtp.sessions) == 2
    assert len(smtp.mailbox.mails()) == 2


@pytest.mark.parametrize(("at", "kind"), [("mail", "deferred"), ("rcpt", "deferred"), ("data", "deferred")])
async def test_only_a_fresh_connections_failure_counts_and_it_counts_once(smtp: SmtpServer, at: str, kind: str) -> None:
    async with account(smtp) as transport:
        await send(transport, 1)
        smtp.script.add(bad.answer(at, 421, "4.3.2 busy"))
        assert kinds(await send(transport, 2)) == [kind]
    assert len(smtp.sessions) == 2, "one more connection, not one after the other"
    assert len(smtp.mailbox.mails()) == 1


async def test_a_cut_after_the_dot_is_never_repeated(smtp: SmtpServer) -> None:
    async with account(smtp) as transport:
        await send(transport, 1)
        smtp.script.add(bad.cut_after_dot(times=1))
        assert kinds(await send(transport, 2)) == ["unanswered"]
        assert kinds(await send(transport, 3)) == ["accepted"]
    assert smtp.mailbox.copies(A) == 3
    assert len(smtp.sessions) == 2


async def test_a_late_reply_is_never_taken_for_the_next_mails(smtp: SmtpServer) -> None:
    late = asyncio.Event()
    smtp.script.add(bad.late_reply(late, times=1))
    async with account(smtp) as transport:
        job = make_job(transport, mail(1), answer_seconds=0.2)
        assert kinds(await transport.transmit(job, RecordingGate())) == ["unanswered"]
        late.set()
        smtp.script.add(bad.answer("rcpt", 550, "5.1.1 no", times=1))
        assert kinds(await send(transport, 2)) == ["refused"], "judged by its own replies only"
    assert len(smtp.sessions) == 2


@pytest.mark.parametrize("at", ["mail", "rcpt", "data", "dot"])
async def test_a_cancelled_mail_takes_its_connection_with_it_and_no_other_mail(smtp: SmtpServer, at: str) -> None:
    never, reached = asyncio.Event(), asyncio.Event()

    async def on_event(name: str, _: object) -> None:
        if name == at:
            reached.set()

    async with account(smtp) as transport:
        await send(transport, 1)
        smtp.script.add(bad.late_reply(never, at=at, times=1))
        smtp.on_event = on_event
        task = asyncio.create_task(send(transport, 2))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        others = await asyncio.gather(*(send(transport, number) for number in range(3, 6)))
        assert [kinds(result) for result in others] == [["accepted"]] * 3
        never.set()
    assert smtp.sessions[0].verbs().count("MAIL") == 2


async def test_a_fenced_begin_takes_its_connection_with_it(smtp: SmtpServer) -> None:
    async with account(smtp) as transport:
        with pytest.raises(Fenced):
            await transport.transmit(make_job(transport, mail(1)), RecordingGate(refuse=Fenced("moved_on")))
        assert kinds(await send(transport, 2)) == ["accepted"]
    assert smtp.mailbox.copies(A) == 1
    assert len(smtp.sessions) == 2


async def test_a_connection_on_which_the_server_speaks_unasked_is_not_used_again(smtp: SmtpServer) -> None:
    async with account(smtp) as transport:
        await send(transport, 1)
        [line] = transport._pool._idle
        line.protocol.data_received(b"250 2.0.0 out of the blue\r\n")
        assert kinds(await send(transport, 2)) == ["accepted"]
    assert len(smtp.sessions) == 2


async def test_reply_lines_of_different_codes_end_the_connection_after_the_last_was_taken(smtp: SmtpServer) -> None:
    smtp.script.add(bad.answer_raw("rcpt", b"250-fine\r\n550 5.1.1 or not\r\n", times=1))
    async with account(smtp, pipelining=False) as transport:
        assert kinds(await send(transport, 1)) == ["refused"]
        assert kinds(await send(transport, 2)) == ["accepted"]
    assert len(smtp.sessions) == 2


async def test_the_pool_is_bounded_and_the_wait_costs_no_attempt(
    smtp: SmtpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.activities.transports.smtp_pool.WAIT_SECONDS", 0.2)
    go, reached = asyncio.Event(), asyncio.Event()

    async def on_event(name: str, _: object) -> None:
        if name == "dot":
            reached.set()
            await go.wait()

    smtp.on_event = on_event
    async with account(smtp, pool={"max_connections": 1}) as transport:
        first = asyncio.create_task(send(transport, 1))
        await reached.wait()
        [outcome] = (await send(transport, 2)).outcomes.values()
        assert isinstance(outcome, NotOffered)
        assert not outcome.counted
        waiting = asyncio.create_task(send(transport, 3))
        go.set()
        assert kinds(await first) == kinds(await waiting) == ["accepted"]
    assert len(smtp.sessions) == 1


async def test_some_connections_are_kept_free_for_urgent_mail(smtp: SmtpServer) -> None:
    go, stalled = asyncio.Event(), asyncio.Event()

    async def on_event(name: str, session: Any) -> None:
        if name == "dot" and not session.recipients[0].startswith("code"):
            if len(smtp.sessions) == 3:
                stalled.set()
            await go.wait()

    smtp.on_event = on_event
    async with account(smtp, pool={"max_connections": 4, "reserved": 1}) as transport:
        bulk = [asyncio.create_task(send(transport, n)) for n in range(5)]
        await stalled.wait()
        job = replace(make_job(transport, mail(9, to=["code@example.org"])), urgent=True)
        assert kinds(await transport.transmit(job, RecordingGate())) == ["accepted"]
        assert len(smtp.sessions) == 4
        go.set()
        assert [kinds(await task) for task in bulk] == [["accepted"]] * 5
        # All places are free again.
        more = [asyncio.create_task(send(transport, 10 + n)) for n in range(8)]
        assert [kinds(await task) for task in more] == [["accepted"]] * 8


@pytest.mark.parametrize(
    ("pool", "kept"), [({}, 6), ({"max_connections": 2}, 1), ({"max_connections": 1}, 0), ({"reserved": 0}, 0)]
)
def test_how_many_are_kept_free(pool: dict[str, int], kept: int) -> None:
    assert SmtpPoolSettings(**pool).kept_free == kept


def test_not_all_can_be_reserved() -> None:
    with pytest.raises(ValidationError, match="reserved must be less than max_connections, 4"):
        SmtpPoolSettings(max_connections=4, reserved=4)


async def test_an_idle_connection_leaves_in_order(smtp: SmtpServer) -> None:
    async with account(smtp, pool={"idle_seconds": 0.05}) as transport:
        await send(transport, 1)
        await smtp.sessions[0].closed.wait()
    assert smtp.sessions[0].verbs()[-1] == "QUIT"


async def test_everything_before_data_goes_in_one_write(smtp: SmtpServer) -> None:
    waits: list[str] = []

    async def on_event(name: str, session: Any) -> None:
        if name == "mail" and smtp.pipelining:
            # MAIL is not answered yet, and the rest is there already.
            waits.append("mail")

    smtp.on_event = on_event
    async with account(smtp) as transport:
        result = await send(transport, 1, to=[A, B])
        assert kinds(result) == ["accepted", "accepted"]
    assert smtp.sessions[0].verbs()[1:5] == ["MAIL", "RCPT", "RCPT", "DATA"]
    assert [stored.recipients for stored in smtp.mailbox.mails()] == [(A, B)]


async def test_a_server_that_takes_data_for_nobody_gets_a_dot_alone() -> None:
    async with SmtpServer(pipelining=True) as server:
        server.script.add(
            bad.answer("rcpt", 550, "5.1.1 no", times=2), bad.answer("data", 354, "go ahead all the same", times=1),
            bad.answer("dot", 554, "5.5.1 no valid recipients", times=1),
        )  # fmt: skip
        async with account(server) as transport:
            gate = RecordingGate()
            result = await transport.transmit(make_job(transport, mail(1, to=[A, B])), gate)
            assert (kinds(result), gate.begun, gate.offers) == (["refused", "refused"], [], 0)
            await settled(transport)
            assert kinds(await send(transport, 2)) == ["accepted"]
        assert len(server.sessions) == 1
        assert len(server.mailbox.mails()) == 1


async def test_a_server_that_refuses_the_sender_and_takes_the_recipient_gets_no_dot() -> None:
    async with SmtpServer(pipelining=True) as server:
        server.script.add(bad.answer("mail", 550, "5.1.0 no", times=1), bad.answer("rcpt", 250, "why not", times=1))
        async with account(server) as transport:
            assert kinds(await send(transport, 1)) == ["refused"]
            assert server.mailbox.mails() == []
            assert kinds(await send(transport, 2)) == ["accepted"]
        assert len(server.sessions) == 2


async def test_a_message_larger_than_the_relay_takes_is_refused_without_being_sent() -> None:
    async with SmtpServer(size_limit=10_000) as server, account(server) as transport:
        large = [Attachment(filename="a.bin", content=bytes(10_000))]
        [outcome] = (await send(transport, 1, attachments=large)).outcomes.values()
        assert (outcome.kind, outcome.reply.code, outcome.reply.enhanced) == ("refused", 552, "5.3.4")
        assert "the relay takes 10000" in outcome.reply.text
        assert server.sessions[0].verbs() == ["EHLO"]
        assert kinds(await send(transport, 2)) == ["accepted"]


async def test_bounces_are_asked_for_and_name_the_mail(smtp: SmtpServer) -> None:
    async with account(smtp) as transport:
        job = make_job(transport, mail(1, to=["a+b=c@example.org"]))
        job = replace(job, envelope_id="0f8fad5b-d9cb-469f-a165-70867728950e")
        assert kinds(await transport.transmit(job, RecordingGate())) == ["accepted"]
        assert "RET=HDRS ENVID=0f8fad5b-d9cb-469f-a165-70867728950e" in smtp.sessions[0].parameters
        assert smtp.sessions[0].recipient_parameters == ["NOTIFY=FAILURE,DELAY ORCPT=rfc822;a+2Bb+3Dc@example.org"]
        null = replace(job, envelope_sender="")
        await transport.transmit(null, RecordingGate())
        assert "ENVID" not in smtp.sessions[0].parameters


@pytest.mark.parametrize("changes", [{"dsn": False}, {}])
async def test_without_the_setting_or_the_offer_no_bounce_is_asked_for(changes: dict[str, Any]) -> None:
    async with SmtpServer(dsn=bool(changes)) as server, account(server, **changes) as transport:
        job = make_job(transport, mail(1))
        assert kinds(await transport.transmit(replace(job, envelope_id="id-1"), RecordingGate())) == ["accepted"]
        assert server.sessions[0].recipient_parameters == [""]


async def test_replies_that_are_the_accounts_fault_here(smtp: SmtpServer) -> None:
    smtp.script.add(bad.answer("rcpt", 554, "5.7.1 relay access denied"))
    async with account(smtp, account_faults=["rcpt 554 5.7.1"]) as transport:
        assert kinds(await send(transport, 1)) == ["account_fault"]
    async with account(smtp) as transport:
        assert kinds(await send(transport, 1)) == ["refused"]
