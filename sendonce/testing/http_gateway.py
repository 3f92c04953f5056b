"""A JSON mail gateway on loopback that honours ``Idempotency-Key``, or misbehaves as scripted.

It takes ``POST`` with ``{"to": […], "cc": […], "bcc": […], …}``, where an address is a string (a mailbox, or
``Name <mailbox>``) or an object with ``email``, and answers ``200 {"id": …}``. Under a key it knows it replays the
answer to the same body, refuses another body, and refuses while the first request is still in progress. Scripts are
made of the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Awaitable, Callable

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import (
    HttpAnswer,
    HttpEvent,
    HttpRequest,
    Known,
    Posted,
    named_error,
    posted_by_name,
)
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

__all__ = ["HttpEvent", "HttpGateway", "HttpRequest"]


class HttpGateway(HttpServer):
    """The server. Use it as ``async with HttpGateway(…) as gateway``, or call ``start`` and ``close``."""

    path = "/emails"
    id_prefix = "gw-"

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
        """As :class:`~sendonce.testing.http_server.HttpServer`; with ``api_key`` a request without that bearer token
        is answered 401. ``mismatch_status``: the answer to a known key with another body. ``stores_refusals``: whether
        a 4xx under a key is remembered and replayed, as some providers do.
        """
        super().__init__(
            mailbox,
            *rules,
            host=host,
            port=port,
            tls=tls,
            api_key=api_key,
            key_window=key_window,
            on_event=on_event,
        )
        self.mismatch_status, self.stores_refusals = mismatch_status, stores_refusals

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By bearer token."""
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return named_error(401, "invalid_api_key")
        return None

    def other(self, request: HttpRequest) -> HttpAnswer:
        """There is one endpoint only."""
        if request.path == self.path:
            return named_error(405, "method_not_allowed")
        return named_error(404, "not_found")

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Anything that names a sender and recipients."""
        try:
            posted = posted_by_name(request)
        except (ValueError, AttributeError, TypeError, KeyError):
            return named_error(422, "validation_error")
        return posted if posted.recipients else named_error(422, "missing_required_field")

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - others show more of it
        """An id."""
        return 200, json.dumps({"id": provider_id}).encode()

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The stored answer, said to be one."""
        if not same:
            return named_error(self.mismatch_status, "invalid_idempotent_request")
        if known.answer is None:
            return named_error(409, "concurrent_idempotent_requests", ("Retry-After", "1"))
        return (*known.answer, (("Idempotent-Replayed", "true"),))
