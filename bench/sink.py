"""An SMTP server that accepts everything, and remembers for whom and when: as cheap as Python can be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.part import Handler

STALLED = b"stalled"
"""Recipients that begin so are not answered at the final dot for a while."""

_EHLO = b"250-loopback.test\r\n250-SIZE 104857600\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-PIPELINING\r\n250-DSN\r\n"
_EHLO += b"250 ENHANCEDSTATUSCODES\r\n"
_REPLIES = {
    b"EHLO": _EHLO,
    b"HELO": b"250 loopback.test\r\n",
    b"MAIL": b"250 2.1.0 Ok\r\n",
    b"RSET": b"250 2.0.0 Ok\r\n",
    b"NOOP": b"250 2.0.0 Ok\r\n",
}


class Accepted:
    """What was accepted: recipients, and when the reply was written (CLOCK_MONOTONIC, which all processes share)."""

    def __init__(self, stall_seconds: float) -> None:
        self.stall_seconds = stall_seconds
        self.mails: list[tuple[str, float]] = []
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def add(self, recipients: list[bytes]) -> None:
        """One message was accepted now."""
        now = time.monotonic()
        self.mails += [(recipient.decode(), now) for recipient in recipients]
        for number, event in self._waiting:
            if len(self.mails) >= number:
                event.set()

    async def wait(self, number: int, seconds: float) -> int:
        """Return how many were accepted once that are ``number``, or ``seconds`` have passed."""
        event = asyncio.Event()
        self._waiting.append((number, event))
        if len(self.mails) < number:
            try:
                async with asyncio.timeout(seconds):
                    await event.wait()
            except TimeoutError:
                pass
        self._waiting.remove((number, event))
        return len(self.mails)


class _Session(asyncio.Protocol):
    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._buffer = b""
        self._in_body = False
        self._recipients: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"220 loopback.test ESMTP\r\n")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answers = []
        while (answer := self._next()) is not None:
            answers.append(answer)
        if answers:
            self._transport.write(b"".join(answers))

    def _next(self) -> bytes | None:
        """The reply to what has arrived; None: more is needed."""
        if self._in_body:
            # The line end before the dot may be the one that ended the DATA command.
            end = self._buffer.find(b"\r\n.\r\n")
            if end < 0 and not self._buffer.startswith(b".\r\n"):
                return None
            self._buffer = self._buffer[end + 5 :] if end >= 0 else self._buffer[3:]
            self._in_body = False
            return self._dot()
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            return None
        self._buffer = rest
        verb = line[:4].upper()
        if verb == b"RCPT":
            self._recipients.append(line[line.find(b"<") + 1 : line.find(b">")])
            return b"250 2.1.5 Ok\r\n"
        if verb == b"DATA":
            self._in_body = True
            return b"354 go ahead\r\n"
        if verb in (b"MAIL", b"RSET"):
            self._recipients = []
        if verb == b"QUIT":
            self._transport.write(b"221 2.0.0 Bye\r\n")
            self._transport.close()
            return None
        return _REPLIES.get(verb, b"502 5.5.2 not here\r\n")

    def _dot(self) -> bytes:
        recipients, self._recipients = self._recipients, []
        if any(one.startswith(STALLED) for one in recipients):
            asyncio.get_running_loop().call_later(self._accepted.stall_seconds, self._late, recipients)
            return b""
        self._accepted.add(recipients)
        return b"250 2.0.0 Ok\r\n"

    def _late(self, recipients: list[bytes]) -> None:
        if not self._transport.is_closing():
            self._accepted.add(recipients)
            self._transport.write(b"250 2.0.0 Ok\r\n")


@asynccontextmanager
async def sink(stall_seconds: float = 0.0) -> AsyncIterator[Handler]:
    """Commands: ``port``; ``wait`` for so many mails at most ``seconds`` long; ``take`` all, which forgets them."""
    accepted = Accepted(stall_seconds)
    server = await asyncio.get_running_loop().create_server(lambda: _Session(accepted), "127.0.0.1", 0, backlog=500)
    port = server.sockets[0].getsockname()[1]

    async def handle(command: dict[str, Any]) -> Any:
        if "wait" in command:
            return await accepted.wait(command["wait"], command["seconds"])
        if "take" in command:
            taken, accepted.mails = accepted.mails, []
            return taken
        return port

    try:
        yield handle
    finally:
        server.close()
