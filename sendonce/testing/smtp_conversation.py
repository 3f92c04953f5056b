"""The server's side of one SMTP connection."""

from __future__ import annotations

import asyncio
import email
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sendonce.testing.mailbox import StoredMail
from sendonce.testing.smtp_log_in import Cancelled, log_in
from sendonce.testing.smtp_misbehaviour import SmtpAct

if TYPE_CHECKING:
    from sendonce.testing.smtp_server import SmtpServer

SmtpEvent = Literal[
    "connect", "ehlo", "starttls", "auth", "mail", "rcpt", "data", "body", "dot", "replied", "rset", "quit"
]
"""Points at which a hook is awaited. ``body``: the reply to DATA is written, and the message comes next;
``dot``: the message is stored (or will not be), the reply is not written;
``replied``: the reply to the dot is written. The others come before the reply."""

SIZE_LIMIT = 100 * 1024 * 1024
"""The largest message in octets, announced by SIZE (RFC 1870)."""

_PATH = re.compile(r"(?i)^(?:FROM|TO):\s*<(.*?)>(?:\s+(.*))?$")


@dataclass(slots=True)
class SmtpSession:
    """One connection, as the server saw it."""

    number: int
    commands: list[bytes] = field(default_factory=list)
    """Every command line received, the log-in's included, without line ends."""
    ehlo: str = ""
    tls: bool = False
    user: str = ""
    mechanism: str = ""
    """Of the last AUTH, in upper case."""
    sender: str = ""
    parameters: str = ""
    """Of the last MAIL."""
    recipients: list[str] = field(default_factory=list)
    """Accepted in the present transaction."""
    recipient_parameters: list[str] = field(default_factory=list)
    """Of each RCPT of the present transaction, the refused ones included."""
    open: bool = False
    """MAIL was accepted, and neither the dot nor RSET has ended the transaction: a second MAIL is out of sequence."""
    body_octets: int = 0
    """Octets of the present body that have arrived."""
    stored: int = 0
    """Messages stored over this connection."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection has ended, whoever ended it."""

    def verbs(self) -> list[str]:
        """The commands' verbs, in upper case."""
        return [line.split(b" ")[0].decode("ascii", "replace").upper() for line in self.commands]


class Over(Exception):
    """The connection is at its end."""


class Conversation:
    """One connection's dialogue; :meth:`run` ends with Over or a ConnectionError."""

    def __init__(
        self, server: SmtpServer, session: SmtpSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self.session, self.reader, self.writer = server, session, reader, writer
        self.buffer = bytearray()

    async def run(self) -> None:
        """Greet, and answer commands until the connection ends."""
        await self.event("connect")
        await self.reply("connect", "", b"220 loopback.test ESMTP\r\n")
        handlers = {
            "EHLO": self.ehlo,
            "HELO": self.ehlo,
            "STARTTLS": self.starttls,
            "AUTH": self.auth,
            "MAIL": self.mail,
            "RCPT": self.rcpt,
            "DATA": self.data,
            "RSET": self.rset,
        }
        while True:
            line = await self.line()
            self.session.commands.append(line)
            verb, _, argument = line.decode("utf-8", "surrogateescape").partition(" ")
            handler = handlers.get(verb.upper())
            if handler is not None:
                await handler(argument)
            elif verb.upper() == "NOOP":
                await self.say(b"250 2.0.0 Ok\r\n")
            elif verb.upper() == "QUIT":
                await self.event("quit")
                await self.reply("quit", "", b"221 2.0.0 Bye\r\n")
                await self.close()
            else:
                await self.say(b"502 5.5.2 command not recognised\r\n")

    async def event(self, name: SmtpEvent) -> None:
        if self.server.on_event is not None:
            await self.server.on_event(name, self.session)

    async def more(self) -> bytes:
        data = await self.reader.read(65536)
        if not data:
            raise Over
        return data

    async def line(self) -> bytes:
        while (end := self.buffer.find(b"\n")) < 0:
            self.buffer += await self.more()
        line = bytes(self.buffer[: end + 1])
        del self.buffer[: end + 1]
        return line.rstrip(b"\r\n")

    async def say(self, data: bytes, *, pieces: bool = False) -> None:
        for part in [data[i : i + 1] for i in range(len(data))] if pieces else [data]:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
        raise Over

    async def act(self, act: SmtpAct, usual: bytes) -> bytes:
        """Do what the script says; returns the reply that was written."""
        if act.then == "cut":
            # Linger 0 makes it a reset: the peer cannot mistake it for an orderly end.
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            raise Over
        if act.then == "silent":
            while True:
                await self.more()
        if act.then == "stall":
            # Nothing more is read; the connection's end is seen when the server closes.
            await asyncio.Event().wait()
        if act.until is not None:
            await act.until.wait()
        reply = act.reply if act.reply is not None else usual
        await self.say(reply, pieces=act.pieces)
        if act.then == "close":
            await self.close()
        return reply

    async def reply(self, at: str, argument: str, usual: bytes) -> bytes:
        act = self.server.script.pick(at, argument)
        return await self.act(act or SmtpAct(), usual)

    async def ehlo(self, argument: str) -> None:
        self.session.ehlo = argument
        await self.event("ehlo")
        offers = ["loopback.test", f"SIZE {self.server.size_limit}", "8BITMIME", "ENHANCEDSTATUSCODES"]
        offers += [
            name for name, offered in (("PIPELINING", self.server.pipelining), ("DSN", self.server.dsn)) if offered
        ]
        if self.server.smtputf8:
            offers.append("SMTPUTF8")
        if self.server.tls is not None and not self.session.tls:
            offers.append("STARTTLS")
        if self.server.credentials is not None:
            offers.append(f"AUTH {' '.join(self.server.mechanisms)}")
        lines = [f"250{'-' if i < len(offers) - 1 else ' '}{offer}\r\n" for i, offer in enumerate(offers)]
        await self.reply("ehlo", argument, "".join(lines).encode())

    async def starttls(self, _: str) -> None:
        if self.server.tls is None or self.session.tls:
            await self.say(b"502 5.5.1 not offered\r\n")
            return
        await self.event("starttls")
        if not (await self.reply("starttls", "", b"220 2.0.0 go ahead\r\n")).startswith(b"220"):
            return
        # What was sent in clear before the handshake is void (RFC 3207 4.2).
        self.buffer.clear()
        await self.writer.start_tls(self.server.tls)
        self.session.tls = True

    async def auth(self, argument: str) -> None:
        await self.event("auth")
        self.session.mechanism = argument.partition(" ")[0].upper()
        try:
            user, right = await log_in(argument, self.server.credentials or {}, self.ask)
        except Cancelled:
            await self.say(b"501 5.5.2 cancelled\r\n")
            return
        usual = b"235 2.7.0 welcome\r\n" if right else b"535 5.7.8 bad credentials\r\n"
        if (await self.reply("auth", user, usual)).startswith(b"235"):
            self.session.user = user

    async def ask(self, challenge: bytes) -> str:
        await self.say(challenge)
        line = await self.line()
        self.session.commands.append(line)
        return line.decode("ascii", "replace")

    async def mail(self, argument: str) -> None:
        path = _PATH.match(argument)
        if path is None:
            await self.say(b"501 5.5.4 syntax: MAIL FROM:<mailbox>\r\n")
            return
        if self.session.open:
            await self.say(b"503 5.5.1 nested MAIL\r\n")
            return
        self.session.recipients = []
        self.session.recipient_parameters = []
        self.session.body_octets = 0
        self.session.sender, self.session.parameters = path[1], path[2] or ""
        await self.event("mail")
        self.session.open = (await self.reply("mail", path[1], b"250 2.1.0 Ok\r\n")).startswith(b"2")

    async def rcpt(self, argument: str) -> None:
        path = _PATH.match(argument)
        if path is None:
            await self.say(b"501 5.5.4 syntax: RCPT TO:<mailbox>\r\n")
            return
        self.session.recipient_parameters.append(path[2] or "")
        await self.event("rcpt")
        act = self.server.script.pick("rcpt:over", str(len(self.session.recipients)))
        act = act or self.server.script.pick("rcpt", path[1]) or SmtpAct()
        usual = b"250 2.1.5 Ok\r\n" if self.session.open else b"503 5.5.1 need MAIL\r\n"
        if (await self.act(act, usual)).startswith(b"2"):
            self.session.recipients.append(path[1])

    async def rset(self, _: str) -> None:
        self.session.recipients = []
        self.session.open = False
        await self.event("rset")
        await self.reply("rset", "", b"250 2.0.0 Ok\r\n")

    async def data(self, _: str) -> None:
        await self.event("data")
        usual = b"354 go ahead\r\n" if self.session.recipients else b"503 5.5.1 no valid recipients\r\n"
        if not (await self.reply("data", "", usual)).startswith(b"354"):
            return
        body, answered = await self.body()
        if not answered:
            await self.dot(body)

    async def body(self) -> tuple[bytes, bool]:
        """Read up to the terminator; True when a reply was already given in the middle."""
        act = self.server.script.pick("body")
        answered, searched = False, 0
        # The terminator's first CRLF may be the one that ends the DATA command.
        data = bytearray(b"\r\n")
        while True:
            data += self.buffer
            self.buffer.clear()
            end = data.find(b"\r\n.\r\n", max(0, searched - 4))
            self.session.body_octets = len(data) - 2
            if act is not None and not answered and self.session.body_octets >= act.after:
                await self.act(act, b"")
                answered = True
            if end >= 0:
                self.buffer += data[end + 5 :]
                return re.sub(rb"(?m)^\.", b"", bytes(data[2 : end + 2])), answered
            if not searched:
                await self.event("body")
            searched = len(data)
            self.buffer += await self.more()

    async def dot(self, content: bytes) -> None:
        act = self.server.script.pick("dot", " ".join(self.session.recipients)) or SmtpAct()
        queue_id = f"{next(self.server.ids):08X}"
        usual = f"250 2.0.0 Ok: queued as {queue_id}\r\n".encode()
        if len(content) > self.server.size_limit:
            usual = b"552 5.3.4 too big\r\n"
        store = act.store if act.store is not None else (act.reply or usual).startswith(b"2")
        if store:
            try:
                self.store(content, queue_id)
            except OSError:  # a full disk, for one
                usual = b"452 4.3.1 cannot be stored\r\n"
        await self.event("dot")
        await self.act(act, usual)
        await self.event("replied")
        self.session.recipients = []
        self.session.open = False

    def store(self, content: bytes, queue_id: str) -> None:
        parsed = email.message_from_bytes(content)
        headers = {name.lower(): str(value) for name, value in parsed.items()}
        recipients = tuple(self.session.recipients)
        message_id = headers.get("message-id", "")
        self.server.mailbox.store(
            StoredMail(self.session.sender, recipients, content, message_id, queue_id, headers=headers)
        )
        self.session.stored += 1
