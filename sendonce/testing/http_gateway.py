"""A JSON mail gateway on loopback that honours ``Idempotency-Key``, or misbehaves as scripted.

It takes ``POST`` with ``{"to": […], "cc": […], "bcc": […], …}``, where an address is a string (a mailbox, or
``Name <mailbox>``) or an object with ``email``, and answers ``200 {"id": …}``. Under a key it knows it replays the
answer to the same body, refuses another body, and refuses while the first request is still in progress. Scripts are
made of the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parseaddr
from http import HTTPStatus
from typing import Any, Literal, Self

from sendonce.testing.http_misbehaviour import HttpAct, HttpRule
from sendonce.testing.mailbox import Mailbox, StoredMail
from sendonce.testing.script import Script

HttpEvent = Literal["request", "accepted", "answered"]
"""Points at which a hook is awaited: the whole request was read; the mail was accepted and the answer is not written;
the answer is written."""


@dataclass(slots=True)
class HttpRequest:
    """One request, as the gateway saw it."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes = b""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its connection has ended, whoever ended it."""

    @property
    def key(self) -> str:
        """The idempotency key; ``""`` without one."""
        return self.headers.get("idempotency-key", "")


@dataclass(slots=True)
class _Known:
    """What the gateway remembers under one key."""

    fingerprint: bytes
    at: float
    answer: tuple[int, bytes] | None = None
    """None while the first request is in progress."""


class HttpGateway:
    """The server. Use it as ``async with HttpGateway(…) as gateway``, or call :meth:`start` and :meth:`close`."""

    def __init__(
        self,
        mailbox: Mailbox | None = None,
        *rules: HttpRule,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        api_key: str | None = None,
        key_window: float = 86400.0,
        mismatch_status: int = 409,
        stores_refusals: bool = False,
        on_event: Callable[[HttpEvent, HttpRequest], Awaitable[None]] | None = None,
    ) -> None:
        """``port`` 0 takes a free one. With ``api_key`` a request without that bearer token is answered 401.
        ``key_window``: seconds from first use for which a key is remembered. ``mismatch_status``: the answer to a known
        key with another body. ``stores_refusals``: whether a 4xx under a key is remembered and replayed, as some
        providers do. ``on_event`` is awaited at each :data:`HttpEvent`.
        """
        self.mailbox = mailbox if mailbox is not None else Mailbox()
        self.script: Script[HttpAct] = Script(*rules)
        self.host, self.port, self.tls = host, port, tls
        self.api_key, self.key_window = api_key, key_window
        self.mismatch_status, self.stores_refusals = mismatch_status, stores_refusals
        self.on_event = on_event
        self.requests: list[HttpRequest] = []
        """Each from the moment its header section was read."""
        self.connections = 0
        self._known: dict[str, _Known] = {}
        self._ids = itertools.count(1)
        self._offset = 0.0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where to post mails."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}/emails"

    def advance(self, seconds: float) -> None:
        """Move the clock of the key window forward."""
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
    ) -> tuple[int, bytes, tuple[tuple[str, str], ...]]:
        act = self.script.pick("request", request.path)
        await self._obey(act, reader, writer)
        if act is not None and act.status is not None:
            return act.status, act.body, act.headers
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return _error(401, "invalid_api_key")
        if request.method != "POST":
            return _error(405, "method_not_allowed")
        fingerprint = hashlib.sha256(f"{request.method} {request.path}\n".encode() + request.body).digest()
        now = time.monotonic() + self._offset
        known = self._known.get(request.key) if request.key else None
        if known is not None and now - known.at < self.key_window:
            return self._again(known, fingerprint)
        mine = _Known(fingerprint, now)
        if request.key:
            self._known[request.key] = mine
        try:
            return await self._first(request, mine, reader, writer)
        finally:
            # A key whose request was not accepted is free again, unless its refusal is remembered.
            if mine.answer is None and self._known.get(request.key) is mine:
                del self._known[request.key]

    def _again(self, known: _Known, fingerprint: bytes) -> tuple[int, bytes, tuple[tuple[str, str], ...]]:
        if known.fingerprint != fingerprint:
            return _error(self.mismatch_status, "invalid_idempotent_request")
        if known.answer is None:
            return _error(409, "concurrent_idempotent_requests", ("Retry-After", "1"))
        return (*known.answer, (("Idempotent-Replayed", "true"),))

    async def _first(
        self, request: HttpRequest, mine: _Known, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes, tuple[tuple[str, str], ...]]:
        act = self.script.pick("refuse", request.path)
        await self._obey(act, reader, writer)
        if act is not None and act.status is not None:
            if self.stores_refusals and 400 <= act.status < 500:
                mine.answer = act.status, act.body
            return act.status, act.body, act.headers
        try:
            content = json.loads(request.body)
            recipients = tuple(_mailbox(one) for name in ("to", "cc", "bcc") for one in _list(content.get(name)))
            sender = _mailbox(content.get("from", ""))
        except (ValueError, AttributeError, TypeError):
            return _error(422, "validation_error")
        if not recipients:
            return _error(422, "missing_required_field")
        answer = 200, json.dumps({"id": self._accept(request, content, sender, recipients)}).encode()
        act = self.script.pick("accepted", " ".join(recipients))
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

    def _accept(self, request: HttpRequest, content: dict[str, Any], sender: str, recipients: tuple[str, ...]) -> str:
        fields = content.get("headers")
        headers = {str(k).lower(): str(v) for k, v in fields.items()} if isinstance(fields, dict) else {}
        provider_id = f"gw-{next(self._ids):08d}"
        message_id = headers.get("message-id", "")
        self.mailbox.store(StoredMail(sender, recipients, request.body, message_id, provider_id, request.key, headers))
        return provider_id


class _Over(Exception):
    """The connection is at its end."""


def _reset(writer: asyncio.StreamWriter) -> None:
    # Linger 0 makes it a reset: the peer cannot mistake it for an orderly end.
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    raise _Over


def _error(status: int, name: str, *headers: tuple[str, str]) -> tuple[int, bytes, tuple[tuple[str, str], ...]]:
    return status, json.dumps({"name": name, "message": "refused"}).encode(), headers


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _mailbox(value: Any) -> str:
    text = value["email"] if isinstance(value, dict) else value
    mailbox = parseaddr(text)[1]
    if "@" not in mailbox:
        raise ValueError("not a mailbox")
    return mailbox
