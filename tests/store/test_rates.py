"""Slots of an account's rates: exact over many askers, needed by every claim, void when they are not used."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sendonce.outcome import Accepted, Reply, Unanswered
from sendonce.rates import Rate, shares
from sendonce.store import Store
from sendonce.store.records import Claimed, Finished, NoSlot, Wait

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
    limited = {"default": [f"{name}.example" for name in domains]}
    return Store(bench.pool, digests, {"default": "second"} if fallback else {}, pools, limited)


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
    assert await paced.ask() == NoSlot("default")
    assert (await paced.email())["seen_at"] is not None
    assert await paced.ask(slot="other") == NoSlot("default")
    assert isinstance(await paced.ask(slot="default"), Claimed)


async def test_what_is_not_due_needs_none(paced: Bench) -> None:
    await paced.enqueue(send_after="2099-01-01T00:00:00Z")
    assert isinstance(await paced.ask(), Wait)


async def test_a_slot_that_the_starter_took_serves_one_claim(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.mark_slots("default", {email_id: 0.5})
    claimed = await paced.claim()
    await paced.store.release(claimed.email_id, claimed.attempt_id, why="test", actor="w1")
    assert await paced.ask() == NoSlot("default")


async def test_a_slot_is_void_two_seconds_after_its_time(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.mark_slots("default", {email_id: 0.5})
    await paced.advance(2.6)
    assert await paced.ask() == NoSlot("default")


async def test_a_slot_of_one_account_is_none_of_its_fallback(bench: Bench) -> None:
    bench.store = with_rates(bench, "10/s", fallback=True)
    bench.store._pools["second"] = bench.store._pools["default"]
    email_id = await bench.enqueue()
    await bench.store.mark_slots("default", {email_id: 0.5})
    await bench.store.account_fault("default", code=401, enhanced="")
    assert await bench.ask() == NoSlot("second")


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
    assert await paced.ask() == NoSlot("default")
    again = await paced.claim(slot="default")
    assert again.mode == "replay"


async def test_a_mail_without_a_slot_is_due_when_there_is_one(paced: Bench) -> None:
    email_id = await paced.enqueue()
    await paced.store.put_off(email_id, 40.0)
    answer = await paced.ask()
    assert isinstance(answer, Wait)
    assert 39 < answer.seconds <= 40
    await paced.store.put_off(email_id, 4000.0)
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
    assert await bench.ask("there") == NoSlot("default", ("slow.example",))
    assert bench.store.limits("default", ["slow.example", "quick.example"]) == ("default@slow.example",)
    claimed = await bench.claim("there", slot="default")
    assert claimed.limited == ("slow.example",)
    assert (await bench.claim("elsewhere")).limited == ()


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
    await paced.store.put_off(email_id, 4000.0)
    answer = await paced.ask()
    assert isinstance(answer, Wait)
    assert answer.seconds <= 20
    await paced.advance(21)
    assert isinstance(await paced.ask(), Finished)
