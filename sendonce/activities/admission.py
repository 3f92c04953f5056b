"""The claim with what goes before it: the probe of a paused account, its fallback, a slot of the account's rates."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from sendonce.activities.account_watch import AccountWatch, Probe
from sendonce.activities.inflight import Flight
from sendonce.activities.leases import StoreHealth
from sendonce.activities.observer import Observer
from sendonce.store import Store
from sendonce.store.records import Claimed, NoSlot, Paused, Standing, Wait

LONGEST_NO_SLOT = 3600.0
"""Seconds after which a mail asks for a slot again, however far the next one is."""

RATE = "rate"
"""Why a mail waits whose account, or whose destination's domain, is used as fast as it may be."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a claim may pass by."""

    probe: Probe | None = None
    divert: bool = False
    """Leave the probe that is due to others, and take the fallback."""
    slot: str | None = None
    """The account that the claim has a slot of."""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the store said in the end, and what was passed on the way there."""

    answer: Claimed | Standing | Paused
    by: Pass


class Admission:
    """Claims for one process."""

    def __init__(
        self,
        store: Store,
        accounts: AccountWatch,
        health: StoreHealth,
        *,
        worker: str,
        lease_seconds: float,
        observer: Observer,
    ) -> None:
        self._store = store
        self._observer = observer
        self._accounts = accounts
        self._health = health
        self._worker = worker
        self._lease_seconds = lease_seconds

    async def admit(self, flight: Flight) -> Admitted:
        """Claim the mail, once it may be: with a probe, by the fallback, after the wait for a slot."""
        by = Pass()
        answer = await self._claim(flight, by)
        while isinstance(answer, (Paused, NoSlot)):
            if isinstance(answer, NoSlot):
                self._observer.no_slot(answer.account, flight.lane.name)
                waited = await self._slot(flight, answer)
                if waited is not None:
                    return Admitted(waited, by)
                by = replace(by, slot=answer.account)
            else:
                passing = await self._pause(flight, answer, by)
                if passing is None:
                    return Admitted(answer, by)
                by = passing
            answer = await self._claim(flight, by)
        return Admitted(answer, by)

    async def alone(self, flight: Flight, admitted: Admitted, *, alone: bool) -> Admitted:
        """Claim once more, with nothing beside it if ``alone``."""
        by = replace(admitted.by, alone=alone)
        answer = await self._claim(flight, by)
        if isinstance(answer, NoSlot):
            # Its account has changed meanwhile. It asks again.
            return Admitted(Wait(1.0, RATE), by)
        return Admitted(answer, by)

    async def _slot(self, flight: Flight, wanting: NoSlot) -> Standing | None:
        """Wait for a slot that is near, without a lease and without a connection; else say for how long."""
        names = self._store.limits(wanting.account, wanting.domains)
        given = await self._store.take_slots(names, flight.lane.name, 1)
        if given.delays:
            await asyncio.sleep(given.delays[0])
            return None
        # Spread out a little, or everybody would ask for the same slot; and not for ever, or nobody would see that the
        # rates were raised.
        wait = min(LONGEST_NO_SLOT, given.retry_in) + random.uniform(0.0, 5.0)
        return await self._store.put_off(flight.email_id, wait, lane=flight.lane, actor=self._worker)

    async def _pause(self, flight: Flight, paused: Paused, by: Pass) -> Pass | None:
        """What to pass the pause by; None: it waits."""
        self._accounts.is_paused(paused.account, paused.domain)
        if by.probe is not None or not paused.probe_due:
            return None
        # Before the answer, which may get lost.
        probe = flight.probe = Probe(paused.account, paused.domain)
        if await self._store.take_probe(
            probe.account, flight.email_id, domain=probe.domain, answer_seconds=flight.lane.answer_seconds
        ):
            return replace(by, probe=probe)
        flight.probe = None
        if paused.can_divert and not by.divert:
            # Somebody else has the probe, or is to have it: this mail need not wait for what it meets.
            return replace(by, divert=True)
        return None

    async def _claim(self, flight: Flight, by: Pass) -> Claimed | Standing | Paused | NoSlot:
        sent = asyncio.get_running_loop().time()
        answer = await self._store.claim(
            flight.email_id,
            flight.ticket.key,
            lane=flight.lane,
            worker=self._worker,
            lease_seconds=self._lease_seconds,
            alone=by.alone,
            probe=by.probe.domain if by.probe else None,
            probe_of=by.probe.account if by.probe else None,
            divert=by.divert,
            slot=by.slot,
            outage_ago=self._health.ago(),
        )
        if isinstance(answer, Claimed):
            flight.claimed(answer.attempt_id, sent)
        return answer
