"""What comes back after a mail was accepted: deliveries, delays, bounces, complaints, as one type. Pure.

A webhook or a delivery status notification becomes :class:`Event`; what it means for a mail is the store's to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sendonce.outcome import Reply


class EventKind(StrEnum):
    """What happened to one recipient, in the order in which a later word replaces an earlier one."""

    ACCEPTED = "accepted"
    """The provider has the mail; nothing more is known."""
    DELAYED = "delayed"
    """The recipient's server does not take it yet; the provider goes on trying."""
    SOFT_BOUNCED = "soft_bounced"
    """The provider gave up for a reason that may pass (mailbox full, server away)."""
    DELIVERED = "delivered"
    """The recipient's server took it."""
    DROPPED = "dropped"
    """The provider took it and will not send it (its own suppression list, content, virus)."""
    BOUNCED = "bounced"
    """Refused for good by the recipient's server: the address does not work."""
    COMPLAINED = "complained"
    """The recipient called it spam."""

    @property
    def rank(self) -> int:
        """Its place in that order: events arrive in any order, and the highest one stands."""
        return list(EventKind).index(self)

    @property
    def suppresses(self) -> bool:
        """Whether the address goes on the account's suppression list."""
        return self in (EventKind.BOUNCED, EventKind.COMPLAINED)


@dataclass(frozen=True, slots=True)
class Event:
    """One authentic event about one recipient.

    Which mail it is about is said by ``email_id``, our own id that the provider carried back, else by ``provider_id``,
    the id that the provider answered with, else by ``message_id``.
    """

    source: str
    """``webhook:resend``, ``dsn`` …; at most 50 characters."""
    event_id: str
    """The source's own id of the event: the same one twice is one. At most 200 characters; where the source has none,
    a digest of what makes it unique."""
    kind: EventKind
    at: datetime | None = None
    """When it happened by the source's clock; aware."""
    email_id: str = ""
    provider_id: str = ""
    message_id: str = ""
    """With angle brackets."""
    recipient: str = field(default="", repr=False)
    """The mailbox as the source writes it; ``""``: everybody in the mail."""
    reply: Reply = field(default_factory=Reply, repr=False)
    """What the recipient's server said, if known; its text is storable and may hold personal data."""
