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
from sendonce.activities.admission import Admission, Admitted
from sendonce.activities.answers import from_carried, to_answer, to_carried
from sendonce.activities.failures import where
from sendonce.activities.inflight import Flight
from sendonce.activities.transmission import NOT_CONFIGURED, TEMPLATE, GiveBack, Means, Transmission
from sendonce.outcome import AttemptResult
from sendonce.policy import LanePolicy
from sendonce.store.records import Claimed, Standing, Wait
from sendonce.workflows.port import AttemptAnswer, AttemptCall, DeliverySteps, Sleep, Ticket, Withdrawal

logger = logging.getLogger(__name__)

STORE_AWAY_SLEEP = 3.0
"""Seconds until the next try when the store cannot be reached."""

NO_PLACE_SLEEP = (1.0, 30.0)
"""Seconds, at random between the two, until a mail asks again for a place."""

DOMAIN_FULL = (1.0, 3.0)
"""Seconds, at random between the two, until a mail asks again whose destination has enough at once."""

SHUTDOWN_SLEEP = (0.5, 2.0)
"""The same, while this process ends: another one will be asked."""

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
        self._admission = Admission(
            means.store,
            self._accounts,
            means.health,
            worker=means.worker,
            lease_seconds=means.lease_seconds,
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
            return to_answer(standing)
        except psycopg.OperationalError:
            return self._store_away()
        except Exception as error:
            raise _failure("withdraw", ticket, error) from None

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
            if self._flights.get(email_id) is None and not self._flights.free(ticket.account, lane):
                await self._store.touch(email_id)
                return Sleep(random.uniform(*NO_PLACE_SLEEP), "no_place")
        except psycopg.OperationalError:
            return self._store_away()
        # The store was asked in between: somebody else may have started it, or taken the place.
        flight = self._flights.get(email_id)
        if flight is None:
            if not self._flights.free(ticket.account, lane):
                return Sleep(random.uniform(*NO_PLACE_SLEEP), "no_place")
            flight = Flight(ticket, lane, self._means.lease_seconds)
            self._flights.start(flight, self._deliver(flight))
        return await flight.wait(self._hand_off)

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
            return to_answer(answer)
        if flight.probe is not None and flight.probe.account != answer.account:
            # The mail's own account was opened in between, and needs no probe of the fallback.
            self._leave_probe(flight)
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
        probe = flight.probe.domain if flight.probe else None
        try:
            await self._accounts.judge(answer, came, probe=probe, reached=transmission.begun)
            flight.probe = None
        except psycopg.OperationalError:
            # The next attempt meets the same answer.
            self._means.health.away()
        return to_answer(standing)

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
                    return to_answer(
                        await self._store.give_up(
                            claimed.email_id, cause=TEMPLATE, lane=flight.lane, actor=self._means.worker
                        )
                    )
                return to_answer(await self._store.standing(claimed.email_id, claimed.key))
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


def _failure(step: str, ticket: Ticket, error: Exception) -> ApplicationError:
    """What the SDK may log and Temporal may keep of a fault of ours: its type."""
    logger.error("%s failed: email_id=%s lane=%s %s", step, ticket.email_id, ticket.lane, where(error))
    return ApplicationError(step, type=type(error).__name__, non_retryable=True)
