"""What a playing HTTP server reads and answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from email.utils import parseaddr
from typing import Any, Literal

HttpEvent = Literal["request", "accepted", "answered"]
"""Points at which a hook is awaited: the whole request was read; the mail was accepted and the answer is not written;
the answer is written."""

HttpAnswer = tuple[int, bytes, tuple[tuple[str, str], ...]]
"""Status, body, further headers."""


@dataclass(slots=True)
class HttpRequest:
    """One request, as the server saw it."""

    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes = b""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its connection has ended, whoever ended it."""

    @property
    def key(self) -> str:
        """The idempotency key; ``""`` without one."""
        return self.headers.get("idempotency-key", "")


@dataclass(frozen=True, slots=True)
class Posted:
    """What a request asks to be sent."""

    sender: str
    recipients: tuple[str, ...]
    content: dict[str, Any]
    """The request's body."""
    headers: dict[str, str]
    """The message's header fields, names in lower case."""
    message_id: str = ""


@dataclass(slots=True)
class Known:
    """What a server remembers under one key."""

    fingerprint: bytes
    at: float
    answer: tuple[int, bytes] | None = None
    """None while the first request is in progress."""


def named_error(status: int, name: str, *headers: tuple[str, str], message: str = "refused") -> HttpAnswer:
    """An error as ``{"name": …, "message": …}``."""
    return status, json.dumps({"statusCode": status, "name": name, "message": message}).encode(), headers


def listed(value: Any) -> list[Any]:
    """A member that may be missing, one thing, or a list of them."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def mailbox_of(value: Any) -> str:
    """The mailbox of ``Name <mailbox>``, or of an object with ``email``. Raises for anything else."""
    text = value["email"] if isinstance(value, dict) else value
    mailbox = parseaddr(text)[1]
    if "@" not in mailbox:
        raise ValueError("not a mailbox")
    return mailbox


def posted_by_name(request: HttpRequest) -> Posted:
    """Read ``{"from": …, "to": […], "cc": […], "bcc": […], "headers": {…}, …}``. Raises ValueError, AttributeError,
    TypeError or KeyError for anything else.
    """
    content = json.loads(request.body)
    recipients = tuple(mailbox_of(one) for name in ("to", "cc", "bcc") for one in listed(content.get(name)))
    fields = content.get("headers")
    headers = {str(k).lower(): str(v) for k, v in fields.items()} if isinstance(fields, dict) else {}
    return Posted(mailbox_of(content.get("from", "")), recipients, content, headers, headers.get("message-id", ""))
