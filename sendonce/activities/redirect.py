"""Who may be reached from here: a test environment must not write to customers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sendonce.activities.transports.base import Recipient
from sendonce.message import Address, OutgoingEmail
from sendonce.outcome import AttemptResult, Outcome, Refused, Reply
from sendonce.store.records import EnvelopeRecipient

NOT_ALLOWED = Refused(Reply(enhanced="not_allowed"))


@dataclass(frozen=True, slots=True)
class Envelope:
    """Whom an attempt really offers the mail to."""

    recipients: tuple[Recipient, ...]
    """Each mailbox once."""
    shares: dict[int, tuple[int, ...]]
    """Recipient ordinal → all ordinals that its answer is for, itself included."""
    refused: dict[int, Outcome] = field(default_factory=dict)

    def ordinals(self, offered: Collection[int]) -> tuple[int, ...]:
        """All ordinals that are offered when these are."""
        return tuple(sorted(o for chosen in offered for o in self.shares.get(chosen, ())))

    def spread(self, result: AttemptResult) -> AttemptResult:
        """The transport's answers for every recipient of the mail; answers for strangers are dropped."""
        spread = {o: outcome for chosen, outcome in result.outcomes.items() for o in self.shares.get(chosen, ())}
        return AttemptResult({**self.refused, **spread})


@dataclass(frozen=True, slots=True)
class Guard:
    """The limits of an environment; without any, everybody is reached.

    ``allowed_domains``: only these domains (lower case, A-labels) are reached; None: all. ``redirect_all_to``: a
    mailbox that gets the mail of everybody who is not in ``allowed_domains`` (of everybody, when that is None);
    without it they are refused as ``not_allowed``.
    """

    redirect_all_to: str | None = None
    allowed_domains: frozenset[str] | None = None

    @property
    def active(self) -> bool:
        """True when not everybody may be reached."""
        return self.redirect_all_to is not None or self.allowed_domains is not None

    def envelope(self, recipients: Collection[EnvelopeRecipient]) -> Envelope:
        """Apply the limits to the envelope of an attempt."""
        chosen: dict[str, list[int]] = {}
        refused: dict[int, Outcome] = {}
        for recipient in recipients:
            mailbox = self._reach(recipient.mailbox)
            if mailbox is None:
                refused[recipient.ordinal] = NOT_ALLOWED
            else:
                chosen.setdefault(mailbox, []).append(recipient.ordinal)
        return Envelope(
            tuple(Recipient(ordinals[0], mailbox) for mailbox, ordinals in chosen.items()),
            {ordinals[0]: tuple(ordinals) for ordinals in chosen.values()},
            refused,
        )

    def content(self, content: OutgoingEmail) -> OutgoingEmail:
        """The mail for a request that names its recipients: strangers' places are taken by ``redirect_all_to``."""
        if self.redirect_all_to is None:
            return content
        return content.model_copy(
            update={name: tuple(map(self._stand_in, getattr(content, name))) for name in ("to", "cc", "bcc")}
        )

    def _stand_in(self, address: Address) -> Address:
        mailbox = self._reach(address.mailbox)
        return address if mailbox in (None, address.mailbox) else Address(email=mailbox)

    def _reach(self, mailbox: str) -> str | None:
        if not self.active:
            return mailbox
        domain = mailbox.rpartition("@")[2].lower()
        if self.allowed_domains is not None and domain in self.allowed_domains:
            return mailbox
        return self.redirect_all_to
