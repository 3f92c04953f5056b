"""An SMTP server on loopback that accepts everything, or misbehaves as scripted, at the level of octets.

It speaks ESMTP (RFC 5321) with SIZE, 8BITMIME, SMTPUTF8, PIPELINING, DSN, ENHANCEDSTATUSCODES, and STARTTLS and AUTH
where given.
Scripts are made of the rules in :mod:`sendonce.testing.smtp_misbehaviour`.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self

from sendonce.ending import end
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.script import Script
from sendonce.testing.smtp_conversation import SIZE_LIMIT, Conversation, Over, SmtpEvent, SmtpSession
from sendonce.testing.smtp_misbehaviour import SmtpAct, SmtpRule

__all__ = ["SmtpEvent", "SmtpServer", "SmtpSession"]


class SmtpServer:
    """The server. Use it as ``async with SmtpServer(…) as server``, or call :meth:`start` and :meth:`close`."""

    def __init__(
        self,
        mailbox: Mailbox | None = None,
        *rules: SmtpRule,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        implicit_tls: bool = False,
        credentials: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = ("PLAIN", "LOGIN"),
        smtputf8: bool = True,
        pipelining: bool = True,
        dsn: bool = True,
        size_limit: int = SIZE_LIMIT,
        receive_buffer: int | None = None,
        on_event: Callable[[SmtpEvent, SmtpSession], Awaitable[None]] | None = None,
    ) -> None:
        """``port`` 0 takes a free one. ``tls`` without ``implicit_tls`` offers STARTTLS. ``credentials`` (user →
        password, or access token) offers AUTH with these ``mechanisms``, in clear too, as careless servers do.
        ``receive_buffer`` (octets) bounds what the kernel takes for a reader that stalls. ``size_limit`` (octets) is
        announced, and kept.
        ``on_event`` is awaited at each :data:`SmtpEvent`.
        """
        self.mailbox = mailbox if mailbox is not None else Mailbox()
        self.script: Script[SmtpAct] = Script(*rules)
        self.host, self.port = host, port
        self.tls, self.implicit_tls = tls, implicit_tls
        self.credentials, self.mechanisms, self.smtputf8 = credentials, mechanisms, smtputf8
        self.pipelining, self.dsn, self.size_limit = pipelining, dsn, size_limit
        self.on_event = on_event
        self.sessions: list[SmtpSession] = []
        self.ids = itertools.count(1)
        self._receive_buffer = receive_buffer
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; :attr:`port` is the port from then on. Raises OSError when it is taken."""
        listener = socket.create_server((self.host, self.port))
        # As any mail server does, asyncio's own listener too: else pipelined replies wait for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._receive_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        context = self.tls if self.implicit_tls else None
        self._server = await asyncio.start_server(self._serve, sock=listener, ssl=context)
        self.port = listener.getsockname()[1]

    async def close(self) -> None:
        """Stop listening and reset every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await end(self._tasks)

    async def idle(self) -> None:
        """Return once no connection is open."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        session = SmtpSession(len(self.sessions) + 1, tls=self.implicit_tls)
        self.sessions.append(session)
        try:
            await Conversation(self, session, reader, writer).run()
        except (ConnectionError, ssl.SSLError, Over, asyncio.CancelledError):
            # A cancelled task ends here in order: close() cancels nothing else.
            pass
        finally:
            writer.transport.abort()
            session.closed.set()
            self._tasks.discard(task)
