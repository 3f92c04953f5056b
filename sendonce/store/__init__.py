"""The store: PostgreSQL is the authority on stages, and every SQL statement of Sendonce lives in this package.

Two kinds of write. *Permissions* (:mod:`~sendonce.store.claims`, ``offers``, ``leases``) are fenced by a lease and
refused when the row has moved on. *Facts* (:mod:`~sendonce.store.facts`) are never refused and idempotent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from sendonce.events import Event
from sendonce.outcome import AttemptResult
from sendonce.policy import LanePolicy
from sendonce.rates import Pools, pool_name
from sendonce.stages import Proof
from sendonce.store import (
    accounts,
    alarms,
    claims,
    dispatch,
    events,
    facts,
    leases,
    look_ups,
    offers,
    routes,
    slots,
    suppressions,
    sweeps,
    turns,
    wakes,
)
from sendonce.store.pool import open_pool
from sendonce.store.records import (
    BeginRefused,
    Begun,
    ClaimAnswer,
    LookUp,
    Pinned,
    Standing,
    Startable,
)

__all__ = ["Store", "open_pool"]


class Store:
    """Every statement the worker and the starter make, each one short transaction.

    ``digests`` maps account names to the digest of the settings this process holds: which pauses concern it.
    ``fallbacks`` maps account names to the account that stands in while they are paused. ``pools`` maps what has rates,
    by :func:`sendonce.rates.pool_name`, to what :func:`sendonce.rates.shares` makes of them; ``at_once`` says by
    account and destination domain how many a worker process may have at once. A store that is away raises
    :class:`psycopg.OperationalError`; everything else is an answer.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        digests: Mapping[str, str] | None = None,
        fallbacks: Mapping[str, str] | None = None,
        pools: Mapping[str, Pools] | None = None,
        at_once: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._pool = pool
        self._digests = dict(digests or {})
        self._fallbacks = dict(fallbacks or {})
        self._pools = dict(pools or {})
        self._at_once = dict(at_once or {})
        # By account, the destinations that have rates of their own.
        self._limited: dict[str, list[str]] = {}
        for name in self._pools:
            account, _, domain = name.partition("@")
            if domain:
                self._limited.setdefault(account, []).append(domain)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with self._pool.connection() as conn:
            yield conn

    # Permissions: fenced.

    async def claim(
        self,
        email_id: UUID,
        key: str,
        *,
        lane: LanePolicy,
        worker: str,
        lease_seconds: float,
        alone: bool = False,
        probe: str | None = None,
        probe_of: str | None = None,
        divert: bool = False,
        slot: str | None = None,
        outage_ago: float | None = None,
    ) -> ClaimAnswer:
        """Lease the row to a new attempt, or say why not. Any answer stamps that a workflow was seen.

        ``alone``: no other attempt runs in this process; a mail whose claims lapsed twice is claimed only then.
        ``probe``: pass a pause as its probe; the From domain it is limited to, or ``""``. ``probe_of``: the account, by
        default the mail's. ``divert``: take the fallback although a probe of the mail's own account is due.
        ``slot``: the account whose rates the caller has a slot of.
        ``outage_ago``: seconds since this process last saw the store out of reach; lapses from before that blame no
        mail.
        """
        async with self._connection() as conn:
            answer = await claims.claim(
                conn,
                email_id,
                key,
                lane=lane,
                digests=self._digests,
                paced=list(self._pools),
                limited=self._limited,
                slot=slot,
                route=routes.params(self._fallbacks, probe=probe, probe_of=probe_of, divert=divert),
                worker=worker,
                lease_seconds=lease_seconds,
                alone=alone,
                outage_ago=outage_ago,
            )
            if answer == suppressions.SUPPRESSED:
                # Whoever is left is claimed at the next call.
                return await suppressions.apply(conn, email_id, lane=lane, actor=worker)
            if isinstance(answer, str):
                return await facts.reconsider(
                    conn, email_id, lane=lane, cause=answer, actor=worker, poison=answer == "poison"
                )
            return answer

    async def pin(
        self,
        email_id: UUID,
        slot: str,
        *,
        body: bytes,
        method: str,
        url: str,
        headers: tuple[tuple[str, str], ...],
        digest: bytes,
    ) -> Pinned:
        """Keep the rendering, insert-once; returns what is kept."""
        async with self._connection() as conn:
            return await offers.pin(
                conn, email_id, slot, body=body, method=method, url=url, headers=headers, digest=digest
            )

    async def pinned(self, email_id: UUID, slot: str) -> Pinned | None:
        """The kept rendering, or None."""
        async with self._connection() as conn:
            return await offers.pinned(conn, email_id, slot)

    async def begin(
        self,
        email_id: UUID,
        attempt_id: UUID,
        *,
        worker: str,
        generation: int,
        slot: str,
        digest: bytes,
        offered: Sequence[int],
        provider_key: str,
        identity: str,
        key_window: float | None,
        window_margin: float,
        answer_seconds: float,
        lease_seconds: float,
    ) -> Begun | BeginRefused:
        """Commit the stage ``transmitting``: the mail is about to be offered to the ordinals in ``offered``."""
        async with self._connection() as conn:
            return await offers.begin(
                conn,
                email_id,
                attempt_id,
                worker=worker,
                generation=generation,
                slot=slot,
                digest=digest,
                offered=offered,
                provider_key=provider_key,
                identity=identity,
                key_window=key_window,
                window_margin=window_margin,
                answer_seconds=answer_seconds,
                lease_seconds=lease_seconds,
            )

    async def renew(self, held: Sequence[UUID], lease_seconds: float) -> dict[UUID, bool]:
        """Renew all leases of the process in one statement; returns those that still stand, and whether renewed."""
        async with self._connection() as conn:
            return await leases.renew(conn, held, lease_seconds)

    async def release(
        self, email_id: UUID, attempt_id: UUID, *, why: str, actor: str, delay: float = 0.0, held: bool = False
    ) -> float:
        """Give an unbegun claim back, uncounted, due again after ``delay`` seconds. A no-op when fenced out.

        ``held``: a fault of ours keeps the mail waiting. Returns for how many seconds it has been so.
        """
        async with self._connection() as conn:
            return await leases.release(conn, email_id, attempt_id, why=why, delay=delay, actor=actor, held=held)

    async def give_up(self, email_id: UUID, *, cause: str, lane: LanePolicy, actor: str) -> Standing:
        """Dead-letter a mail that a fault of ours has kept waiting for too long; a no-op once it has been offered."""
        async with self._connection() as conn:
            return await facts.reconsider(conn, email_id, lane=lane, cause=cause, actor=actor, given_up=True)

    async def touch(self, email_id: UUID) -> None:
        """Stamp that the mail's workflow was seen."""
        async with self._connection() as conn:
            await leases.touch(conn, email_id)

    async def standing(self, email_id: UUID, key: str) -> Standing:
        """Where the mail stands now; stamps that its workflow was seen."""
        async with self._connection() as conn:
            return await claims.standing(conn, email_id, key)

    # Facts: never refused.

    async def settle(
        self,
        email_id: UUID,
        attempt_id: UUID,
        result: AttemptResult,
        *,
        lane: LanePolicy,
        actor: str,
        cause: str = "answered",
    ) -> Standing:
        """Append what an attempt found out, whoever holds the row now; returns where the mail stands."""
        async with self._connection() as conn:
            return await facts.settle(conn, email_id, attempt_id, result, lane=lane, actor=actor, cause=cause)

    async def due_look_ups(self, account: str, askable: Sequence[str], limit: int) -> list[LookUp]:
        """Stamp and return unknowns of this account that one of the accounts in ``askable`` is to be asked about now.

        Those to which they were offered: the mail's own, or what was its fallback then.
        """
        async with self._connection() as conn:
            return await look_ups.due(conn, account, askable, limit)

    async def record_evidence(
        self,
        email_id: UUID,
        proofs: Sequence[Proof],
        *,
        source: str,
        event_id: str,
        lane: LanePolicy,
        actor: str,
    ) -> Standing:
        """Record proofs from outside; the same event twice is one."""
        async with self._connection() as conn:
            return await facts.record_evidence(
                conn, email_id, proofs, source=source, event_id=event_id, lane=lane, actor=actor
            )

    async def record_completed_run(self, email_id: UUID, *, lane: LanePolicy, actor: str) -> Standing:
        """Temporal says that the mail's workflow completed: it was sent. The second witness, should a store forget."""
        async with self._connection() as conn:
            return await facts.record_completed_run(conn, email_id, lane=lane, actor=actor)

    async def withdraw(self, email_id: UUID, key: str, *, lane: LanePolicy, actor: str) -> Standing:
        """Ask for the mail to be cancelled: at once when nothing was offered, else it is not tried again."""
        async with self._connection() as conn:
            await facts.reconsider(conn, email_id, lane=lane, cause="cancelled", actor=actor, cancel=True)
            return await claims.standing(conn, email_id, key)

    async def requeue(self, email_id: UUID, *, lane: LanePolicy, actor: str, force: bool = False) -> Standing | None:
        """An operator's decision to try a ``dead`` or ``failed`` mail again; None when it may not be."""
        async with self._connection() as conn:
            return await facts.requeue(conn, email_id, lane=lane, actor=actor, force=force)

    async def hold(self, email_id: UUID, why: str, *, actor: str) -> None:
        """Nobody tries this mail until an operator decides; with an alarm."""
        async with self._connection() as conn:
            await sweeps.hold(conn, email_id, why, actor)

    async def alarm(self, email_id: UUID, kind: str, detail: str) -> None:
        """Raise an alarm about a mail unless one of that kind is open; ``detail`` holds ids and codes only."""
        async with self._connection() as conn:
            await sweeps.alarm(conn, email_id, kind, detail)

    # Accounts.

    # ``domain``: the pause concerns only mail from that domain; "": the whole account.

    async def account_fault(
        self,
        account: str,
        *,
        code: int,
        enhanced: str,
        retry_after: float | None = None,
        probe: bool = False,
        domain: str = "",
        email_id: UUID | None = None,
    ) -> None:
        """Pause the account for the holders of our settings, with an alarm.

        ``email_id``: the mail that met the fault; others probe first. ``probe``: that mail was the probe.
        """
        async with self._connection() as conn:
            await accounts.fault(
                conn,
                self._scope(account, domain),
                code=code,
                enhanced=enhanced,
                retry_after=retry_after,
                probe=probe,
                email_id=email_id,
            )

    async def give_probe_back(self, account: str, email_id: UUID, *, domain: str = "") -> None:
        """The probe, this mail, told nothing: another may pass soon. A no-op when another has its place by now."""
        async with self._connection() as conn:
            await accounts.give_probe_back(conn, self._scope(account, domain), email_id)

    async def account_works(self, account: str, *, domain: str = "") -> bool:
        """End a pause; True when there was one."""
        async with self._connection() as conn:
            return await accounts.works(conn, self._scope(account, domain))

    async def take_probe(self, account: str, email_id: UUID, *, domain: str = "", answer_seconds: float = 0.0) -> bool:
        """Lease the one probe of what is paused; True when this mail has it.

        ``answer_seconds``: how long its answer is awaited, which the lease covers.
        """
        async with self._connection() as conn:
            return await accounts.take_probe(
                conn, self._scope(account, domain), email_id, answer_seconds=answer_seconds
            )

    async def is_culprit(self, account: str, email_id: UUID, *, domain: str) -> bool:
        """True when this mail met a sender fault before, and others have passed from its domain since."""
        async with self._connection() as conn:
            return await accounts.is_culprit(conn, self._scope(account, domain), email_id)

    def _scope(self, account: str, domain: str) -> accounts.Scope:
        return accounts.Scope(account, self._digests.get(account, ""), domain)

    # Rates.

    def limits(self, account: str, domains: Sequence[str]) -> tuple[str, ...]:
        """The names of what must have a slot for a mail of this account to these domains: the widest comes last."""
        narrow = (pool_name(account, domain) for domain in domains)
        return tuple(name for name in (*narrow, pool_name(account)) if name in self._pools)

    async def take_slots(self, names: Sequence[str], lane: str, wanted: int) -> slots.Given:
        """Up to ``wanted`` slots that all of these have for the lane, at most a second ahead; see :meth:`limits`."""
        async with self._connection() as conn:
            return await slots.take(conn, {name: self._pools[name] for name in names}, lane, wanted)

    async def mark_slots(self, account: str, given: Mapping[UUID, float]) -> None:
        """These mails have slots of the account, so many seconds from now."""
        async with self._connection() as conn:
            await slots.mark(conn, account, given)

    async def put_off(self, email_id: UUID, seconds: float, *, lane: LanePolicy, actor: str) -> Standing:
        """There is no slot for the mail before that many seconds: it is due then, unless it is too old by then."""
        async with self._connection() as conn:
            return await facts.put_off(conn, email_id, seconds, lane=lane, actor=actor)

    # What comes back.

    async def record_events(
        self, account: str, found: Sequence[Event], terms: events.Terms, *, proven: bool = True
    ) -> int:
        """Keep and apply events of this account (``""``: of whichever the mail belongs to); how many were new."""
        async with self._connection() as conn:
            return await events.record(conn, account, found, terms, proven=proven)

    async def join_parked_events(
        self, terms: Mapping[str, events.Terms], default: events.Terms, *, within: float = events.JOIN_SECONDS
    ) -> int:
        """Join events of the last ``within`` seconds that came before their mail had its provider id; how many."""
        async with self._connection() as conn:
            return await events.join_parked(conn, terms, default, within=within)

    async def bounce_secrets(self) -> tuple[bytes, ...]:
        """What proves that a bounce is about a mail of ours; the first one makes proofs."""
        async with self._connection() as conn:
            row = await (await conn.execute("SELECT secrets FROM sendonce.installation")).fetchone()
        assert row is not None
        return tuple(row[0])

    async def take_wakes(self) -> list[Startable]:
        """Mails whose workflows somebody wants woken."""
        async with self._connection() as conn:
            return await wakes.take(conn)

    # Starter.

    async def unstarted(
        self,
        lane: str,
        *,
        limit: int,
        ceiling: int,
        accounts_full: Sequence[str] = (),
        caps: Mapping[str, int] | None = None,
        turns_taken: Mapping[str, str] | None = None,
        domains_full: Mapping[str, Sequence[str]] | None = None,
    ) -> turns.Turns:
        """Stamp and return rows due within a minute that were never started.

        By account: ``caps`` says how many at most, ``turns_taken`` whose turn was the last, ``domains_full`` which
        destinations take no more now.
        """
        async with self._connection() as conn:
            return await turns.unstarted(
                conn,
                lane,
                limit=limit,
                ceiling=ceiling,
                settings=dispatch.settings(self._digests, self._fallbacks),
                paced=list(self._pools),
                at_once=self._at_once,
                accounts_full=accounts_full,
                caps=caps,
                turns=turns_taken,
                domains_full=domains_full,
            )

    async def unstamp(self, email_ids: Sequence[UUID]) -> None:
        """The start did not happen: take the stamp back."""
        async with self._connection() as conn:
            await dispatch.unstamp(conn, email_ids)

    async def overdue(self, lane: str, *, limit: int, after_seconds: float = 60.0) -> list[Startable]:
        """Stamp and return rows that are due while their workflow seems to have vanished."""
        async with self._connection() as conn:
            return await dispatch.overdue(
                conn,
                lane,
                limit=limit,
                digests=self._digests,
                fallbacks=self._fallbacks,
                after_seconds=after_seconds,
            )

    # Sweeps.

    async def sweep_silent(self, lanes: Mapping[str, LanePolicy], *, actor: str) -> list[Startable]:
        """Silent offers become ``unknown``, old unknowns are closed; returns the mails whose workflows want a poke."""
        async with self._connection() as conn:
            await sweeps.expire_unstarted(conn, lanes, actor)
            found = await sweeps.silent(conn, lanes, actor)
            return found + await sweeps.close_unknowns(conn, lanes, actor)

    async def raise_due_alarms(self) -> int:
        """Raise the alarms whose time has come, and end pauses that nobody probes; returns how many were raised."""
        async with self._connection() as conn:
            await accounts.free_probes(conn)
            await accounts.forget_pauses(conn)
            return await sweeps.raise_due_alarms(conn) + await sweeps.unserved(conn)

    async def deliver_alarms(self, handler: Callable[[alarms.Alarm], Awaitable[None]], limit: int = 100) -> int:
        """Hand undelivered alarms to ``handler``; at least once each."""
        async with self._connection() as conn:
            return await alarms.deliver(conn, handler, limit)

    async def beat(self, process_id: str, kind: str, lanes: Sequence[str]) -> None:
        """Say that this process (``kind``: worker or starter) is alive and serves ``lanes``."""
        async with self._connection() as conn:
            await sweeps.beat(conn, process_id, kind, lanes)
