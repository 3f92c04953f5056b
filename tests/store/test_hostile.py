"""Several workers drive the store in any order, late and twice, and the contract holds after every step.

The model is written independently of the store: it remembers what was told, and derives from that what must be true.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.types.json import Jsonb

from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    Deferred,
    NotOffered,
    Outcome,
    Refused,
    Reply,
    Unanswered,
)
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.stages import Proof
from sendonce.store import Store, open_pool
from sendonce.store.records import Begun, Claimed

if TYPE_CHECKING:
    from tests.store.conftest import Bench

LANE = LanePolicy("default", RetryPolicy(delays=(1,), jitter=0, max_attempts=6, max_age=10_000_000))
FINAL = {"sent", "failed", "dead", "expired", "cancelled"}
BOTH = (0, 1)
KEYED: dict[str, Any] = {
    "slot": "request",
    "digest": b"d",
    "identity": "http:one",
    "key_window": 1000.0,
    "window_margin": 0.0,
}

outcomes = st.sampled_from(
    [
        Accepted(Reply(250), "id"),
        Deferred(Reply(451)),
        Refused(Reply(550)),
        AccountFault(Reply(535)),
        Unanswered(),
        NotOffered(Reply(), counted=True),
    ]
)


@dataclass
class Told:
    """What one attempt is known to have done, as the workers experienced it."""

    claimed: Claimed
    offered: tuple[int, ...] = ()
    answers: dict[int, Outcome] = field(default_factory=dict)
    begun: bool = False
    over: bool = False  # it holds nothing any more


class Workers(RuleBasedStateMachine):
    """One mail with two recipients, and workers that meet every mishap."""

    url = ""
    looking: psycopg.Connection[Any]
    """The test's own, which needs no loop: most of what is asked here is asked after every step."""
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.pool = open_pool(self.url, name="hostile", max_size=2)
        self.runner.run(self.pool.open())
        self.store = Store(self.pool)
        self.key = f"h{next(self.numbers)}"
        self.told: list[Told] = []
        self.denied: dict[int, int] = {}
        self.proved: set[int] = set()
        self.cancelled = False
        self.lease_ends = 0.0
        self.now = 0.0
        self.events = itertools.count()
        self.last_stage = "pending"
        self.last_generation = 1
        self.may_leave_final = False

    @initialize(keyed=st.booleans())
    def enqueue(self, keyed: bool) -> None:
        self.keyed = keyed
        message = {
            "key": self.key,
            "sender": "shop@example.com",
            "to": ["a@example.org", "b@example.org"],
            "subject": "s",
            "text": "t",
        }
        row = self.sql("SELECT email_id FROM sendonce.enqueue(%s)", [Jsonb(message)])[0]
        self.id: UUID = row[0]

    def teardown(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()

    def sql(self, query: str, params: Any = None) -> list[Any]:
        cursor = self.looking.execute(query.encode(), params)
        return cursor.fetchall() if cursor.description else []

    @property
    def holder(self) -> Told | None:
        """Who may act on a claim: the last claim, if nothing has ended it and its lease stands."""
        last = self.told[-1] if self.told else None
        if last is None or last.over or (not last.begun and self.now >= self.lease_ends):
            return None
        return last

    def revoke(self) -> None:
        if self.holder and not self.holder.begun:
            self.holder.over = True

    @rule(alone=st.booleans())
    def claim(self, alone: bool) -> None:
        self.claim_as(alone=alone)

    def claim_as(self, *, alone: bool) -> None:
        answer = self.runner.run(
            self.store.claim(self.id, self.key, lane=LANE, worker="w", lease_seconds=20, alone=alone, outage_ago=0.0)
        )
        if isinstance(answer, Claimed):
            assert self.holder is None, "two holders at a time"
            assert self.last_stage not in FINAL
            if answer.mode == "replay":
                assert answer.pins is not None
                assert answer.generation == self.last_generation
            else:
                assert not self.silent(), "a fresh offer over an unanswered one"
            accepted = self.accepted()
            assert not {r.ordinal for r in answer.recipients} & accepted or answer.mode == "replay"
            self.told.append(Told(answer))
            self.lease_ends = self.now + 20
            self.runner.run(
                self.store.pin(self.id, KEYED["slot"], body=b"", method="", url="", headers=(), digest=KEYED["digest"])
            )

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.begin_with(data.draw(st.sampled_from(self.told), label="attempt"))

    @precondition(lambda self: len(self.told) > 1)
    @rule(data=st.data())
    def begin_late(self, data: st.DataObject) -> None:
        """A worker that was stopped wakes up and goes on where it was."""
        self.begin_with(data.draw(st.sampled_from(self.told[:-1]), label="attempt"))

    @rule(passes=st.sampled_from([0.0, 2.0, 700.0]))
    def offer(self, passes: float) -> None:
        """The common way, so that most runs get somewhere: time passes, claim, begin."""
        self.time_passes_by(passes)
        before = len(self.told)
        self.claim_as(alone=True)
        if len(self.told) > before:
            self.begin_with(self.told[-1])

    def begin_with(self, attempt: Told) -> None:
        ordinals = tuple(r.ordinal for r in attempt.claimed.recipients)
        pins = KEYED if self.keyed else KEYED | {"key_window": None}
        answer = self.runner.run(
            self.store.begin(
                self.id,
                attempt.claimed.attempt_id,
                worker="w",
                generation=attempt.claimed.generation,
                offered=ordinals,
                provider_key=f"p{attempt.claimed.generation}",
                answer_seconds=600,
                lease_seconds=20,
                **pins,
            )
        )
        valid = attempt is self.holder and not attempt.begun
        if isinstance(answer, Begun):
            assert valid, "begin after the fence"
            assert not self.cancelled
            attempt.begun, attempt.offered = True, ordinals
            self.lease_ends = self.now + 20
        else:
            assert not valid or self.cancelled or answer.why == "window_over", answer

    @precondition(lambda self: self.told)
    @rule(data=st.data(), first=outcomes, second=outcomes, twice=st.booleans())
    def answer(self, data: st.DataObject, first: Outcome, second: Outcome, twice: bool) -> None:
        attempt = data.draw(st.sampled_from(self.told[::-1]), label="attempt")
        if not attempt.begun:
            # Nothing was offered: an attempt can only have been put off.
            first = second = NotOffered(Reply(), counted=True)
        news = {o: x for o, x in zip(BOTH, (first, second), strict=True) if o in self.dealt(attempt)}
        for _ in range(2 if twice else 1):
            self.runner.run(
                self.store.settle(self.id, attempt.claimed.attempt_id, AttemptResult(news), lane=LANE, actor="w")
            )
        for ordinal, outcome in news.items():
            known = attempt.answers.get(ordinal)
            if known is None or isinstance(known, Unanswered) or isinstance(outcome, Accepted):
                attempt.answers[ordinal] = outcome
        if any(isinstance(x, Accepted) for x in news.values()):
            self.may_leave_final = True
            if attempt is not self.holder:
                self.revoke_if_moved()
        if attempt is not (self.told[-1] if self.told else None):
            self.revoke_if_moved()
        attempt.over = True

    def dealt(self, attempt: Told) -> tuple[int, ...]:
        return attempt.offered or tuple(r.ordinal for r in attempt.claimed.recipients)

    def revoke_if_moved(self) -> None:
        """News about another attempt revoke a claim that has not begun when they moved a recipient."""
        row = self.sql("SELECT lease_id FROM sendonce.email WHERE id = %s", [self.id])[0]
        if self.holder and not self.holder.begun and row[0] != self.holder.claimed.attempt_id:
            self.holder.over = True

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.told), label="attempt")
        self.runner.run(self.store.release(self.id, attempt.claimed.attempt_id, why="shutdown", actor="w"))
        if attempt is self.told[-1] and not attempt.begun:
            attempt.over = True

    @rule(seconds=st.sampled_from([2.0, 21.0, 21.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.time_passes_by(seconds)

    def time_passes_by(self, seconds: float) -> None:
        self.sql("UPDATE public.test_clock SET off = off + %s * interval '1 second'", [seconds])
        self.now += seconds

    @rule()
    def renew(self) -> None:
        if self.holder:
            kept = self.runner.run(self.store.renew([self.holder.claimed.attempt_id], 20))
            if kept:
                self.lease_ends = self.now + 20
            else:
                assert self.holder.begun, "a standing claim could not be renewed"

    @rule()
    def sweep(self) -> None:
        self.runner.run(self.store.sweep_silent({"default": LANE}, actor="sweeper"))
        last = self.told[-1] if self.told else None
        if last and last.begun and not last.over and self.now >= self.lease_ends:
            last.over = True

    @rule(ordinal=st.sampled_from(BOTH), accepted=st.booleans())
    def evidence(self, ordinal: int, accepted: bool) -> None:
        # Truth does not contradict itself: nobody denies what is known to be accepted.
        if not accepted and ordinal in self.accepted() | self.proved:
            return
        generation = max((t.claimed.generation for t in self.told if t.begun and t.over), default=0)
        if generation == 0:
            return
        event = f"e{next(self.events)}"
        self.runner.run(
            self.store.record_evidence(
                self.id, [Proof(ordinal, accepted, generation)], source="t", event_id=event, lane=LANE, actor="t"
            )
        )
        if accepted:
            self.proved.add(ordinal)
            self.may_leave_final = True
        else:
            self.denied[ordinal] = max(self.denied.get(ordinal, 0), generation)
        self.revoke_if_moved()

    @rule()
    def cancel(self) -> None:
        if self.last_stage in FINAL:
            return
        self.runner.run(self.store.withdraw(self.id, self.key, lane=LANE, actor="ops"))
        self.cancelled = True
        self.revoke()

    @precondition(lambda self: self.last_stage in {"dead", "failed"})
    @rule(force=st.booleans())
    def requeue(self, force: bool) -> None:
        answer = self.runner.run(self.store.requeue(self.id, lane=LANE, actor="ops", force=force))
        if answer is not None:
            self.may_leave_final = True
            if force:
                generation = max((t.claimed.generation for t in self.told), default=0)
                for ordinal in BOTH:
                    if ordinal not in self.accepted():
                        self.denied[ordinal] = max(self.denied.get(ordinal, 0), generation)

    def accepted(self) -> set[int]:
        told = {o for t in self.told for o, x in t.answers.items() if isinstance(x, Accepted)}
        return told | self.proved

    def silent(self) -> set[int]:
        """Recipients that were offered the mail in an attempt that is over and was never answered."""
        found = set()
        for attempt in self.told:
            if not attempt.begun or not attempt.over:
                continue
            for ordinal in attempt.offered:
                answer = attempt.answers.get(ordinal)
                open_ = answer is None or isinstance(answer, Unanswered)
                if open_ and self.denied.get(ordinal, 0) < attempt.claimed.generation:
                    found.add(ordinal)
        return found - self.accepted()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "id"):
            return
        row = self.sql(
            "SELECT stage, generation, maybe_accepted, next_attempt_at, alarm_at, lease_id,"
            " ARRAY(SELECT stage FROM sendonce.recipient WHERE email_id = e.id ORDER BY ordinal)"
            " FROM sendonce.email e WHERE id = %s",
            [self.id],
        )[0]
        stage, generation, maybe, next_at, alarm_at, lease, stages = row
        accepted = {o for o in BOTH if stages[o] == "accepted"}
        assert accepted == self.accepted(), f"a proof was refused or made up: {stages}"
        if stage == "transmitting" or (self.told and self.told[-1].begun and not self.told[-1].over):
            assert stage == "transmitting"
            assert lease == self.told[-1].claimed.attempt_id
        else:
            for ordinal in self.silent():
                assert stages[ordinal] == "unanswered" or maybe, "a silence was forgotten"
            if self.silent() and not maybe:
                assert stage in {"unknown", "claimed"}, f"{stage} over a silence"
                assert generation == self.last_generation, "a new generation over a silence"
        if self.last_stage in FINAL and stage != self.last_stage:
            assert self.may_leave_final, f"{self.last_stage} became {stage}"
        if stage == "sent":
            assert accepted
        if stage == "pending":
            assert next_at is not None, "waits for nothing"
        if stage == "unknown" and next_at is None:
            alarms = self.sql(
                "SELECT 1 FROM sendonce.alarm a WHERE email_id = %s AND kind = 'unknown' AND closes IS NULL"
                " AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)",
                [self.id],
            )
            assert alarms or alarm_at is not None, "held without an alarm"
        if stage in FINAL:
            assert lease is None
        self.last_stage, self.last_generation, self.may_leave_final = stage, generation, False


def run(url: str, examples: int, steps: int) -> None:
    class Machine(Workers):
        pass

    Machine.url = url
    with psycopg.connect(url, autocommit=True) as Machine.looking:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.timeout(300)
def test_any_order_of_events_keeps_the_contract(hostile_url: str) -> None:
    run(hostile_url, examples=150, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_order_of_events_keeps_the_contract_for_long(hostile_url: str) -> None:
    run(hostile_url, examples=1500, steps=50)


@pytest.fixture
def hostile_url(bench: Bench, database_url: str) -> str:
    """A database whose clock the test moves."""
    return database_url
