"""Reading what others wrote: nothing here raises for what a body holds."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sendonce.events import Event, EventKind
from sendonce.outcome import Reply, storable

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_OWN_NAME = re.compile(r"(?:x[-_])?sendonce[-_]id", re.I)
_OWN_TAG = re.compile(rf"sendonce[-_]id[:=_-]({_UUID.pattern})", re.I)
_CODE = re.compile(r"(?<![0-9.])([245][0-9]{2})(?![0-9.])")
_ENHANCED = re.compile(r"(?<![0-9.])([245]\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9.])")
_EVENT_ID = re.compile(r"[!-~]{1,180}")


class Node:
    """A place in a JSON document that may hold something else than it should, or nothing."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @classmethod
    def parse(cls, body: bytes | str) -> Node:
        """The document, or an empty place."""
        try:
            return cls(json.loads(body))
        except (ValueError, RecursionError):
            return cls()

    def __getitem__(self, name: str) -> Node:
        return Node(self.value.get(name)) if isinstance(self.value, dict) else Node()

    def first(self, *names: str) -> Node:
        """The first of these members that is there."""
        return next((node for node in (self[name] for name in names) if node.value is not None), Node())

    @property
    def members(self) -> dict[str, Any]:
        """The members of an object."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def each(self) -> list[Node]:
        """The elements of an array; what is no array is the only one of its own; nothing has none."""
        if isinstance(self.value, list):
            return [Node(element) for element in self.value]
        return [] if self.value is None else [self]

    @property
    def text(self) -> str:
        """A string or a whole number as storable text, else ``""``."""
        if isinstance(self.value, str):
            return storable(self.value)
        if isinstance(self.value, int) and not isinstance(self.value, bool) and abs(self.value) < 10**30:
            return str(self.value)
        return ""

    @property
    def number(self) -> float | None:
        """A finite number, or a string of one."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float, str)):
            return None
        try:
            found = float(self.value)
        except (ValueError, OverflowError):
            return None
        return found if math.isfinite(found) else None

    @property
    def moment(self) -> datetime | None:
        """Unix seconds, or ISO 8601; without an offset it is UTC."""
        number = self.number
        try:
            if number is not None:
                return datetime.fromtimestamp(number, UTC)
            if isinstance(self.value, str):
                found = datetime.fromisoformat(self.value)
                return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError, OSError):
            pass
        return None


def own_id(*places: Node) -> str:
    """The mail's own id, carried back as ``sendonce_id``: a member, an element with name and value, or a tag."""
    for place in places:
        for value in _named(place):
            if _UUID.fullmatch(value):
                return value.lower()
    return ""


def _named(place: Node) -> Iterator[str]:
    if isinstance(place.value, str):
        if place.value.lstrip().startswith("{"):
            yield from _named(Node(Node.parse(place.value).members))
        else:
            yield from _OWN_TAG.findall(place.value)
        return
    for name, value in place.members.items():
        if _OWN_NAME.fullmatch(name):
            yield from (node.text for node in Node(value).each)
    if isinstance(place.value, list):
        for element in place.each:
            name = element.first("name", "Name").text
            if _OWN_NAME.fullmatch(name):
                yield element.first("value", "Value").text
            elif isinstance(element.value, str):
                yield from _OWN_TAG.findall(element.value)


def mailbox(text: str) -> str:
    """``ann@example.org`` out of ``Ann <ann@example.org>``."""
    inside = text.rpartition("<")[2].partition(">")[0] if text.rstrip().endswith(">") else text
    return inside.strip()[:320]


def bracketed(message_id: str) -> str:
    """A Message-ID with its angle brackets."""
    bare = message_id.strip().strip("<>")
    return f"<{bare}>" if bare else ""


def smtp_reply(text: str, code: str = "", enhanced: str = "") -> Reply:
    """A server's answer out of its text; ``code`` and ``enhanced`` where the source has them apart."""
    number = _CODE.search(code) or _CODE.search(text[:60])
    status = _ENHANCED.search(enhanced) or _ENHANCED.search(text[:80])
    return Reply(int(number[1]) if number else 0, status[1] if status else "", storable(text))


def digest(*parts: str) -> str:
    """An event id where the provider has none: equal exactly when all parts are."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def numbered(events: list[Event]) -> tuple[Event, ...]:
    """Events of one report, with ids of their own: a report that comes again has them in the same order."""
    if len(events) < 2:
        return tuple(events)
    return tuple(replace(event, event_id=f"{event.event_id}:{number}") for number, event in enumerate(events, 1))


def build(
    source: str,
    event_id: str,
    kind: EventKind,
    *,
    at: datetime | None = None,
    email_id: str = "",
    provider_id: str = "",
    message_id: str = "",
    recipient: str = "",
    reply: Reply | None = None,
) -> Event:
    """An event within the bounds of :class:`~sendonce.events.Event`; an id that is too long becomes its digest."""
    return Event(
        source=source,
        event_id=event_id if _EVENT_ID.fullmatch(event_id) else digest(event_id),
        kind=kind,
        at=at,
        email_id=email_id,
        provider_id=provider_id[:500],
        message_id=message_id[:500],
        recipient=recipient,
        reply=reply or Reply(),
    )
