"""Lettermint's API on loopback, as documented: https://lettermint.co/docs/api-reference/sending/send

``POST /v1/send`` with ``x-lettermint-token``; idempotency keys for 24 hours, replayed with the same id; errors as
``{"error", "message"}``; ``GET /v1/messages`` by tag with the team's token, with a lag of its own. It takes the rules
in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Known, Posted, posted_by_name
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

_TAG = re.compile(r"[A-Za-z0-9_ -]{1,255}")
_MISMATCH = (
    "This idempotency key has already been used on a request with a different payload. Retrying this request requires "
    "changing the idempotency key or payload."
)


class LettermintServer(HttpServer):
    """The server; its attributes may be set at any time."""

    path = "/v1/send"
    id_prefix = "lm-"
    search_lag = 0.0
    """Seconds, by the server's own clock, until the list knows of a message."""
    team_token: str | None = None
    """The token that may list messages; None: nobody may."""
    verified: frozenset[str] | None = None
    """The From domains that are verified; None: all. What an unverified one is answered is not documented."""
    suppressed: frozenset[str] = frozenset()
    """Mailboxes that get nothing: a message to one of them alone is answered as ``suppressed``."""
    daily_limit: int | None = None
    """How many mails are taken; None: any number."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)
        self._sent: list[tuple[float, dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By project token; a team's token lists messages and sends none."""
        if request.method == "GET":
            wanted = f"Bearer {self.team_token}" if self.team_token else None
            return None if wanted and request.headers.get("authorization") == wanted else _error(401, "Unauthorized")
        token = request.headers.get("x-lettermint-token")
        if token is None or (self.api_key is not None and token != self.api_key):
            return _error(401, "Unauthorized")
        if not 0 < len(request.headers.get("idempotency-key", "-")) <= 255:
            return _error(400, "invalid_idempotency_key")
        return None

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody in ``to``; a body; a tag of its alphabet; a verified From domain."""
        try:
            posted = posted_by_name(request)
            content = posted.content
            files = [(file["filename"], file["content"]) for file in content.get("attachments", [])]
        except (ValueError, AttributeError, TypeError, KeyError):
            return _error(422, "ValidationError")
        if not content.get("to") or len(content["subject"]) > 998 or not {"html", "text"} & content.keys():
            return _error(422, "ValidationError")
        if not _TAG.fullmatch(content.get("tag", "-")) or not all(name and data for name, data in files):
            return _error(422, "ValidationError")
        if self.verified is not None and posted.sender.rpartition("@")[2] not in self.verified:
            return _error(422, "DomainNotVerified")
        if self.daily_limit is not None and len(self.mailbox.mails()) >= self.daily_limit:
            return _error(422, "DailyLimitExceeded")
        return posted

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """A message id, and what is to be done with the message."""
        status = "suppressed" if set(posted.recipients) <= self.suppressed else "pending"
        message = {"id": provider_id, "type": "outbound", "status": status, "tag": posted.content.get("tag")}
        self._sent.append((self.clock(), message))
        return 202, json.dumps({"message_id": provider_id, "status": status}).encode()

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The stored answer as it was."""
        if not same:
            return _error(409, "invalid_idempotent_request", _MISMATCH)
        if known.answer is None:
            return _error(409, "concurrent_idempotent_requests")
        return (*known.answer, ())

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The list of messages, newest first, by one tag."""
        parts = urlsplit(request.path)
        if request.method != "GET" or parts.path != "/v1/messages":
            return _error(404, "NotFound")
        query = dict(parse_qsl(parts.query))
        now = self.clock()
        found = [
            message
            for at, message in reversed(self._sent)
            if at + self.search_lag <= now and query.get("filter[tag]") in (None, message["tag"])
        ]
        page = found[: int(query.get("page[size]", "30"))]
        return 200, json.dumps({"data": page, "per_page": len(page), "next_cursor": None}).encode(), ()


def _error(status: int, code: str, message: str = "refused") -> HttpAnswer:
    return status, json.dumps({"error": code, "message": message}).encode(), ()
