"""Azure Communication Services Email on loopback, as documented: https://learn.microsoft.com/rest/api/communication

``POST /emails:send`` with an HMAC signature, repeatable for five minutes; errors as ``{"error": {"code", "message"}}``;
``GET /emails/operations/{id}``, with a lag of its own. It takes the rules in
:mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Known, Posted
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox, StoredMail

VERSION = "2025-09-01"
"""The version of the API that is spoken."""
_SIGNED = "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature="
_LISTS = ("to", "cc", "bcc")


class AzureServer(HttpServer):
    """The server; its attributes may be set at any time. ``api_key`` is the access key, base64."""

    path = f"/emails:send?api-version={VERSION}"
    search_lag = 0.0
    """Seconds, by the server's own clock, until an operation is found by its id."""
    linked: frozenset[str] | None = None
    """The From domains that are linked to the resource; None: all."""
    suppressed: frozenset[str] = frozenset()
    """Mailboxes that get nothing: a message to nobody else is taken, and its operation fails."""
    guids = True
    """Refuse ids of requests that are no GUIDs, as Azure does."""
    wall: Callable[[], datetime] = staticmethod(lambda: datetime.now(UTC))
    """The time of day, which ``Repeatability-First-Sent`` is compared with; aware."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`; the window is five minutes."""
        super().__init__(mailbox, *rules, **{"key_window": 300.0, **options})
        self.stores_refusals = True
        self._operations: dict[str, tuple[float, dict[str, Any]]] = {}

    def key_of(self, request: HttpRequest) -> str:
        """The id of a repeatable request."""
        return request.headers.get("repeatability-request-id", "")

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By signature; then what makes a request repeatable must be valid, and not older than the window."""
        if not self._signed(request):
            return _error(401, "Denied", "Denied by the resource provider.")
        named = [request.headers.get(f"repeatability-{name}") for name in ("request-id", "first-sent")]
        if request.method != "POST" or named == [None, None]:
            return None
        rejected = (("Repeatability-Result", "rejected"),)
        try:
            if self.guids:
                UUID(str(named[0]))
            first_sent = parsedate_to_datetime(str(named[1]))
        except ValueError:
            return *_error(400, "BadRequest", "invalid repeatability headers")[:2], rejected
        if abs((self.wall() - first_sent).total_seconds()) > self.key_window:
            message = "Repeatability-First-Sent is outside of the tracked window"
            headers = (*rejected, ("Date", format_datetime(self.wall(), usegmt=True)))
            return *_error(412, "PreconditionFailed", message)[:2], headers
        return None

    async def _first(
        self, request: HttpRequest, mine: Known, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpAnswer:
        status, body, headers = await super()._first(request, mine, reader, writer)
        if 400 <= status < 500:
            mine.answer = status, body
        return status, body, headers

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody in ``to``; a subject and a text; a From domain that is linked."""
        try:
            content = json.loads(request.body)
            sender = content["senderAddress"]
            recipients = tuple(one["address"] for name in _LISTS for one in content["recipients"].get(name, []))
            text = content["content"]
            fields = {str(name).lower(): str(value) for name, value in content.get("headers", {}).items()}
            for file in content.get("attachments", []):
                base64.b64decode(file["contentInBase64"], validate=True)
        except (ValueError, AttributeError, TypeError, KeyError):
            return _error(400, "BadRequest", "the request body is invalid")
        if not content["recipients"].get("to") or "subject" not in text or not {"plainText", "html"} & text.keys():
            return _error(400, "BadRequest", "the request body is invalid")
        if not all("@" in mailbox for mailbox in recipients):
            return _error(400, "InvalidEmailAddress", "the email address is invalid")
        if self.linked is not None and sender.rpartition("@")[2] not in self.linked:
            return _error(404, "DomainNotLinked", "The specified sender domain has not been linked.")
        content["operation"] = request.headers.get("operation-id") or str(uuid4())
        message_id = fields.get("message-id", "")
        return Posted(sender, recipients, content, fields, message_id)

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - the id is the caller's
        """The operation, which has not ended yet; it fails if everybody is suppressed."""
        operation = posted.content["operation"]
        result: dict[str, Any] = {"id": operation, "status": "Succeeded"}
        if set(posted.recipients) <= self.suppressed:
            error = {"code": "EmailDroppedAllRecipientsSuppressed", "message": "all recipients were suppressed"}
            result |= {"status": "Failed", "error": error}
        self._operations[operation] = self.clock(), result
        return 202, json.dumps({"id": operation, "status": "Running", "error": None}).encode()

    def _store(self, request: HttpRequest, posted: Posted) -> str:
        operation = str(posted.content["operation"])
        self.mailbox.store(
            StoredMail(
                posted.sender,
                posted.recipients,
                request.body,
                posted.message_id,
                operation,
                self.key_of(request),
                posted.headers,
            )
        )
        return operation

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The first one's status and body."""
        if not same:
            headers = (("Repeatability-Result", "rejected"),)
            return *_error(400, "BadRequest", "the request differs from the one that it repeats")[:2], headers
        if known.answer is None:
            return _error(409, "Conflict", "the request is in progress")
        return (*known.answer, (("Repeatability-Result", "accepted"),))

    def other(self, request: HttpRequest) -> HttpAnswer:
        """One operation, by its id."""
        parts = urlsplit(request.path)
        place, _, operation = parts.path.rpartition("/")
        if request.method != "GET" or place != "/emails/operations" or parts.query != f"api-version={VERSION}":
            return _error(404, "NotFound", "not found")
        at, result = self._operations.get(operation, (0.0, None))
        if result is None or at + self.search_lag > self.clock():
            return _error(404, "NotFound", "Requested message could not be located.")
        return 200, json.dumps(result).encode(), ()

    def _signed(self, request: HttpRequest) -> bool:
        given = request.headers.get("authorization", "")
        content = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        if not given.startswith(_SIGNED) or request.headers.get("x-ms-content-sha256") != content:
            return False
        if self.api_key is None:
            return True
        date, host = request.headers.get("x-ms-date", ""), request.headers.get("host", "")
        to_sign = f"{request.method}\n{request.path}\n{date};{host};{content}"
        wanted = hmac.new(base64.b64decode(self.api_key), to_sign.encode(), hashlib.sha256).digest()
        return hmac.compare_digest(given.removeprefix(_SIGNED), base64.b64encode(wanted).decode())


def _error(status: int, code: str, message: str) -> HttpAnswer:
    return status, json.dumps({"error": {"code": code, "message": message}}).encode(), (("x-ms-error-code", code),)
