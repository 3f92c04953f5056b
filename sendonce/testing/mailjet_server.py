"""Mailjet's API on loopback, as documented: https://dev.mailjet.com/email/guides/send-api-v31/

``POST /v3.1/send`` with basic authentication, no idempotency keys, one result for each message of a request, errors
with codes; ``GET /v3/REST/message`` by ``CustomID``, with a lag of its own. It takes the rules in
:mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Posted
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

_LISTS = ("To", "Cc", "Bcc")
_MAILBOX = re.compile(r"[^@\s]+@[^@\s]+\.[A-Za-z][A-Za-z0-9-]*")
_FORBIDDEN = frozenset({"from", "sender", "subject", "to", "cc", "bcc", "reply-to", "date", "message-id", "user-agent"})


def mailjet_error(code: str, status: int = 400, message: str = "refused", *related: str) -> dict[str, Any]:
    """One error, as it stands in a message's result or as a whole body."""
    return {
        "ErrorIdentifier": "06df1144-c6f3-4ca7-8885-7ec5d4344113",
        "ErrorCode": code,
        "StatusCode": status,
        "ErrorMessage": message,
        "ErrorRelatedTo": list(related),
    }


class MailjetServer(HttpServer):
    """The server; its attributes may be set at any time. ``api_key`` is the pair ``"public:private"``."""

    path = "/v3.1/send"
    id_prefix = "5764607"
    search_lag = 0.0
    """Seconds, by the server's own clock, until the list knows of a message."""
    senders: frozenset[str] | None = None
    """The From domains that are validated; None: all."""
    one_id = False
    """Give all recipients of a message the same id; Mailjet gives each one of its own."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)
        self._sent: list[tuple[float, dict[str, Any]]] = []
        self._numbers = itertools.count(1)

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By basic authentication."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        wanted = base64.b64encode((self.api_key or "").encode()).decode()
        if scheme != "Basic" or (self.api_key is not None and credentials != wanted):
            return 401, json.dumps(mailjet_error("mj-0015", 401, "API key authentication failure")).encode(), ()
        return None

    def key_of(self, request: HttpRequest) -> str:  # noqa: ARG002 - whatever it holds
        """Mailjet keeps no keys."""
        return ""

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """One message to somebody in ``To``, at most 50 in all; a text; headers it lets be set; a validated sender."""
        try:
            [message] = json.loads(request.body)["Messages"]
            sender = message["From"]["Email"]
            named = {name: [one["Email"] for one in message.get(name, [])] for name in _LISTS}
            headers = {str(name).lower(): str(value) for name, value in message.get("Headers", {}).items()}
            for file in message.get("Attachments", []) + message.get("InlinedAttachments", []):
                base64.b64decode(file["Base64Content"], validate=True)
        except (ValueError, AttributeError, TypeError, KeyError):
            error = mailjet_error("mj-0002", 400, "Malformed JSON, please review the syntax and properties types.")
            return 400, json.dumps(error).encode(), ()
        if not named["To"]:
            return _refused(mailjet_error("mj-0003", 400, "The To is mandatory but missing from the input", "To"))
        recipients = [mailbox for name in _LISTS for mailbox in named[name]]
        if len(recipients) > 50:
            return _refused(mailjet_error("send-0015", 400, "too many recipients", *_LISTS))
        if not {"HTMLPart", "TextPart"} & message.keys():
            return _refused(mailjet_error("send-0003", 400, "no text", "HTMLPart", "TextPart", "TemplateID"))
        set_by_property = [f'Headers["{name}"]' for name in headers if name in _FORBIDDEN]
        if set_by_property:
            return _refused(mailjet_error("send-0011", 400, "Header cannot be customized", *set_by_property))
        bad = [
            mailjet_error("mj-0013", 400, f'"{mailbox}" is an invalid email address.', f"{name}[{place}].Email")
            for name in _LISTS
            for place, mailbox in enumerate(named[name])
            if not _MAILBOX.fullmatch(mailbox)
        ]
        if bad:
            return _refused(*bad)
        if self.senders is not None and sender.rpartition("@")[2] not in self.senders:
            return _refused(mailjet_error("send-0008", 403, "sender not authorized", "From"), status=403)
        return Posted(sender, tuple(recipients), message, headers)

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """A message id for each recipient; the first one's is the one that is stored."""
        message = posted.content
        lists: dict[str, list[dict[str, Any]]] = {name: [] for name in _LISTS}
        for name in _LISTS:
            for one in message.get(name, []):
                first = self.one_id or not any(lists.values())
                number = int(provider_id if first else f"{self.id_prefix}{next(self._numbers):09d}")
                lists[name].append({"Email": one["Email"], "MessageID": number, "MessageUUID": f"u-{number}"})
                entry = {"ID": number, "ContactID": next(self._numbers), "CustomID": message.get("CustomID", "")}
                self._sent.append((self.clock(), entry))
        result = {"Status": "success", "CustomID": message.get("CustomID", ""), **lists}
        return 200, json.dumps({"Messages": [result]}).encode()

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The list of messages by ``CustomID``, which is shown only when asked for."""
        parts = urlsplit(request.path)
        if request.method != "GET" or parts.path != "/v3/REST/message":
            return 404, json.dumps({"ErrorMessage": "Object not found", "StatusCode": 404}).encode(), ()
        query = dict(parse_qsl(parts.query))
        now = self.clock()
        found = [
            entry
            for at, entry in self._sent
            if at + self.search_lag <= now and query.get("CustomID") in (None, entry["CustomID"])
        ]
        shown = [entry if query.get("ShowCustomID") == "true" else {**entry, "CustomID": ""} for entry in found]
        page = shown[: int(query.get("Limit", "10"))]
        return 200, json.dumps({"Count": len(page), "Data": page, "Total": len(found)}).encode(), ()


def _refused(*errors: dict[str, Any], status: int = 400) -> HttpAnswer:
    return status, json.dumps({"Messages": [{"Status": "error", "Errors": list(errors)}]}).encode(), ()
