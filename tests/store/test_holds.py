"""The kill switch: what is on hold is not started, not claimed and not begun, and loses nothing by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sendonce.outcome import Accepted, Deferred, NotOffered, Reply, Unanswered
from sendonce.stages import Stage
from sendonce.store import Store, holds
from sendonce.store.records import BeginRefused, Begun, Claimed, Finished, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

TEMPLATE = {"subject": "", "text": "", "template": "news"}
SCOPES: list[tuple[holds.Scope, str, dict[str, Any]]] = [
    ("lane", "default", {}),
    ("template", "news", TEMPLATE),
    ("tenant", "acme", {"fairness_key": "acme"}),
    ("account", "default", {}),
]
LATER = Deferred(Reply(451, "4.7.1"))


async def pause(bench: Bench, scope: holds.Scope, name: str) -> bool:
    async with bench.pool.connection() as conn:
        return await holds.pause(conn, scope, name, actor="ops", why="bad link")


async def resume(bench: Bench, scope: holds.Scope, name: str) -> bool:
    async with bench.pool.connection() as conn:
        return await holds.resume(conn, scope, name, actor="ops")


async def started(bench: Bench, **options: Any) -> list[str]:
    return [row.key for row in await bench.store.unstarted("default", limit=10, ceiling=100, **options)]


async def overdue(bench: Bench) -> list[str]:
    return [row.key for row in await bench.store.overdue("default", limit=100)]


@pytest.mark.parametrize(("scope", "name", "fields"), SCOPES)
async def test_nothing_on_hold_is_started_or_claimed_until_it_ends(
    bench: Bench, scope: holds.Scope, name: str, fields: dict[str, Any]
) -> None:
    await bench.enqueue(**fields)
    assert await pause(bench, scope, name)
    assert not await pause(bench, scope, name)
    assert await started(bench) == []
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert (answer.why, answer.stage, answer.seconds) == ("on_hold", Stage.PENDING, 86400.0)
    email = await bench.email()
    assert (email["stage"], email["claims"], email["attempts"]) == ("pending", 0, 0)
    assert await bench.rows("SELECT FROM sendonce.attempt") == []
    assert await resume(bench, scope, name)
    assert not await resume(bench, scope, name)
    await bench.claim()
    [row] = await bench.rows("SELECT * FROM sendonce.hold")
    assert (row["actor"], row["why"], row["ended_by"]) == ("ops", "bad link", "ops")


@pytest.mark.parametrize(("scope", "name", "fields"), SCOPES)
async def test_a_claim_that_came_before_it_is_not_begun_and_goes_back_uncounted(
    bench: Bench, scope: holds.Scope, name: str, fields: dict[str, Any]
) -> None:
    await bench.enqueue(**fields)
    claimed = await bench.claim()
    await pause(bench, scope, name)
    assert await bench.begin(claimed) == BeginRefused("on_hold")
    await bench.store.release(claimed.email_id, claimed.attempt_id, why="on_hold", actor="w1")
    email = await bench.email()
    assert (email["stage"], email["attempts"]) == ("pending", 0)
    assert isinstance(await bench.ask(), Wait)
    await resume(bench, scope, name)
    assert await bench.attempt(Accepted(Reply(250))) == Finished(Stage.SENT, 250, "", attempts=1)


async def test_what_has_begun_is_seen_through(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    assert isinstance(await bench.begin(claimed), Begun)
    await pause(bench, "lane", "default")
    standing = await bench.settle(claimed, Accepted(Reply(250)))
    assert isinstance(standing, Finished)
    assert standing.stage is Stage.SENT


async def test_other_mail_goes_on(bench: Bench) -> None:
    await bench.enqueue("held", **TEMPLATE)
    await bench.enqueue("other-template", subject="", text="", template="invoice")
    await bench.enqueue("plain", fairness_key="acme")
    await pause(bench, "template", "news")
    await pause(bench, "lane", "bulk")
    await pause(bench, "tenant", "umbrella")
    assert sorted(await started(bench)) == ["other-template", "plain"]
    assert isinstance(await bench.ask("plain"), Claimed)
    assert isinstance(await bench.ask("other-template"), Claimed)


async def test_one_template_on_hold_does_not_hide_what_stands_behind_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.run(
        "SELECT sendonce.enqueue(jsonb_build_object('key', 'n' || n, 'sender', 'a@example.com', 'to', 'b@example.com',"
        " 'template', 'news')) FROM generate_series(1, 2100) n"
    )
    await bench.enqueue("behind")
    await pause(bench, "template", "news")
    assert await started(bench) == ["behind"]


async def test_a_turn_is_not_spent_on_a_tenant_on_hold(bench: Bench) -> None:
    for n in range(3):
        await bench.enqueue(f"a{n}", fairness_key="acme")
        await bench.enqueue(f"b{n}", fairness_key="umbrella")
    await pause(bench, "tenant", "acme")
    assert sorted(await started(bench)) == ["b0", "b1", "b2"]
    await resume(bench, "tenant", "acme")
    assert sorted(await started(bench)) == ["a0", "a1", "a2"]


async def test_mail_on_hold_takes_no_place_of_the_others(bench: Bench) -> None:
    for n in range(2):
        await bench.enqueue(f"held{n}", **TEMPLATE)
    assert len(await started(bench)) == 2
    await bench.enqueue("other")
    assert [row.key for row in await bench.store.unstarted("default", limit=10, ceiling=2)] == []
    await pause(bench, "template", "news")
    assert [row.key for row in await bench.store.unstarted("default", limit=10, ceiling=2)] == ["other"]


async def test_its_deadline_holds(bench: Bench) -> None:
    now = (await bench.rows("SELECT sendonce.clock() + interval '1 hour' AS at"))[0]["at"]
    await bench.enqueue(expires_at=now.isoformat())
    await pause(bench, "lane", "default")
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert 3500 < answer.seconds <= 3600
    await bench.advance(3601)
    expired = await bench.ask()
    assert isinstance(expired, Finished)
    assert expired.stage is Stage.EXPIRED


async def test_its_age_stands_still(bench: Bench) -> None:
    """The lane gives up a day after the first attempt; two days on hold do not count, however many holds there were."""
    await bench.enqueue(**TEMPLATE)
    await bench.attempt(LATER)
    await pause(bench, "lane", "default")
    await bench.advance(86400)
    await pause(bench, "template", "news")
    await bench.advance(86400)
    await resume(bench, "lane", "default")
    await bench.advance(86400)
    await resume(bench, "template", "news")
    again = await bench.attempt(LATER)
    assert isinstance(again, Wait), again
    assert again.why == "deferred"
    # And one day more, on no hold, does.
    await bench.advance(86400)
    end = await bench.attempt(LATER)
    assert isinstance(end, Finished)
    assert end.stage is Stage.DEAD


async def test_holds_that_overlap_count_once(bench: Bench) -> None:
    await bench.enqueue(**TEMPLATE)
    await bench.attempt(LATER)
    await pause(bench, "lane", "default")
    await pause(bench, "template", "news")
    await bench.advance(40_000)
    await resume(bench, "lane", "default")
    await resume(bench, "template", "news")
    # 40 000 s on hold, and 87 000 s not: beyond the day, unless the hold were counted twice.
    await bench.advance(87_000)
    end = await bench.attempt(LATER)
    assert isinstance(end, Finished)
    assert end.stage is Stage.DEAD


async def test_the_patience_with_a_broken_template_stands_still_too(bench: Bench) -> None:
    await bench.enqueue(**TEMPLATE)

    async def broken() -> float:
        claimed = await bench.claim()
        return await bench.store.release(claimed.email_id, claimed.attempt_id, why="template", actor="w1", held=True)

    assert await broken() == 0.0
    await bench.advance(100)
    await pause(bench, "template", "news")
    await bench.advance(5000)
    await resume(bench, "template", "news")
    await bench.advance(20)
    assert 120 <= await broken() < 130


async def test_an_unknown_on_hold_is_not_replayed(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered(), key_window=86400.0)
    await bench.advance(60)
    await pause(bench, "lane", "default")
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert (answer.why, answer.stage) == ("on_hold", Stage.UNKNOWN)
    await resume(bench, "lane", "default")
    assert (await bench.claim()).mode == "replay"


async def test_the_fallback_of_a_paused_account_is_not_taken_while_it_is_on_hold(bench: Bench) -> None:
    store = Store(bench.pool, {"default": "s1", "spare": "s2"}, {"default": "spare"})
    await bench.enqueue()
    await store.account_fault("default", code=535, enhanced="5.7.8")
    await pause(bench, "account", "spare")
    bench.store = store
    answer = await bench.ask()
    assert (type(answer).__name__, getattr(answer, "account", "")) == ("Paused", "default")
    assert await started(bench) == []
    await resume(bench, "account", "spare")
    claimed = await bench.claim()
    assert claimed.account == "spare"
    await pause(bench, "account", "spare")
    assert await bench.begin(claimed) == BeginRefused("on_hold")


async def test_an_end_wakes_some_at_once_and_the_overdue_rule_the_rest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "_SLEEPING", holds._SLEEPING.replace(f"LIMIT {holds.WOKEN}", "LIMIT 2"))
    for n in range(5):
        await bench.enqueue(f"k{n}", **TEMPLATE)
        await bench.attempt(NotOffered(counted=False), f"k{n}")
    await pause(bench, "template", "news")
    await bench.advance(400)
    for n in range(5):
        assert isinstance(await bench.ask(f"k{n}"), Wait)
    await bench.advance(400)
    # Nobody has seen them for minutes; that is no fault while they are on hold.
    assert await overdue(bench) == []
    await resume(bench, "template", "news")
    assert sorted(row.key for row in await bench.store.take_wakes()) == ["k0", "k1"]
    assert sorted(await overdue(bench)) == [f"k{n}" for n in range(5)]
