"""The store: PostgreSQL is the authority on stages, and every SQL statement of Sendonce lives in this package.

Two kinds of write. *Permissions* (:mod:`~sendonce.store.claims`, ``offers``, ``leases``) are fenced by a lease and
refused when the row has moved on. *Facts* (:mod:`~sendonce.store.facts`) are never refused and idempotent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from sendonce.events import Event
from sendonce.final import Final
from sendonce.outcome import AttemptResult, Unanswered, same_for_all
from sendonce.policy import LanePolicy
from sendonce.rates import Pools, pool_name
from sendonce.retention import Retention
from sendonce.stages import Proof, Stage
from sendonce.store import (
    accounts,
    actions,
    alarm_delivery,
    claims,
    conditions,
    continuity,
    dispatch,
    events,
    facts,
    gauges,
    heartbeats,
    leases,
    look_ups,
    offers,
    retention,
    routes,
    slots,
    suppressions,
    sweeps,
    telling,
    topics,
    transactions,
    turns,
    upkeep,
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
    account and destination domain how many a worker process may have at once; ``askable`` names the accounts whose
    provider can be asked about an unknown, which is alarmed a little later then. A store that is away raises
    :class:`psycopg.OperationalError`; everything else is an answer.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        digests: Mapping[str, str] | None = None,
        fallbacks: Mapping[str, str] | None = None,
        pools: Mapping[str, Pools] | None = None,
        at_once: Mapping[str, Mapping[str, int]] | None = None,
        askable: Collection[str] = (),
    ) -> None:
        self._pool = pool
        self._askable = frozenset(askable)
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

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """By account, the one that stands in for it while it is paused."""
        return self._fallbacks

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

        Raises :class:`psycopg.errors.LockNotAvailable` when somebody else holds the row locked; nothing was done then.
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
            if answer == "superseded":
                return await topics.supersede(conn, email_id, lane=lane, actor=worker)
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
        timeline: int | None = None,
        keep: Pinned | None = None,
    ) -> Begun | BeginRefused:
        """Commit the stage ``transmitting``: the mail is about to be offered to the ordinals in ``offered``.

        Not on another ``timeline`` of the server's log than this, if one is given. ``keep``: pin this rendering with
        it.
        """
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
                timeline=timeline,
                keep=keep,
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
            return await facts.settle(
                conn, email_id, attempt_id, result, lane=lane, actor=actor, cause=cause, askable=self._askable
            )

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

    async def act(
        self,
        email_id: UUID,
        action: actions.Action,
        *,
        action_id: str,
        lanes: Mapping[str, LanePolicy],
        actor: str,
        because: str,
    ) -> actions.Acted:
        """Somebody's action on a mail whose workflow runs; the same ``action_id`` again is answered as before."""
        async with self._connection() as conn:
            return await actions.act(
                conn, email_id, action, action_id=action_id, lanes=lanes, actor=actor, because=because
            )

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

    def use_digest(self, account: str, digest: str) -> None:
        """This process holds other settings of the account from here on: a pause of the old ones is not its own."""
        self._digests[account] = digest

    async def retire_settings(self, account: str, digest: str) -> None:
        """End the pauses of settings that this process held before: their alarms would stay open for nobody."""
        async with self._connection() as conn:
            await accounts.retire(conn, account, digest)

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

    async def upkeep(
        self, rules: Retention, lanes: Mapping[str, LanePolicy], *, actor: str, leave: Callable[[], bool]
    ) -> tuple[bool, retention.Done]:
        """Erase what is due until ``leave`` says that time is over; True when nothing is left, and how much went."""
        async with self._connection() as conn:
            return await upkeep.run(conn, rules, lanes, actor=actor, leave=leave)

    async def finish_erasures(self, lanes: Mapping[str, LanePolicy], *, actor: str, leave: Callable[[], bool]) -> int:
        """The part of :meth:`upkeep` that people wait for: erase persons out of mails that were in flight when that was
        asked, and have ended since. How many they were.
        """
        async with self._connection() as conn:
            return await upkeep.erase(conn, lanes, actor=actor, leave=leave)

    # How mails ended.

    async def watch(self, account: str, key: str, workflow_id: str, signal: str) -> Final | Stage | None:
        """How the mail ended; or its stage, and that workflow is told when it ends. None: there is no such mail."""
        async with self._connection() as conn:
            return await telling.watch(conn, account, key, workflow_id, signal)

    async def take_untold(self) -> list[telling.Untold]:
        """What workflows are to be told now; each again later, until :meth:`told`."""
        async with self._connection() as conn:
            return await telling.take_untold(conn)

    async def told(self, one: telling.Untold, *, gone: bool = False) -> None:
        """The workflow was told; ``gone``: there is none any more, with an alarm."""
        async with self._connection() as conn:
            await telling.told(conn, one, gone=gone)

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
        locked: Sequence[UUID] = (),
    ) -> turns.Turns:
        """Stamp and return rows due within a minute that were never started.

        By account: ``caps`` says how many at most, ``turns_taken`` whose turn was the last, ``domains_full`` which
        destinations take no more now. ``locked``: mails to be passed over.
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
                locked=locked,
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
        """Silent offers become ``unknown``, replaced mails end, old unknowns are closed.

        Returns the mails whose workflows want a poke.
        """
        async with self._connection() as conn:
            await sweeps.expire_unstarted(conn, lanes, actor)
            found = await sweeps.silent(conn, lanes, actor)
            found += await topics.sweep(conn, lanes, actor)
            return found + await sweeps.close_unknowns(conn, lanes, actor)

    async def raise_due_alarms(self) -> int:
        """Raise the alarms whose time has come, and end pauses that nobody probes; returns how many were raised."""
        async with self._connection() as conn:
            await accounts.free_probes(conn)
            await accounts.forget_pauses(conn)
            return await sweeps.raise_due_alarms(conn) + await sweeps.unserved(conn)

    # Watching: alarms told, signs of life, counts.

    # Continuity.

    async def server(self) -> tuple[continuity.Known, continuity.Identity]:
        """What the store last knew of its server, and the server that is there."""
        async with self._connection() as conn:
            return await continuity.known(conn), await continuity.identity(conn)

    async def halt(self, why: str, *, epoch: int | None = None) -> bool:
        """Nothing is to be started or begun, with one alarm; False when that was said before, or when somebody has let
        it go on since ``epoch``.
        """
        async with self._connection() as conn:
            return await continuity.halt(conn, why, epoch=epoch)

    async def adopt(self, now: continuity.Identity) -> None:
        """From here on this server is the known one."""
        async with self._connection() as conn:
            await continuity.adopt(conn, now)

    async def seen(self, every: float) -> None:
        """A process that sends is here; kept once in ``every`` seconds."""
        async with self._connection() as conn:
            await continuity.seen(conn, every)

    async def answers_since(self) -> datetime:
        """From when on every completed run must be known."""
        async with self._connection() as conn:
            return await continuity.answers_since(conn)

    async def unsent(self, mails: Sequence[tuple[str, str]]) -> list[continuity.Unsent]:
        """Which of these mails, by account and key, the store does not know as sent."""
        async with self._connection() as conn:
            return await continuity.unsent(conn, mails)

    async def recall_offer(
        self,
        email_id: UUID,
        *,
        at: datetime,
        provider_key: str,
        identity: str,
        lane: LanePolicy,
        actor: str,
    ) -> bool:
        """Write down an offer that another witness knows of and the store has forgotten, as one without an answer.

        False when the store knows better: the mail is not ``pending`` or ``claimed``.
        """
        attempt = uuid4()
        async with self._connection() as conn, conn.transaction():
            offered = await continuity.recall_offer(
                conn, email_id, attempt, at=at, provider_key=provider_key, identity=identity, actor=actor
            )
            if offered:
                silence = same_for_all(offered, Unanswered())
                await facts.settle(conn, email_id, attempt, silence, lane=lane, actor=actor, cause="forgotten")
            return bool(offered)

    async def ask_providers_now(self) -> None:
        """Every unknown whose provider can be asked is asked at the next round of look-ups."""
        async with self._connection() as conn:
            await look_ups.all_due(conn)

    async def unwitnessed(self, after: UUID, until: datetime, limit: int) -> list[Startable]:
        """Mails in the order of ids after ``after``, due by now, that were there ``until`` and never offered."""
        async with self._connection() as conn:
            return await continuity.unwitnessed(conn, after, until, limit)

    async def go_on(self, actor: str, why: str) -> None:
        """Somebody says that this store may send."""
        async with self._connection() as conn:
            await continuity.go_on(conn, actor, why)

    async def installation(self) -> UUID:
        """Who we are towards providers."""
        async with self._connection() as conn:
            return await continuity.installation_id(conn)

    async def take_alarms(self, audiences: Sequence[alarm_delivery.Audience], *, quiet_seconds: float) -> int:
        """Take new alarms into the notices of these sinks; returns how many."""
        async with self._connection() as conn:
            return await alarm_delivery.take(conn, audiences, quiet_seconds=quiet_seconds)

    async def lease_notice(self, sink: str, seconds: float) -> alarm_delivery.Notice | None:
        """The message of this sink that is due first, the caller's alone for so many seconds."""
        async with self._connection() as conn:
            return await alarm_delivery.lease(conn, sink, seconds)

    async def notice_told(self, notice: alarm_delivery.Notice, *, wait_seconds: float) -> None:
        """The message has arrived; the next one about this is due in so many seconds."""
        async with self._connection() as conn:
            await alarm_delivery.told(conn, notice, wait_seconds=wait_seconds)

    async def notice_failed(self, notice: alarm_delivery.Notice, *, wait_seconds: float) -> None:
        """The message could not be delivered; the next try is due in so many seconds."""
        async with self._connection() as conn:
            await alarm_delivery.failed(conn, notice, wait_seconds=wait_seconds)

    async def begin_condition(self, kind: str, about: str, detail: str, *, account: str | None = None) -> bool:
        """Raise an alarm that lasts until :meth:`end_condition`, once; see :mod:`sendonce.store.conditions`."""
        async with self._connection() as conn:
            return await conditions.begin(conn, kind, about, detail, account)

    async def end_condition(self, kind: str, about: str, why: str) -> bool:
        """End the alarm of a condition; True when there was one."""
        async with self._connection() as conn:
            return await conditions.end(conn, kind, about, why)

    async def conditions(self, kind: str) -> set[str]:
        """What conditions of this kind are about at this moment."""
        async with self._connection() as conn:
            return await conditions.lasting(conn, kind)

    async def beat(
        self, process_id: str, kind: str, lanes: Sequence[str], loops: Mapping[str, heartbeats.Beat] | None = None
    ) -> None:
        """Say that this process (``kind``: worker or starter) is alive, serves ``lanes``, and how its loops are."""
        async with self._connection() as conn:
            await heartbeats.beat(conn, process_id, kind, lanes, loops or {})

    async def leave(self, process_id: str) -> None:
        """This process ends in order."""
        async with self._connection() as conn:
            await heartbeats.leave(conn, process_id)

    async def judge_heartbeats(self, me: str) -> int:
        """Raise and end the alarms about dead processes and loops; returns how many are dead."""
        async with self._connection() as conn:
            return await heartbeats.judge(conn, me)

    async def sample(self, *, every_seconds: float) -> gauges.Sample:
        """What the store holds, counted at most every so many seconds by all processes together."""
        async with self._connection() as conn:
            return await gauges.sample(conn, every_seconds=every_seconds)

    async def old_transactions(self, seconds: float) -> list[transactions.Transaction]:
        """Transactions of this database that have been open for at least so long, the oldest first."""
        async with self._connection() as conn:
            return await transactions.old(conn, seconds)
