"""Notifications by LMTP (RFC 2033): a listener on loopback or a Unix socket, which mail servers deliver to.

After the final dot there is one reply for each recipient: 250 when what the mail says has been recorded, 451 when it
could not be, and then the server keeps the mail and tries again.

LMTP knows no log-in. Whoever can connect can deliver, and gets no further than a forger does by mail.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sendonce.dsn.parts import LIMIT
from sendonce.dsn.sources import Handle
from sendonce.ending import end

_LINE = 2048
"""Octets of a command line; RFC 5321 4.5.3.1.4 asks for 512, extensions for more."""
_BUFFER = 64 * 1024
_SIZE = re.compile(r"(?<![^ ])SIZE=(\d{1,20})(?![^ ])", re.IGNORECASE | re.ASCII)
_PATH = re.compile(r"(FROM|TO):[ \t]*<([^<>\r\n]*)>((?:[ \t].*)?)", re.IGNORECASE)
_TOO_LARGE = "552 5.3.4 mail too large"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LmtpLimits:
    """Bounds of the listener."""

    connections: int = 20
    """At the same time; one more is told 421."""
    recipients: int = 100
    """Of one mail; one more is told 452 (RFC 5321 4.5.3.1.8: at least 100)."""
    octets: int = 64 * 1024 * 1024
    """Of one mail; a larger one is told 552. Only its first MiB is kept."""
    mistakes: int = 20
    """Commands in one session that are wrong; then it ends with 421."""
    command_seconds: float = 300.0
    """For the next command (RFC 5321 4.5.3.2.7)."""
    data_seconds: float = 600.0
    """For a whole mail."""
    record_seconds: float = 60.0
    """For recording what it says to one recipient; then it is told 451."""
    close_seconds: float = 10.0
    """For what is being recorded when the listener closes."""


class Lmtp:
    """The listener, as an async context manager: it listens inside and is closed on the way out."""

    def __init__(
        self,
        handle: Handle,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: Path | None = None,
        limits: LmtpLimits | None = None,
    ) -> None:
        """``path``: a Unix socket, instead of host and port. Port 0: any; see :attr:`port`."""
        self._handle, self._host, self._path = handle, host, path
        self.port = port
        self.limits = limits or LmtpLimits()
        self._sessions: dict[asyncio.Task[None], _Session] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """:raises OSError: the address is taken or not ours, or the socket's folder cannot be written."""
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=_BUFFER)
            # Who may connect is said by the folder: the mail server runs as another user.
            self._path.chmod(0o666)
        else:
            self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=_BUFFER)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task, session in self._sessions.items():
            if session.recording:
                session.closing = True
            else:
                task.cancel()
        if self._sessions:
            _, late = await asyncio.wait(self._sessions, timeout=self.limits.close_seconds)
            await end(late)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        session = _Session(reader, writer, self._handle, self.limits)
        try:
            if len(self._sessions) >= self.limits.connections or task is None:
                await session.say("421 4.3.2 too many connections, try again later")
                return
            self._sessions[task] = session
            await session.run()
        except asyncio.CancelledError:
            # The listener closes. Swallowed: asyncio would report a connection's task that ends as cancelled.
            session.write("421 4.3.2 closing")
        except TimeoutError:
            session.write("421 4.4.2 took too long")
        except (OSError, _Over):
            pass
        finally:
            if task is not None:
                self._sessions.pop(task, None)
            writer.close()


class _Over(Exception):
    """The session has ended."""


class _Session:
    """One connection's dialogue."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle, limits: LmtpLimits
    ) -> None:
        self._reader, self._writer, self._handle, self._limits = reader, writer, handle, limits
        self._greeted = False
        self._sender: str | None = None
        self._recipients: list[str] = []
        self._mistakes = 0
        self.recording = False
        self.closing = False

    async def run(self) -> None:
        """Greet, and answer commands until the connection ends."""
        await self.say("220 sendonce LMTP ready")
        commands = {
            "LHLO": self._lhlo,
            "MAIL": self._mail,
            "RCPT": self._rcpt,
            "DATA": self._data,
            "RSET": self._rset,
        }
        while not self.closing:
            verb, argument = await self._command()
            if verb in commands:
                await commands[verb](argument)
            elif verb == "NOOP":
                await self.say("250 2.0.0 ok")
            elif verb == "VRFY":
                await self.say("252 2.5.2 try to deliver")
            elif verb == "QUIT":
                await self.say("221 2.0.0 bye")
                return
            else:
                # HELO and EHLO too (RFC 2033 4.1): whoever says these expects one reply after the dot.
                await self._wrong("500 5.5.1 this is LMTP: say LHLO")
        await self.say("421 4.3.2 closing")

    def write(self, reply: str) -> None:
        self._writer.write(f"{reply}\r\n".encode("ascii", "replace"))

    async def say(self, reply: str) -> None:
        self.write(reply)
        async with asyncio.timeout(self._limits.command_seconds):
            await self._writer.drain()

    async def _wrong(self, reply: str) -> None:
        self._mistakes += 1
        if self._mistakes >= self._limits.mistakes:
            await self.say("421 4.7.0 too many mistakes")
            raise _Over
        await self.say(reply)

    async def _command(self) -> tuple[str, str]:
        async with asyncio.timeout(self._limits.command_seconds):
            try:
                line = await self._reader.readuntil(b"\n")
            except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                raise _Over from None
        if len(line) > _LINE:
            return "", ""
        verb, _, argument = line.decode("utf-8", "replace").strip().partition(" ")
        return verb.upper(), argument.strip()

    async def _lhlo(self, _: str) -> None:
        self._greeted = True
        self._reset()
        size = self._limits.octets
        for offer in ("sendonce", "PIPELINING", "ENHANCEDSTATUSCODES", "8BITMIME", "SMTPUTF8"):
            self.write(f"250-{offer}")
        await self.say(f"250 SIZE {size}")

    async def _mail(self, argument: str) -> None:
        path = _PATH.fullmatch(argument)
        if not self._greeted:
            await self._wrong("503 5.5.1 say LHLO first")
        elif self._sender is not None:
            await self._wrong("503 5.5.1 there is a sender already")
        elif path is None or path[1].upper() != "FROM":
            await self._wrong("501 5.5.4 syntax: MAIL FROM:<mailbox>")
        elif (size := _SIZE.search(path[3])) and int(size[1]) > self._limits.octets:
            await self.say(_TOO_LARGE)
        else:
            self._sender = path[2]
            await self.say("250 2.1.0 ok")

    async def _rcpt(self, argument: str) -> None:
        path = _PATH.fullmatch(argument)
        if self._sender is None:
            await self._wrong("503 5.5.1 need MAIL")
        elif path is None or path[1].upper() != "TO" or not path[2]:
            await self._wrong("501 5.5.4 syntax: RCPT TO:<mailbox>")
        elif len(self._recipients) >= self._limits.recipients:
            await self.say("452 4.5.3 too many recipients")
        else:
            self._recipients.append(path[2])
            await self.say("250 2.1.5 ok")

    async def _rset(self, _: str) -> None:
        self._reset()
        await self.say("250 2.0.0 ok")

    def _reset(self) -> None:
        self._sender = None
        self._recipients = []

    async def _data(self, _: str) -> None:
        if not self._recipients:
            # RFC 2033 4.2: DATA without a recipient is refused, pipelined or not.
            await self._wrong("503 5.5.1 no recipients")
            return
        await self.say("354 go ahead")
        async with asyncio.timeout(self._limits.data_seconds):
            mail, octets = bytearray(), 0
            async for line in self._lines():
                octets += len(line)
                mail += line[: max(0, LIMIT - len(mail))]
        recipients = self._recipients
        self._reset()
        if octets > self._limits.octets:
            for _recipient in recipients:
                await self.say(_TOO_LARGE)
            return
        await self._deliver(bytes(mail), recipients)

    async def _lines(self) -> AsyncIterator[bytes]:
        """The lines of a mail up to the final dot, without the dots that were stuffed; long lines in pieces.

        Only CRLF ends a line here: a bare LF before a dot must not end the mail (RFC 5321 2.3.8, SMTP smuggling).
        """
        begins = True
        while True:
            try:
                line = await self._reader.readuntil(b"\r\n")
            except asyncio.LimitOverrunError as error:
                line = await self._reader.readexactly(error.consumed)
            except asyncio.IncompleteReadError:
                raise _Over from None
            if begins and line.startswith(b"."):
                if line == b".\r\n":
                    return
                line = line[1:]
            begins = line.endswith(b"\r\n")
            yield line

    async def _deliver(self, mail: bytes, recipients: list[str]) -> None:
        """One reply for each recipient, in the order of RCPT (RFC 2033 4.2). After a failure the rest is not tried."""
        self.recording = True
        away = False
        try:
            for recipient in recipients:
                away = away or not await self._recorded(mail, recipient)
                await self.say("451 4.3.0 not recorded, try again later" if away else "250 2.0.0 recorded")
        finally:
            self.recording = False

    async def _recorded(self, mail: bytes, recipient: str) -> bool:
        try:
            async with asyncio.timeout(self._limits.record_seconds):
                await self._handle(mail, (recipient,))
        except Exception as error:
            logger.warning(
                "a mail was not recorded (%s); the sending server was told to try again", type(error).__name__
            )
            return False
        return True
