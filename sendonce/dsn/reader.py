"""Notifications as events: what is proved to be about a mail of ours, and what is not.

============  ===========================================  ==================
action        status                                       event
============  ===========================================  ==================
``failed``    2.x.x, 4.x.x, or none anywhere               ``SOFT_BOUNCED``
``failed``    5.x.x that is not about the address          ``SOFT_BOUNCED``
``failed``    5.x.x otherwise                              ``BOUNCED``
``delayed``   any                                          ``DELAYED``
``delivered`` any                                          ``DELIVERED``
``relayed``   any: gone where nothing is reported back     ``ACCEPTED``
``expanded``  any: a list, whose members may fail yet      ``ACCEPTED``
============  ===========================================  ==================

Not about the address (RFC 3463): 5.1.7 and 5.1.8 (the sender's), 5.2.2 and 5.2.3 (mailbox full, mail too long), 5.3
(their system), 5.4.3, 5.4.5 to 5.4.7 (routing, congestion, loop, expired), 5.6 (content), 5.7 (policy). Where the
status says nothing (5.0.0, or none) the server's reply in Diagnostic-Code decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sendonce.dsn.parse import Notification, RecipientReport, parse
from sendonce.dsn.proof import Proof, looks_proven
from sendonce.events import Event, EventKind
from sendonce.outcome import Reply

SOURCE = "dsn"
OWN_HEADER = "x-sendonce-id"
"""A header of our mails that holds the envelope id, for servers that give back nothing but headers."""

_ELSEWHERE = ("5.1.7", "5.1.8", "5.2.2", "5.2.3", "5.3.", "5.4.3", "5.4.5", "5.4.6", "5.4.7", "5.6.", "5.7.")
_PLAIN = {
    "delayed": EventKind.DELAYED,
    "delivered": EventKind.DELIVERED,
    "relayed": EventKind.ACCEPTED,
    "expanded": EventKind.ACCEPTED,
}


@dataclass(frozen=True, slots=True)
class Unproven:
    """What somebody says and nobody proves: to be kept and shown, never to suppress or settle."""

    event: Event
    """Without ``email_id``, whatever the notification claims."""
    why: Literal["no_proof", "wrong_proof", "contradiction", "no_recipient"]
    """``wrong_proof``: it has the form of one of ours. ``contradiction``: it proves two mails. ``no_recipient``: it may
    be proved, and does not say who is meant."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a mail says. Both are empty when it is no delivery status notification."""

    events: tuple[Event, ...] = ()
    """Proved, each about one recipient."""
    unproven: tuple[Unproven, ...] = ()


def read(mail: bytes, proof: Proof, recipients: Sequence[str] = ()) -> Reading:
    """Read a mail that came in for ``recipients``, the mailboxes of its envelope if they are known. Never raises.

    The recipient of an event is the one that we named (Original-Recipient), else the one at which it ended.
    """
    notification = parse(mail)
    if notification is None:
        return Reading()
    carriers = list(_carriers(notification, recipients))
    proven = {found for one in carriers if (found := proof.of_envelope_id(one) or proof.of_address(one)) is not None}
    if len(proven) == 1:
        why: Literal["no_proof", "wrong_proof", "contradiction"] | None = None
    elif proven:
        why = "contradiction"
    else:
        why = "wrong_proof" if any(map(looks_proven, carriers)) else "no_proof"
    email_id = None if why else proven.pop()
    events: dict[str, Event] = {}
    unproven: dict[str, Unproven] = {}
    for report in notification.recipients:
        if why is None and report.recipient:
            event = _event(notification, report, email_id)
            events.setdefault(event.event_id, event)
        else:
            event = _event(notification, report, None)
            unproven.setdefault(event.event_id, Unproven(event, why or "no_recipient"))
    return Reading(tuple(events.values()), tuple(unproven.values()))


def kind(report: RecipientReport) -> EventKind:
    """What a recipient's report comes to; see the table above."""
    if report.action != "failed":
        return _PLAIN[report.action]
    status = decisive(report)
    # Refused and no word of why: nothing that an address should be blamed for.
    final = status.startswith("5") and not status.startswith(_ELSEWHERE)
    return EventKind.BOUNCED if final else EventKind.SOFT_BOUNCED


def decisive(report: RecipientReport) -> str:
    """The status that counts: its own, or the server's where its own says nothing; ``""`` when neither says any."""
    own = report.status
    if own and own != "5.0.0":
        return own
    if report.code >= 400:
        # The reply code wins over an enhanced code of another class (RFC 5321 4.2.1: the first digit decides).
        digit = str(report.code)[0]
        return report.enhanced if report.enhanced.startswith(digit) else f"{digit}.0.0"
    return own


def _carriers(notification: Notification, recipients: Sequence[str]) -> Iterator[str]:
    """Whatever in it may carry a proof."""
    yield notification.envelope_id
    yield from (value for name, value in notification.own_headers if name == OWN_HEADER)
    yield from recipients
    yield from notification.addresses


def _event(notification: Notification, report: RecipientReport, email_id: UUID | None) -> Event:
    mail = str(email_id) if email_id else f"{notification.envelope_id}\n{notification.message_id}"
    unique = (
        mail,
        report.recipient,
        report.action,
        report.status,
        notification.reporting_mta,
        notification.arrived,
    )
    return Event(
        source=SOURCE,
        event_id=hashlib.sha256("\x00".join(unique).encode()).hexdigest(),
        kind=kind(report),
        at=report.last_attempt or notification.sent_at,
        email_id=str(email_id) if email_id else "",
        message_id=notification.message_id,
        recipient=report.recipient,
        reply=Reply(report.code, decisive(report), report.words),
    )
