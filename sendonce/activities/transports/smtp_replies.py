"""What an SMTP reply means. Pure; the verdict depends on the code and the enhanced code, never on the text."""

from __future__ import annotations

import re
from collections.abc import Collection

from sendonce.outcome import AccountFault, Deferred, Refused, Reply, storable

ACCOUNT_CODES = frozenset({530, 534, 535, 538})
"""Authentication required, too weak, refused, or wanting encryption (RFC 4954 6, RFC 3207 4)."""

OUT_OF_STEP = frozenset({500, 502, 503})
"""Not recognised, not implemented, bad sequence: not about the mail, and tried again over another connection."""

_QUOTA = frozenset({"5.4.5"})
"""The sender's daily limit, as Google's relays say it."""
_SENDER = frozenset({"5.1.7", "5.1.8"})
"""Bad syntax of the sender's address, or a sender's system that cannot be reached (RFC 3463 3.2)."""
_UNAUTHENTIC = frozenset({"5.7.20", "5.7.21", "5.7.22", "5.7.23", "5.7.24", "5.7.26", "5.7.27"})
"""DKIM, SPF and their like have failed (RFC 7372 3, RFC 7505 4.2): the sender's domain is wrongly set up."""
_GREYLIST = frozenset({"4.7.0", "4.7.1", "4.2.0"})

_ENHANCED = re.compile(r"^([245]\.[0-9]{1,3}\.[0-9]{1,3})(?:\s|$)")
# By custom only: Postfix "queued as 4F2A", Exim "id=1abC-2", Exchange "<id> Queued mail for delivery", SES "Ok 0102-…".
_QUEUE_IDS = (
    re.compile(r"\bqueued as <?([\w.+=@-]{1,100})", re.IGNORECASE),
    re.compile(r"\bid=<?([\w.+=@-]{1,100})", re.IGNORECASE),
    re.compile(r"<([\w.+=@-]{1,100})>.*\bqueued mail for delivery", re.IGNORECASE | re.DOTALL),
    re.compile(r"^(?:[245]\.\d{1,3}\.\d{1,3} )?ok:? ([\w-]{16,100})$", re.IGNORECASE),
)


def reply_of(code: int, text: str) -> Reply:
    """A reply as it was read, made storable; the enhanced code (RFC 3463) is taken from the start of the text."""
    shown = storable(text)
    enhanced = _ENHANCED.match(shown)
    return Reply(code, enhanced[1] if enhanced else "", shown)


def is_reply(code: int) -> bool:
    """True for what can be a reply code (RFC 5321 4.2.1); anything else is not SMTP."""
    return 200 <= code <= 599


def refusal(reply: Reply, at: str, faults: Collection[str] = ()) -> Deferred | Refused | AccountFault | None:
    """What a 4xx or 5xx in answer to ``at`` (mail, rcpt, data, dot) says; None for any other reply.

    The first digit decides (RFC 5321 4.2.1), the enhanced code refines (RFC 3463). ``faults`` are the account's
    ``account_faults``. The one thing the text is looked at for is the pace: whether this is greylisting.

    >>> refusal(Reply(499), "mail").kind
    'deferred'
    >>> refusal(Reply(535), "mail").kind
    'account_fault'
    >>> refusal(Reply(550, "5.7.1"), "mail").scope
    'sender'
    """
    code, enhanced = reply.code, reply.enhanced
    if not 400 <= code <= 599:
        return None
    if code in ACCOUNT_CODES or {f"{at} {code}", f"{at} {code} {enhanced}"} & set(faults):
        return AccountFault(reply)
    if code >= 500 and enhanced in _QUOTA:
        return AccountFault(reply)
    if code >= 500 and at == "mail" and (enhanced.startswith("5.7.") or enhanced in _SENDER):
        return AccountFault(reply, scope="sender")
    if code >= 500 and at in ("mail", "dot") and enhanced in _UNAUTHENTIC:
        return AccountFault(reply, scope="sender")
    if code in OUT_OF_STEP and at != "dot":
        return Deferred(reply)
    if code <= 499:
        return Deferred(reply, greylisted=at in ("mail", "rcpt") and _greylisted(reply))
    return Refused(reply)


def _greylisted(reply: Reply) -> bool:
    return reply.code in (450, 451) and (
        reply.enhanced in _GREYLIST or re.search("gr[ae]y-?list", reply.text.lower()) is not None
    )


def too_many(reply: Reply, *, others_accepted: bool) -> bool:
    """True when a 452 or 552 at RCPT means "too many recipients" (RFC 5321 4.5.3.1.10: 552 is to be taken as 452).

    It does when the enhanced code says so (X.5.3), or when it stands alone and other recipients were accepted;
    otherwise it is a mailbox that is full, or a message that is too big.
    """
    if reply.code not in (452, 552):
        return False
    if reply.enhanced:
        return reply.enhanced.endswith(".5.3")
    return others_accepted


def queue_id(text: str) -> str:
    """The server's own id for the message, from the text of its 250; ``""`` when it gave none.

    >>> queue_id("2.0.0 Ok: queued as 4F2A17")
    '4F2A17'
    >>> queue_id("OK id=1rXyZa-0004f2-Qh")
    '1rXyZa-0004f2-Qh'
    """
    for pattern in _QUEUE_IDS:
        found = pattern.search(text)
        if found:
            return found[1].rstrip(".")
    return ""
