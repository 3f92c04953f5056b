"""An answer over HTTP, and what its status means where nothing more is known of it. Pure.

=====================================  ===========================================================
status                                 outcome
=====================================  ===========================================================
2xx                                    ``Unanswered``: success is read from the body, not from here
400 413 422                            ``Refused``
429                                    ``Deferred``
408 409 421 425, 5xx, below 200        ``Unanswered``: it says nothing of whether the mail was taken
3xx and every other 4xx                ``AccountFault``: key, quota, URL or shape of the request
=====================================  ===========================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from sendonce.activities.transports.retry_after import retry_after
from sendonce.outcome import TEXT_LIMIT, AccountFault, Deferred, Outcome, Refused, Reply, Unanswered, storable

KEY_MISMATCH = "key_mismatch"
"""The provider knows our key with another body: our fault, and never a reason for a fresh key."""
NO_ID = "no_id"
"""A success that names no message."""

_CODE = re.compile(r"[A-Za-z0-9._:\[\]-]{1,100}")
_REFUSED = frozenset({400, 413, 422})
_SETTLES_NOTHING = frozenset({408, 409, 421, 425})


@dataclass(frozen=True)
class Answer:
    """One answer, read whole or to the limit."""

    status: int
    headers: Mapping[str, str]
    """Asked by name in any case."""
    body: bytes
    read_at: datetime
    """Aware; what dates in ``Retry-After`` are compared with."""

    @cached_property
    def content(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def retry_after(self) -> float | None:
        """Seconds that the answer asks to wait; None without such a wish."""
        return retry_after(self.headers.get("Retry-After"), self.read_at)

    @property
    def ok(self) -> bool:
        """2xx."""
        return 200 <= self.status <= 299

    def at(self, path: str) -> str:
        """The text or integer at a dotted path (``data.0.id``) of the body; ``""`` when there is none."""
        found = self.content
        for step in path.split("."):
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list) and step.isdecimal() and step.isascii() and int(step) < len(found):
                found = found[int(step)]
            else:
                return ""
        if isinstance(found, str):
            return found
        return str(found) if isinstance(found, int) and not isinstance(found, bool) else ""

    def reply(self, code: str = "") -> Reply:
        """In common terms, with the provider's error code; the body is its text."""
        return Reply(self.status, code, storable(self.body[: TEXT_LIMIT * 4]))


def as_code(text: str) -> str:
    """An error's code as it may be kept; ``""`` for prose, which may name a recipient and stands in the text anyway."""
    return text if _CODE.fullmatch(text) else ""


def by_status(answer: Answer, code: str = "") -> Outcome:
    """What the status alone says, as in the table above. ``code`` is kept in the reply."""
    status, reply, wait = answer.status, answer.reply(code), answer.retry_after
    if status in _REFUSED:
        return Refused(reply)
    if status == 429:
        return Deferred(reply, wait)
    if status in _SETTLES_NOTHING or not 300 <= status <= 499:
        return Unanswered(reply, wait)
    return AccountFault(reply, wait)


def no_id(answer: Answer, code: str = "") -> Unanswered:
    """A success that names no message: some answer 200 to what they did not take."""
    return Unanswered(answer.reply(code or NO_ID))


def key_mismatch(answer: Answer) -> Unanswered:
    """See :data:`KEY_MISMATCH`."""
    return Unanswered(answer.reply(KEY_MISMATCH))
