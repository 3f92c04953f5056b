"""Facts: never refused, idempotent, and the same whatever order they arrive in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from sendonce.outcome import Accepted, AccountFault, Deferred, NotOffered, Refused, Reply, Unanswered
from sendonce.policy import RetryPolicy
from sendonce.stages import Proof, Stage
from sendonce.store import accepted as in_one_statement
from sendonce.store import plan
from sendonce.store.records import BeginRefused, Begun, Busy, Claimed, Finished, Held, NoSuchRow, Standing, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250, "2.0.0", "queued"), "Q1")


async def prove(
    bench: Bench, accepted: bool, *, key: str = "k1", ordinal: int = 0, generation: int = 1, event: str = "e1"
) -> Standing:
    return await bench.store.record_evidence(
        bench.ids[key],
        [Proof(ordinal, accepted, generation)],
        source="lookup",
        event_id=event,
        lane=bench.lane,
        actor="test",
    )


async def test_the_late_answer_of_a_silent_offer_settles_it_and_closes_the_alarm(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.advance(21)
    poked = await bench.store.sweep_silent({}, actor="w2")
    assert [p.key for p in poked] == ["k1"]
    assert (await bench.email())["stage"] == "unknown"
    assert await bench.open_alarms() == []  # its process may only have been slow
    assert await bench.store.raise_due_alarms() == 0
    await bench.advance(21)
    assert await bench.store.raise_due_alarms() == 1
    assert await bench.open_alarms() == ["unknown"]
    assert await bench.settle(claimed, OK) == Finished(Stage.SENT, 250, "2.0.0", attempts=1)
    assert await bench.open_alarms() == []


async def two_recipients(bench: Bench, key: str) -> None:
    await bench.enqueue(key, to=["a@example.org", "b@example.org"])
    await bench.attempt(OK, key)


async def at_once(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    await bench.attempt(OK, key)


async def without_a_word(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    await bench.attempt(Accepted(Reply(), ""), key)


async def second_attempt(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    await bench.attempt(Deferred(Reply(451, "4.7.1")), key)
    await bench.advance(600)
    await bench.attempt(OK, key)


async def proved_meanwhile(bench: Bench, key: str, *, accepted: bool = True) -> None:
    await bench.enqueue(key)
    claimed = await bench.claim(key)
    await bench.begin(claimed)
    await prove(bench, accepted, key=key)
    await bench.settle(claimed, OK)


async def disproved_meanwhile(bench: Bench, key: str) -> None:
    await proved_meanwhile(bench, key, accepted=False)


async def cancelled_meanwhile(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    claimed = await bench.claim(key)
    await bench.begin(claimed)
    await bench.store.withdraw(bench.ids[key], key, lane=bench.lane, actor="w2")
    await bench.settle(claimed, OK)


async def late(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    claimed = await bench.claim(key)
    await bench.begin(claimed)
    await bench.advance(21)
    await bench.store.sweep_silent({}, actor="w2")
    await bench.settle(claimed, OK)


async def never_begun(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    await bench.settle(await bench.claim(key), OK)


async def twice(bench: Bench, key: str) -> None:
    await bench.enqueue(key)
    claimed = await bench.claim(key)
    await bench.begin(claimed)
    assert await bench.settle(claimed, OK) == await bench.settle(claimed, OK)


async def everything(bench: Bench, key: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of the mail: instants as their places in the order of all of them, ids and the key left out."""
    found = {}
    for table in ("email", "recipient", "attempt", "evidence", "transition", "alarm"):
        column = "id" if table == "email" else "email_id"
        rows = await bench.rows(f"SELECT * FROM sendonce.{table} WHERE {column} = %s", [bench.ids[key]])
        found[table] = rows
    instants = sorted(
        {value for rows in found.values() for row in rows for value in row.values() if isinstance(value, datetime)}
    )

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, datetime):
            return instants.index(value)
        return name if isinstance(value, UUID) else value

    return {
        table: sorted(
            ({name: plain(name, value) for name, value in row.items() if name not in ("id", "key")} for row in rows),
            key=repr,
        )
        for table, rows in found.items()
    }


@pytest.mark.parametrize(
    ("story", "simple"),
    [
        (at_once, True),
        (without_a_word, True),
        (cancelled_meanwhile, True),
        (twice, True),
        (two_recipients, False),
        (second_attempt, False),
        (proved_meanwhile, False),
        (disproved_meanwhile, True),
        (late, False),
        (never_begun, False),
    ],
)
async def test_the_common_case_is_written_as_every_other_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, story: Callable[[Bench, str], Awaitable[None]], simple: bool
) -> None:
    took: list[bool] = []
    in_one = in_one_statement.settle

    async def watched(*args: Any, **options: Any) -> Finished | None:
        finished = await in_one(*args, **options)
        took.append(finished is not None)
        return finished

    async def never(*args: Any, **options: Any) -> None:
        return None

    monkeypatch.setattr(in_one_statement, "settle", watched)
    await story(bench, "k1")
    assert any(took) == simple
    monkeypatch.setattr(in_one_statement, "settle", never)
    await story(bench, "k2")
    assert await everything(bench, "k1") == await everything(bench, "k2")


async def test_a_locked_row_is_left_to_the_way_that_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[object] = []
    in_one = in_one_statement.settle

    async def watched(*args: Any, **options: Any) -> Finished | None:
        took.append(await in_one(*args, **options))
        return None

    monkeypatch.setattr(in_one_statement, "settle", watched)
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    async with bench.pool.connection() as somebody, somebody.transaction():
        await somebody.execute("SELECT FROM sendonce.email FOR UPDATE")
        settling = asyncio.create_task(bench.settle(claimed, OK))
        while not await bench.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            assert not settling.done()
        assert took == [None]
    assert await settling == Finished(Stage.SENT, 250, "2.0.0", attempts=1)


async def test_many_sweepers_share_the_silent_ones(bench: Bench) -> None:
    for n in range(12):
        await bench.enqueue(f"k{n}")
        claimed = await bench.claim(f"k{n}")
        await bench.begin(claimed)
    await bench.advance(21)
    found = await asyncio.gather(*(bench.store.sweep_silent({}, actor=f"w{n}") for n in range(4)))
    assert sorted(p.key for part in found for p in part) == sorted(f"k{n}" for n in range(12))


async def test_an_answer_recorded_twice_counts_once_and_moves_nothing_the_second_time(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    first = await bench.settle(claimed, Deferred(Reply(451)))
    before = await bench.email()
    await bench.advance(5)
    second = await bench.settle(claimed, Deferred(Reply(451)))
    assert isinstance(first, Wait)
    assert isinstance(second, Wait)
    assert second.seconds == pytest.approx(25, abs=1)
    after = await bench.email()
    assert (after["attempts"], after["next_attempt_at"]) == (1, before["next_attempt_at"])


async def test_silence_is_sticky_through_a_later_refusal_of_a_resend(bench: Bench) -> None:
    await bench.enqueue(unknown="resend")
    await bench.attempt(Unanswered())
    await bench.advance(601)
    claimed = await bench.claim()
    assert (claimed.mode, claimed.generation) == ("resend", 2)
    await bench.begin(claimed)
    answer = await bench.settle(claimed, Refused(Reply(550, "5.1.1")))
    assert isinstance(answer, Held)
    assert answer.stage is Stage.UNKNOWN
    assert await bench.stages() == ["unanswered"]


async def test_policy_resend_offers_once_more_after_the_answer_timer_and_then_holds(bench: Bench) -> None:
    await bench.enqueue(unknown="resend")
    answer = await bench.attempt(Unanswered())
    assert isinstance(answer, Wait)
    assert answer.seconds == pytest.approx(600, abs=2)
    assert await bench.open_alarms() == []
    await bench.advance(590)
    assert isinstance(await bench.ask(), Wait)
    await bench.advance(20)
    assert (await bench.claim()).mode == "resend"
    await bench.advance(21)  # that claim lapsed before begin: the one resend is still to come
    claimed = await bench.claim()
    assert claimed.mode == "resend"
    await bench.begin(claimed)
    assert isinstance(await bench.settle(claimed, Unanswered()), Held)
    assert await bench.open_alarms() == ["unknown"]
    await bench.advance(100_000)
    assert isinstance(await bench.ask(), Held)


async def test_a_provider_that_can_be_asked_is_asked_before_the_resend(bench: Bench) -> None:
    await bench.enqueue(unknown="resend")
    claimed = await bench.claim()
    await bench.begin(claimed, answer_seconds=1.0)
    await bench.advance(700)  # nobody was there for long: the answer timer has passed when the silence is seen
    answer = await bench.settle(claimed, Unanswered())
    assert isinstance(answer, Wait)
    assert answer.seconds >= plan.ASKED_FIRST
    row = (await bench.rows("SELECT look_up_at < next_attempt_at AS asked_first FROM sendonce.email"))[0]
    assert row["asked_first"]


async def test_a_replay_repeats_the_generation_exactly_within_the_window(bench: Bench) -> None:
    await bench.enqueue(to=["a@example.org", "b@example.org"])
    keyed: dict[str, Any] = {"key_window": 3600.0, "window_margin": 60.0, "slot": "request:1"}
    answer = await bench.attempt(Unanswered(), **keyed)
    assert isinstance(answer, Wait)
    assert (answer.stage, answer.why) == (Stage.UNKNOWN, "unanswered")
    assert await bench.open_alarms() == []
    await bench.advance(31)
    replay = await bench.claim()
    assert replay.mode == "replay"
    assert replay.generation == 1
    assert replay.pins is not None
    assert (replay.pins.slot, replay.pins.envelope, replay.pins.provider_key) == ("request:1", (0, 1), "pk-1")
    for other in ({"digest": b"other"}, {"identity": "http:two"}, {"provider_key": "pk-9"}, {"offered": [0]}):
        assert await bench.begin(replay, **(keyed | other)) == BeginRefused("pins_differ")
    assert await bench.begin(replay, **keyed) == Begun(600.0)
    settled = await bench.settle(replay, Accepted(Reply(200), "id-1", replayed=True))
    assert settled == Finished(Stage.SENT, 200, attempts=2)


@pytest.mark.parametrize("wished", [86400.0, 9_999_999_999.0])
async def test_a_wish_to_wait_beyond_the_window_does_not_cost_the_replay(bench: Bench, wished: float) -> None:
    keyed: dict[str, Any] = {"slot": "request:1", "key_window": 600.0, "window_margin": 0.0}
    await bench.enqueue()
    answer = await bench.attempt(Unanswered(Reply(503), retry_after=wished), **keyed)
    assert isinstance(answer, Wait)
    assert answer.stage is Stage.UNKNOWN
    assert 530 < answer.seconds <= 540
    assert await bench.open_alarms() == []
    await bench.advance(answer.seconds)
    # In the last minute it is asked as often as its own policy says, and then held.
    last = await bench.attempt(Unanswered(Reply(503), retry_after=wished), **keyed)
    assert isinstance(last, Held)
    assert await bench.open_alarms() == ["unknown"]


@pytest.mark.parametrize(
    "outcome", [Refused(Reply(550)), AccountFault(Reply(401)), Deferred(Reply(429)), NotOffered(Reply())]
)
async def test_what_answers_the_replay_does_not_answer_the_silence_before_it(
    bench: Bench, outcome: Refused | AccountFault | Deferred | NotOffered
) -> None:
    await bench.enqueue()
    keyed: dict[str, Any] = {"key_window": 3600.0, "window_margin": 60.0}
    await bench.attempt(Unanswered(), **keyed)
    await bench.advance(31)
    answer = await bench.attempt(outcome, **keyed)
    assert isinstance(answer, Wait)
    assert answer.stage is Stage.UNKNOWN
    row = await bench.email()
    assert (row["generation"], row["stage"]) == (1, "unknown")
    await bench.advance(answer.seconds + 1)
    assert (await bench.claim()).mode == "replay"


async def test_a_documented_replay_of_a_refusal_answers_the_silence(bench: Bench) -> None:
    await bench.enqueue()
    keyed: dict[str, Any] = {"key_window": 3600.0, "window_margin": 60.0}
    await bench.attempt(Unanswered(), **keyed)
    await bench.advance(31)
    answer = await bench.attempt(Refused(Reply(422), replayed=True), **keyed)
    assert answer == Finished(Stage.FAILED, 422, attempts=2)


async def test_after_the_window_nothing_is_sent_again_and_the_alarm_comes(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered(), key_window=300.0, window_margin=30.0)
    await bench.advance(280)
    answer = await bench.ask()
    assert isinstance(answer, Held)
    assert answer.stage is Stage.UNKNOWN
    assert await bench.open_alarms() == ["unknown"]


async def test_the_window_counts_from_the_first_begin_of_the_generation(bench: Bench) -> None:
    await bench.enqueue()
    keyed: dict[str, Any] = {"key_window": 100.0, "window_margin": 10.0}
    await bench.attempt(Unanswered(), **keyed)
    await bench.advance(31)
    answer = await bench.attempt(Unanswered(), **keyed)  # next try would come at 31 + 60, beyond 90
    assert isinstance(answer, Held)


async def test_a_claim_taken_within_the_window_cannot_begin_beyond_it(bench: Bench) -> None:
    await bench.enqueue()
    keyed: dict[str, Any] = {"key_window": 100.0, "window_margin": 10.0}
    await bench.attempt(Unanswered(), **keyed)
    await bench.advance(80)
    replay = await bench.claim(lease_seconds=60)
    await bench.advance(20)
    assert await bench.begin(replay, **keyed) == BeginRefused("window_over")


@pytest.mark.parametrize("window", [None, 1800.0])
async def test_a_window_that_was_shortened_since_the_offer_counts(bench: Bench, window: float | None) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered(), key_window=86400.0)
    await bench.advance(2400)
    replay = await bench.claim()
    assert replay.mode == "replay"
    assert await bench.begin(replay, key_window=window) == BeginRefused("window_over")
    await bench.store.release(replay.email_id, replay.attempt_id, why="window_over", actor="w1")
    assert isinstance(await bench.ask(), Held)
    assert await bench.open_alarms() == ["unknown"]


async def test_a_resend_that_does_not_come_to_its_begin_is_tried_by_the_retry_policy(bench: Bench) -> None:
    await bench.enqueue(unknown="resend")
    await bench.attempt(Unanswered())
    await bench.advance(601)
    waits = []
    answer: object = None
    for _ in range(4):
        claimed = await bench.claim()
        assert claimed.mode == "resend"
        answer = await bench.settle(claimed, NotOffered(Reply()))
        if isinstance(answer, Wait):
            waits.append(answer.seconds)
            await bench.advance(answer.seconds + 1)
    assert waits == [60.0, 120.0, 240.0]
    assert isinstance(answer, Held)  # five attempts in all
    assert await bench.open_alarms() == ["unknown"]


async def test_evidence_about_one_recipient_leaves_the_others_plan_alone(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(base=60, factor=1, jitter=0, max_age=100))
    await bench.enqueue(to=["a@example.org", "b@example.org"])
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.settle(claimed, Deferred(Reply(451)))
    await bench.advance(50)
    answer = await prove(bench, accepted=True)
    assert isinstance(answer, Wait)
    assert answer.seconds == pytest.approx(10, abs=1)


async def test_a_mail_that_dies_a_second_time_is_alarmed_again(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(max_attempts=1))
    email_id = await bench.enqueue()
    await bench.attempt(Deferred(Reply(451)))
    assert await bench.open_alarms() == ["dead"]
    await bench.store.requeue(email_id, lane=bench.lane, actor="ops")
    assert await bench.open_alarms() == []
    await bench.attempt(Deferred(Reply(451)))
    assert await bench.open_alarms() == ["dead"]


async def test_evidence_of_acceptance_settles_an_unknown(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered())
    assert await prove(bench, accepted=True) == Finished(Stage.SENT, attempts=1)
    assert await bench.open_alarms() == []


async def test_evidence_that_nothing_was_accepted_makes_it_due_again_under_a_fresh_generation(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered())
    answer = await prove(bench, accepted=False)
    assert isinstance(answer, Wait)
    assert answer.stage is Stage.PENDING
    await bench.advance(answer.seconds + 1)
    claimed = await bench.claim()
    assert (claimed.mode, claimed.generation) == ("send", 2)


async def test_evidence_for_an_older_generation_does_not_clear_a_newer_silence(bench: Bench) -> None:
    await bench.enqueue(unknown="resend")
    await bench.attempt(Unanswered())
    await bench.advance(601)
    await bench.attempt(Unanswered())
    assert isinstance(await prove(bench, accepted=False, generation=1), Held)
    assert await bench.stages() == ["unanswered"]


async def test_evidence_revokes_the_lease_of_a_claim_that_has_not_begun(bench: Bench) -> None:
    await bench.enqueue()
    keyed: dict[str, Any] = {"key_window": 3600.0, "window_margin": 60.0}
    await bench.attempt(Unanswered(), **keyed)
    await bench.advance(31)
    replay = await bench.claim()
    assert await prove(bench, accepted=True) == Finished(Stage.SENT, attempts=1)
    assert await bench.begin(replay, **keyed) == BeginRefused("moved_on")


async def test_evidence_during_an_offer_is_kept_and_the_offers_own_answer_concludes(bench: Bench) -> None:
    await bench.enqueue()
    keyed: dict[str, Any] = {"key_window": 3600.0, "window_margin": 60.0}
    await bench.attempt(Unanswered(), **keyed)
    await bench.advance(31)
    replay = await bench.claim()
    await bench.begin(replay, **keyed)
    assert isinstance(await prove(bench, accepted=True), Busy)
    assert (await bench.email())["stage"] == "transmitting"
    assert await bench.settle(replay, Refused(Reply(409))) == Finished(Stage.SENT, 409, attempts=2)


async def test_the_same_event_twice_is_one(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Refused(Reply(550)))
    for _ in range(3):
        assert await prove(bench, accepted=False, event="same") == Finished(Stage.FAILED, 550, attempts=1)
    assert len(await bench.rows("SELECT FROM sendonce.evidence")) == 1


async def test_after_the_end_only_acceptance_moves_a_mail_and_lateness_is_alarmed(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Refused(Reply(550)))
    assert await prove(bench, accepted=False, event="e1") == Finished(Stage.FAILED, 550, attempts=1)
    assert await prove(bench, accepted=True, event="e2") == Finished(Stage.SENT, 550, attempts=1)
    assert await bench.open_alarms() == ["late_evidence", "late_evidence"]


async def test_evidence_after_the_end_blocks_a_requeue_unless_forced(bench: Bench) -> None:
    email_id = await bench.enqueue()
    await bench.attempt(Refused(Reply(550)))
    await prove(bench, accepted=False)
    assert await bench.store.requeue(email_id, lane=bench.lane, actor="ops") is None
    answer = await bench.store.requeue(email_id, lane=bench.lane, actor="ops", force=True)
    assert isinstance(answer, Wait)


async def test_a_requeued_mail_is_tried_from_the_start_but_never_again_for_the_accepted(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(delays=(1,), jitter=0, max_attempts=1))
    email_id = await bench.enqueue(to=["a@example.org", "b@example.org"])
    assert await bench.store.requeue(email_id, lane=bench.lane, actor="ops") is None  # not final
    await bench.attempt({0: Refused(Reply(550)), 1: Refused(Reply(550))})
    assert isinstance(await bench.store.requeue(email_id, lane=bench.lane, actor="ops"), Wait)
    claimed = await bench.claim()
    assert [r.ordinal for r in claimed.recipients] == [0, 1]
    assert (claimed.generation, claimed.attempts) == (2, 0)
    await bench.begin(claimed)
    assert await bench.settle(claimed, {0: OK, 1: Refused(Reply(550))}) == Finished(
        Stage.SENT, 550, partial=True, attempts=1
    )
    assert await bench.store.requeue(email_id, lane=bench.lane, actor="ops") is None


async def test_an_unknown_that_nobody_settles_is_closed_and_says_so(bench: Bench) -> None:
    email_id = await bench.enqueue()
    await bench.attempt(Unanswered())
    await bench.advance(7 * 86400 + 1)
    poked = await bench.store.sweep_silent({"default": bench.lane}, actor="w2")
    assert [p.email_id for p in poked] == [email_id]
    assert await bench.ask() == Finished(Stage.DEAD, maybe_accepted=True, attempts=1)
    assert await bench.open_alarms() == ["dead"]
    assert await bench.store.requeue(email_id, lane=bench.lane, actor="ops") is None
    answer = await bench.store.requeue(email_id, lane=bench.lane, actor="ops", force=True)
    assert isinstance(answer, Wait)
    assert (await bench.claim()).generation == 2


async def test_a_silent_mail_that_expires_or_is_cancelled_stays_unknown(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered(), key_window=3600.0)
    answer = await bench.store.withdraw(bench.ids["k1"], "k1", lane=bench.lane, actor="ops")
    assert isinstance(answer, Held)
    assert answer.stage is Stage.UNKNOWN
    await bench.enqueue("k2")
    await bench.attempt(Unanswered(), "k2", key_window=3600.0)
    await bench.run("UPDATE sendonce.email SET expires_at = sendonce.clock() WHERE key = 'k2'")
    await bench.advance(31)
    held = await bench.ask("k2")
    assert isinstance(held, Held)
    assert held.stage is Stage.UNKNOWN


async def test_a_contradiction_is_alarmed_once_and_acceptance_wins(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.settle(claimed, Refused(Reply(550)))
    assert await bench.settle(claimed, OK) == Finished(Stage.SENT, 250, "2.0.0", attempts=1)
    await bench.settle(claimed, Refused(Reply(550)))
    assert (await bench.email())["stage"] == "sent"
    assert await bench.open_alarms() == ["contradiction"]


async def test_facts_about_a_mail_that_was_erased_are_no_error(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.run("DELETE FROM sendonce.email")
    assert isinstance(await bench.settle(claimed, OK), NoSuchRow)
    bench.ids["k1"] = UUID(int=1)
    assert isinstance(await prove(bench, accepted=True), NoSuchRow)


async def test_a_completed_run_is_evidence_for_everyone_not_refused(bench: Bench) -> None:
    email_id = await bench.enqueue(to=["a@example.org", "b@example.org"])
    answer = await bench.store.record_completed_run(email_id, lane=bench.lane, actor="starter")
    assert answer == Finished(Stage.SENT)
    assert await bench.stages() == ["accepted", "accepted"]
    assert len(await bench.rows("SELECT FROM sendonce.evidence")) == 2


async def test_a_completed_run_adds_nothing_to_what_the_store_knows(bench: Bench) -> None:
    email_id = await bench.enqueue(to=["a@example.org", "b@example.org"])
    await bench.attempt({0: OK, 1: Refused(Reply(550))})
    answer = await bench.store.record_completed_run(email_id, lane=bench.lane, actor="starter")
    assert isinstance(answer, Finished)
    assert (answer.stage, answer.partial) == (Stage.SENT, True)
    assert await bench.rows("SELECT FROM sendonce.evidence") == []


async def test_one_refusal_among_three_mails_touches_nobody_else(bench: Bench) -> None:
    claims = []
    for key in ("r1", "r2", "r3"):
        await bench.enqueue(key)
        claims.append(await bench.claim(key))
    for claimed in claims:
        await bench.begin(claimed)
    await bench.settle(claims[0], OK)
    await bench.settle(claims[1], Refused(Reply(554, "5.7.1")))
    await bench.settle(claims[2], OK)
    assert [(await bench.email(k))["stage"] for k in ("r1", "r2", "r3")] == ["sent", "failed", "sent"]


async def forget_attempt(bench: Bench) -> Claimed:
    """An attempt that was begun, and a store that has lost claim and begin, as a failover to a standby may."""
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.run(
        "DELETE FROM sendonce.attempt; UPDATE sendonce.email SET stage = 'pending', claims = 0, lease_id = NULL,"
        " lease_until = NULL, lease_worker = NULL"
    )
    return claimed


async def test_a_proof_in_hand_counts_although_its_attempt_was_forgotten(bench: Bench) -> None:
    claimed = await forget_attempt(bench)
    answer = await bench.settle(claimed, OK)
    assert isinstance(answer, Finished)
    assert answer.stage is Stage.SENT
    assert await bench.settle(claimed, OK) == answer
    assert isinstance(await bench.ask(), Finished)


async def test_the_silence_of_a_forgotten_attempt_is_not_talked_over(bench: Bench) -> None:
    claimed = await forget_attempt(bench)
    await bench.settle(claimed, Unanswered())
    assert (await bench.email())["stage"] == "unknown"
    assert isinstance(await bench.ask(), Held)


async def test_a_forgotten_attempt_revokes_the_claim_that_followed_it(bench: Bench) -> None:
    first = await forget_attempt(bench)
    second = await bench.claim()
    await bench.settle(first, OK)
    assert await bench.begin(second) == BeginRefused("moved_on")
    assert (await bench.email())["stage"] == "sent"


async def test_a_claim_that_a_crash_took_back_leaves_the_mail_due(bench: Bench) -> None:
    claimed = await forget_attempt(bench)
    answer = await bench.settle(claimed, NotOffered(counted=False))
    assert isinstance(answer, Wait), answer
    assert await bench.rows("SELECT FROM sendonce.attempt") == []
    await bench.claim()
