"""The named misbehaviours of the playing HTTP gateway; each is a rule for its script."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

from sendonce.testing.script import Rule


@dataclass(frozen=True, slots=True)
class HttpAct:
    """What the gateway does at one point. The default is the usual answer."""

    status: int | None = None
    """The status to answer with; None: the usual answer."""
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    then: Literal["go on", "cut", "silent"] = "go on"
    """``cut`` resets the connection, ``silent`` never answers; both instead of an answer."""
    until: asyncio.Event | None = None
    """Wait for this before going on."""
    after: int = 0
    """In the body: act once that many octets of it have arrived. In the answer: cut after that many octets."""


HttpRule = Rule[HttpAct]


def answer(
    status: int,
    error: str = "",
    *,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    retry_after: str | None = None,
    times: int | None = None,
    at: str = "request",
) -> HttpRule:
    """Answer ``status``; nothing is accepted.

    ``error`` becomes ``{"name": error}``, or ``body`` is sent as it is. ``at`` is ``request`` (the whole request was
    read, its key not looked at), ``refuse`` (the key is new: what is answered counts as its answer) or ``accepted``
    (the mail was accepted, and the answer is replaced).
    """
    fields = tuple((headers or {}).items())
    if retry_after is not None:
        fields += (("Retry-After", retry_after),)
    content: Any = {"name": error, "message": "as scripted"} if error else {"message": "as scripted"}
    return Rule(at, HttpAct(status, json.dumps(content).encode() if body is None else body, fields), times)


def unauthorised(status: int = 401) -> HttpRule:
    """Refuse the API key."""
    return answer(status, "invalid_api_key")


def unavailable(*, times: int | None = None, retry_after: str | None = None) -> HttpRule:
    """Answer 503, ``times`` times or always."""
    return answer(503, "service_unavailable", retry_after=retry_after, times=times)


def unavailable_until(event: asyncio.Event) -> HttpRule:
    """Answer 503 while ``event`` is not set."""
    rule = unavailable()
    rule.when = lambda _: not event.is_set()
    return rule


def too_many_requests(retry_after: str | None = "1", *, times: int | None = None) -> HttpRule:
    """Answer 429."""
    return answer(429, "rate_limit_exceeded", retry_after=retry_after, times=times)


def lose_answer(*, times: int | None = None) -> HttpRule:
    """Accept the mail and reset the connection."""
    return Rule("accepted", HttpAct(then="cut"), times)


def silent_after_accepting(*, times: int | None = None) -> HttpRule:
    """Accept the mail and never answer."""
    return Rule("accepted", HttpAct(then="silent"), times)


def refuse_mailbox(mailbox: str, status: int = 422, body: bytes = b"{}") -> HttpRule:
    """Answer ``status`` to a mail that names this mailbox; nothing is accepted."""
    return Rule("mail", HttpAct(status, body), when=lambda recipients: mailbox in recipients.split(" "))


def late_answer(until: asyncio.Event, *, times: int | None = None) -> HttpRule:
    """Accept the mail and give the usual answer once ``until`` is set."""
    return Rule("accepted", HttpAct(until=until), times)


def cut_at_headers(*, times: int | None = None) -> HttpRule:
    """Reset the connection once the request's header section has been read."""
    return Rule("headers", HttpAct(then="cut"), times)


def cut_at_connect(*, times: int | None = None) -> HttpRule:
    """Reset every connection as soon as it is open."""
    return Rule("connect", HttpAct(then="cut"), times)


def cut_in_body(*, after: int = 1, times: int | None = None) -> HttpRule:
    """Reset the connection after that many octets of the request's body; nothing is accepted."""
    return Rule("body", HttpAct(then="cut", after=after), times)


def cut_in_answer(*, after: int, times: int | None = None) -> HttpRule:
    """Accept the mail and reset the connection after that many octets of the answer, status line included."""
    return Rule("answer", HttpAct(then="cut", after=after), times)


def stalled(*, times: int | None = None) -> HttpRule:
    """Read the request, accept nothing, never answer."""
    return Rule("request", HttpAct(then="silent"), times)
