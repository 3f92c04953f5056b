"""The activities of a delivery: record what is carried, claim, transmit, settle, and say what comes next."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import psycopg
import psycopg_pool
from temporalio import activity
from temporalio.exceptions import ApplicationError

from sendonce.activities.account_watch import AccountWatch
from sendonce.activities.actions import act
from sendonce.activities.admission import Admission, Admitted
from sendonce.activities.answers import from_carried, to_answer, to_carried
from sendonce.activities.failures import safe_code, where
from sendonce.activities.inflight import Flight
from sendonce.activities.transmission import NOT_CONFIGURED, TEMPLATE, GiveBack, Means, Transmission
from sendonce.activities.witness import HALTED
from sendonce.outcome import AttemptResult
from sendonce.policy import LanePolicy
from sendonce.stages import Stage
from sendonce.store.records import Claimed, Paused, Standing, Wait
from sendonce.workflows.port import Acted, Action, AttemptAnswer, AttemptCall, DeliverySteps, Sleep, Ticket, Withdrawal

logger = logging.getLogger(__name__)

STORE_AWAY_SLEEP = 3.0
"""Seconds until the next try when the store cannot be reached."""

NO_PLACE_SLEEP = (1.0, 30.0)
"""Seconds, at random between the two, until a mail asks again for a place."""

LOCKED_SLEEP = (2.0, 6.0)
"""Seconds, at random between the two, until a mail asks again whose row somebody holds locked."""

DOMAIN_FULL = (1.0, 3.0)
"""Seconds, at random between the two, until a mail asks again whose destination has enough at once."""

SHUTDOWN_SLEEP = (0.5, 2.0)
"""The same, while this process ends: another one will be asked."""

HALTED_SLEEP = (30.0, 90.0)
"""Seconds, at random between the two, until a mail asks again while nothing is sent."""

ELSEWHERE_SLEEP = (30.0, 90.0)
"""The same, until a mail asks another worker whose account this one does not have."""

OF_THIS_WORKER = frozenset({NOT_CONFIGURED, TEMPLATE, "identity_changed", "pins_differ", "pinned_unguarded"})
"""Why a claim is given back that a worker with other settings, or other templates, would have used. Temporal keeps a
workflow with the worker that had it last: without a new run it would ask the same one again while that one lives."""

QUIET_SECONDS = 5.0
"""How long a mail that took down two processes waits for the others, to be tried alone."""

SETTLE_PAUSE = 1.0
"""Seconds between two tries to record an outcome."""

SETTLE_TRIES = 10
"""Tries to record an outcome that the store refuses to take, which is a fault of ours; then the workflow has it."""

RELEASE_TRIES = 5


class Delivery(DeliverySteps):
    """The worker's side of a delivery; one per process, shared by its lanes."""

    def __init__(
        self, means: Means, lanes: Mapping[str, LanePolicy], *, hand_off_seconds: float | None, breaker_mails: int
    ) -> None:
        """``hand_off_seconds``: how long an activity waits for its attempt; None: as long as it takes.

        ``breaker_mails``: see :class:`~sendonce.activities.account_watch.AccountWatch`.
        """
        self._means = means
        self._store = means.store
        self._flights = means.flights
        self._lanes = lanes
        self._hand_off = hand_off_seconds
        self._accounts = AccountWatch(means.store, breaker_mails=breaker_mails)
        askable = {name for name, transport in means.transports.items() if transport.capability.look_up}
        # An unknown of theirs may have been offered to one that can be asked.
        self._askable = askable | {name for name, other in means.store.fallbacks.items() if other in askable}
        self._admission = Admission(
            means.store,
            self._accounts,
            means.health,
            worker=means.worker,
            lease_seconds=means.lease_seconds,
            observer=means.observer,
        )

    @activity.defn(name="attempt")
    async def attempt(self, call: AttemptCall) -> AttemptAnswer:
        """Record what is carried, then claim and transmit if the mail is due."""
        try:
            return await self._attempt(call)
        except Exception as error:
            raise _failure("attempt", call.ticket, error) from None

    @activity.defn(name="withdraw")
    async def withdraw(self, call: Withdrawal) -> AttemptAnswer:
        """Ask the store to cancel the mail; what has been offered is not cut."""
        ticket = call.ticket
        try:
            standing = await self._store.withdraw(
                UUID(ticket.email_id), ticket.key, lane=self._lane(ticket.lane), actor=call.actor
            )
            return self._told(ticket, standing)
        except psycopg.errors.LockNotAvailable:
            return replace(_locked(), recorded=False)
        except psycopg.OperationalError:
            return self._store_away()
        except Exception as error:
            raise _failure("withdraw", ticket, error) from None

    @activity.defn(name="act")
    async def act(self, call: Action) -> Acted:
        """Carry out what somebody asks of the mail, once; or say why not."""
        try:
            return await act(self._store, self._lanes, call)
        except psycopg.errors.LockNotAvailable:
            return Acted(False, "somebody's open transaction holds its row", again_in=random.uniform(*LOCKED_SLEEP))
        except psycopg.OperationalError:
            self._means.health.away()
            return Acted(False, "the store cannot be reached", again_in=STORE_AWAY_SLEEP)
        except Exception as error:
            raise _failure("act", call.ticket, error) from None

    async def _attempt(self, call: AttemptCall) -> AttemptAnswer:
        ticket = call.ticket
        email_id, lane = UUID(ticket.email_id), self._lane(ticket.lane)
        try:
            for carried in call.carried:
                await self._store.settle(
                    email_id, UUID(carried.attempt_id), from_carried(carried), lane=lane, actor=self._means.worker
                )
            if self._flights.closed and self._flights.get(email_id) is None:
                return Sleep(random.uniform(*SHUTDOWN_SLEEP), "shutdown")
            if self._flights.halted and self._flights.get(email_id) is None:
                return Sleep(random.uniform(*HALTED_SLEEP), HALTED)
            if self._flights.get(email_id) is None and not self._flights.free(ticket.account, lane):
                await self._store.touch(email_id)
                return Sleep(random.uniform(*NO_PLACE_SLEEP), "no_place")
        except psycopg.errors.LockNotAvailable:
            return replace(_locked(), recorded=False)
        except psycopg.OperationalError:
            return self._store_away()
        # The store was asked in between: somebody else may have started it, or taken the place.
        flight = self._flights.get(email_id)
        if flight is None:
            if self._flights.halted:
                return Sleep(random.uniform(*HALTED_SLEEP), HALTED)
            if not self._flights.free(ticket.account, lane):
                return Sleep(random.uniform(*NO_PLACE_SLEEP), "no_place")
            flight = Flight(ticket, lane, self._means.lease_seconds)
            self._flights.start(flight, self._deliver(flight))
        return await flight.wait(self._hand_off)

    def _told(self, ticket: Ticket, standing: Standing | Paused, *, tried: bool = False) -> AttemptAnswer:
        """The store's answer in the workflow's words."""
        answer = to_answer(standing, tried=tried, askable=ticket.account in self._askable)
        if isinstance(standing, Paused) and isinstance(answer, Sleep) and ticket.account not in self._means.transports:
            # It is this worker that lacks the account; one that has it is not kept waiting by that.
            return replace(answer, seconds=min(answer.seconds, random.uniform(*ELSEWHERE_SLEEP)), elsewhere=True)
        return answer

    def _lane(self, name: str) -> LanePolicy:
        lane = self._lanes.get(name)
        if lane is None:
            raise LookupError(name)
        return lane

    def _store_away(self) -> Sleep:
        self._means.health.away()
        return Sleep(STORE_AWAY_SLEEP * random.uniform(1.0, 2.0), "store_away", recorded=False)

    async def _deliver(self, flight: Flight) -> AttemptAnswer:
        """The attempt as a task of the process."""
        try:
            admitted = await self._admission.admit(flight)
            if isinstance(admitted.answer, Wait) and admitted.answer.why == "alone":
                # This mail's claims lapsed twice: it may be what takes processes down, so nothing else runs beside it.
                async with self._flights.quiet(flight.email_id, QUIET_SECONDS) as alone:
                    admitted = await self._admission.alone(flight, admitted, alone=alone)
                    return await self._carry_out(flight, admitted)
            return await self._carry_out(flight, admitted)
        except psycopg.errors.LockNotAvailable:
            # What has a lease does not come here.
            return _locked()
        except psycopg.OperationalError:
            return replace(self._store_away(), recorded=True)
        finally:
            self._leave_probe(flight)

    def _leave_probe(self, flight: Flight) -> None:
        """The probe that the flight still holds told nothing: give it back, in the background."""
        if flight.probe is not None:
            self._flights.later(self._accounts.no_answer(flight.probe, flight.email_id))
            flight.probe = None

    async def _carry_out(self, flight: Flight, admitted: Admitted) -> AttemptAnswer:
        answer = admitted.answer
        if not isinstance(answer, Claimed):
            return self._told(flight.ticket, answer)
        if flight.probe is not None and flight.probe.account != answer.account:
            # The mail's own account was opened in between, and needs no probe of the fallback.
            self._leave_probe(flight)
        with self._means.observer.attempting(answer):
            return await self._send(flight, answer)

    async def _send(self, flight: Flight, answer: Claimed) -> AttemptAnswer:
        """One claimed attempt, recorded whatever comes of it."""
        if not self._flights.enter(flight, answer.account, answer.to_domains):
            return await self._give_back(flight, answer, GiveBack("destination_full", random.uniform(*DOMAIN_FULL)))
        transmission = Transmission(self._means, flight, answer)
        came = await transmission.conclude()
        if isinstance(came, GiveBack):
            return await self._give_back(flight, answer, came)
        try:
            came = await self._accounts.blame(answer, came)
        except psycopg.OperationalError:
            # Recorded as the fault it looks like; the next attempt asks again.
            self._means.health.away()
        standing = await self._settle(flight, answer, came)
        self._means.observer.settled(answer, came, standing)
        _log(answer, came)
        probe = flight.probe.domain if flight.probe else None
        try:
            await self._accounts.judge(answer, came, probe=probe, reached=transmission.begun)
            flight.probe = None
        except psycopg.OperationalError:
            # The next attempt meets the same answer.
            self._means.health.away()
        return self._told(flight.ticket, standing, tried=True)

    async def _give_back(self, flight: Flight, claimed: Claimed, back: GiveBack) -> AttemptAnswer:
        if back.why == NOT_CONFIGURED:
            logger.error("no account %r in this worker's settings: email_id=%s", claimed.account, claimed.email_id)
        for _ in range(RELEASE_TRIES):
            try:
                if back.why == NOT_CONFIGURED:
                    await self._store.account_fault(claimed.account, code=0, enhanced=NOT_CONFIGURED)
                if back.alarm:
                    await self._store.alarm(claimed.email_id, "held", back.alarm)
                held_for = await self._store.release(
                    claimed.email_id,
                    claimed.attempt_id,
                    why=back.why,
                    delay=back.delay,
                    actor=self._means.worker,
                    held=back.why == TEMPLATE,
                )
                if back.why == TEMPLATE and held_for >= self._means.template_patience:
                    return self._told(
                        flight.ticket,
                        await self._store.give_up(
                            claimed.email_id, cause=TEMPLATE, lane=flight.lane, actor=self._means.worker
                        ),
                    )
                told = self._told(flight.ticket, await self._store.standing(claimed.email_id, claimed.key))
                if isinstance(told, Sleep):
                    told = replace(told, elsewhere=back.why in OF_THIS_WORKER)
                if isinstance(told, Sleep) and told.stage == Stage.PENDING and not told.held:
                    # What keeps it waiting is known here, and nowhere in its row.
                    held = back.why in (TEMPLATE, NOT_CONFIGURED)
                    return replace(told, why=safe_code(back.why) or told.why, held=held)
                return told
            except psycopg.OperationalError:
                self._means.health.away()
                await asyncio.sleep(SETTLE_PAUSE)
        # The lease lapses by itself, and does not blame the mail: this process saw the store away.
        return replace(self._store_away(), recorded=True)

    async def _settle(self, flight: Flight, claimed: Claimed, result: AttemptResult) -> Standing:
        """Record the outcome, however long the store is away; meanwhile the workflow gets it too."""
        tries = refused = 0
        while True:
            try:
                return await self._store.settle(
                    claimed.email_id, claimed.attempt_id, result, lane=flight.lane, actor=self._means.worker
                )
            except psycopg_pool.PoolTimeout:
                # No connection within the pool's patience: there was more than one try.
                self._means.health.away()
                tries += 1
            except psycopg.OperationalError:
                self._means.health.away()
            except Exception as error:
                logger.error("outcome not recorded: email_id=%s %s", claimed.email_id, where(error))
                refused += 1
                if refused == SETTLE_TRIES:
                    raise
                # Whatever the store cannot take must not cost the verdict: codes are enough.
                result = from_carried(to_carried(str(claimed.attempt_id), result))
            tries += 1
            if tries >= 2 and flight.unrecorded is None:
                carried = to_carried(str(claimed.attempt_id), result)
                flight.keep(carried)
                if flight.handed_off:
                    self._flights.poke(flight, [carried])
            if tries >= 2:
                await asyncio.sleep(SETTLE_PAUSE)


def _locked() -> Sleep:
    """A transaction is open that holds the mail's row, such as one that calls it off. The store is there."""
    return Sleep(random.uniform(*LOCKED_SLEEP), "locked")


def _log(claimed: Claimed, result: AttemptResult) -> None:
    """One line for each attempt: at DEBUG what went well, at INFO what did not."""
    kinds = {outcome.kind for outcome in result.outcomes.values()}
    level = logging.DEBUG if kinds == {"accepted"} else logging.INFO
    if logger.isEnabledFor(level):
        reply = result.first_reply()
        logger.log(
            level,
            "outcome=%s code=%d enhanced=%s key=%s attempt=%d lane=%s account=%s email_id=%s",
            ",".join(sorted(kinds)),
            reply.code,
            safe_code(reply.enhanced) or "-",
            claimed.key,
            claimed.number,
            claimed.lane,
            claimed.account,
            claimed.email_id,
        )


def _failure(step: str, ticket: Ticket, error: Exception) -> ApplicationError:
    """What the SDK may log and Temporal may keep of a fault of ours: its type."""
    logger.error("%s failed: email_id=%s lane=%s %s", step, ticket.email_id, ticket.lane, where(error))
    return ApplicationError(step, type=type(error).__name__, non_retryable=True)
