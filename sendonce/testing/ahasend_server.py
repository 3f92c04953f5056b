"""AhaSend's API on loopback, as documented: https://ahasend.com/docs/api-reference

``POST /v2/accounts/{id}/messages/conversation`` with a bearer token; idempotency keys for 24 hours, refusals stored as
well, replays marked; an answer for each recipient; errors as ``{"message"}``; ``GET …/messages`` by tag, with a lag of
its own. It takes the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Known, Posted, posted_by_name
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

ACCOUNT = "8c0f1b5e-1d2a-4c57-9d6e-0a1b2c3d4e5f"
"""The account that there is."""
_MISMATCH = "idempotency key was already used with a different request payload"


class AhaSendServer(HttpServer):
    """The server; its attributes may be set at any time."""

    _messages = f"/v2/accounts/{ACCOUNT}/messages"
    path = f"{_messages}/conversation"
    id_prefix = "aha-"
    search_lag = 0.0
    """Seconds, by the server's own clock, until the list knows of a message."""
    verified: frozenset[str] | None = None
    """The From domains that are verified; None: all."""
    one_id = False
    """Give all recipients of a message the same id; AhaSend gives each one of its own."""
    failing: frozenset[str] = frozenset()
    """Mailboxes for which no message is made: the answer says so for these alone."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)
        self.stores_refusals = True
        self._sent: list[tuple[float, dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By bearer token."""
        authorization = request.headers.get("authorization", "")
        if not authorization.startswith("Bearer "):
            return _error(401, "Missing or malformed bearer token")
        if self.api_key is not None and authorization != f"Bearer {self.api_key}":
            return _error(401, "Invalid API key")
        if not 0 < len(request.headers.get("idempotency-key", "-")) <= 255:
            return _error(400, "invalid idempotency key")
        return None

    async def _first(
        self, request: HttpRequest, mine: Known, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpAnswer:
        status, body, headers = await super()._first(request, mine, reader, writer)
        if 400 <= status < 500:
            mine.answer = status, body
        return status, body, headers

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """At least one and at most 50 recipients, somebody in ``to``; a text; a verified From domain."""
        try:
            posted = posted_by_name(request)
            content = posted.content
            lists = [content[name] for name in ("to", "cc", "bcc") if name in content]
            files = [(file["file_name"], file["data"], file["content_type"]) for file in content.get("attachments", [])]
        except (ValueError, AttributeError, TypeError, KeyError):
            return _error(400, "invalid request body")
        if "to" not in content or "subject" not in content or not all(isinstance(one, list) and one for one in lists):
            return _error(400, "invalid request body")
        if len(posted.recipients) > 50 or not all(name and kind for name, _, kind in files):
            return _error(400, "invalid request body")
        if not (content.get("text_content") or content.get("html_content")):
            return _error(400, "Either text_content or html_content is required")
        if self.verified is not None and posted.sender.rpartition("@")[2] not in self.verified:
            return _error(403, "sender domain is not verified")
        left = tuple(one for one in posted.recipients if one not in self.failing)
        return Posted(posted.sender, left, content, posted.headers)

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """An entry for each recipient; the first one's id is the one that is stored."""
        named = [one for name in ("to", "cc", "bcc") for one in posted.content.get(name, [])]
        entries = []
        for number, one in enumerate(named):
            entry: dict[str, Any] = {"object": "message", "recipient": one, "id": None, "status": "error"}
            if one["email"] in posted.recipients:
                entry |= {
                    "id": provider_id if self.one_id or not number else f"{provider_id}.{number}",
                    "status": "queued",
                }
                self._sent.append(
                    (
                        self.clock(),
                        {
                            "object": "message",
                            "id": entry["id"],
                            "recipient": one["email"],
                            "tags": posted.content.get("tags", []),
                            "status": "Received",
                        },
                    )
                )
            else:
                entry["error"] = "the message was not sent"
            entries.append(entry)
        return 202, json.dumps({"object": "list", "data": entries}).encode()

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The stored answer as it was, and marked."""
        if not same:
            return _error(422, _MISMATCH)
        if known.answer is None:
            headers = (("Idempotent-Replayed", "false"), ("Retry-After", "5"))
            return (*_error(409, "A request with this idempotency key is already in progress")[:2], headers)
        return (*known.answer, (("Idempotent-Replayed", "true"),))

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The list of messages, newest first, by tags."""
        parts = urlsplit(request.path)
        if request.method != "GET" or parts.path != self._messages:
            return _error(404, "account not found")
        query = dict(parse_qsl(parts.query))
        wanted = set(query["tags"].split(",")) if "tags" in query else set()
        now = self.clock()
        found = [m for at, m in reversed(self._sent) if at + self.search_lag <= now and wanted <= set(m["tags"])]
        body = {"object": "list", "data": found[: int(query.get("limit", "100"))], "pagination": {"has_more": False}}
        return 200, json.dumps(body).encode(), ()


def _error(status: int, message: str) -> HttpAnswer:
    return status, json.dumps({"message": message}).encode(), ()
