"""What an SMTP reply means. Pure; the verdict depends on the code and the enhanced code, never on the text."""

from __future__ import annotations

import re

from sendonce.outcome import AccountFault, Deferred, Refused, Reply, storable

ACCOUNT_CODES = frozenset({530, 534, 535, 538})
"""Authentication required, too weak, refused, or wanting encryption (RFC 4954 6, RFC 3207 4)."""

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


def refusal(reply: Reply) -> Deferred | Refused | AccountFault | None:
    """What a 4xx or 5xx says, by its first digit (RFC 5321 4.2.1); None for any other reply.

    >>> refusal(Reply(499)).kind
    'deferred'
    >>> refusal(Reply(535)).kind
    'account_fault'
    """
    if reply.code in ACCOUNT_CODES:
        return AccountFault(reply)
    if 400 <= reply.code <= 499:
        return Deferred(reply)
    if 500 <= reply.code <= 599:
        return Refused(reply)
    return None


def too_many(reply: Reply, *, others_accepted: bool) -> bool:
    """True when a 552 at RCPT means "too many recipients", which is to be taken as 452 (RFC 5321 4.5.3.1.10).

    It does when the enhanced code says so (X.5.3), or when it stands alone and other recipients were accepted;
    otherwise 552 is a mailbox that is full, or a message that is too big.
    """
    if reply.code != 552:
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
