"""What every transport is: vendor spelling in, outcome out. One leaf module each; none imports another.

The order of things, the same for all:

1. ``render``: the mail becomes the exact bytes of the request, once; the store pins them, at begin at the latest, and
   every later attempt sends the pin.
2. ``transmit``: connect, greet, authenticate, write what cannot yet lead to acceptance; then ``await gate.begin(...)``,
   which commits in the store that the mail is about to be offered; then ``gate.offered()`` and, with no await in
   between, the write that can lead to acceptance (SMTP: the final dot; HTTP: the request's first byte); then the reply.
3. The reply is classified per recipient. The phase decides: before the offer it is ``NotOffered``, ``Deferred`` or
   ``Refused``; after it, silence is ``Unanswered``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from sendonce.message import OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Refused


class Fenced(Exception):
    """Begin was refused: the row has moved on, expired, or was cancelled. Write nothing; drop the line."""


class StoreAway(Exception):
    """Begin could not be committed in time. Write nothing; drop the line. Not the mail's fault, not counted."""


class Gate(Protocol):
    """The way to the store's begin. One per attempt."""

    async def begin(self, offered: tuple[int, ...]) -> None:
        """Commit that these recipient ordinals are about to be offered.

        Shielded from cancellation. Raises :class:`Fenced` or :class:`StoreAway`; nothing may be offered then.
        """

    def offered(self) -> None:
        """Say that the write which can lead to acceptance happens now, with no await in between.

        Raises :class:`Fenced` when too long has passed since begin was sent (a process that was stopped in between
        and woke up late): nothing may be written then.
        """


@dataclass(frozen=True, slots=True)
class Recipient:
    """One mailbox of the envelope. ``mailbox`` is ready for RCPT TO: the domain in A-labels, lower case."""

    ordinal: int
    mailbox: str


@dataclass(frozen=True, slots=True)
class Mail:
    """Everything a rendering may depend on; the same row always gives the same Mail."""

    email_id: str
    key: str
    account: str
    message_id: str
    """With angle brackets."""
    created_at: datetime
    """Aware; becomes the Date header, so that every rendering carries the same one. Never before ``send_after``."""
    content: OutgoingEmail


@dataclass(frozen=True, slots=True)
class Rendering:
    """The exact request: what is pinned and what is sent. ``headers`` never hold secrets.

    For SMTP only ``body`` is used: MIME with CRLF line ends and no Bcc.
    """

    body: bytes
    method: str = ""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=())

    def digest(self) -> bytes:
        """SHA-256 over method, URL, headers and body; verified before each attempt."""
        head = json.dumps([self.method, self.url, [list(h) for h in self.headers]], ensure_ascii=True)
        return hashlib.sha256(head.encode() + b"\n" + self.body).digest()


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt's work. ``recipients`` is the envelope: exactly those, each once."""

    rendering: Rendering
    envelope_sender: str
    """For MAIL FROM; ``""`` is the null sender."""
    recipients: tuple[Recipient, ...]
    provider_key: str
    """The idempotency key for the provider; the same for every attempt of a generation."""
    answer_seconds: float
    """How long to wait for the answer once offered."""
    envelope_id: str = ""
    """What a bounce brings back (RFC 3461 4.4): the mail's id and its proof, printable ASCII; ``""``: none is asked
    for."""
    urgent: bool = False
    """Whether it may use the connections that are kept free for such mail."""
    own_return_path: bool = False
    """Whether ``envelope_sender`` may give way to a return path of the mail's own (VERP): nobody chose it."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What a provider documents: what the code relies on, and the row the documentation prints.

    What is *assumed* (not confirmed by the vendor) guarantees nothing: no replay is built on it.
    """

    key: str = ""
    """Where the idempotency key travels, in words (``"header Idempotency-Key"``); ``""``: the provider keeps none."""
    key_format: Literal["text", "uuid"] = "text"
    """``text``: readable, ``[A-Za-z0-9._:-]``, at most 255 characters. ``uuid``: where it must be a UUID."""
    key_assumed: bool = False
    """True when the window or the effect of the key is not confirmed: it is sent, and never relied on."""
    replay: str = ""
    """What the same key with the same body is answered with, in words."""
    look_up: str = ""
    """By what the provider can be asked for a mail (``"metadata"``, ``"tag"`` …); ``""``: not at all."""
    look_up_lag: float | None = None
    """Seconds after which a mail that is there is found, as documented; None: not documented, so that "not found"
    never says anything."""
    keeps_message_id: bool | None = None
    """Whether our Message-ID is what recipients get; None: not documented."""
    takes_mime: bool = False
    """Whether it takes a message that is ready-made."""
    per_recipient: bool = False
    """Whether an answer can differ by recipient."""
    webhook: str = ""
    """What the provider reports by webhook, in words; ``""``: nothing that Sendonce reads."""
    together: bool | None = None
    """Whether whoever is offered a mail gets it together or not at all. None: unless ``per_recipient``."""

    @property
    def all_or_nothing(self) -> bool:
        """Whether proof of acceptance for one of those offered is proof for all of them."""
        return not self.per_recipient if self.together is None else self.together


@dataclass(frozen=True, slots=True)
class Question:
    """What a look-up asks for: one attempt that was offered and not answered."""

    email_id: str
    key: str
    message_id: str
    provider_key: str
    begun_at: datetime
    """When it was offered; aware."""
    recipients: tuple[Recipient, ...]
    """Those offered."""


class Asked(Exception):
    """A look-up could not be made or read. ``retry_after`` is the provider's wish in seconds, if it had one."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        """``why``: a code or a few words, without anything of the mail."""
        super().__init__(why)
        self.why, self.retry_after = why, retry_after


@runtime_checkable
class LooksUp(Protocol):
    """A transport whose provider can be asked what became of an offer."""

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """What the provider knows, by recipient ordinal; empty when it knows nothing (yet).

        Reads only. Raises :class:`Asked` when there was no usable answer; classified faults are never proofs.
        """


class Transport(Protocol):
    """One configured provider account."""

    @property
    def capability(self) -> Capability:
        """What this provider documents. One that can be asked is also a :class:`LooksUp`."""

    @property
    def identity(self) -> str:
        """The scope in which the provider knows our keys: stable, readable, without secrets, at most 200 characters.

        A replay is allowed only under the identity that made the offer.
        """

    @property
    def settings_digest(self) -> str:
        """A keyless digest of the effective settings, credentials included: whose account fault it was."""

    @property
    def key_window(self) -> float | None:
        """How long, in seconds from the first offer, the provider documents that a key is remembered.

        None: it keeps no keys, and an unanswered offer can never be replayed.
        """

    def slot(self, generation: int) -> str:
        """Where the rendering is pinned: ``"mime"`` when it is the same for every envelope, else per generation."""

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """Make the request's bytes. Pure and deterministic; may be slow, so it is called off the event loop.

        Raises :class:`~sendonce.errors.InvalidEmail` for content that this provider can never carry.
        """

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """Make one attempt. Classified faults are returned, never raised.

        Raises only :class:`Fenced` and :class:`StoreAway` from the gate, and ``CancelledError``; before any of them
        leaves, the connection is closed. Anything else that escapes is a bug, and is treated by phase.
        """

    async def close(self) -> None:
        """Close every connection. Idempotent."""
