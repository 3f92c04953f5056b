"""Brevo's API on loopback, as documented: https://developers.brevo.com/reference/send-transac-email

``POST /smtp/email`` with ``api-key``; a key in the body that is answered ``duplicate_parameter`` once it is known;
errors as ``{"code", "message"}``; ``GET /smtp/statistics/events`` by tag, with a lag of its own. Where Brevo's
documents are silent it does what users report: mail of a sender that is not validated is accepted, and dropped with an
event. It takes the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Known, Posted, mailbox_of
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

KEY_WINDOW = 1800.0
"""Seconds for which a key is remembered, as the guide has it; the changelog says half of it."""


def brevo_error(code: str, message: str = "refused") -> bytes:
    """The body of an error."""
    return json.dumps({"code": code, "message": message}).encode()


class BrevoServer(HttpServer):
    """The server; its attributes may be set at any time."""

    path = "/smtp/email"
    id_prefix = "brevo-"
    search_lag = 0.0
    """Seconds, by the server's own clock, until the report shows an event."""
    shows_tags = True
    """Whether the report's events name their tags."""
    blocked: frozenset[str] = frozenset()
    """Mailboxes, in lower case, that are accepted and get nothing."""
    validated: frozenset[str] | None = None
    """The From domains whose mail is sent; that of others is accepted and dropped. None: all."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`, with Brevo's window."""
        super().__init__(mailbox, *rules, **{"key_window": KEY_WINDOW, **options})
        self._events: list[tuple[float, tuple[str, ...], dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By API key."""
        key = request.headers.get("api-key")
        if key is None:
            return 401, brevo_error("unauthorized", "authentication not found in headers"), ()
        if self.api_key is not None and key != self.api_key:
            return 401, brevo_error("unauthorized", "Key not found"), ()
        return None

    def key_of(self, request: HttpRequest) -> str:
        """Out of the body's headers."""
        try:
            return str(json.loads(request.body)["headers"]["idempotencyKey"])
        except (ValueError, TypeError, KeyError):
            return ""

    def again(self, known: Known, *, same: bool) -> HttpAnswer:  # noqa: ARG002 - bodies are not compared
        """An error that holds no id."""
        return 400, brevo_error("duplicate_parameter", "the request has been processed already"), ()

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody in ``to``, a subject, an HTML part; names of files with an extension."""
        try:
            content = json.loads(request.body)
            sender = mailbox_of(content["sender"])
            named = tuple(mailbox_of(one) for field in ("to", "cc", "bcc") for one in content.get(field, []))
            fields = {str(name).lower(): str(value) for name, value in content.get("headers", {}).items()}
            files = [str(file["name"]) for file in content.get("attachment", []) if file["content"]]
            tags = content.get("tags", [])
        except (ValueError, AttributeError, TypeError, KeyError):
            return 400, brevo_error("bad_request", "Input must be a valid JSON object"), ()
        for field in ("to", "subject", "htmlContent"):
            if not content.get(field):
                return 400, brevo_error("missing_parameter", f"{field} is missing"), ()
        if not all("." in name for name in files) or not all(isinstance(tag, str) for tag in tags):
            return 400, brevo_error("invalid_parameter", "attachment or tag is not valid"), ()
        sent = self.validated is None or sender.rpartition("@")[2] in self.validated
        left = tuple(one for one in named if sent and one.lower() not in self.blocked)
        return Posted(sender, left, content, fields)

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """A messageId, whoever gets nothing."""
        content = posted.content
        tags = tuple(content.get("tags", []))
        for one in (one["email"] for field in ("to", "cc", "bcc") for one in content.get(field, [])):
            later = "delivered" if one in posted.recipients else "blocked" if one.lower() in self.blocked else "error"
            for kind in ("requests", later):
                event = {"email": one, "event": kind, "messageId": provider_id, "subject": content["subject"]}
                if self.shows_tags and tags:
                    event["tag"] = tags[0] if len(tags) == 1 else json.dumps(tags)
                self._events.append((self.clock(), tags, event))
        return 201, json.dumps({"messageId": provider_id}).encode()

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The report of events, newest first; nothing found is an empty object."""
        parts = urlsplit(request.path)
        query = dict(parse_qsl(parts.query))
        if request.method != "GET" or parts.path != "/smtp/statistics/events":
            return 404, brevo_error("document_not_found"), ()
        now = self.clock()
        found = [
            event
            for at, tags, event in reversed(self._events)
            if at + self.search_lag <= now and query.get("tags", "") in ("", *tags)
        ]
        start = int(query.get("offset", "0"))
        page = found[start : start + int(query.get("limit", "2500"))]
        return 200, json.dumps({"events": page} if page else {}).encode(), ()
