"""What a sink is told: the notice as JSON and as one line of text. Ids, codes and names only."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from sendonce.store.alarm_delivery import Notice
from sendonce.store.alarms import Alarm

_ADDRESS = re.compile(r"[^\s<>\"',;:]+@[^\s<>\"',;:]+")

FIELDS = frozenset(
    {"event", "source", "kind", "account", "count", "first_at", "last_at", "text", "detail", "keys", "alarms"}
)
"""The members of a message, and the placeholders of a webhook's body."""


def message(notice: Notice, source: str) -> dict[str, Any]:
    """The members named by :data:`FIELDS`; ``alarms`` holds the first few, ``count`` says how many there are."""
    first = notice.examples[0] if notice.examples else None
    return {
        "event": "alarm_ended" if notice.ended else "alarm",
        "source": source,
        "kind": notice.kind,
        "account": notice.account,
        "count": notice.waiting,
        "first_at": _instant(notice.first_at),
        "last_at": _instant(notice.last_at),
        "text": _text(notice, source),
        "detail": masked(first.detail) if first else "",
        "keys": ", ".join(one.key for one in notice.examples if one.key),
        "alarms": [_alarm(one) for one in notice.examples],
    }


def masked(text: str) -> str:
    """Details hold no addresses; should one slip in, it goes no further."""
    return _ADDRESS.sub("***", text)


def _alarm(one: Alarm) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": _instant(one.at),
        "kind": one.kind,
        "account": one.account,
        "key": one.key,
        "email_id": str(one.email_id) if one.email_id else None,
        "detail": masked(one.detail),
        "closes": one.closes,
    }


def _text(notice: Notice, source: str) -> str:
    """For example ``sendonce: 12 x dead, account default, since 2030-01-31 09:00:00 UTC: limits (order-1, …)``."""
    first = notice.examples[0] if notice.examples else None
    parts = [f"{source}: "]
    if notice.ended:
        parts.append("over: ")
    parts.append(f"{notice.waiting} x {notice.kind}" if notice.waiting > 1 else notice.kind)
    if notice.account:
        parts.append(f", account {notice.account}")
    if notice.waiting > 1:
        parts.append(f", since {notice.first_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    if first is not None and first.detail:
        parts.append(f": {masked(first.detail)}")
    keys = [one.key for one in notice.examples if one.key]
    if keys:
        more = ", …" if notice.waiting > 3 else ""
        parts.append(f" ({', '.join(keys[:3])}{more})")
    return "".join(parts)


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
