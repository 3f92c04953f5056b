"""What the store answers. Times are durations in seconds: the asker's clock is another clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sendonce.errors import InvalidEmail
from sendonce.message import OutgoingEmail
from sendonce.stages import Stage


@dataclass(frozen=True, slots=True)
class EnvelopeRecipient:
    """One mailbox to be served by this attempt."""

    ordinal: int
    mailbox: str


@dataclass(frozen=True, slots=True)
class Pins:
    """What an open generation stands for; a replay must repeat it exactly."""

    slot: str
    digest: bytes
    envelope: tuple[int, ...]
    provider_key: str
    identity: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The row is leased to this attempt. ``attempt_id`` is the lease's id too."""

    email_id: UUID
    key: str
    owner: str
    """The account that the mail was enqueued for."""
    account: str
    """The one it goes by this time: the owner, or its fallback."""
    lane: str
    attempt_id: UUID
    number: int
    attempts: int
    """Counted attempts before this one."""
    mode: str
    """``send``; ``replay`` of an unanswered offer under its key; ``resend`` by policy, over a silence."""
    generation: int
    pins: Pins | None
    """Set when the generation is open: the attempt repeats these, or gives the claim back."""
    recipients: tuple[EnvelopeRecipient, ...]
    """Whom to offer it to; for an open generation exactly its envelope."""
    content: OutgoingEmail | InvalidEmail
    """InvalidEmail when the row was written past the typed API and does not hold: it can never be sent."""
    message_id: str
    created_at: datetime
    installation: UUID
    secrets: tuple[bytes, ...] = field(repr=False)
    """What bounces are proved with."""
    from_domain: str = ""
    """Of the From address, in A-labels."""
    to_domains: tuple[str, ...] = ()
    """Of all the mail's recipients, each once."""
    traceparent: str | None = None
    """The span that enqueued it, as W3C Trace Context writes it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not due: ask again after ``seconds``. ``why``: ``not_due``, ``deferred``, ``paused``, ``alone`` …"""

    seconds: float
    why: str
    stage: Stage = Stage.PENDING
    code: int = 0
    enhanced: str = ""
    attempts: int = 0
    awaits: str = ""
    """Of an unknown: ``replay`` under the provider's key, or the one ``resend`` of the policy."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another attempt holds it; ``seconds`` until its lease or its answer timer has certainly ended."""

    seconds: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class Held:
    """Nobody tries until evidence, an operator, or the end of ``unknown_days``; ``seconds`` until then."""

    seconds: float
    why: str
    stage: Stage
    code: int = 0
    enhanced: str = ""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Paused:
    """The account is paused. ``probe_due``: one attempt may pass as its probe, if :meth:`Store.take_probe` says so."""

    seconds: float
    probe_due: bool
    account: str
    """The one whose pause this is: the mail's own, or its fallback."""
    domain: str = ""
    """The From domain that the pause is limited to; ``""``: all mail of the account."""
    can_divert: bool = False
    """There is a fallback for a mail that does not get the probe."""


@dataclass(frozen=True, slots=True)
class NoSlot:
    """Due, and the account or the mail's destination has rates: the attempt needs a slot first."""

    account: str
    domains: tuple[str, ...] = ()
    """Of all the mail's recipients, each once."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Final."""

    stage: Stage
    code: int = 0
    enhanced: str = ""
    partial: bool = False
    maybe_accepted: bool = False
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class NoSuchRow:
    """No row with that id and key is visible: never committed, or another installation's."""


ClaimAnswer = Claimed | Wait | Busy | Held | Paused | NoSlot | Finished | NoSuchRow
Standing = Wait | Busy | Held | Finished | NoSuchRow
"""Where a mail stands after something was recorded: what the workflow does next."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The offer is committed. ``answer_seconds`` is the answer timer as recorded."""

    answer_seconds: float


@dataclass(frozen=True, slots=True)
class BeginRefused:
    """The fence: ``why`` is ``moved_on``, ``lapsed``, ``expired``, ``cancelled``, ``superseded``, ``on_hold``,
    ``pins_differ``, ``window_over``, ``pin_lost``, ``pinned_before`` or ``halted``."""

    why: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """The stored request, as everyone sends it."""

    body: bytes
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class LookUp:
    """An unanswered offer that its provider may be asked about."""

    email_id: UUID
    key: str
    account: str
    """The mail's own."""
    via: str
    """The account that it was offered to."""
    lane: str
    message_id: str
    generation: int
    provider_key: str
    identity: str
    """Under which the offer was made; another one's records say nothing."""
    begun_at: datetime
    attempts: tuple[UUID, ...]
    """The silent attempts of this generation, in order."""
    recipients: tuple[EnvelopeRecipient, ...]
    """Those offered."""


@dataclass(frozen=True, slots=True)
class Startable:
    """A row for the starter, or a workflow to poke."""

    email_id: UUID
    key: str
    account: str
    lane: str
    fairness_key: str = ""
    """Whose mail it is, where that matters."""
    to_domains: Sequence[str] = ()
    """Of its recipients, where that matters."""
    route: str = ""
    """The account that it is likely to go by, where that matters."""
    template: str = ""
    """Its name, where that matters."""
