"""One claimed attempt: render, pin, verify, transmit, and say by the phase reached what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import psycopg

from sendonce.activities.failures import where
from sendonce.activities.gate import FAULT, Offer, StoreGate, Terms
from sendonce.activities.inflight import Flight, Flights
from sendonce.activities.leases import StoreHealth
from sendonce.activities.observer import Observer
from sendonce.activities.provider_key import provider_key
from sendonce.activities.redirect import Envelope, Guard
from sendonce.activities.transports.aside import LONG, aside
from sendonce.activities.transports.base import Fenced, Job, Mail, Rendering, StoreAway, Transport
from sendonce.activities.witness import HALTED
from sendonce.dsn.proof import Proof
from sendonce.errors import InvalidEmail, TemplateFault
from sendonce.message import OutgoingEmail
from sendonce.outcome import AttemptResult, NotOffered, Refused, Reply, Unanswered, same_for_all
from sendonce.store import Store
from sendonce.store.records import Claimed, Pinned

logger = logging.getLogger(__name__)

MIME_SLOT = "mime"
"""The slot of a rendering that names no envelope."""

NOT_CONFIGURED = "not_configured"
"""Why a claim goes back when this worker knows no such account."""

TEMPLATE = "template"
"""Why a claim goes back whose template is missing or broken here: a rolling deploy may bring it."""

STORE_AWAY_DELAY = 2.0
NOT_CONFIGURED_DELAY = 30.0
"""Seconds until a mail is tried again whose account this worker does not have: another one may. Each time twice as
long, up to :data:`SET_UP_DELAY`: where nobody has the account, all of its mail asks again and again."""

SET_UP_DELAY = 300.0
"""Seconds until a mail is tried again that this worker cannot send as it is set up."""
FAULT_DELAY, LONGEST_FAULT_DELAY = 15.0, 3600.0
"""Seconds until a mail is tried again that a fault of ours has kept: doubled each time, up to the second."""
HALTED_DELAY = 5.0
"""Seconds until a mail is tried again whose begin met another timeline: by then this process has looked, and halts."""
TEMPLATE_BASE, TEMPLATE_CAP = 30.0, 900.0
"""Seconds until a mail whose template is missing or broken is tried again: doubled each time, up to the cap."""

_FENCED_DELAY = {"pins_differ": SET_UP_DELAY, HALTED: HALTED_DELAY}
"""By why begin was refused. What has moved on is asked about at once."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Nothing was offered: the claim goes back, uncounted, and the mail is due again after ``delay`` seconds."""

    why: str
    delay: float = 0.0
    alarm: str = ""
    """The detail of an alarm ``held`` to raise; names and codes only."""


class Fills(Protocol):
    """A folder of templates: :class:`sendonce.templates.Templates`."""

    def fill(self, email: OutgoingEmail) -> OutgoingEmail:
        """The mail with subject, text and HTML made from its template. Raises TemplateFault."""


class _CannotSend(Exception):
    def __init__(self, back: GiveBack) -> None:
        super().__init__(back.why)
        self.back = back


@dataclass(frozen=True, slots=True)
class Means:
    """What every attempt of a process shares."""

    store: Store
    flights: Flights
    health: StoreHealth
    transports: Mapping[str, Transport]
    guard: Guard
    worker: str
    """Who we are in the store's records."""
    lease_seconds: float
    window_margin: float
    templates: Fills | None = None
    """None: this worker has no templates, and mail that names one waits."""
    template_patience: float = 86400.0
    """Seconds after which a mail whose template stays broken is dead."""
    observer: Observer = field(default_factory=Observer)
    """Who measures and traces."""


class Transmission:
    """The work of one claim."""

    def __init__(self, means: Means, flight: Flight, claimed: Claimed) -> None:
        self._means = means
        self._flight = flight
        self._claimed = claimed
        self._gate: StoreGate | None = None

    @property
    def begun(self) -> bool:
        """True when the store has, or may have, the begin of this attempt."""
        return self._gate is not None and self._gate.state is not Offer.NOT_BEGUN

    async def conclude(self) -> AttemptResult | GiveBack:
        """Make the attempt. Whatever goes wrong, the phase decides what is known; nothing is raised."""
        work = asyncio.create_task(self._work())
        self._flight.work = work
        if self._flight.stop_why:
            work.cancel()
        try:
            await asyncio.wait({work})
        finally:
            work.cancel()
        self._flight.settling()
        if work.cancelled():
            return self._by_phase(GiveBack(self._flight.stop_why or "cancelled"))
        match work.exception():
            case None:
                return work.result()
            case Fenced():
                why = (self._gate.refused if self._gate else "") or self._flight.stop_why or "fenced"
                if why == FAULT:
                    return self._by_phase(self._fault())
                return self._by_phase(GiveBack(why, _FENCED_DELAY.get(why, 0.0)))
            case StoreAway():
                return self._by_phase(GiveBack("store_away", STORE_AWAY_DELAY))
            case psycopg.OperationalError():
                self._means.health.away()
                return self._by_phase(GiveBack("store_away", STORE_AWAY_DELAY))
            case _CannotSend(back=back):
                return back
            case error:
                logger.error("attempt failed: email_id=%s %s", self._claimed.email_id, where(error))
                return self._by_phase(self._fault())

    def _by_phase(self, back: GiveBack) -> AttemptResult | GiveBack:
        """What is known when the transport did not say it."""
        gate = self._gate
        if gate is None or gate.state is Offer.NOT_BEGUN:
            return back
        if gate.state is Offer.OFFERED:
            return same_for_all(gate.ordinals, Unanswered())
        return same_for_all(gate.ordinals, NotOffered(counted=False))

    def _fault(self) -> GiveBack:
        # What never works must not keep a worker busy.
        return GiveBack(FAULT, self._grown(FAULT_DELAY, LONGEST_FAULT_DELAY))

    def _grown(self, first: float, longest: float) -> float:
        """Seconds that grow with the claims of this mail that came to nothing."""
        uncounted = max(0, self._claimed.number - self._claimed.attempts - 1)
        return min(longest, first * 2.0 ** min(uncounted, 10))

    async def _work(self) -> AttemptResult:
        claimed, means = self._claimed, self._means
        ordinals = tuple(r.ordinal for r in claimed.recipients)
        if isinstance(claimed.content, InvalidEmail):
            return _invalid(ordinals, claimed.content)
        transport = means.transports.get(claimed.account)
        if transport is None:
            raise _CannotSend(GiveBack(NOT_CONFIGURED, self._grown(NOT_CONFIGURED_DELAY, SET_UP_DELAY)))
        if claimed.pins is not None and claimed.pins.identity != transport.identity:
            # Another account's key space: there the same key would mean nothing.
            raise _CannotSend(GiveBack("identity_changed", SET_UP_DELAY))
        envelope = means.guard.envelope(claimed.recipients)
        if not envelope.recipients:
            return AttemptResult(envelope.refused)
        key = provider_key(
            claimed.installation,
            self._flight.ticket.workflow_id,
            claimed.generation,
            transport.capability.key_format,
        )
        slot = transport.slot(claimed.generation)
        if slot != MIME_SLOT:
            # A request names whom it goes to: another envelope is another request, also before anything was offered.
            slot = f"{slot}:{_named(envelope)}"
            if claimed.account != claimed.owner:
                # And by which account: two of one provider have the same URL.
                slot = f"{slot}:{claimed.account}"
        if claimed.pins is not None:
            key, slot = claimed.pins.provider_key, claimed.pins.slot
        content = claimed.content if slot == MIME_SLOT else means.guard.content(claimed.content)
        try:
            pinned, kept = await self._pinned(transport, content, envelope, slot, key)
        except InvalidEmail as error:
            if claimed.account != claimed.owner:
                # What the fallback cannot carry, the mail's own account may: it waits for that one.
                logger.warning(
                    "account %r cannot stand in for %r with this mail (%s): email_id=%s; it waits",
                    claimed.account,
                    claimed.owner,
                    error.field,
                    claimed.email_id,
                )
                raise _CannotSend(GiveBack("fallback_cannot", SET_UP_DELAY)) from None
            return _invalid(ordinals, error)
        # What takes a process down is making the mail, not waiting for its relay: let the others in again.
        means.flights.end_quiet(claimed.email_id)
        terms = Terms(
            slot,
            pinned.digest,
            key,
            transport.identity,
            transport.key_window,
            means.window_margin,
            keep=None if kept else pinned,
        )
        self._gate = StoreGate(
            means.store,
            means.flights,
            means.health,
            self._flight,
            claimed,
            envelope,
            terms,
            worker=means.worker,
            lease_seconds=means.lease_seconds,
        )
        job = Job(
            _rendering(pinned),
            _envelope_sender(claimed.content),
            envelope.recipients,
            key,
            self._flight.lane.answer_seconds,
            Proof(claimed.secrets).envelope_id(claimed.email_id),
            urgent=self._flight.lane.urgent,
            own_return_path=claimed.content.envelope_sender is None,
        )
        with means.observer.transmitting(claimed):
            result = await transport.transmit(job, self._gate)
        if not kept and not self.begun:
            await self._keep_for_later(slot, pinned)
        return envelope.spread(result)

    async def _pinned(
        self, transport: Transport, content: OutgoingEmail, envelope: Envelope, slot: str, key: str
    ) -> tuple[Pinned, bool]:
        """The bytes to send, and whether they are pinned: what was pinned before, verified, or rendered now.

        What is rendered now is pinned by begin, if it is short; before, if it is long: begin holds the mail's row.
        """
        claimed, store = self._claimed, self._means.store
        stored = None if claimed.number == 1 else await store.pinned(claimed.email_id, slot)
        if stored is not None:
            if self._means.guard.active and slot != MIME_SLOT:
                await self._check_guarded(transport, content, envelope, key, stored)
        elif claimed.pins is not None:
            raise self._corrupt("the pinned request is gone")
        else:
            rendering, digest = await self._rendered(transport, content, envelope, key)
            ours = Pinned(rendering.body, rendering.method, rendering.url, rendering.headers, digest)
            if len(ours.body) + sum(len(name) + len(value) for name, value in ours.headers) < LONG:
                return ours, False
            stored = await self._keep(slot, ours)
        if await aside(len(stored.body), lambda: _rendering(stored).digest()) != stored.digest:
            raise self._corrupt("the pinned request does not match its digest")
        if claimed.pins is not None and claimed.pins.digest != stored.digest:
            raise self._corrupt("the pinned request is not the one that was offered")
        return stored, True

    async def _keep(self, slot: str, ours: Pinned) -> Pinned:
        return await self._means.store.pin(
            self._claimed.email_id,
            slot,
            body=ours.body,
            method=ours.method,
            url=ours.url,
            headers=ours.headers,
            digest=ours.digest,
        )

    async def _keep_for_later(self, slot: str, ours: Pinned) -> None:
        """Have the next attempt send the same, though nobody was offered this. The answer in hand goes before that:
        neither an error nor a cancellation may cost it.
        """
        try:
            await self._keep(slot, ours)
        except (Exception, asyncio.CancelledError) as error:
            logger.info("not pinned, rendered again: email_id=%s %s", self._claimed.email_id, where(error))

    async def _rendered(
        self, transport: Transport, content: OutgoingEmail, envelope: Envelope, key: str
    ) -> tuple[Rendering, bytes]:
        # A template takes its time, and so may a transport that does not say otherwise.
        quick = getattr(transport, "renders_quickly", False) and (content.template is None or content.rendered)
        return await aside(_octets(content) if quick else LONG, lambda: self._render(transport, content, envelope, key))

    def _render(
        self, transport: Transport, content: OutgoingEmail, envelope: Envelope, key: str
    ) -> tuple[Rendering, bytes]:
        claimed = self._claimed
        if content.template is not None and not content.rendered:
            content = self._filled(content)
        if content.mime is not None and not transport.capability.takes_mime:
            raise InvalidEmail("mime", "this account's provider takes no ready-made messages: use one that does")
        mail = Mail(str(claimed.email_id), claimed.key, claimed.owner, claimed.message_id, _date(claimed), content)
        rendering = transport.render(mail, envelope.recipients, key)
        return rendering, rendering.digest()

    def _filled(self, content: OutgoingEmail) -> OutgoingEmail:
        """Subject, text and HTML from the template. A broken one is our fault, not the mail's."""
        if self._means.templates is None:
            raise self._no_template(content, "no folder of templates in this worker's settings")
        try:
            return self._means.templates.fill(content)
        except TemplateFault as fault:
            raise self._no_template(content, fault.place) from None

    def _no_template(self, content: OutgoingEmail, what: str) -> _CannotSend:
        delay = self._grown(TEMPLATE_BASE, TEMPLATE_CAP)
        logger.error("template %r: %s: email_id=%s; it waits", content.template, what, self._claimed.email_id)
        return _CannotSend(GiveBack(TEMPLATE, delay, alarm=f"template {content.template}: {what}"[:500]))

    async def _check_guarded(
        self, transport: Transport, content: OutgoingEmail, envelope: Envelope, key: str, stored: Pinned
    ) -> None:
        """A request that was pinned before the environment's limits were set names people who must not be reached."""
        _, digest = await self._rendered(transport, content, envelope, key)
        if digest != stored.digest:
            logger.error(
                "mail was pinned for other recipients than redirect_all_to and allowed_domains let through: "
                "email_id=%s; cancel it, or lift the limits",
                self._claimed.email_id,
            )
            raise _CannotSend(GiveBack("pinned_unguarded", LONGEST_FAULT_DELAY))

    def _corrupt(self, what: str) -> _CannotSend:
        logger.error("%s: email_id=%s; nothing was sent", what, self._claimed.email_id)
        return _CannotSend(GiveBack("pin_corrupt", LONGEST_FAULT_DELAY))


def _octets(content: OutgoingEmail) -> int:
    if content.mime is not None:
        return len(content.mime)
    return len(content.text or "") + len(content.html or "") + sum(len(one.content) for one in content.attachments)


def _date(claimed: Claimed) -> datetime:
    """When the mail was to be sent: for one that waits for its day, that day. The same for every rendering."""
    assert not isinstance(claimed.content, InvalidEmail)
    return max(claimed.created_at, claimed.content.send_after or claimed.created_at)


def _invalid(ordinals: tuple[int, ...], error: InvalidEmail) -> AttemptResult:
    """No try will ever make it valid: refused for everybody, by the name of the field."""
    return same_for_all(ordinals, Refused(Reply(enhanced=f"invalid:{error.field}"[:100])))


def _rendering(pinned: Pinned) -> Rendering:
    return Rendering(pinned.body, pinned.method, pinned.url, pinned.headers)


def _named(envelope: Envelope) -> str:
    names = ",".join(str(recipient.ordinal) for recipient in envelope.recipients)
    return hashlib.sha256(names.encode()).hexdigest()[:12]


def _envelope_sender(content: OutgoingEmail) -> str:
    if content.envelope_sender is None:
        return content.sender.mailbox
    return content.envelope_sender
