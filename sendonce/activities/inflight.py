"""Attempts as tasks of this process: how many at once, who waits for them, and when one must stop.

The transmission belongs to the process and not to the activity that asked for it. An activity waits for it a moment
and then hands over; cancelling or terminating a workflow cannot cut what a provider is being told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

from sendonce.activities.account_watch import Probe
from sendonce.activities.failures import where
from sendonce.ending import end
from sendonce.policy import LanePolicy
from sendonce.stages import Stage
from sendonce.workflows.port import AttemptAnswer, Carried, InFlight, Sleep, Ticket, Unrecorded, Wake

logger = logging.getLogger(__name__)

UNRECORDED_SLEEP = 5.0
"""Seconds until a workflow tries to record what its worker could not."""

YOUNG_SECONDS = 1.0
"""After so long an attempt that goes on is waiting for somebody else."""

FAULT_SLEEP = 30.0
"""Seconds until the next try after the attempt's own code failed."""


def lease_margin(lease_seconds: float) -> float:
    """How long before its lease lapses an attempt must have begun, or stop: 5 s, a quarter for very short leases."""
    return min(5.0, lease_seconds / 4)


class Phase(Enum):
    """How far an attempt has come."""

    CLAIMING = 1
    CLAIMED = 2
    """Leased, nothing offered: the lease protects it, and it must stop before the lease can lapse."""
    BEGINNING = 3
    """Begin is on its way to the store, which decides."""
    TRANSMITTING = 4
    """The offer is committed. Nothing is cut because the store is away."""
    SETTLING = 5


class Poker(Protocol):
    """Wakes a workflow. Never raises."""

    async def wake(self, workflow_id: str, wake: Wake) -> None:
        """Send the signal; a workflow that is gone is fine."""


class Flight:
    """One mail's attempt, running in this process."""

    def __init__(self, ticket: Ticket, lane: LanePolicy, lease_seconds: float) -> None:
        self.ticket = ticket
        self.email_id = UUID(ticket.email_id)
        self.lane = lane
        self.phase = Phase.CLAIMING
        self.lease: UUID | None = None
        self.stop_why = ""
        self.destinations: set[tuple[str, str]] = set()
        """Account and domain of the places it holds besides its own; see :meth:`Flights.enter`."""
        self.probe: Probe | None = None
        """The probe of a paused account that it holds, or may hold: until that is judged or given back."""
        self.handed_off = False
        self.answer: AttemptAnswer | None = None
        self.unrecorded: Carried | None = None
        self.work: asyncio.Task[Any] | None = None
        """What may be cancelled: everything between the claim and the outcome."""
        self.task: asyncio.Task[None]
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()
        self._lease_seconds = lease_seconds
        self._lease_end = self._loop.time() + lease_seconds
        self._answer_end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stuck = asyncio.Event()

    @property
    def deadline(self) -> float:
        """Loop time by which the attempt must have sent its begin."""
        return self._lease_end - lease_margin(self._lease_seconds)

    def claimed(self, lease: UUID, sent: float) -> None:
        """The claim, sent at loop time ``sent``, was granted."""
        self.lease, self.phase = lease, Phase.CLAIMED
        self.confirm(sent)

    def confirm(self, sent: float) -> None:
        """The lease was renewed by a statement sent at loop time ``sent``."""
        self._lease_end = sent + self._lease_seconds
        if self.phase is Phase.CLAIMED:
            self._disarm()
            self._timer = self._loop.call_at(self.deadline, self.stop, "lease_unconfirmed")

    def stop(self, why: str) -> None:
        """Stop before anything is offered; what has begun goes on."""
        if self.phase not in (Phase.CLAIMING, Phase.CLAIMED) or self.stop_why:
            return
        self.stop_why = why
        if self.work is not None:
            self.work.cancel()

    def beginning(self) -> None:
        """Begin is about to be sent: from here on the store's answer decides, not the timer."""
        self.phase = Phase.BEGINNING
        self._disarm()

    def begun(self, sent: float, answer_seconds: float) -> None:
        """Begin, sent at loop time ``sent``, was committed."""
        self.phase = Phase.TRANSMITTING
        self._lease_end = sent + self._lease_seconds
        self._answer_end = self._loop.time() + answer_seconds

    def settling(self) -> None:
        """The outcome is known, or the claim goes back."""
        self.phase = Phase.SETTLING
        self.work = None
        self._disarm()

    def keep(self, carried: Carried) -> None:
        """The store cannot be told the outcome: whoever waits gets it, to carry it."""
        self.unrecorded = carried
        self._stuck.set()

    def cut(self) -> None:
        """The process ends: stop whatever still runs. The outcome follows from the phase."""
        self.stop_why = self.stop_why or "shutdown"
        if self.work is not None:
            self.work.cancel()

    async def wait(self, seconds: float | None) -> AttemptAnswer:
        """The answer; after ``seconds`` (None: no limit) that the attempt goes on, and will wake its workflow."""
        stuck = asyncio.ensure_future(self._stuck.wait())
        try:
            await asyncio.wait({self.task, stuck}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stuck.cancel()
        # No await from here on: either the answer is given here, or the attempt sees that it was handed off.
        if self.answer is not None:
            return self.answer
        self.handed_off = True
        if self.unrecorded is not None:
            return Unrecorded(self.unrecorded, UNRECORDED_SLEEP)
        return self._in_flight()

    def _in_flight(self) -> InFlight:
        now = self._loop.time()
        lease = str(self.lease or "")
        if self.phase in (Phase.CLAIMING, Phase.CLAIMED, Phase.BEGINNING):
            return InFlight(max(0.0, self._lease_end - now) + 1.0, str(Stage.CLAIMED), lease)
        return InFlight(max(0.0, self._answer_end - now) + 5.0, str(Stage.TRANSMITTING), lease)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Flights:
    """All attempts of this process, at most ``lane.places`` at once for each account and lane."""

    def __init__(
        self,
        poker: Poker,
        domains: Mapping[str, Mapping[str, int]] | None = None,
        *,
        begins: Callable[[Flight], None] = lambda _: None,
        halted: Callable[[], bool] = lambda: False,
        timeline: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``domains``: by account and destination domain, how many may be at once. ``begins`` is told of attempts.
        ``halted``: whether the store may have forgotten what was sent, so that no attempt is to be started or begun.
        ``timeline``: the only one of the server's log on which an attempt may be begun; None: any.
        """
        self._halted = halted
        self._timeline = timeline
        self._poker = poker
        self._domains = domains or {}
        self._domains_used: Counter[tuple[str, str]] = Counter()
        self._flights: dict[UUID, Flight] = {}
        self._used: Counter[tuple[str, str]] = Counter()
        self._places: dict[tuple[str, str], int] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._landed = asyncio.Event()
        self._quiet: UUID | None = None
        self._closed = False
        self._begins = begins

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def closed(self) -> bool:
        """True once no new attempt is taken on."""
        return self._closed

    @property
    def halted(self) -> bool:
        """True while no attempt may be started or begun."""
        return self._halted()

    @property
    def timeline(self) -> int | None:
        """The timeline of the server's log on which an attempt may be begun; None: any."""
        return self._timeline()

    def get(self, email_id: UUID) -> Flight | None:
        """The attempt that runs for this mail, if any."""
        return self._flights.get(email_id)

    def free(self, account: str, lane: LanePolicy) -> bool:
        """Is there a place for one more attempt?"""
        return not self._closed and self._quiet is None and self._used[account, lane.name] < lane.places

    def young(self, lane: str) -> int:
        """How many attempts of the lane began a moment ago. Older ones wait for their relay."""
        since = asyncio.get_running_loop().time() - YOUNG_SECONDS
        return sum(1 for flight in self._flights.values() if flight.began >= since and flight.lane.name == lane)

    def full_accounts(self, lane: str) -> tuple[str, ...]:
        """The accounts that have no free place in this lane."""
        return tuple(
            account
            for (account, name), places in self._places.items()
            if name == lane and self._used[account, name] >= places
        )

    def enter(self, flight: Flight, account: str, domains: Iterable[str]) -> bool:
        """Take a place at each of these destinations for the rest of the flight; False when one is full."""
        limits = self._domains.get(account, {})
        wanted = {(account, domain) for domain in domains if domain in limits} - flight.destinations
        if any(self._domains_used[account, domain] >= limits[domain] for _, domain in wanted):
            return False
        self._domains_used.update(wanted)
        flight.destinations |= wanted
        return True

    def full_domains(self) -> dict[str, list[str]]:
        """The destinations that have enough at once, by account."""
        return {
            account: full
            for account, limits in self._domains.items()
            if (full := [domain for domain, most in limits.items() if self._domains_used[account, domain] >= most])
        }

    def leases(self) -> dict[UUID, Flight]:
        """Whose leases are to be renewed, by lease id."""
        return {flight.lease: flight for flight in self._flights.values() if flight.lease is not None}

    def start(self, flight: Flight, body: Coroutine[Any, Any, AttemptAnswer]) -> None:
        """Run ``body`` as the attempt, in the place that :meth:`free` promised. It outlives whoever asked for it."""
        place = (flight.ticket.account, flight.lane.name)
        self._used[place] += 1
        self._places[place] = flight.lane.places
        self._flights[flight.email_id] = flight
        self._begins(flight)
        flight.task = asyncio.create_task(self._fly(flight, body, place), name=f"attempt {flight.email_id}")

    async def _fly(self, flight: Flight, body: Coroutine[Any, Any, AttemptAnswer], place: tuple[str, str]) -> None:
        answer: AttemptAnswer = Sleep(FAULT_SLEEP, "fault")
        try:
            answer = await body
        except asyncio.CancelledError:
            # Only a process that ends with the store away gets here; the workflow carries what is known.
            answer = Sleep(1.0, "shutdown")
        except Exception as error:
            logger.error("attempt failed: email_id=%s %s", flight.email_id, where(error))
        finally:
            flight.settling()
            flight.answer = answer
            del self._flights[flight.email_id]
            self._used[place] -= 1
            self._domains_used.subtract(flight.destinations)
            self.end_quiet(flight.email_id)
            self._landed.set()
            if flight.handed_off:
                self.poke(flight, [])

    def poke(self, flight: Flight, carried: list[Carried]) -> None:
        """Wake the mail's workflow, in the background."""
        self.later(self._poker.wake(flight.ticket.workflow_id, Wake(carried)))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this, which never raises, in the background. When the process ends it gets a moment more."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def after_those(self, then: Callable[[], Awaitable[None]]) -> None:
        """Call ``then`` once every attempt that runs now has ended, or when the process ends."""
        running = [flight.task for flight in self._flights.values()]
        try:
            if running:
                await asyncio.wait(running)
        finally:
            await then()

    @asynccontextmanager
    async def quiet(self, email_id: UUID, seconds: float) -> AsyncIterator[bool]:
        """Keep new attempts out, until :meth:`end_quiet`, while ``email_id`` runs; False when others did not end."""
        if self._quiet is not None:
            yield False
            return
        self._quiet = email_id
        try:
            yield await self._alone(seconds)
        finally:
            self.end_quiet(email_id)

    async def _alone(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while len(self._flights) > 1:
                    self._landed.clear()
                    await self._landed.wait()
        except TimeoutError:
            return False
        return True

    def end_quiet(self, email_id: UUID) -> None:
        """Let other attempts in again, if ``email_id`` kept them out."""
        if self._quiet == email_id:
            self._quiet = None

    def close(self, why: str = "shutdown") -> None:
        """Take on nothing more, and stop what has not begun."""
        self._closed = True
        for flight in list(self._flights.values()):
            flight.stop(why)

    async def drain(self, seconds: float, *, last_seconds: float = 5.0) -> int:
        """Wait up to ``seconds`` for everything to end, then cut; returns how many were cut.

        What was cut gets ``last_seconds`` to be recorded.
        """
        if self._flights:
            await asyncio.wait({f.task for f in self._flights.values()}, timeout=seconds)
        cut = list(self._flights.values())
        for flight in cut:
            flight.cut()
        if cut:
            await asyncio.wait({f.task for f in cut}, timeout=last_seconds)
        await end(f.task for f in cut)
        if self._background:
            _, left = await asyncio.wait(set(self._background), timeout=last_seconds)
            await end(left)
        return len(cut)
