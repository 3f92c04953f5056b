"""Slots of an account's rates: exact over many askers, needed by every claim, void when they are not used."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from sendonce.outcome import Accepted, Deferred, Reply, Unanswered
from sendonce.pace import Pace
from sendonce.rates import Rate, shares
from sendonce.stages import Stage
from sendonce.starter import _take_turns
from sendonce.store import Store
from sendonce.store.records import Claimed, Finished, NoSlot, Wait
from tests.store.conftest import LANE

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250, "2.0.0", "queued"), "Q1")


def with_rates(bench: Bench, *rates: str, fallback: bool = False, **domains: str) -> Store:
    """``domains``: the rate of mail to that domain below example."""
    share = {"critical": 0.2}
    pools = {"default": shares([Rate.parse(rate) for rate in rates], share)} if rates else {}
    for name, rate in domains.items():
        pools[f"default@{name}.example"] = shares([Rate.parse(rate)], {})
    digests = {"default": "settings-1", "second": "settings-2"}
    return Store(bench.pool, digests, {"default": "second"} if fallback else {}, pools)


@pytest.fixture
def paced(bench: Bench) -> Bench:
    """The bench with a default account of 10 mails a second, 2 of them for codes only."""
    bench.store = with_rates(bench, "10/s")
    return bench


async def test_many_askers_together_get_what_the_rate_allows(paced: Bench) -> None:
    # Time stands still: they all ask at the same moment.
    await paced.run(
        "CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE"
        " AS $$ SELECT timestamptz '2030-01-01 00:00:00+00' $$"
    )
    given = await asyncio.gather(*(paced.store.take_slots(["default"], "bulk", 3) for _ in range(40)))
    delays = sorted(delay for one in given for delay in one.delays)
    assert delays == pytest.approx([n / 8 for n in range(8)], abs=1e-4)
    assert all(one.retry_in == pytest.approx(1.01, abs=1e-3) for one in given if not one.delays)


async def test_a_code_finds_a_slot_however_many_bulk_mails_took_theirs(paced: Bench) -> None:
    assert len((await paced.store.take_slots(["default"], "bulk", 100)).delays) == 8
    code = await paced.store.take_slots(["default"], "critical", 1)
    assert len(code.delays) == 1
    assert code.delays[0] < 0.05


async def test_a_claim_needs_a_slot(paced: Bench) -> None:
    await paced.enqueue()
    assert await paced.ask() == NoSlot("default", ("example.org",))
    assert (await paced.email())["seen_at"] is not None
    assert await paced.ask(slot="other") == NoSlot("default", ("example.org",))
    assert isinstance(await paced.ask(slot="default"), Claimed)


async def test_what_is_not_due_needs_none(paced: Bench) -> None:
    await paced.enqueue(send_after="2099-01-01T00:00:00Z")
    assert isinstance(await paced.ask(), Wait)


async def test_a_slot_that_the_starter_took_serves_one_claim(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.mark_slots("default", {email_id: 0.5})
    claimed = await paced.claim()
    await paced.store.release(claimed.email_id, claimed.attempt_id, why="test", actor="w1")
    assert await paced.ask() == NoSlot("default", ("example.org",))


async def test_a_slot_is_void_two_seconds_after_its_time(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.mark_slots("default", {email_id: 0.5})
    await paced.advance(2.6)
    assert await paced.ask() == NoSlot("default", ("example.org",))


async def test_a_slot_of_one_account_is_none_of_its_fallback(bench: Bench) -> None:
    bench.store = with_rates(bench, "10/s", fallback=True)
    bench.store._pools["second"] = bench.store._pools["default"]
    email_id = await bench.enqueue()
    await bench.store.mark_slots("default", {email_id: 0.5})
    await bench.store.account_fault("default", code=401, enhanced="")
    assert await bench.ask() == NoSlot("second", ("example.org",))


async def test_a_probe_needs_none(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.account_fault("default", code=401, enhanced="")
    await paced.advance(16)
    assert await paced.store.take_probe("default", email_id)
    assert isinstance(await paced.ask(probe=""), Claimed)


async def test_a_replay_needs_one_too(paced: Bench) -> None:
    await paced.enqueue()
    claimed = await paced.claim(slot="default")
    await paced.begin(claimed, key_window=86400.0)
    await paced.settle(claimed, Unanswered())
    await paced.advance(31)
    assert await paced.ask() == NoSlot("default", ("example.org",))
    again = await paced.claim(slot="default")
    assert again.mode == "replay"


async def test_a_mail_without_a_slot_is_due_when_there_is_one(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.put_off(email_id, 40.0, lane=LANE, actor="w1")
    answer = await paced.ask()
    assert isinstance(answer, Wait)
    assert 39 < answer.seconds <= 40
    await paced.store.put_off(email_id, 4000.0, lane=LANE, actor="w1")
    again = await paced.ask()
    assert isinstance(again, Wait)
    assert again.seconds <= answer.seconds, "it was not due, and is not put off"


async def test_a_used_up_quota_says_for_how_long(bench: Bench) -> None:
    bench.store = with_rates(bench, "5/day")
    first = await bench.store.take_slots(["default"], "bulk", 10)
    assert Counter(first.delays) == {0.0: 4}, "one of five is kept for codes"
    again = await bench.store.take_slots(["default"], "bulk", 10)
    assert again.delays == ()
    assert 86400 <= again.retry_in <= 86400 * 1.02
    await bench.advance(again.retry_in + 1)
    assert len((await bench.store.take_slots(["default"], "bulk", 10)).delays) == 4


async def test_a_limited_destination_needs_a_slot_of_its_own(bench: Bench) -> None:
    bench.store = with_rates(bench, slow="2/min burst 2")
    await bench.enqueue("there", to=["ann@slow.example", "ann@SLOW.example", "bob@quick.example"])
    await bench.enqueue("elsewhere", to=["bob@quick.example"])
    assert await bench.ask("there") == NoSlot("default", ("quick.example", "slow.example"))
    assert bench.store.limits("default", ["slow.example", "quick.example"]) == ("default@slow.example",)
    claimed = await bench.claim("there", slot="default")
    assert claimed.to_domains == ("quick.example", "slow.example")
    await bench.claim("elsewhere")


async def test_destination_and_account_must_both_have_slots(bench: Bench) -> None:
    bench.store = with_rates(bench, "10/day", slow="2/day")
    names = bench.store.limits("default", ["slow.example"])
    assert names == ("default@slow.example", "default")
    given = await bench.store.take_slots(names, "bulk", 5)
    assert (len(given.delays), given.lacking) == (2, "default@slow.example")
    assert given.retry_in >= 86400
    rest = await bench.store.take_slots(["default"], "bulk", 10)
    assert len(rest.delays) == 6, "eight for all lanes, and two are used"


async def test_mail_to_a_full_destination_is_passed_over(bench: Bench) -> None:
    for n in range(5):
        await bench.enqueue(f"slow-{n}", to=["ann@slow.example"])
    await bench.enqueue("quick", to=["bob@quick.example"])
    got = await bench.store.unstarted(
        "default", limit=3, ceiling=10, domains_full={"default": ["slow.example"], "second": ["quick.example"]}
    )
    assert [(row.key, list(row.to_domains)) for row in got] == [("quick", ["quick.example"])]
    assert len(await bench.store.unstarted("default", limit=3, ceiling=10)) == 3


async def test_a_deadline_comes_before_the_slot(paced: Bench) -> None:
    now = (await paced.rows("SELECT sendonce.clock() AS now"))[0]["now"]
    email_id = await paced.enqueue(expires_at=(now + timedelta(seconds=20)).isoformat())
    await paced.store.put_off(email_id, 4000.0, lane=LANE, actor="w1")
    answer = await paced.ask()
    assert isinstance(answer, Wait)
    assert answer.seconds <= 20
    await paced.advance(21)
    assert isinstance(await paced.ask(), Finished)


async def test_what_only_one_of_two_has_stays(bench: Bench) -> None:
    bench.store = with_rates(bench, "1/s", slow="100/day")
    names = bench.store.limits("default", ["slow.example"])
    for _ in range(5):
        assert len((await bench.store.take_slots(names, "bulk", 20)).delays) == 1
        await bench.advance(1.02)
    alone = await bench.store.take_slots(["default@slow.example"], "bulk", 200)
    assert len(alone.delays) == 95


async def test_who_is_too_old_at_the_time_of_the_slot_is_given_up(paced: Bench) -> None:
    lane = replace(LANE, retry=replace(LANE.retry, max_age=1800.0))
    email_id = await paced.enqueue()
    claimed = await paced.claim(slot="default")
    await paced.begin(claimed)
    await paced.settle(claimed, Deferred(Reply(451, "4.7.1")))
    await paced.advance(31)
    standing = await paced.store.put_off(email_id, 600.0, lane=lane, actor="w1")
    assert isinstance(standing, Wait)
    await paced.advance(601)
    standing = await paced.store.put_off(email_id, 1700.0, lane=lane, actor="w1")
    assert isinstance(standing, Finished)
    assert standing.stage is Stage.DEAD


async def test_a_diverted_mail_takes_slots_of_the_account_it_goes_by(bench: Bench) -> None:
    bench.store = with_rates(bench, "5/day", fallback=True)
    await bench.store.take_slots(["default"], "bulk", 10)
    await bench.store.account_fault("default", code=429, enhanced="", retry_after=600.0)
    for n in range(3):
        await bench.enqueue(f"k{n}")
    rows = await bench.store.unstarted("default", limit=20, ceiling=20)
    assert [row.route for row in rows] == ["second"] * 3
    assert [delay for _, delay in await Pace(bench.store).with_slots("default", rows)] == [0.0] * 3


async def start(bench: Bench, pace: Pace, turns: dict[str, str]) -> list[str]:
    """What a starter does at one look, as far as the store is concerned."""
    rows = await bench.store.unstarted(
        "default", limit=20, ceiling=1000, turns_taken=turns, caps=pace.caps("default"), accounts_full=[]
    )
    startable = await pace.with_slots("default", rows)
    _take_turns(turns, rows, [row for row, _ in startable])
    return [row.key for row, _ in startable]


async def test_under_a_rate_everybody_gets_a_turn(bench: Bench) -> None:
    bench.store = with_rates(bench, "1/s")
    for n in range(20):
        await bench.enqueue(f"big-{n}", fairness_key="big")
    for n in range(3):
        await bench.enqueue(f"small-{n}", fairness_key="small")
    pace, turns = Pace(bench.store), dict[str, str]()
    started: list[str] = []
    while len(started) < 6:
        started += await start(bench, pace, turns)
        await bench.advance(1.02)
    assert started == ["big-0", "small-0", "big-1", "small-1", "big-2", "small-2"]


async def test_few_rows_are_stamped_in_vain(bench: Bench) -> None:
    bench.store = with_rates(bench, "1/s")
    for n in range(20):
        await bench.enqueue(f"k{n:02}")
    pace = Pace(bench.store)
    assert pace.caps("default") == {}
    assert await start(bench, pace, {}) == ["k00"]
    assert pace.caps("default") == {"default": 2}
    assert pace.without_slots("default") == ["default"]
    assert pace.without_slots("bulk") == []
    stamped = await bench.rows("SELECT count(*) AS n FROM sendonce.email WHERE started_at IS NOT NULL")
    assert stamped == [{"n": 1}], "those without a slot wait for a starter again"


async def test_mail_with_rates_is_not_started_before_it_is_due(paced: Bench) -> None:
    now = (await paced.rows("SELECT sendonce.clock() AS now"))[0]["now"]
    await paced.enqueue(send_after=(now + timedelta(seconds=30)).isoformat())
    assert await start(paced, Pace(paced.store), {}) == []
    await paced.advance(31)
    assert await start(paced, Pace(paced.store), {}) == ["k1"]


async def test_what_cannot_be_given_slots_is_given_back(paced: Bench) -> None:
    await paced.enqueue()
    rows = await paced.store.unstarted("default", limit=20, ceiling=20)
    await paced.run("ALTER TABLE sendonce.rate RENAME TO gone")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await Pace(paced.store).with_slots("default", rows)
    assert (await paced.email())["started_at"] is None
