"""What came of an attempt, per recipient: a closed union of frozen values.

An *attempt* is one claim of a row and at most one SMTP transaction or one HTTP request. Its result names, for every
recipient it dealt with, one of

==================  ==========================================  =======================  ==================
outcome             meaning                                     counted as an attempt    what happens next
==================  ==========================================  =======================  ==================
``Accepted``        the provider took responsibility            yes                      nothing
``Deferred``        refused for now                             yes                      tried again later
``Refused``         refused for good                            yes                      nothing, for this one
``AccountFault``    our account or set-up is at fault           no                       account pauses, alarm
``Unanswered``      offered, and no answer was read             yes                      never a fresh key
``NotOffered``      certainly not offered                       see ``counted``          tried again
==================  ==========================================  =======================  ==================

Everything here is pure and serialisable; reply text has been made storable by :func:`storable` before it gets in.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal, assert_never

TEXT_LIMIT = 1000
"""Reply text is cut to this many characters before it is kept anywhere."""

_UNSTORABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def storable(text: str | bytes) -> str:
    """Make text from a server storable in PostgreSQL text and jsonb: no NUL or control, no lone surrogate, capped.

    Bytes are read as UTF-8, and what is not UTF-8 is shown as ``\\xNN``; surrogate escapes (aiosmtplib hands these
    back for bytes that are not ASCII) are turned into bytes first. Verdicts never depend on the result.

    >>> storable(b"5.1.1 \\xd3\\xca unknown")
    '5.1.1 \\\\xd3\\\\xca unknown'
    >>> storable("a\\x00b\\ud83d")
    'a?b?'
    """
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogateescape" if _escaped(text) else "replace")
    decoded = text[: TEXT_LIMIT * 4].decode("utf-8", "backslashreplace")
    return _UNSTORABLE.sub("?", decoded.replace("\r\n", "\n"))[:TEXT_LIMIT]


def _escaped(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Reply:
    """A provider's answer in common terms.

    ``code`` is the SMTP reply code or the HTTP status, 0 when there was none (a connection that failed).
    ``enhanced`` is the RFC 3463 status (``"5.1.1"``) or a provider's own error name; at most 100 characters.
    ``text`` is for people only: storable, capped at :data:`TEXT_LIMIT` characters.
    """

    code: int = 0
    enhanced: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider took responsibility. ``provider_id`` is its message or queue id, ``""`` when it gave none."""

    reply: Reply
    provider_id: str = ""
    replayed: bool = False
    """The provider said that this answer is the stored one of an earlier request under the same key."""
    kind: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True)
class Deferred:
    """Refused for now. ``retry_after`` (seconds) is the provider's wish, honoured within our own limits."""

    reply: Reply
    retry_after: float | None = None
    beyond_limit: bool = False
    """More recipients than the server takes in one transaction (RFC 5321 4.5.3.1.10): this one is due at once, in the
    next transaction, and the attempt is not counted when others were accepted in it."""
    greylisted: bool = False
    """Refused as a stranger: the lane's own early delays for greylisting apply."""
    kind: Literal["deferred"] = "deferred"


@dataclass(frozen=True, slots=True)
class Refused:
    """Refused for good: the same request is never sent again to this recipient."""

    reply: Reply
    replayed: bool = False
    """As in :class:`Accepted`: only a documented replay of a refusal answers an earlier silence."""
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True)
class AccountFault:
    """Our credentials, domain, quota or set-up are at fault; no recipient is blamed and no attempt is counted."""

    reply: Reply
    retry_after: float | None = None
    scope: Literal["account", "sender"] = "account"
    """``sender``: this From domain is not allowed, not verified or wrongly set up; other domains are not concerned."""
    kind: Literal["account_fault"] = "account_fault"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Offered, and no answer was read: the provider may have accepted it.

    A reply is kept where one came that settles nothing (an HTTP 500, or a 409 that says "still in progress").
    """

    reply: Reply = field(default_factory=Reply)
    retry_after: float | None = None
    kind: Literal["unanswered"] = "unanswered"


@dataclass(frozen=True, slots=True)
class NotOffered:
    """Certainly not offered: nothing that can lead to acceptance was written.

    ``counted`` is False for what says nothing about the mail (shutdown, an old pooled line, a fence), True for a
    connection that failed or a server that stalled before the dot.
    """

    reply: Reply = field(default_factory=Reply)
    counted: bool = True
    retry_after: float | None = None
    kind: Literal["not_offered"] = "not_offered"


Outcome = Accepted | Deferred | Refused | AccountFault | Unanswered | NotOffered
"""Closed: dispatch with ``match`` and ``assert_never``."""

DEFINITE = frozenset({"accepted", "deferred", "refused", "account_fault", "not_offered"})
"""The kinds that answer an attempt; ``unanswered`` is replaced by any of them when the answer arrives late."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What one attempt found out: an outcome for each recipient ordinal it dealt with.

    A recipient of the attempt that is missing here was not dealt with and stays as it was.
    """

    outcomes: dict[int, Outcome]

    def first_reply(self) -> Reply:
        """The reply to show for the attempt as a whole: the worst one, so that a refusal is not hidden by a 250."""
        rank = {"unanswered": 0, "account_fault": 1, "refused": 2, "deferred": 3, "not_offered": 4, "accepted": 5}
        ordered = sorted(self.outcomes.items(), key=lambda item: (rank[item[1].kind], item[0]))
        return ordered[0][1].reply if ordered else Reply()

    def without_texts(self) -> AttemptResult:
        """The same in codes: without what the provider wrote, which may quote an address."""
        return AttemptResult({ordinal: _in_codes(outcome) for ordinal, outcome in self.outcomes.items()})


_CODE = re.compile(r"[A-Za-z0-9._:-]{0,100}")


def _in_codes(outcome: Outcome) -> Outcome:
    enhanced = outcome.reply.enhanced
    return replace(outcome, reply=Reply(outcome.reply.code, enhanced if _CODE.fullmatch(enhanced) else ""))


def same_for_all(ordinals: tuple[int, ...], outcome: Outcome) -> AttemptResult:
    """An all-or-nothing answer: every offered recipient shares it."""
    return AttemptResult(dict.fromkeys(ordinals, outcome))


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """The form kept in ``attempt.answers`` (jsonb). Inverse of :func:`outcome_from_json`."""
    body: dict[str, Any] = {"kind": outcome.kind}
    reply = outcome.reply
    if reply.code:
        body["code"] = reply.code
    if reply.enhanced:
        body["enhanced"] = storable(reply.enhanced)[:100]
    if reply.text:
        body["text"] = storable(reply.text)
    match outcome:
        case Accepted():
            if outcome.provider_id:
                body["provider_id"] = storable(outcome.provider_id)
            if outcome.replayed:
                body["replayed"] = True
        case Refused():
            if outcome.replayed:
                body["replayed"] = True
        case Deferred():
            body.update(_retry_after(outcome.retry_after))
            body.update({name: True for name in ("beyond_limit", "greylisted") if getattr(outcome, name)})
        case AccountFault():
            body.update(_retry_after(outcome.retry_after))
            if outcome.scope != "account":
                body["scope"] = outcome.scope
        case Unanswered():
            body.update(_retry_after(outcome.retry_after))
        case NotOffered():
            body["counted"] = outcome.counted
            body.update(_retry_after(outcome.retry_after))
        case _:
            assert_never(outcome)
    return body


def _retry_after(seconds: float | None) -> dict[str, float]:
    # JSON has no infinity and no NaN: jsonb would refuse the whole answer for the sake of a wish.
    return {} if seconds is None or not math.isfinite(seconds) else {"retry_after": seconds}


def outcome_from_json(body: dict[str, Any]) -> Outcome:
    """Read what :func:`outcome_to_json` wrote; unknown members are ignored, so that an older process can read it."""
    reply = Reply(int(body.get("code", 0)), str(body.get("enhanced", "")), str(body.get("text", "")))
    retry_after = body.get("retry_after")
    match body["kind"]:
        case "accepted":
            return Accepted(reply, str(body.get("provider_id", "")), bool(body.get("replayed", False)))
        case "deferred":
            return Deferred(
                reply, retry_after, bool(body.get("beyond_limit", False)), bool(body.get("greylisted", False))
            )
        case "refused":
            return Refused(reply, bool(body.get("replayed", False)))
        case "account_fault":
            return AccountFault(reply, retry_after, "sender" if body.get("scope") == "sender" else "account")
        case "unanswered":
            return Unanswered(reply, retry_after)
        case "not_offered":
            return NotOffered(reply, bool(body.get("counted", True)), retry_after)
        case other:
            raise ValueError(f"attempt.answers holds an outcome of unknown kind {other!r}")
