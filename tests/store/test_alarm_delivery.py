"""Alarms told: grouped, at growing intervals, never lost, and no sink in the way of another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.outcome import Accepted, Deferred, Reply, Unanswered
from sendonce.store import alarms
from sendonce.store.alarm_delivery import EXAMPLES, Audience, Notice
from sendonce.watching.sinks import SinkFailed
from sendonce.watching.telling import RETRY_FIRST, Teller

if TYPE_CHECKING:
    from tests.store.conftest import Bench

RAISE = "INSERT INTO sendonce.alarm (kind, account, detail) SELECT %s, %s, 'limits' FROM generate_series(1, %s)"


class Sink:
    """Keeps what it is told; fails as long as it is to."""

    timeout = 5.0

    def __init__(self, name: str = "oncall", **options: Any) -> None:
        self.audience = Audience(name, **options)
        self.told: list[Notice] = []
        self.away = False

    async def tell(self, notice: Notice) -> None:
        if self.away:
            raise SinkFailed("HTTP 500")
        self.told.append(notice)

    async def close(self) -> None: ...

    @property
    def said(self) -> list[tuple[str, str, int]]:
        return [(one.kind, one.account, one.waiting) for one in self.told]


async def round_of(teller: Teller, *sinks: Sink) -> None:
    await teller.take()
    for sink in sinks:
        await teller.tell(sink)


async def test_an_outage_of_ten_thousand_mails_is_a_few_messages_that_count_all_of_them(bench: Bench) -> None:
    sink = Sink()
    teller = Teller(bench.store, [sink], repeat_seconds=(60, 300, 900))
    await bench.run(RAISE, ["dead", "default", 3])
    await round_of(teller, sink)
    assert sink.said == [("dead", "default", 3)]
    times = [0.0]
    for minute in range(60):
        await bench.run(RAISE, ["dead", "default", 170])
        await round_of(teller, sink)
        if len(sink.told) > len(times):
            times.append(60.0 * minute)
        await bench.advance(60)
    await bench.advance(900)
    await round_of(teller, sink)
    assert sum(one.waiting for one in sink.told) == 3 + 60 * 170
    assert times == [0, 60, 360, 1260, 2160, 3060]
    assert len(sink.told) == 7
    assert all(len(one.examples) <= EXAMPLES for one in sink.told)
    # The examples of a message are alarms that no message before it named.
    named = [alarm.id for one in sink.told for alarm in one.examples]
    assert len(named) == len(set(named))


async def test_kinds_and_accounts_are_told_apart_and_quiet_starts_over(bench: Bench) -> None:
    sink = Sink()
    teller = Teller(bench.store, [sink], repeat_seconds=(60, 300))
    await bench.run(RAISE, ["dead", "default", 1])
    await round_of(teller, sink)
    await bench.run(RAISE, ["dead", "news", 1])
    await bench.run(RAISE, ["unknown", "default", 2])
    await bench.run(RAISE, ["dead", "default", 5])
    await round_of(teller, sink)
    assert sorted(sink.said) == [("dead", "default", 1), ("dead", "news", 1), ("unknown", "default", 2)]
    await bench.advance(61)
    await round_of(teller, sink)
    assert sink.said[-1] == ("dead", "default", 5)
    # Nothing for the longest interval: the next one is told at once, as the first.
    await bench.advance(302)
    await bench.run(RAISE, ["dead", "default", 1])
    await round_of(teller, sink)
    assert (sink.said[-1], sink.told[-1].told) == (("dead", "default", 1), 0)


async def test_a_sink_that_is_down_is_told_later_and_holds_up_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    down, up = Sink("down"), Sink("up")
    down.away = True
    teller = Teller(bench.store, [down, up])
    await bench.run(RAISE, ["dead", "default", 1])
    await round_of(teller, down, up)
    await bench.run(RAISE, ["dead", "default", 1])
    waits = []
    for _ in range(4):
        waited = 0.0
        failures = (await bench.rows("SELECT failures FROM sendonce.alarm_notice WHERE sink = 'down'"))[0]["failures"]
        while failures == (await _failures(bench)):
            await bench.advance(RETRY_FIRST)
            waited += RETRY_FIRST
            await round_of(teller, down)
        waits.append(waited)
    assert waits == [5, 10, 20, 40]
    assert up.said == [("dead", "default", 1)]
    down.away = False
    await bench.advance(3600)
    await round_of(teller, down, up)
    assert down.said == [("dead", "default", 2)]
    # Said when it began and when it ended, not each time.
    said = [record.getMessage() for record in caplog.records if record.name == "sendonce.watching.telling"]
    assert [line.partition(":")[0] for line in said] == ["alarms cannot be told", "alarms are told again"]


async def _failures(bench: Bench) -> int:
    rows = await bench.rows("SELECT failures FROM sendonce.alarm_notice WHERE sink = 'down'")
    return int(rows[0]["failures"])


async def test_a_process_that_dies_between_the_message_and_its_mark_has_it_told_again(bench: Bench) -> None:
    sink = Sink()
    await bench.run(RAISE, ["dead", "default", 2])
    await bench.store.take_alarms([sink.audience], quiet_seconds=3600)
    lost = await bench.store.lease_notice("oncall", 40)
    assert lost is not None
    teller = Teller(bench.store, [sink])
    await round_of(teller, sink)
    assert sink.told == []
    await bench.advance(41)
    await round_of(teller, sink)
    assert sink.said == [("dead", "default", 2)]
    # The late mark of the one that was taken for dead changes nothing.
    await bench.run(RAISE, ["dead", "default", 1])
    await bench.store.take_alarms([sink.audience], quiet_seconds=3600)
    await bench.store.notice_told(lost, wait_seconds=0)
    await bench.advance(61)
    await round_of(teller, sink)
    assert sink.said == [("dead", "default", 2), ("dead", "default", 1)]


async def test_what_comes_while_a_message_is_on_its_way_is_in_the_next(bench: Bench) -> None:
    class Slow(Sink):
        async def tell(self, notice: Notice) -> None:
            await bench.run(RAISE, ["dead", "default", 4])
            await teller.take()
            await super().tell(notice)

    sink = Slow()
    teller = Teller(bench.store, [sink])
    await bench.run(RAISE, ["dead", "default", 1])
    await round_of(teller, sink)
    await bench.advance(61)
    await teller.tell(sink)
    assert sink.said[:2] == [("dead", "default", 1), ("dead", "default", 4)]
    assert not {a.id for a in sink.told[0].examples} & {a.id for a in sink.told[1].examples}


async def test_many_workers_tell_each_alarm_once(bench: Bench) -> None:
    sinks = [Sink(), Sink(), Sink()]
    tellers = [Teller(bench.store, [sink]) for sink in sinks]
    for account in range(12):
        await bench.run(RAISE, ["dead", f"a{account}", 100])
    await asyncio.gather(*(round_of(teller, sink) for teller, sink in zip(tellers, sinks, strict=True)))
    told = [one for sink in sinks for one in sink.told]
    # Whoever looked before the others had taken everything leaves the rest to the next round.
    await bench.advance(61)
    await round_of(tellers[0], sinks[0])
    told = [one for sink in sinks for one in sink.told]
    assert sum(one.waiting for one in told) == 1200
    assert len({one.account for one in told}) == 12


async def test_who_is_told_what(bench: Bench) -> None:
    plain, everything = Sink("plain"), Sink("everything", ends=True)
    picky = Sink("picky", kinds=("account_paused",), ends=True)
    teller = Teller(bench.store, [plain, everything, picky])
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.settle(claimed, Unanswered())
    await round_of(teller, plain, everything, picky)
    await bench.settle(claimed, Accepted(Reply(250)))
    await round_of(teller, plain, everything, picky)
    assert [(one.kind, one.ended) for one in plain.told] == [("unknown", False)]
    assert [(one.kind, one.ended) for one in everything.told] == [("unknown", False), ("unknown", True)]
    assert picky.told == []
    assert everything.told[0].examples[0].key == "k1"
    assert everything.told[1].examples[0].closes == everything.told[0].examples[0].id


async def test_an_alarm_of_a_transaction_that_is_undone_is_told_to_nobody(bench: Bench) -> None:
    sink = Sink()
    async with bench.pool.connection() as conn, conn.transaction(force_rollback=True):
        await conn.execute(RAISE.encode(), ["dead", "default", 1])
    await round_of(Teller(bench.store, [sink]), sink)
    assert sink.told == []


async def test_telling_changes_no_alarm(bench: Bench) -> None:
    sink = Sink(ends=True)
    await bench.enqueue()
    await bench.attempt(Unanswered())
    before = await bench.rows("SELECT a.*, a.xmin::text FROM sendonce.alarm a ORDER BY id")
    await round_of(Teller(bench.store, [sink]), sink)
    assert len(sink.told) == 1
    assert await bench.rows("SELECT a.*, a.xmin::text FROM sendonce.alarm a ORDER BY id") == before


async def test_taking_waits_for_no_mail_and_no_mail_for_it(bench: Bench) -> None:
    await bench.enqueue()
    await bench.enqueue("k2")
    await bench.attempt(Unanswered())
    async with bench.pool.connection() as conn, conn.transaction():
        # Somebody is at the alarm of k1, and has not committed.
        await conn.execute("SELECT FROM sendonce.alarm_state FOR UPDATE")
        assert await bench.store.take_alarms([Audience("oncall")], quiet_seconds=60) == 0
        async with asyncio.timeout(5):
            await bench.attempt(Unanswered(), "k2")
            assert await bench.store.take_alarms([Audience("oncall")], quiet_seconds=60) == 1


async def end(bench: Bench, alarm_id: int) -> bool:
    async with bench.pool.connection() as conn:
        return await alarms.close_one(conn, alarm_id, "over")


async def test_an_alarm_ends_once(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered())
    (alarm,) = await bench.rows("SELECT alarm_id FROM sendonce.alarm_state WHERE open")
    assert await end(bench, alarm["alarm_id"])
    assert not await end(bench, alarm["alarm_id"])
    assert await bench.open_alarms() == []
    assert await bench.rows("SELECT FROM sendonce.alarm_state WHERE open") == []


async def test_a_condition_has_one_alarm_until_it_is_over(bench: Bench) -> None:
    begun = await asyncio.gather(
        *(bench.store.begin_condition("gap", "orders", "orders: 3 mails missing") for _ in range(4))
    )
    assert sorted(begun) == [False, False, False, True]
    (alarm,) = await bench.rows("SELECT id FROM sendonce.alarm")
    # The end of its alarm is not the end of what is wrong: it is not raised again.
    assert await end(bench, alarm["id"])
    assert not await bench.store.begin_condition("gap", "orders", "orders: 4 mails missing")
    assert await bench.store.conditions("gap") == {"orders"}
    assert await bench.store.end_condition("gap", "orders", "nothing missing")
    assert not await bench.store.end_condition("gap", "orders", "nothing missing")
    assert await bench.store.begin_condition("gap", "orders", "orders: 1 mail missing")
    assert await bench.open_alarms() == ["gap"]


async def test_the_gauge_of_dead_mail_counts_by_the_kind(bench: Bench) -> None:
    await bench.enqueue(retry={"max_attempts": 1})
    await bench.attempt(Deferred(Reply(450)))
    assert (await bench.store.sample(every_seconds=0)).alarms == {"dead": 1}
