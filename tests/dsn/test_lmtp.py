"""The LMTP listener, against a client that others wrote and against what no client would say."""

from __future__ import annotations

import asyncio
import smtplib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import pytest

from sendonce.dsn.lmtp import Lmtp, LmtpLimits
from sendonce.dsn.parts import LIMIT
from sendonce.dsn.proof import Proof
from sendonce.dsn.run import LmtpAddress, from_lmtp, lmtp_address
from sendonce.dsn.sources import Handle
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.dsn.conftest import Ledger, Sample

T = TypeVar("T")


async def talk(listener: Lmtp, conversation: Callable[[smtplib.LMTP], T]) -> T:
    """What the standard library's client makes of it, in a thread of its own."""

    def run() -> T:
        with smtplib.LMTP("127.0.0.1", listener.port, local_hostname="mx.shop.example", timeout=30) as client:
            return conversation(client)

    return await asyncio.to_thread(run)


async def deliver(listener: Lmtp, mail: bytes, *recipients: str) -> dict[str, tuple[int, bytes]]:
    """The refused recipients, as smtplib tells them; all of them: it raises, and so does this."""

    def send(client: smtplib.LMTP) -> dict[str, tuple[int, bytes]]:
        return client.sendmail("", recipients, mail)

    return await talk(listener, send)


class Line:
    """A client that says exactly what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, text: bytes, replies: int = 1) -> list[str]:
        self.writer.write(text)
        return [await self.reply() for _ in range(replies)]

    async def reply(self) -> str:
        while (line := await asyncio.wait_for(self.reader.readline(), 30))[3:4] == b"-":
            pass
        return line.decode().strip()

    async def ended(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 30) == b""


@asynccontextmanager
async def connected(listener: Lmtp, *, greet: bool = True) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    line = Line(reader, writer)
    try:
        if greet:
            assert (await line.reply()).startswith("220")
            assert (await line.say(b"LHLO mx.shop.example\r\n")) == ["250 SIZE 67108864"]
        yield line
    finally:
        writer.close()


async def test_a_notification_is_recorded_before_it_is_answered(ledger: Ledger, sample: Sample) -> None:
    async with Lmtp(ledger.handle()) as listener:
        assert await deliver(listener, sample("postfix-failed"), "bounces@shop.example") == {}
        assert ledger.kinds() == {"ann+books@example.org": "bounced", "bob@example.net": "soft_bounced"}


async def test_what_it_offers(ledger: Ledger) -> None:
    async with Lmtp(ledger.handle()) as listener:

        def features(client: smtplib.LMTP) -> set[str]:
            client.ehlo()
            return set(client.esmtp_features)

        # RFC 2033 5: PIPELINING and ENHANCEDSTATUSCODES must be there.
        assert await talk(listener, features) == {"pipelining", "enhancedstatuscodes", "8bitmime", "smtputf8", "size"}


async def test_while_the_store_is_away_the_server_keeps_the_mail(ledger: Ledger, sample: Sample) -> None:
    ledger.away = True
    async with Lmtp(ledger.handle()) as listener:
        for name in ("postfix-failed", "exim-failed"):
            with pytest.raises(smtplib.SMTPDataError) as error:
                await deliver(listener, sample(name), "bounces@shop.example")
            assert error.value.smtp_code == 451
        ledger.away = False
        assert await deliver(listener, sample("postfix-failed"), "bounces@shop.example") == {}
    assert len(ledger.events) == 2


async def test_what_is_no_notification_is_taken_and_left_out(ledger: Ledger) -> None:
    async with Lmtp(ledger.handle()) as listener:
        assert await deliver(listener, b"Subject: Out of office\r\n\r\nAway.\r\n", "bounces@shop.example") == {}
    assert ledger.calls == 0


async def test_the_recipient_proves_the_mail(ledger: Ledger, sample: Sample, return_path: str, email_id: UUID) -> None:
    bare = sample("opensmtpd-failed", return_path="bounces@shop.example")
    async with Lmtp(ledger.handle()) as listener:
        assert await deliver(listener, bare, return_path) == {}
    assert {event.email_id for event in ledger.events.values()} == {str(email_id)}


async def test_each_recipient_has_its_own_reply(ledger: Ledger, sample: Sample, proof: Proof) -> None:
    bare = sample("opensmtpd-failed", return_path="bounces@shop.example")
    paths = [proof.return_path(UUID(int=number), "bounces@shop.example") for number in range(3)]
    handle = ledger.handle()

    async def sometimes(mail: bytes, recipients: tuple[str, ...]) -> None:
        if recipients == (paths[1],):
            raise ConnectionError("away")
        await handle(mail, recipients)

    async with Lmtp(sometimes) as listener, connected(listener) as line:
        await line.say(b"MAIL FROM:<>\r\n")
        for path in [paths[0], *paths]:
            await line.say(f"RCPT TO:<{path}>\r\n".encode())
        await line.say(b"DATA\r\n")
        # RFC 2033 4.2: in the order of RCPT, also for one that was named twice. After a failure no other is tried.
        codes = [reply[:3] for reply in await line.say(bare.replace(b"\n", b"\r\n") + b".\r\n", 4)]
        assert codes == ["250", "250", "451", "451"]
        assert await line.say(b"QUIT\r\n") == ["221 2.0.0 bye"]
    assert {event.email_id for event in ledger.events.values()} == {str(UUID(int=0))}


async def test_pipelined_commands_and_a_second_mail(ledger: Ledger, sample: Sample) -> None:
    async with Lmtp(ledger.handle()) as listener, connected(listener) as line:
        for name in (b"postfix-failed", b"postfix-delayed"):
            opening = b"MAIL FROM:<> BODY=8BITMIME SIZE=4000\r\nRCPT TO:<bounces@shop.example>\r\nDATA\r\n"
            assert [reply[:3] for reply in await line.say(opening, 3)] == ["250", "250", "354"]
            mail = sample(name.decode()).replace(b"\n", b"\r\n")
            assert (await line.say(mail + b".\r\nNOOP\r\n", 2)) == ["250 2.0.0 recorded", "250 2.0.0 ok"]
    assert len(ledger.events) == 3


async def received(*mails: bytes) -> list[bytes]:
    """What is handed on when these octets are sent after DATA."""
    found = []

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        found.append(mail)

    async with Lmtp(handle) as listener, connected(listener) as line:
        for mail in mails:
            await line.say(b"MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", 3)
            assert await line.say(mail) == ["250 2.0.0 recorded"]
    return found


async def test_dots_and_long_lines_arrive_as_they_were_sent() -> None:
    long = b"x" * 200_000 + b"\r\n"
    assert await received(b"..\r\n...a\r\n" + long + b"....\r\n.\r\n", b".\r\n") == [
        b".\r\n..a\r\n" + long + b"...\r\n",
        b"",
    ]


@pytest.mark.parametrize("end", [b"\n.\n", b"\n.\r\n", b"\r.\r", b"\r\n.\n", b"\r\n.\r"])
async def test_only_a_dot_between_crlf_ends_a_mail(end: bytes) -> None:
    # Otherwise a mail could hold another one, with commands (SMTP smuggling).
    smuggled = b"Subject: a" + end + b"MAIL FROM:<>\r\n"
    (mail,) = await received(smuggled + b".\r\n")
    assert mail.replace(b".", b"") == smuggled.replace(b".", b"")


# Bounds -------------------------------------------------------------------------------------------------------------


async def test_a_large_mail_is_cut_and_a_larger_one_refused(ledger: Ledger) -> None:
    found = []

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        found.append(len(mail))

    limits = LmtpLimits(octets=3 * LIMIT)
    async with Lmtp(handle, limits=limits) as listener:
        assert await deliver(listener, b"x" * 70 + b"\r\n" + b"y" * 2 * LIMIT, "a@b") == {}
        assert found == [LIMIT]

        def too_large(client: smtplib.LMTP) -> tuple[int, bytes]:
            client.ehlo()
            assert client.mail("", [f"size={4 * LIMIT}"])[0] == 552
            client.mail("")
            client.rcpt("a@b")
            assert client.data(b"z" * 4 * LIMIT)[0] == 552
            # The session goes on.
            return client.noop()

        assert (await talk(listener, too_large))[0] == 250
        assert found == [LIMIT]


async def test_too_many_recipients_are_told_to_come_later(ledger: Ledger) -> None:
    async with Lmtp(ledger.handle(), limits=LmtpLimits(recipients=2)) as listener, connected(listener) as line:
        await line.say(b"MAIL FROM:<>\r\n")
        replies = [(await line.say(b"RCPT TO:<a@b>\r\n"))[0] for _ in range(3)]
        assert [reply[:9] for reply in replies] == ["250 2.1.5", "250 2.1.5", "452 4.5.3"]


async def test_too_many_connections_are_told_to_come_later(ledger: Ledger) -> None:
    one = LmtpLimits(connections=1)
    async with (
        Lmtp(ledger.handle(), limits=one) as listener,
        connected(listener),
        connected(listener, greet=False) as second,
    ):
        assert (await second.reply()).startswith("421 4.3.2")
        assert await second.ended()


@pytest.mark.parametrize("said", [b"", b"MAIL FR"])
async def test_silence_ends_a_session(ledger: Ledger, said: bytes) -> None:
    short = LmtpLimits(command_seconds=0.05)
    async with Lmtp(ledger.handle(), limits=short) as listener, connected(listener, greet=False) as line:
        await line.reply()
        assert (await line.say(said))[0].startswith("421 4.4.2")
        assert await line.ended()


async def test_a_mail_that_does_not_end_ends_the_session(ledger: Ledger) -> None:
    async with Lmtp(ledger.handle(), limits=LmtpLimits(data_seconds=0.05)) as listener, connected(listener) as line:
        await line.say(b"MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", 3)
        assert (await line.say(b"Subject: never"))[0].startswith("421 4.4.2")


async def test_a_store_that_hangs_is_a_store_that_is_away() -> None:
    async def hang(mail: bytes, recipients: tuple[str, ...]) -> None:
        await asyncio.Event().wait()

    async with Lmtp(hang, limits=LmtpLimits(record_seconds=0.05)) as listener, connected(listener) as line:
        await line.say(b"MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", 3)
        assert (await line.say(b".\r\n"))[0].startswith("451 4.3.0")


async def test_commands_that_are_wrong(ledger: Ledger) -> None:
    async with Lmtp(ledger.handle()) as listener, connected(listener, greet=False) as line:
        await line.reply()
        for said, code in [
            (b"MAIL FROM:<>", "503"),
            (b"EHLO mx.shop.example", "500"),
            (b"HELO mx.shop.example", "500"),
            (b"LHLO mx.shop.example", "250"),
            (b"RCPT TO:<a@b>", "503"),
            (b"MAIL FROM:a@b", "501"),
            (b"MAIL TO:<>", "501"),
            (b"mail from:<>", "250"),
            (b"MAIL FROM:<>", "503"),
            (b"DATA", "503"),
            (b"RCPT TO:<>", "501"),
            (b"RCPT TO:<\xff\x00@b>", "250"),
            (b"VRFY a", "252"),
            (b"RSET", "250"),
            (b"DATA", "503"),
            (b"\xff\xfe\x00", "500"),
            (b"x" * 5000, "500"),
            (b"NOOP", "250"),
        ]:
            assert [(said, reply[:3]) for reply in await line.say(said + b"\r\n")] == [(said, code)]


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n" * 30, b"\r\n" * 30, b"x" * 1_000_000])
async def test_nonsense_ends_a_session(ledger: Ledger, nonsense: bytes) -> None:
    async with Lmtp(ledger.handle()) as listener:
        async with connected(listener) as line:
            line.writer.write(nonsense)
            # A reset: what the server has not read is thrown away with the connection.
            with suppress(ConnectionResetError):
                while reply := await line.reply():
                    assert reply[:3] in ("500", "421")
        assert await deliver(listener, b"Subject: a\r\n\r\n", "a@b") == {}


async def test_a_client_that_vanishes_takes_nothing_with_it(ledger: Ledger, sample: Sample) -> None:
    async with Lmtp(ledger.handle()) as listener:
        async with connected(listener) as line:
            await line.say(b"MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", 3)
            line.writer.write(sample("postfix-failed").replace(b"\n", b"\r\n"))
        assert await deliver(listener, sample("postfix-delayed"), "a@b") == {}
    # Without its dot a mail has not come.
    assert set(ledger.kinds()) == {"bob@example.net"}
    assert len(ledger.events) == 1


# Coming and going ---------------------------------------------------------------------------------------------------


async def test_closing_waits_for_what_is_being_recorded_and_for_nothing_else(ledger: Ledger) -> None:
    recording, go_on = asyncio.Event(), asyncio.Event()

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        recording.set()
        await go_on.wait()

    listener = await Lmtp(handle).__aenter__()
    async with connected(listener) as busy, connected(listener) as idle:
        await busy.say(b"MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", 3)
        busy.writer.write(b".\r\n")
        await recording.wait()
        closing = asyncio.create_task(listener.__aexit__(None, None, None))
        assert (await idle.reply()).startswith("421")
        assert await idle.ended()
        assert not closing.done()
        go_on.set()
        assert [await busy.reply(), (await busy.reply())[:3]] == ["250 2.0.0 recorded", "421"]
        await closing
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", listener.port)


async def test_what_is_never_recorded_does_not_hold_up_the_end() -> None:
    recording = asyncio.Event()

    async def hang(mail: bytes, recipients: tuple[str, ...]) -> None:
        recording.set()
        await asyncio.Event().wait()

    async with Lmtp(hang, limits=LmtpLimits(close_seconds=0.05)) as listener, connected(listener) as line:
        await line.say(b"MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n", 3)
        line.writer.write(b".\r\n")
        await recording.wait()
        await listener.__aexit__(None, None, None)
        assert (await line.reply()).startswith("421")


async def test_on_a_unix_socket(ledger: Ledger, sample: Sample, tmp_path: Path) -> None:
    path, stop = tmp_path / "dsn.sock", asyncio.Event()
    handle: Handle = ledger.handle()
    # One that a killed process left behind is no hindrance.
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    listening = asyncio.Event()
    serving = asyncio.create_task(from_lmtp(handle, f"unix:{path}", stop, ready=lambda _: listening.set()))
    await listening.wait()

    def send() -> dict[str, tuple[int, bytes]]:
        with smtplib.LMTP(str(path)) as client:
            return client.sendmail("", ["a@b"], sample("postfix-failed"))

    assert await asyncio.to_thread(send) == {}
    stop.set()
    await serving
    assert len(ledger.events) == 2
    assert not path.exists()


async def test_on_a_port_until_stopped(ledger: Ledger) -> None:
    stop, ports = asyncio.Event(), []

    def ready(port: int) -> None:
        ports.append(port)
        stop.set()

    await from_lmtp(ledger.handle(), "127.0.0.1:0", stop, ready=ready)
    assert ports[0] > 0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:10024", LmtpAddress("127.0.0.1", 10024)),
        ("localhost:24", LmtpAddress("localhost", 24)),
        ("[::1]:10024", LmtpAddress("::1", 10024)),
        ("unix:/run/sendonce/dsn.sock", LmtpAddress(path=Path("/run/sendonce/dsn.sock"))),
    ],
)
def test_addresses(text: str, address: LmtpAddress) -> None:
    assert lmtp_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":24",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:70000",
        "0.0.0.0:24",
        "192.0.2.1:24",
        "mx.shop.example:24",
        "[::]:24",
        "unix:dsn.sock",
    ],
)
def test_addresses_that_others_could_reach_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        lmtp_address(text)
