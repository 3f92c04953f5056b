"""SendGrid's API on loopback, as documented: https://www.twilio.com/docs/sendgrid/api-reference

``POST /v3/mail/send`` with a bearer token, answered 202 with an empty body and ``X-Message-Id``; no idempotency keys;
errors as ``{"errors": [{"message", "field", "help"}]}``; the search of the Email Activity API by one unique argument,
for accounts that have it, with a lag of its own. It takes the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Posted, mailbox_of
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

_OURS = re.compile(r"(?i)x-sg-id|x-sg-eid|received|dkim-signature|content-.*|to|from|subject|reply-to|cc|bcc")
_QUERY = re.compile(r"\(unique_args\['(?P<name>\w+)'\]=\"(?P<value>[^\"]*)\"\)")


def sendgrid_error(message: str = "refused", field: str | None = None) -> bytes:
    """The body of an error."""
    return json.dumps({"errors": [{"message": message, "field": field, "help": None}]}).encode()


class SendGridServer(HttpServer):
    """The server; its attributes may be set at any time."""

    path = "/v3/mail/send"
    id_prefix = "sg-"
    senders: frozenset[str] | None = None
    """The From domains with a verified identity; None: all."""
    email_activity = True
    """Whether the account has bought what makes its messages searchable."""
    search_lag = 0.0
    """Seconds, by the server's own clock, until the search finds a message."""
    search_filters = True
    """False: the search overlooks its filter and answers with everything."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)
        self._sent: list[tuple[float, dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By bearer token."""
        authorization = request.headers.get("authorization")
        if authorization is None or (self.api_key is not None and authorization != f"Bearer {self.api_key}"):
            return 401, sendgrid_error("The provided authorization grant is invalid, expired, or revoked"), ()
        return None

    def key_of(self, request: HttpRequest) -> str:  # noqa: ARG002 - whatever it holds
        """SendGrid keeps no keys."""
        return ""

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """One personalization with somebody in To and nobody twice; a subject; texts and headers of its rules."""
        try:
            content = json.loads(request.body)
            sender = mailbox_of(content["from"])
            [one] = content["personalizations"]
            named = tuple(mailbox_of(to) for group in ("to", "cc", "bcc") for to in one.get(group, []))
            texts = [(part["type"], part["value"]) for part in content["content"]]
            files = [
                (file["content"], file["filename"], file.get("type", "")) for file in content.get("attachments", [])
            ]
            fields = {str(name).lower(): str(value) for name, value in content.get("headers", {}).items()}
            custom = sum(len(name) + len(value) for name, value in content.get("custom_args", {}).items())
        except (ValueError, AttributeError, TypeError, KeyError):
            return _refused("Bad Request")
        if not one.get("to"):
            return _refused("The to array is required.", "personalizations.0.to")
        if len({address.lower() for address in named}) != len(named):
            return _refused("Each email address in the personalization block should be unique", "personalizations.0")
        if not content.get("subject"):
            return _refused("The subject is required.", "subject")
        order = [kind for kind, _ in texts]
        if not texts or not all(value for _, value in texts) or order != sorted(order, reverse=True):
            return _refused("The content value must be a string at least one character in length.", "content")
        if any(not data or ";" in kind for data, _, kind in files):
            return _refused("The attachment type cannot contain ';', or CRLF characters.", "attachments.0.type")
        if any(_OURS.fullmatch(name) or not value.isascii() for name, value in fields.items()) or custom > 10_000:
            return _refused("The headers or custom arguments are not allowed.", "headers")
        if self.senders is not None and sender.rpartition("@")[2] not in self.senders:
            return 403, sendgrid_error("The from address does not match a verified Sender Identity.", "from"), ()
        return Posted(sender, named, content, fields, fields.get("message-id", ""))

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """The id, which :meth:`_answer` makes a header of."""
        arguments = posted.content.get("custom_args", {})
        for number, recipient in enumerate(posted.recipients):
            shown = {"msg_id": f"{provider_id}.filter-{number}", "to_email": recipient, "status": "processed"}
            self._sent.append((self.clock(), {**shown, "unique_args": arguments}))
        return 202, provider_id.encode()

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The Email Activity API: the search, newest first, and one message whole."""
        parts = urlsplit(request.path)
        if request.method != "GET" or not parts.path.startswith("/v3/messages"):
            return 404, sendgrid_error("not found"), ()
        if not self.email_activity:
            return 403, sendgrid_error("access forbidden"), ()
        now = self.clock()
        there = [message for at, message in reversed(self._sent) if at + self.search_lag <= now]
        if parts.path != "/v3/messages":
            found = [one for one in there if parts.path == f"/v3/messages/{one['msg_id']}"]
            if not found:
                return 404, sendgrid_error("not found"), ()
            # As text, and not as JSON: so it stands in the examples of the vendor.
            return 200, json.dumps({**found[0], "unique_args": str(found[0]["unique_args"])}).encode(), ()
        query = parse_qs(parts.query)
        asked = _QUERY.fullmatch(query.get("query", [""])[0])
        if asked is None:
            return 400, sendgrid_error("invalid syntax"), ()
        if self.search_filters:
            there = [one for one in there if one["unique_args"].get(asked["name"]) == asked["value"]]
        page = [{name: one[name] for name in ("msg_id", "to_email", "status")} for one in there]
        return 200, json.dumps({"messages": page[: int(query.get("limit", ["10"])[0])]}).encode(), ()

    async def _answer(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpAnswer:
        status, body, headers = await super()._answer(request, reader, writer)
        if status == 202 and body:
            return status, b"", (("X-Message-Id", body.decode()), *headers)
        return status, body, headers


def _refused(message: str, field: str | None = None) -> HttpAnswer:
    return 400, sendgrid_error(message, field), ()
