"""What somebody asks of a mail through its workflow is done once, however often and at what time it arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from sendonce.outcome import Accepted, Reply, Unanswered
from sendonce.store.actions import Acted, Action
from sendonce.store.records import BeginRefused

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(200), "P1")


async def act(bench: Bench, action: Action, action_id: str = "a1") -> Acted:
    return await bench.store.act(
        bench.ids["k1"], action, action_id=action_id, lanes={"default": bench.lane}, actor="temporal-ui:ann", because=""
    )


async def test_the_same_action_at_the_same_time_is_one(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered())
    came = await asyncio.gather(*(act(bench, "resolve:resend") for _ in range(5)))
    assert came == [Acted("done", "unknown")] * 5
    decided = await bench.rows("SELECT actor FROM sendonce.transition WHERE cause = 'operator:resend'")
    assert decided == [{"actor": "temporal-ui:ann"}]


async def test_different_actions_at_the_same_time_wait_for_each_other(bench: Bench) -> None:
    await bench.enqueue()
    came = await asyncio.gather(*(act(bench, "cancel", f"a{n}") for n in range(5)))
    assert sorted(one.answer for one in came) == ["done", "final", "final", "final", "final"]
    assert (await bench.email())["stage"] == "cancelled"


async def test_a_claim_that_has_offered_nothing_is_revoked(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    assert await act(bench, "retry_now") == Acted("under_way", "claimed")
    assert await act(bench, "cancel", "a2") == Acted("done", "cancelled")
    assert isinstance(await bench.begin(claimed), BeginRefused)


async def test_an_offer_is_not_cut_and_its_acceptance_counts(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    assert await act(bench, "cancel") == Acted("begun", "transmitting")
    await bench.settle(claimed, OK)
    assert (await bench.email())["stage"] == "sent"
    # The answer stays what it was.
    assert await act(bench, "cancel") == Acted("begun", "transmitting")
    assert await act(bench, "cancel", "a2") == Acted("final", "sent")


async def test_a_mail_of_another_installation_is_missing(bench: Bench) -> None:
    bench.ids["k1"] = uuid4()
    assert await act(bench, "cancel") == Acted("missing")


@pytest.mark.parametrize("stage", ["pending", "unknown"])
async def test_a_retry_is_due_now_and_never_later(bench: Bench, stage: str) -> None:
    await bench.enqueue()
    await bench.run(
        "UPDATE sendonce.email SET stage = %s, attempts = 1, next_attempt_at = sendonce.clock() + interval '1 hour',"
        " replay_until = sendonce.clock() + interval '1 day'",
        [stage],
    )
    assert (await act(bench, "retry_now")).answer == "done"
    due = (await bench.email())["next_attempt_at"]
    assert await bench.rows("SELECT sendonce.clock() >= %s AS due", [due]) == [{"due": True}]
    await bench.advance(60)
    assert (await act(bench, "retry_now", "a2")).answer == "done"
    assert (await bench.email())["next_attempt_at"] == due
