"""The ASGI app that providers write to: ``POST /webhooks/<account>``, and ``GET /healthz``.

============================================================  ======
what came                                                     answer
============================================================  ======
authentic, and its events are kept; or it holds none          200
authentic, and nothing in it can be read                      200
no such account                                               404
not authentic, or outside the window                          401
more bytes than ``body_limit``                                413
not all of it within ``body_seconds``                         408
the store did not keep it; who wrote it cannot be found out   503
============================================================  ======

Providers repeat what is answered 503, for hours; some switch off a webhook that fails often, so nothing that would fail
again the same way is answered so. Addresses, bodies, paths and secrets are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sendonce.events import Event
from sendonce.webhooks.receiver import Delivery, NotNow, Receiver, Rejected, Taken

logger = logging.getLogger(__name__)

Record = Callable[[str, Sequence[Event]], Awaitable[object]]
"""Keeps events of an account, all or none. Raises when it could not; kept twice is kept once."""

BODY_LIMIT = 10 * 1024 * 1024
"""SparkPost's batches are the largest."""


class _TooLarge(Exception):
    pass


def make_app(
    accounts: Mapping[str, Receiver],
    record: Record,
    *,
    body_limit: int = BODY_LIMIT,
    body_seconds: float = 30.0,
    record_seconds: float = 10.0,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """The app for these accounts, by name. ``record`` may take ``record_seconds``; ``clock`` gives Unix seconds."""
    door = _Door(accounts, record, body_limit, body_seconds, record_seconds, clock)
    return Starlette(
        routes=[
            Route("/healthz", _healthy, methods=["GET"]),
            Route("/webhooks/{account}", door.post, methods=["POST"]),
            Route("/webhooks/{account}/{secret}", door.post, methods=["POST"]),
            Route("/webhooks/{account}", door.options, methods=["OPTIONS"]),
            Route("/webhooks/{account}/{secret}", door.options, methods=["OPTIONS"]),
        ]
    )


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok\n")


class _Door:
    def __init__(
        self,
        accounts: Mapping[str, Receiver],
        record: Record,
        body_limit: int,
        body_seconds: float,
        record_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._accounts = accounts
        self._record = record
        self._body_limit = body_limit
        self._body_seconds = body_seconds
        self._record_seconds = record_seconds
        self._clock = clock

    async def post(self, request: Request) -> Response:
        account = request.path_params["account"]
        receiver = self._accounts.get(account)
        if receiver is None:
            return _said(404, "no such account")
        try:
            delivery = self._delivery(request, await self._body(request))
        except _TooLarge:
            logger.warning("webhook of %s: refused, more than %d bytes", account, self._body_limit)
            return _said(413, "too large", {"Connection": "close"})
        except TimeoutError:
            return _said(408, "too slow", {"Connection": "close"})
        except ClientDisconnect:
            return _said(400, "incomplete")
        try:
            await receiver.verify(delivery)
            taken = await self._read(account, receiver, delivery)
        except Rejected as error:
            return self._refused(account, receiver, error)
        except NotNow as error:
            logger.warning("webhook of %s: %s; the provider is to try again", account, error.why)
            return _said(503, "try again")
        if taken.events and not await self._kept(account, taken.events):
            return _said(503, "try again")
        return Response(status_code=200) if taken.content is None else JSONResponse(taken.content)

    async def options(self, request: Request) -> Response:
        """The handshake of CloudEvents' webhooks (https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md,
        section 4), for who has the secret."""
        account = request.path_params["account"]
        receiver = self._accounts.get(account)
        origin = request.headers.get("webhook-request-origin", "")
        if receiver is None or receiver.name != "azure" or not re.fullmatch(r"[!-~]{1,255}", origin):
            return _said(405, "POST only", {"Allow": "POST"})
        try:
            await receiver.verify(self._delivery(request, b""))
        except Rejected as error:
            return self._refused(account, receiver, error)
        return Response(status_code=200, headers={"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"})

    async def _body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdecimal() and int(declared[:20]) > self._body_limit:
            raise _TooLarge
        body = bytearray()
        async with asyncio.timeout(self._body_seconds):
            async for block in request.stream():
                body += block
                if len(body) > self._body_limit:
                    raise _TooLarge
        return bytes(body)

    def _delivery(self, request: Request, body: bytes) -> Delivery:
        return Delivery(
            body=body,
            headers=dict(request.headers),
            now=self._clock(),
            path_secret=request.path_params.get("secret", ""),
            query=dict(request.query_params),
        )

    async def _read(self, account: str, receiver: Receiver, delivery: Delivery) -> Taken:
        try:
            return await receiver.read(delivery)
        except (Rejected, NotNow):
            raise
        except Exception as error:
            # Our fault, and the same next time. No traceback: its text may quote the body.
            logger.error(
                "webhook of %s: a %s of %s cannot be read and is dropped: please report it",
                account,
                type(error).__name__,
                receiver.name,
            )
            return Taken()

    async def _kept(self, account: str, events: Sequence[Event]) -> bool:
        try:
            async with asyncio.timeout(self._record_seconds):
                await self._record(account, events)
        except Exception as error:
            # No text: a driver's may quote the values.
            logger.error(
                "webhook of %s: %d events not kept (%s); the provider is to try again",
                account,
                len(events),
                type(error).__name__,
            )
            return False
        return True

    def _refused(self, account: str, receiver: Receiver, error: Rejected) -> Response:
        logger.warning("webhook of %s: refused, %s", account, error.why)
        # Amazon SNS and others send a password only when they are asked for one.
        asked = {"WWW-Authenticate": 'Basic realm="webhooks"'} if receiver.asks_for_password else None
        return _said(401, "not authentic", asked)


def _said(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)
