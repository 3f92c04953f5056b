"""The stages of a mail, as one pure function of what is known.

Two steps, both pure and independent of the order in which facts arrived:

1. :func:`recipient_view` reads every attempt and every piece of evidence and says where one recipient stands.
2. :func:`email_stage` reads the recipients and the limits and says where the mail stands.

========================================  =====================================================================
recipients                                stage
========================================  =====================================================================
any unanswered                            ``unknown``
else any outstanding or deferred          ``pending``; at a limit these count as cancelled, expired or dead
else all accepted                         ``sent``
else some accepted                        ``sent``, flag ``partial``
else none                                 ``cancelled``, ``expired``, ``dead`` by the limit reached, else ``failed``
========================================  =====================================================================

When an unknown is closed unsettled, unanswered counts like outstanding at a limit, and the record says
``maybe_accepted``. ``claimed`` and ``transmitting`` are not results of this function: they say who holds the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sendonce.outcome import (
    DEFINITE,
    Accepted,
    Deferred,
    Outcome,
    Refused,
    Reply,
)


class Stage(StrEnum):
    """Where a mail stands. The store is the authority on it."""

    PENDING = "pending"
    """Due at ``next_attempt_at``: first try, or deferred."""
    CLAIMED = "claimed"
    """Leased to one attempt, nothing offered yet; the lease is what protects it."""
    TRANSMITTING = "transmitting"
    """Committed before the write that can lead to acceptance. Never claimable: the stage is the lock."""
    UNKNOWN = "unknown"
    """Offered and unanswered: settled by an answer, a replay, a look-up, evidence, the policy or an operator."""
    SENT = "sent"
    """Accepted by the provider; flag ``partial`` when some recipients were not."""
    FAILED = "failed"
    """Refused for good."""
    DEAD = "dead"
    """Limits reached (attempts, age), or a poison mail. Dead-lettered with an alarm."""
    EXPIRED = "expired"
    """``expires_at`` passed before it was accepted."""
    CANCELLED = "cancelled"
    """Withdrawn before it was offered."""

    @property
    def final(self) -> bool:
        """True when nothing but an operator or a proof moves the mail on."""
        return self in FINAL


FINAL = frozenset({Stage.SENT, Stage.FAILED, Stage.DEAD, Stage.EXPIRED, Stage.CANCELLED})


class RecipientStage(StrEnum):
    """Where one recipient of a mail stands."""

    OUTSTANDING = "outstanding"
    """Not offered yet, or certainly not accepted for a reason that is not the recipient's."""
    ACCEPTED = "accepted"
    REFUSED = "refused"
    DEFERRED = "deferred"
    UNANSWERED = "unanswered"
    SUPPRESSED = "suppressed"
    """On the account's suppression list; never offered."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """What is known of one attempt. ``number`` counts the claims of the mail from 1; it orders, arrival does not."""

    attempt_id: str
    number: int
    generation: int
    offered: tuple[int, ...] = ()
    """Recipient ordinals recorded by begin; empty when nothing was begun."""
    in_flight: bool = False
    """Begun, and its process still renews: neither silent nor answered yet."""
    answers: dict[int, Outcome] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proof:
    """Evidence from outside an attempt's own answer: a look-up, a webhook, a DSN, an operator's word.

    ``accepted=True`` proves acceptance; ``accepted=False`` proves that nothing up to and including
    ``generation`` was accepted for this recipient.
    """

    ordinal: int
    accepted: bool
    generation: int


@dataclass(frozen=True, slots=True)
class RecipientView:
    """One recipient's stage, and the answer that explains it."""

    stage: RecipientStage
    reply: Reply = field(default_factory=Reply)
    provider_id: str = ""
    attempt_id: str | None = None


def recipient_view(
    ordinal: int,
    attempts: Iterable[AttemptFacts],
    proofs: Iterable[Proof] = (),
    *,
    suppressed: bool = False,
    floor: int = 0,
) -> RecipientView:
    """Where recipient ``ordinal`` stands, from the set of all facts.

    Acceptance wins over everything. Silence is sticky: an attempt that offered the mail and got no answer keeps the
    recipient ``unanswered`` through later refusals, until *that* attempt is answered, a documented replay under the
    same generation answers it, or a proof clears it. Otherwise the latest definite answer counts. ``floor`` is the
    attempt number of the last requeue: refusals up to it no longer count.
    """
    ordered = sorted(attempts, key=lambda a: a.number)
    proofs = [p for p in proofs if p.ordinal == ordinal]
    for attempt in ordered:
        answer = attempt.answers.get(ordinal)
        if isinstance(answer, Accepted):
            return RecipientView(RecipientStage.ACCEPTED, answer.reply, answer.provider_id, attempt.attempt_id)
    if any(p.accepted for p in proofs):
        return RecipientView(RecipientStage.ACCEPTED)
    silent = [a for a in ordered if is_silent(a, ordinal) and not _cleared(a, ordinal, ordered, proofs)]
    if silent:
        last = silent[-1]
        answer = last.answers.get(ordinal)
        return RecipientView(RecipientStage.UNANSWERED, answer.reply if answer else Reply(), "", last.attempt_id)
    if suppressed:
        return RecipientView(RecipientStage.SUPPRESSED)
    for attempt in reversed(ordered):
        if attempt.number <= floor:
            break
        answer = attempt.answers.get(ordinal)
        if isinstance(answer, Refused):
            return RecipientView(RecipientStage.REFUSED, answer.reply, "", attempt.attempt_id)
        if isinstance(answer, Deferred):
            return RecipientView(RecipientStage.DEFERRED, answer.reply, "", attempt.attempt_id)
        if answer is not None:
            return RecipientView(RecipientStage.OUTSTANDING, answer.reply, "", attempt.attempt_id)
    return RecipientView(RecipientStage.OUTSTANDING)


def is_silent(attempt: AttemptFacts, ordinal: int) -> bool:
    """True when the attempt offered the mail to this recipient, is over, and no definite answer to it is known.

    An ``Unanswered`` says by itself that the mail was offered, whatever begin recorded.
    """
    if attempt.in_flight:
        return False
    answer = attempt.answers.get(ordinal)
    return ordinal in attempt.offered if answer is None else answer.kind not in DEFINITE


def _cleared(silent: AttemptFacts, ordinal: int, attempts: Sequence[AttemptFacts], proofs: Sequence[Proof]) -> bool:
    if any(not p.accepted and p.generation >= silent.generation for p in proofs):
        return True
    for later in attempts:
        if later.number <= silent.number or later.generation != silent.generation:
            continue
        answer = later.answers.get(ordinal)
        if isinstance(answer, Refused) and answer.replayed:
            return True
    return False


def next_generation(current: int, attempts: Iterable[AttemptFacts], views: dict[int, RecipientView]) -> int:
    """The generation that the next attempt belongs to.

    It stays while anyone is unanswered: no new provider key over a silence. Once everything offered under it has been
    answered it moves on by one, so that a smaller envelope, or a provider that stores refusals under the key, meets a
    fresh key.
    """
    if any(view.stage is RecipientStage.UNANSWERED for view in views.values()):
        return current
    used = any(a.generation == current and a.offered and not a.in_flight for a in attempts)
    return current + 1 if used else current


@dataclass(frozen=True, slots=True)
class Limits:
    """Which limits have been reached; all False while the mail may still be tried."""

    cancelled: bool = False
    expired: bool = False
    exhausted: bool = False
    """Attempts or age used up, or a poison mail."""
    unknown_closed: bool = False
    """``unknown_days`` have passed and nobody settled it."""

    @property
    def reached(self) -> bool:
        """True when what is outstanding will not be tried again."""
        return self.cancelled or self.expired or self.exhausted or self.unknown_closed


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the mail stands: its stage and the two flags."""

    stage: Stage
    partial: bool = False
    maybe_accepted: bool = False


def email_stage(recipients: Iterable[RecipientStage], limits: Limits) -> Verdict:
    """The table at the top of this module."""
    stages = list(recipients)
    unanswered = RecipientStage.UNANSWERED in stages
    if unanswered and not limits.unknown_closed:
        return Verdict(Stage.UNKNOWN)
    open_ = unanswered or RecipientStage.OUTSTANDING in stages or RecipientStage.DEFERRED in stages
    if open_ and not limits.reached:
        return Verdict(Stage.PENDING)
    accepted = stages.count(RecipientStage.ACCEPTED)
    if accepted:
        return Verdict(Stage.SENT, partial=accepted < len(stages), maybe_accepted=unanswered)
    if not open_:
        return Verdict(Stage.FAILED)
    if limits.cancelled:
        return Verdict(Stage.CANCELLED, maybe_accepted=unanswered)
    if limits.expired:
        return Verdict(Stage.EXPIRED, maybe_accepted=unanswered)
    return Verdict(Stage.DEAD, maybe_accepted=unanswered)
