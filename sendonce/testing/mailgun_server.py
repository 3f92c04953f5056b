"""Mailgun's API on loopback, as documented: https://documentation.mailgun.com/docs/mailgun/api-reference

``POST /v3/{domain}/messages.mime`` as a form with basic authentication; no idempotency keys; errors as
``{"message"}``; the search for events by Message-ID, page by page, with a lag of its own. It takes the rules in
:mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import base64
import email
import email.policy
import json
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Posted, mailbox_of
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox, StoredMail


def mailgun_error(message: str = "refused") -> bytes:
    """The body of an error."""
    return json.dumps({"message": message}).encode()


class MailgunServer(HttpServer):
    """The server; its attributes may be set at any time."""

    disabled = False
    """The domain may not send."""
    search_lag = 0.0
    """Seconds, by the server's own clock, until the search finds an event."""
    page_limit = 300
    """Events on a page at most."""
    rejected: frozenset[str] = frozenset()
    """Mailboxes, in lower case, whom a mail that was taken is not sent to."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, domain: str, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`; ``domain`` is the account's only one."""
        super().__init__(mailbox, *rules, **options)
        self.domain = domain
        self.path = f"/v3/{domain}/messages.mime"
        self._events: list[tuple[float, dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By basic authentication."""
        user, _, key = _credentials(request).partition(":")
        if user != "api" or (self.api_key is not None and key != self.api_key):
            return 401, b"Forbidden", ()
        return None

    def key_of(self, request: HttpRequest) -> str:  # noqa: ARG002 - whatever it holds
        """Mailgun keeps no keys."""
        return ""

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody in ``to``; a message that is a file; variables within their limit."""
        kind = request.headers.get("content-type", "")
        if not kind.startswith("multipart/form-data"):
            return 400, mailgun_error("Invalid request content type. Expecting 'multipart/form-data'"), ()
        whole = b"Content-Type: " + kind.encode() + b"\r\n\r\n" + request.body
        form = email.message_from_bytes(whole, policy=email.policy.HTTP)
        to: list[str] = []
        variables: dict[str, str] = {}
        message: Any = None
        for part in form.iter_parts():
            name = str(part.get_param("name", header="content-disposition"))
            if name == "message":
                message = part
            elif name == "to":
                to.append(part.get_content().strip())
            elif name.startswith("v:"):
                variables[name.removeprefix("v:")] = part.get_content().strip()
        if message is None or not to:
            return 400, mailgun_error(f"{'to' if message else 'message'} parameter is missing"), ()
        if message.get_filename() is None:
            return 400, mailgun_error("'message' parameter is not a file"), ()
        try:
            named = tuple(mailbox_of(one) for one in to)
        except ValueError:
            return 400, mailgun_error("to parameter is not a valid address. please check documentation"), ()
        if sum(len(name) + len(value) for name, value in variables.items()) > 16_000 or len(named) > 1000:
            return 400, mailgun_error("Send options are limited to 16 kB total"), ()
        if self.disabled:
            return 403, mailgun_error(f"Domain {self.domain} is not allowed to send: Please activate your account"), ()
        sent = message.get_content()
        fields = {name.lower(): str(value) for name, value in sent.items()}
        return Posted(mailbox_of(fields["from"]), named, variables, fields, fields.get("message-id", ""))

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """The id, which is the Message-ID."""
        for recipient in posted.recipients:
            event = {
                "event": "rejected" if recipient.lower() in self.rejected else "accepted",
                "recipient": recipient,
                "user-variables": posted.content,
                "message": {"headers": {"message-id": provider_id.strip("<>")}},
            }
            self._events.append((self.clock(), event))
        return 200, json.dumps({"id": provider_id, "message": "Queued. Thank you."}).encode()

    def _store(self, request: HttpRequest, posted: Posted) -> str:
        # What names a mail here is its Message-ID, ours or Mailgun's own.
        provider_id = posted.message_id or f"<{next(self._ids)}@{self.domain}>"
        headers, message_id = posted.headers, posted.message_id
        stored = StoredMail(posted.sender, posted.recipients, request.body, message_id, provider_id, "", headers)
        self.mailbox.store(stored)
        return provider_id

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The search for events, oldest first; a wrong URL is answered 200."""
        parts = urlsplit(request.path)
        query = dict(parse_qsl(parts.query))
        if not parts.path.startswith("/v3/"):
            return 200, b"Mailgun Magnificent API", ()
        if parts.path.split("/")[2] != self.domain:
            return 404, mailgun_error("Domain not found"), ()
        if request.method != "GET" or parts.path != f"/v3/{self.domain}/events":
            return 405, mailgun_error("method not allowed"), ()
        if query.get("ascending") not in ("yes", "no") or not query.get("begin", "").isdecimal():
            return 400, mailgun_error("begin and ascending, or end, must be given"), ()
        now, kinds = self.clock(), query.get("event", "").split(" OR ")
        found = [
            event
            for at, event in self._events
            if at + self.search_lag <= now
            and query.get("message-id") in (None, event["message"]["headers"]["message-id"])
            and (kinds == [""] or event["event"] in kinds)
        ]
        start, limit = int(query.get("page", "0")), min(int(query.get("limit", "100")), self.page_limit)
        rest = "&".join(f"{name}={quote(value)}" for name, value in query.items() if name != "page")
        following = f"{self.origin}{parts.path}?{rest}&page={start + limit}"
        body = {"items": found[start : start + limit], "paging": {"next": following}}
        return 200, json.dumps(body).encode(), ()


def _credentials(request: HttpRequest) -> str:
    kind, _, pair = request.headers.get("authorization", "").partition(" ")
    try:
        return base64.b64decode(pair, validate=True).decode() if kind.lower() == "basic" else ""
    except ValueError:
        return ""
