"""The one count of what the store holds: right, shared, and read from indexes over open rows."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.rows import dict_row

from sendonce.outcome import Accepted, Deferred, Reply, Unanswered
from sendonce.store.gauges import FRUGAL, HISTORY_SECONDS, HISTORY_STEP, OUTSTANDING, Sample
from sendonce.watching.lateness import Lateness, Limits

if TYPE_CHECKING:
    from tests.store.conftest import Bench


def counts(sample: Sample) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {(one.lane, one.account, one.stage): (one.count, one.due) for one in sample.outstanding}


async def test_what_is_open_is_counted_by_lane_account_and_stage(bench: Bench) -> None:
    await bench.enqueue("new")
    await bench.enqueue("later", send_after="2099-01-01T00:00:00Z")
    await bench.enqueue("news", account="news", lane="bulk")
    await bench.enqueue("deferred")
    await bench.attempt(Deferred(Reply(450)), "deferred")
    await bench.enqueue("silent")
    await bench.attempt(Unanswered(), "silent")
    await bench.enqueue("held")
    await bench.claim("held")
    await bench.enqueue("sent")
    await bench.attempt(Accepted(Reply(250)), "sent")
    await bench.advance(10)
    sample = await bench.store.sample(every_seconds=0)
    assert counts(sample) == {
        ("default", "default", "pending"): (3, 1),
        ("bulk", "news", "pending"): (1, 1),
        ("default", "default", "unknown"): (1, 0),
        ("default", "default", "claimed"): (1, 0),
    }
    oldest = sample.oldest_by_lane()
    assert 10 <= oldest["default"] < 30
    assert 10 <= oldest["bulk"] < 30


async def test_it_is_made_once_for_all_processes(bench: Bench) -> None:
    await bench.enqueue()
    found = await asyncio.gather(*(bench.store.sample(every_seconds=15) for _ in range(5)))
    assert sum(one.fresh for one in found) == 1
    await bench.enqueue("k2")
    again = await bench.store.sample(every_seconds=15)
    assert (again.fresh, counts(again)) == (False, {("default", "default", "pending"): (1, 1)})
    await bench.advance(15)
    again = await bench.store.sample(every_seconds=15)
    assert (again.fresh, counts(again)) == (True, {("default", "default", "pending"): (2, 2)})


@pytest.mark.parametrize("finished", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_finished_mail_is_not_looked_at(bench: Bench, finished: int) -> None:
    await bench.run("SET synchronous_commit = off")
    await bench.run(
        "INSERT INTO sendonce.email (id, account, key, lane, stage, created_at, final_at)"
        " SELECT gen_random_uuid(), 'default', 'f' || n, 'default', 'sent', sendonce.clock(), sendonce.clock()"
        " FROM generate_series(1, %s) AS n",
        [finished],
    )
    for n in range(5):
        await bench.enqueue(f"k{n}")
    await bench.attempt(Deferred(Reply(450)), "k0")
    await bench.claim("k1")
    await bench.run("VACUUM ANALYZE sendonce.email")
    async with bench.pool.connection() as conn, conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(FRUGAL)
        row = await (await cur.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {OUTSTANDING}")).fetchone()
        assert row is not None
    plan = row["QUERY PLAN"][0]["Plan"]
    scans = [node for node in nodes(plan) if "Scan" in node["Node Type"] and "Index Name" in node]
    assert {node["Index Name"] for node in scans} <= {
        "ix_email_unstarted",
        "ix_email_waiting",
        "ix_email_held",
        "ix_email_stage",  # of everything but sent mail; here by the open stages
    }
    assert [node["Node Type"] for node in nodes(plan) if node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")] == []
    # Five mails are open: nothing else is looked at, in whichever of these.
    assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans) <= 10
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 30, json.dumps(plan)[:2000]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    below = plan.get("Plans", [])
    return [plan, *(node for one in below for node in nodes(one))]


async def test_a_lane_whose_oldest_mail_is_late_is_alarmed_until_it_is_not(bench: Bench) -> None:
    lateness = Lateness(bench.store, Limits(oldest_due_seconds=60))
    await bench.enqueue()
    await lateness.judge(await bench.store.sample(every_seconds=0))
    assert await bench.open_alarms() == []
    await bench.advance(100)
    for _ in range(2):
        await lateness.judge(await bench.store.sample(every_seconds=0))
    assert await bench.open_alarms() == ["overdue"]
    await bench.attempt(Accepted(Reply(250)))
    await lateness.judge(await bench.store.sample(every_seconds=0))
    assert await bench.open_alarms() == []


async def test_an_account_whose_mail_piles_up_is_alarmed(bench: Bench) -> None:
    lateness = Lateness(bench.store, Limits(oldest_due_seconds=0, backlog_mails=10))

    async def minutes(count: int, more: int) -> None:
        for _ in range(count):
            for _ in range(more):
                await bench.enqueue(f"k{len(bench.ids)}")
            await lateness.judge(await bench.store.sample(every_seconds=0))
            await bench.advance(HISTORY_STEP)

    # A backlog that does not grow is none of this alarm's business, and nothing is known in the first minutes.
    await minutes(1, 20)
    await minutes(int(HISTORY_SECONDS / HISTORY_STEP) + 2, 0)
    assert await bench.open_alarms() == []
    await minutes(2, 10)
    assert await bench.open_alarms() == ["backlog"]
    rows = await bench.rows("SELECT account, detail FROM sendonce.alarm")
    assert rows == [{"account": "default", "detail": "40 mails are due, 20 were ten minutes before"}]
    await bench.run("UPDATE sendonce.email SET stage = 'sent'")
    await minutes(1, 0)
    assert await bench.open_alarms() == []
