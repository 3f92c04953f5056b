"""Postmark's API on loopback, as documented: https://postmarkapp.com/developer/api/overview

``POST /email`` with ``X-Postmark-Server-Token``, no idempotency keys, errors as ``{"ErrorCode", "Message"}``, inactive
recipients; ``GET /messages/outbound`` by metadata, with a lag of its own. It takes the rules in
:mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import json
from email.utils import getaddresses
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Posted, mailbox_of
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox


def postmark_error(code: int, message: str = "refused") -> bytes:
    """The body of an error."""
    return json.dumps({"ErrorCode": code, "Message": message}).encode()


class PostmarkServer(HttpServer):
    """The server; its attributes may be set at any time."""

    path = "/email"
    id_prefix = "pm-"
    search_lag = 0.0
    """Seconds, by the server's own clock, until the search finds a message."""
    streams = frozenset({"outbound"})
    """The message streams there are."""
    senders: frozenset[str] | None = None
    """The From domains with a confirmed signature; None: all."""
    inactive: frozenset[str] = frozenset()
    """Mailboxes, in lower case, that bounced or complained before."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)
        self._sent: list[tuple[float, dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By server token."""
        token = request.headers.get("x-postmark-server-token")
        if token is None or (self.api_key is not None and token != self.api_key):
            return 401, postmark_error(10, "Request does not contain a valid Server token."), ()
        return None

    def key_of(self, request: HttpRequest) -> str:  # noqa: ARG002 - whatever it holds
        """Postmark keeps no keys."""
        return ""

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody in To, Cc or Bcc who is not inactive; metadata within its limits; a stream that exists."""
        try:
            content = json.loads(request.body)
            sender = mailbox_of(content["From"])
            named = _named(content)
            fields = {str(one["Name"]).lower(): str(one["Value"]) for one in content.get("Headers", [])}
            metadata: dict[str, str] = content.get("Metadata", {})
            long = [name for name, value in metadata.items() if len(name) > 20 or len(value) > 80]
        except (ValueError, AttributeError, TypeError, KeyError):
            return _refused(402, "Received invalid JSON input.")
        if not {"HtmlBody", "TextBody"} & content.keys():
            return _refused(300, "Provide either email TextBody or HtmlBody or both.")
        for address in named:
            if "@" not in address:
                return _refused(300, f"Error parsing 'To': Illegal email address '{address}'. It must contain the '@'.")
        if long or len(metadata) > 10:
            return _refused(300, "Invalid metadata content.")
        if content.get("MessageStream", "outbound") not in self.streams:
            return _refused(1235, "The 'MessageStream' provided does not exist on this server.")
        if self.senders is not None and sender.rpartition("@")[2] not in self.senders:
            return _refused(400, "The 'From' address you supplied is not a Sender Signature on your account.")
        left = tuple(address for address in named if address.lower() not in self.inactive)
        if not left:
            out = self._inactive(named)
            return _refused(406, f"You tried to send to a recipient that is inactive.\n Found {_listed(out)}")
        kept = fields.get("x-pm-keepid", "").lower() == "true"
        message_id = fields.get("message-id", "") if kept else f"<{len(self.mailbox.mails())}@mtasv.test>"
        return Posted(sender, left, content, fields, message_id)

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """A MessageID; those who get nothing are named in the Message only."""
        message = "OK"
        if out := self._inactive(_named(posted.content)):
            message = f"Message OK, but will not deliver to these {_listed(out)}"
        self._sent.append(
            (
                self.clock(),
                {
                    "MessageID": provider_id,
                    "Recipients": list(posted.recipients),
                    "Status": "Sent",
                    "Metadata": posted.content.get("Metadata", {}),
                },
            )
        )
        body = {"To": posted.content.get("To"), "MessageID": provider_id, "ErrorCode": 0, "Message": message}
        return 200, json.dumps(body).encode()

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The search for messages, newest first, by one metadata field."""
        parts = urlsplit(request.path)
        query = dict(parse_qsl(parts.query))
        if request.method != "GET" or parts.path != "/messages/outbound":
            return 404, b"", ()
        filters = {name.removeprefix("metadata_"): value for name, value in query.items() if name[:9] == "metadata_"}
        if not {"count", "offset"} <= query.keys() or len(filters) > 1:
            return _refused(700, "Invalid search.")
        now = self.clock()
        found = [
            message
            for at, message in reversed(self._sent)
            if at + self.search_lag <= now and filters.items() <= message["Metadata"].items()
        ]
        page = found[int(query["offset"]) :][: int(query["count"])]
        return 200, json.dumps({"TotalCount": len(found), "Messages": page}).encode(), ()

    def _inactive(self, named: list[str]) -> list[str]:
        return sorted({address.lower() for address in named} & self.inactive)


def _refused(code: int, message: str) -> HttpAnswer:
    return 422, postmark_error(code, message), ()


def _named(content: dict[str, Any]) -> list[str]:
    # What is not there is nobody: later Pythons make an address of an empty text.
    fields = [content[field] for field in ("To", "Cc", "Bcc") if content.get(field)]
    return [address for _, address in getaddresses(fields)]


def _listed(addresses: list[str]) -> str:
    return f"inactive addresses: {', '.join(addresses)}.\n Inactive recipients are ones that have hard bounced."
