"""What an attempt costs: over-full envelopes, greylisting, and faults of ours that keep a mail waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sendonce.outcome import Accepted, Deferred, Refused, Reply
from sendonce.stages import Stage
from sendonce.store.records import Finished, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250, "2.0.0"), "Q1")
OVER = Deferred(Reply(452, "4.5.3"), beyond_limit=True)
GREY = Deferred(Reply(451, "4.7.1"), greylisted=True)
BUSY = Deferred(Reply(451, "4.3.2"))
FIVE = [f"r{n}@example.org" for n in range(5)]


async def test_recipients_beyond_the_servers_limit_are_served_at_once_and_uncounted(bench: Bench) -> None:
    await bench.enqueue(to=FIVE, retry={"delays": [600], "max_attempts": 1})
    assert await bench.attempt({0: OK, 1: OK, 2: OVER, 3: OVER, 4: OVER}) == Wait(
        0.0, "deferred", Stage.PENDING, 452, "4.5.3", 0
    )
    claimed = await bench.claim()
    assert [r.ordinal for r in claimed.recipients] == [2, 3, 4]
    await bench.begin(claimed)
    assert isinstance(await bench.settle(claimed, {2: OK, 3: Refused(Reply(550, "5.1.1")), 4: OVER}), Wait)
    assert await bench.attempt({4: OK}) == Finished(Stage.SENT, 250, "2.0.0", partial=True, attempts=1)
    assert await bench.stages() == ["accepted", "accepted", "accepted", "refused", "accepted"]


async def test_a_server_that_takes_nobody_is_an_ordinary_deferral(bench: Bench) -> None:
    await bench.enqueue(to=FIVE[:2])
    standing = await bench.attempt({0: BUSY, 1: OVER})
    assert isinstance(standing, Wait)
    assert (standing.seconds, standing.attempts) == (30.0, 1)


async def test_greylisting_has_its_own_early_delays(bench: Bench) -> None:
    await bench.enqueue()
    waits = []
    for _ in range(4):
        standing = await bench.attempt(GREY)
        assert isinstance(standing, Wait)
        waits.append(standing.seconds)
        await bench.advance(standing.seconds)
    assert waits == [30.0, 60.0, 120.0, 300.0]
    assert isinstance(await bench.attempt(GREY), Finished), "attempts are counted, and five is the lane's limit"


@pytest.mark.parametrize("outcome", [BUSY, Deferred(Reply(421, "4.7.0"))])
async def test_any_other_deferral_follows_the_retry_policy(bench: Bench, outcome: Deferred) -> None:
    await bench.enqueue()
    standing = await bench.attempt(outcome)
    assert isinstance(standing, Wait)
    assert standing.seconds == 30.0


async def test_a_messages_own_policy_wins_over_the_greylist_delays(bench: Bench) -> None:
    await bench.enqueue(retry={"delays": [7], "jitter": 0})
    standing = await bench.attempt(GREY)
    assert isinstance(standing, Wait)
    assert standing.seconds == 7.0


async def test_a_mail_held_by_our_own_fault_is_given_up_in_the_end_and_can_be_requeued(bench: Bench) -> None:
    await bench.enqueue()
    for waited in (0.0, 100.0, 200.0):
        claimed = await bench.claim()
        await bench.store.alarm(claimed.email_id, "held", "template order: body.txt:3: UndefinedError")
        held_for = await bench.store.release(
            claimed.email_id, claimed.attempt_id, why="template", actor="w1", delay=100.0, held=True
        )
        assert held_for == pytest.approx(waited, abs=10)
        await bench.advance(100)
    assert await bench.open_alarms() == ["held"]
    standing = await bench.store.give_up(bench.ids["k1"], cause="template", lane=bench.lane, actor="w1")
    assert standing == Finished(Stage.DEAD)
    assert await bench.open_alarms() == ["dead"]
    assert isinstance(await bench.store.requeue(bench.ids["k1"], lane=bench.lane, actor="op"), Wait)
    row = await bench.email()
    assert (row["stage"], row["held_since"]) == ("pending", None)
    assert isinstance(await bench.attempt(OK), Finished)


async def test_a_release_for_another_reason_holds_nothing(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    assert await bench.store.release(claimed.email_id, claimed.attempt_id, why="shutdown", actor="w1") == 0.0
    assert (await bench.email())["held_since"] is None


async def test_an_offer_ends_the_hold_and_its_alarm(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.store.alarm(claimed.email_id, "held", "template order: body.txt:3: UndefinedError")
    await bench.store.release(claimed.email_id, claimed.attempt_id, why="template", actor="w1", held=True)
    await bench.attempt(BUSY)
    assert (await bench.email())["held_since"] is None
    assert await bench.open_alarms() == []
