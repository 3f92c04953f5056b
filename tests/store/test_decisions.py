"""An operator decides about an unknown: what is done, what is kept of it, and what cannot be decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sendonce.outcome import Accepted, Refused, Reply, Unanswered
from sendonce.store import decisions, suppressions
from sendonce.store.records import Begun, Claimed, Held

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(200), "P1")
SILENCE = Unanswered()


async def decide(bench: Bench, decision: decisions.Decision, key: str = "k1") -> str:
    async with bench.pool.connection() as conn:
        return await decisions.decide(
            conn, bench.ids[key], decision, lanes={"default": bench.lane}, actor="olga", because="she called"
        )


async def unknown(bench: Bench, **fields: Any) -> None:
    await bench.enqueue(**fields)
    await bench.attempt(SILENCE)
    await bench.advance(40)
    assert isinstance(await bench.ask(), Held)


async def logged(bench: Bench) -> list[tuple[str, str, str]]:
    rows = await bench.rows(
        "SELECT cause, actor, because FROM sendonce.transition WHERE because IS NOT NULL ORDER BY id"
    )
    return [(row["cause"], row["actor"], row["because"]) for row in rows]


async def test_it_was_sent(bench: Bench) -> None:
    await unknown(bench, to=["ann@example.org", "bob@example.org"])
    assert await decide(bench, "sent") == ""
    assert (await bench.email())["stage"] == "sent"
    assert await bench.open_alarms() == []
    assert await logged(bench) == [("operator:sent", "olga", "she called")]
    evidence = await bench.rows("SELECT source, actor, accepted FROM sendonce.evidence")
    assert evidence == [{"source": "operator", "actor": "olga", "accepted": True}] * 2
    assert [row.key for row in await bench.store.take_wakes()] == ["k1"]
    assert await bench.store.take_wakes() == []


async def test_it_was_not_sent_and_is_tried_again_under_a_new_key(bench: Bench) -> None:
    await unknown(bench)
    assert await decide(bench, "not-sent") == ""
    row = await bench.email()
    assert (row["stage"], row["generation"]) == ("pending", 2)
    await bench.advance(120)
    claimed = await bench.claim()
    assert (claimed.mode, claimed.generation, claimed.pins) == ("send", 2, None)
    await bench.begin(claimed)
    await bench.settle(claimed, OK)
    row = await bench.email()
    assert (row["stage"], row["maybe_accepted"]) == ("sent", False)


async def test_the_age_of_a_mail_stands_still_while_nobody_can_try_it(bench: Bench) -> None:
    await unknown(bench)
    # Longer than the policy tries.
    await bench.advance(bench.lane.retry.max_age + 3600)
    assert await decide(bench, "not-sent") == ""
    assert (await bench.email())["stage"] == "pending"


async def test_whoever_is_suppressed_is_not_sent_it_again(bench: Bench) -> None:
    await unknown(bench)
    async with bench.pool.connection() as conn:
        await suppressions.add(conn, "default", "ann@example.org", "manual", source="test", actor="me")
    assert await decide(bench, "resend") == "suppressed"
    assert await logged(bench) == []


async def test_what_was_allowed_once_is_no_policy(bench: Bench) -> None:
    await unknown(bench)
    await decide(bench, "resend")
    await bench.attempt(SILENCE)
    await bench.advance(8 * 86400)
    await bench.store.sweep_silent({"default": bench.lane}, actor="w1")
    assert (await bench.email())["stage"] == "dead"
    await bench.store.requeue(bench.ids["k1"], lane=bench.lane, actor="olga", force=True)
    assert (await bench.email())["unknown_policy"] is None


async def test_sent_once_more_over_the_silence_which_stays(bench: Bench) -> None:
    await unknown(bench)
    assert await decide(bench, "resend") == ""
    claimed = await bench.claim()
    assert (claimed.mode, claimed.generation) == ("resend", 2)
    assert isinstance(await bench.begin(claimed), Begun)
    await bench.settle(claimed, Refused(Reply(550)))
    row = await bench.email()
    # The refusal answers the second offer; the first one is as silent as before.
    assert (row["stage"], row["next_attempt_at"]) == ("unknown", None)
    assert await decide(bench, "resend") == ""
    again = await bench.claim()
    assert again.generation == 3
    await bench.begin(again)
    await bench.settle(again, OK)
    assert (await bench.email())["stage"] == "sent"
    assert [cause for cause, _, _ in await logged(bench)] == ["operator:resend"] * 2


async def test_a_resend_within_the_window_is_a_replay(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(SILENCE, key_window=86400.0)
    assert await decide(bench, "resend") == ""
    answer = await bench.ask()
    assert isinstance(answer, Claimed)
    assert (answer.mode, answer.generation) == ("replay", 1)


async def test_what_is_not_unknown_is_not_decided(bench: Bench) -> None:
    await bench.enqueue()
    assert await decide(bench, "sent") == "not_unknown"
    claimed = await bench.claim()
    await bench.begin(claimed)
    assert await decide(bench, "not-sent") == "not_unknown"
    await bench.settle(claimed, OK)
    assert await decide(bench, "resend") == "not_unknown"
    assert await logged(bench) == []
    await bench.run("DELETE FROM sendonce.email")
    assert await decide(bench, "sent") == "missing"


async def test_what_was_withdrawn_is_not_sent_again(bench: Bench) -> None:
    await unknown(bench)
    await bench.store.withdraw(bench.ids["k1"], "k1", lane=bench.lane, actor="shop")
    assert await decide(bench, "resend") == "stopped"
    assert await decide(bench, "not-sent") == ""
    assert (await bench.email())["stage"] == "cancelled"


async def test_what_a_newer_mail_has_replaced_is_not_sent_again(bench: Bench) -> None:
    await bench.enqueue(topic="reset:1")
    await bench.attempt(SILENCE)
    await bench.enqueue("newer", topic="reset:1")
    assert await decide(bench, "resend") == "superseded"
    assert await decide(bench, "sent") == ""
    assert (await bench.email())["stage"] == "sent"


async def test_unknowns_to_decide_about(bench: Bench) -> None:
    for key in ("old", "new"):
        await bench.enqueue(key)
        await bench.attempt(SILENCE, key)
        await bench.advance(100)
    await bench.store.due_look_ups("default", ["default"], 1)
    async with bench.pool.connection() as conn:
        found = await decisions.undecided(conn, "default")
        assert [(one.key, one.look_ups) for one in found] == [("old", 1), ("new", 0)]
        assert [one.key for one in await decisions.undecided(conn, "default", older_than=150)] == ["old"]
        assert await decisions.undecided(conn, "other") == []
    assert set(decisions.REFUSALS) == {"missing", "not_unknown", "stopped", "superseded", "suppressed"}
