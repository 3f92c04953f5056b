"""The machinery of a mail API on loopback that behaves, or misbehaves as scripted.

A provider is a subclass: who may ask, how a request names its recipients, how it is answered, and which endpoints
there are besides the one that takes mail. Scripts are made of the rules in :mod:`sendonce.testing.http_misbehaviour`;
they apply to every request that takes mail.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Self

from sendonce.ending import end
from sendonce.testing.http_misbehaviour import HttpAct, HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpEvent, HttpRequest, Known, Posted
from sendonce.testing.mailbox import Mailbox, StoredMail
from sendonce.testing.script import Script


class HttpServer(ABC):
    """The server. Use it as ``async with Subclass(…) as server``, or call :meth:`start` and :meth:`close`."""

    path: str
    """Where mails are posted."""
    id_prefix = ""
    """What the ids of messages begin with."""

    def __init__(
        self,
        mailbox: Mailbox | None = None,
        *rules: HttpRule,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        api_key: str | None = None,
        key_window: float = 86400.0,
        on_event: Callable[[HttpEvent, HttpRequest], Awaitable[None]] | None = None,
    ) -> None:
        """``port`` 0 takes a free one. With ``api_key`` other credentials are refused. ``key_window``: seconds from
        first use for which a key is remembered. ``on_event`` is awaited at each :data:`HttpEvent`.
        """
        self.mailbox = mailbox if mailbox is not None else Mailbox()
        self.script: Script[HttpAct] = Script(*rules)
        self.host, self.port, self.tls = host, port, tls
        self.api_key, self.key_window = api_key, key_window
        self.stores_refusals = False
        self.on_event = on_event
        self.requests: list[HttpRequest] = []
        """Each from the moment its header section was read."""
        self.connections = 0
        self._known: dict[str, Known] = {}
        self._ids = itertools.count(1)
        self._offset = 0.0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # What a provider is

    @abstractmethod
    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """The answer to somebody who may not ask; None: go on."""

    @abstractmethod
    def other(self, request: HttpRequest) -> HttpAnswer:
        """The answer to whatever is no mail."""

    @abstractmethod
    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """What is to be sent, or why it is refused."""

    @abstractmethod
    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """The answer to a mail that was taken."""

    def key_of(self, request: HttpRequest) -> str:
        """The key under which the answer is remembered; ``""``: it is not."""
        return request.key

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The answer to a key that is known, with the ``same`` request or another one."""
        raise NotImplementedError

    # Life

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Where to post mails."""
        return self.origin + self.path

    def clock(self) -> float:
        """The server's own time, in seconds."""
        return time.monotonic() + self._offset

    def advance(self, seconds: float) -> None:
        """Move the server's own time forward."""
        self._offset += seconds

    async def start(self) -> None:
        """Listen; :attr:`port` is the port from then on. Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

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

    # One connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        request: HttpRequest | None = None
        try:
            await self._obey(self.script.pick("connect"), reader, writer)
            while True:
                request = await self._head(reader)
                self.requests.append(request)
                await self._body(request, reader, writer)
                await self._handle(request, reader, writer)
                if request.headers.get("connection", "").lower() == "close":
                    writer.close()
                    await writer.wait_closed()
                    return
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, _Over, asyncio.CancelledError):
            # A cancelled task ends here in order: close() cancels nothing else.
            pass
        finally:
            writer.transport.abort()
            if request is not None:
                request.closed.set()
            self._tasks.discard(task)

    async def _head(self, reader: asyncio.StreamReader) -> HttpRequest:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return HttpRequest(method, path, headers)

    async def _body(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._obey(self.script.pick("headers", request.path), reader, writer)
        length = int(request.headers.get("content-length", "0"))
        act = self.script.pick("body", request.path)
        if act is not None:
            request.body = await reader.readexactly(min(act.after, length))
            await self._obey(act, reader, writer)
        request.body += await reader.readexactly(length - len(request.body))

    async def _obey(self, act: HttpAct | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if act is None:
            return
        if act.until is not None:
            await act.until.wait()
        if act.then == "cut":
            _reset(writer)
        if act.then == "silent":
            while await reader.read(65536):
                pass
            raise _Over

    async def _event(self, name: HttpEvent, request: HttpRequest) -> None:
        if self.on_event is not None:
            await self.on_event(name, request)

    async def _handle(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._event("request", request)
        status, body, headers = await self._answer(request, reader, writer)
        reason = HTTPStatus(status).phrase if status in list(HTTPStatus) else ""
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]
        head = f"HTTP/1.1 {status} {reason}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
        data = head.encode("latin-1") + body
        act = self.script.pick("answer", request.path)
        if act is not None:
            writer.write(data[: act.after])
            await writer.drain()
            _reset(writer)
        writer.write(data)
        await writer.drain()
        await self._event("answered", request)

    async def _answer(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpAnswer:
        act = self.script.pick("request", request.path)
        await self._obey(act, reader, writer)
        if act is not None and act.status is not None:
            return act.status, act.body, act.headers
        refused = self.forbidden(request)
        if refused is not None:
            return refused
        if request.method != "POST" or request.path != self.path:
            return self.other(request)
        fingerprint = hashlib.sha256(f"{request.method} {request.path}\n".encode() + request.body).digest()
        key, now = self.key_of(request), self.clock()
        known = self._known.get(key) if key else None
        if known is not None and now - known.at < self.key_window:
            return self.again(known, same=known.fingerprint == fingerprint)
        mine = Known(fingerprint, now)
        if key:
            self._known[key] = mine
        try:
            return await self._first(request, mine, reader, writer)
        finally:
            # A key whose request was not accepted is free again, unless its refusal is remembered.
            if mine.answer is None and self._known.get(key) is mine:
                del self._known[key]

    async def _first(
        self, request: HttpRequest, mine: Known, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpAnswer:
        act = self.script.pick("refuse", request.path)
        await self._obey(act, reader, writer)
        if act is not None and act.status is not None:
            if self.stores_refusals and 400 <= act.status < 500:
                mine.answer = act.status, act.body
            return act.status, act.body, act.headers
        posted = self.read(request)
        if not isinstance(posted, Posted):
            return posted
        act = self.script.pick("mail", " ".join(posted.recipients))
        if act is not None and act.status is not None:
            return act.status, act.body, act.headers
        answer = self.accepted(posted, self._store(request, posted))
        act = self.script.pick("accepted", " ".join(posted.recipients))
        try:
            if act is None or act.until is None:
                mine.answer = answer
            # Until then it is still in progress for whoever asks again.
            await self._event("accepted", request)
            await self._obey(act, reader, writer)
        finally:
            mine.answer = answer
        if act is not None and act.status is not None:
            return act.status, act.body, act.headers
        return (*answer, ())

    def _store(self, request: HttpRequest, posted: Posted) -> str:
        provider_id = f"{self.id_prefix}{next(self._ids):08d}"
        self.mailbox.store(
            StoredMail(
                posted.sender,
                posted.recipients,
                request.body,
                posted.message_id,
                provider_id,
                request.key,
                posted.headers,
            )
        )
        return provider_id


class _Over(Exception):
    """The connection is at its end."""


def _reset(writer: asyncio.StreamWriter) -> None:
    # Linger 0 makes it a reset: the peer cannot mistake it for an orderly end.
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    raise _Over
