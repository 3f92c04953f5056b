"""SparkPost's API on loopback, as documented: https://developers.sparkpost.com/api/

``POST /api/v1/transmissions`` with the API key as ``Authorization``; idempotency keys for 24 hours, replayed with
``X-Idempotent-Replayed``; errors as ``{"errors": [{"message", "code"}]}``; recipients that are counted, not named; the
search for events by campaign, with a lag of its own. It takes the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import email
import email.policy
import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Known, Posted, mailbox_of
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

_KEY = re.compile(r"[A-Za-z0-9._-]{1,255}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def sparkpost_error(code: str, message: str = "refused") -> bytes:
    """The body of an error; without a code it names none."""
    return json.dumps({"errors": [{"message": message} | ({"code": code} if code else {})]}).encode()


class SparkPostServer(HttpServer):
    """The server; its attributes may be set at any time."""

    path = "/api/v1/transmissions"
    id_prefix = "1175"
    domains: frozenset[str] | None = None
    """The sending domains that are verified; None: all."""
    rejected: frozenset[str] = frozenset()
    """Mailboxes, in lower case, that are counted as rejected."""
    suppressed: frozenset[str] = frozenset()
    """Mailboxes, in lower case, that are counted as accepted, and for whom no message is made."""
    search_lag = 60.0
    """Seconds, by the server's own clock, until the search finds an event."""

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)
        self._events: list[tuple[float, dict[str, Any]]] = []

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By API key, which stands there as it is."""
        authorization = request.headers.get("authorization")
        if authorization is None or (self.api_key is not None and authorization != self.api_key):
            return 401, sparkpost_error("", "Unauthorized."), ()
        if request.method == "POST" and not _KEY.fullmatch(request.headers.get("idempotency-key", "-")):
            return 400, sparkpost_error("1602", "Invalid Idempotency-Key"), ()
        return None

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody who is not rejected; content that is inline or raw; a verified domain; limits of its members."""
        try:
            body = json.loads(request.body)
            named = [mailbox_of(one["address"]) for one in body["recipients"]]
            content = body["content"]
            fields = _fields(content)
            sender = mailbox_of(fields["from"])
        except (ValueError, AttributeError, TypeError, KeyError):
            return 422, sparkpost_error("1300", "invalid data format/type"), ()
        if "email_rfc822" not in content and (
            "subject" not in content or not (content.get("text") or content.get("html"))
        ):
            return 422, sparkpost_error("1400", "required field is missing"), ()
        if len(body.get("campaign_id", "").encode()) > 64 or len(json.dumps(body.get("metadata", {}))) > 10_000:
            return 422, sparkpost_error("1300", "invalid data length"), ()
        if self.domains is not None and sender.rpartition("@")[2] not in self.domains:
            return 400, sparkpost_error("7001", "Invalid domain"), ()
        left = tuple(one for one in named if one.lower() not in self.rejected)
        if not left:
            return 400, sparkpost_error("5002", "No valid recipients"), ()
        # The Message-ID is SparkPost's own.
        return Posted(sender, left, body, fields)

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:
        """How many were accepted and rejected, and an id."""
        named = len(posted.content["recipients"])
        for recipient in posted.recipients:
            out = recipient.lower() in self.suppressed
            event = {
                "type": "policy_rejection" if out else "injection",
                "campaign_id": posted.content.get("campaign_id"),
                "transmission_id": provider_id,
                "rcpt_to": recipient.lower(),
                "raw_rcpt_to": recipient,
                "rcpt_meta": posted.content.get("metadata", {}),
            }
            self._events.append((self.clock(), event))
        counts = {
            "total_rejected_recipients": named - len(posted.recipients),
            "total_accepted_recipients": len(posted.recipients),
        }
        return 200, json.dumps({"results": {**counts, "id": provider_id}}).encode()

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The stored answer, marked as such."""
        if not same:
            return 409, sparkpost_error("1600", "Idempotency-Key was used with another request"), ()
        if known.answer is None:
            return 409, sparkpost_error("1601", "A request with this Idempotency-Key is in progress"), ()
        return (*known.answer, (("X-Idempotent-Replayed", "true"),))

    def other(self, request: HttpRequest) -> HttpAnswer:
        """The search for events by campaign."""
        parts = urlsplit(request.path)
        query = dict(parse_qsl(parts.query))
        if request.method != "GET" or parts.path != "/api/v1/events/message":
            return 404, sparkpost_error("1600", "resource not found"), ()
        if not _TIME.fullmatch(query.get("from", "")) or not 1 <= int(query.get("per_page", "1000")) <= 10_000:
            return 400, sparkpost_error("1200", "invalid params"), ()
        now = self.clock()
        there = [event for at, event in self._events if at + self.search_lag <= now]
        found = [event for event in there if query.get("campaigns", event["campaign_id"]) == event["campaign_id"]]
        page = found[: int(query.get("per_page", "1000"))]
        return 200, json.dumps({"results": page, "total_count": len(found), "links": {}}).encode(), ()


def _fields(content: dict[str, Any]) -> dict[str, Any]:
    """The header fields, names in lower case. Raises for content that is neither inline nor raw."""
    if "email_rfc822" in content:
        message = email.message_from_string(content["email_rfc822"], policy=email.policy.default)
        return {name.lower(): str(value) for name, value in message.items()}
    return {"from": content["from"]} | {name.lower(): value for name, value in content.get("headers", {}).items()}
