"""What starters get: each row once, in order, within the ceilings; and what has vanished."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from sendonce.outcome import Accepted, Deferred, Reply, Unanswered
from sendonce.starter import _take_turns
from sendonce.store import Store, holds
from sendonce.store import dispatch as dispatch_of_store
from sendonce.store import turns as turns_of_store
from sendonce.store.records import Paused, Startable, Wait
from sendonce.store.turns import KEYS, Turns

if TYPE_CHECKING:
    from tests.store.conftest import Bench


async def test_starters_side_by_side_never_get_the_same_row(bench: Bench) -> None:
    for n in range(40):
        await bench.enqueue(f"k{n}")
    got = await asyncio.gather(
        *(bench.store.unstarted("default", limit=10, ceiling=1000) for _ in range(8)),
    )
    counts = Counter(row.key for part in got for row in part)
    assert set(counts.values()) == {1}


async def test_only_what_is_due_within_a_minute_of_this_lane_oldest_first(bench: Bench) -> None:
    await bench.enqueue("later", send_after="2999-01-01T00:00:00Z")
    await bench.enqueue("b")
    await bench.enqueue("a")
    await bench.enqueue("other", lane="bulk")
    got = await bench.store.unstarted("default", limit=1, ceiling=1000)
    assert [row.key for row in got] == ["b"]
    got = await bench.store.unstarted("default", limit=10, ceiling=1000)
    assert [row.key for row in got] == ["a"]


async def keys(bench: Bench, limit: int = 100, ceiling: int = 1000, **last: str) -> list[str]:
    rows = await bench.store.unstarted("default", limit=limit, ceiling=ceiling, turns_taken=last)
    return sorted(row.key for row in rows)


async def test_mail_of_one_account_takes_turns(bench: Bench) -> None:
    for n in range(30):
        await bench.enqueue(f"big-{n:02}", fairness_key="big")
    for n in range(3):
        await bench.enqueue(f"small-{n}", fairness_key="small")
    await bench.enqueue("plain")
    assert await keys(bench, 6) == ["big-00", "big-01", "big-02", "plain", "small-0", "small-1"]
    assert await keys(bench, 6) == ["big-03", "big-04", "big-05", "big-06", "big-07", "small-2"]
    assert await keys(bench, 6) == [f"big-{n:02}" for n in range(8, 14)]


async def test_turns_go_round_when_there_are_more_than_places(bench: Bench) -> None:
    for tenant in "abcdefg":
        for n in range(2):
            await bench.enqueue(f"{tenant}{n}", fairness_key=tenant)
    assert await keys(bench, 3) == ["a0", "b0", "c0"]
    assert await keys(bench, 3, default="c") == ["d0", "e0", "f0"]
    assert await keys(bench, 3, default="f") == ["a1", "b1", "g0"]
    assert await keys(bench, ceiling=2, default="b") == [], "the ceiling is the account's, whoever's turn it is"
    assert await keys(bench, ceiling=11, default="b") == ["c1", "d1"]


async def around(bench: Bench, looks: int, **options: Any) -> list[str]:
    """What a starter finds that goes on from where it was."""
    kept: dict[str, str] = {}
    found: list[str] = []
    for _ in range(looks):
        rows = await bench.store.unstarted("default", limit=20, ceiling=1000, turns_taken=kept, **options)
        _take_turns(kept, rows, rows)
        found += [row.key for row in rows]
    return found


@pytest.mark.parametrize("why", ["not due", "held", "domain paused", "destination full"])
async def test_keys_without_mail_that_may_start_stand_in_nobodys_way(bench: Bench, why: str) -> None:
    sender = "Other <shop@paused.example>" if why == "domain paused" else "shop@example.com"
    to = ["a@full.example"] if why == "destination full" else ["a@example.org"]
    later: dict[str, Any] = {"send_after": "2099-01-01T00:00:00Z"} if why == "not due" else {}
    for n in range(KEYS + 5):
        await bench.enqueue(f"k{n}", fairness_key=f"a{n:02}", sender=sender, to=to, **later)
    if why == "held":
        await bench.run("UPDATE sendonce.email SET held_why = 'template'")
    if why == "domain paused":
        await bench.store.account_fault("default", code=550, enhanced="", domain="paused.example", retry_after=600.0)
    await bench.enqueue("due", fairness_key="zed")
    first = await bench.store.unstarted("default", limit=20, ceiling=1000, domains_full={"default": ["full.example"]})
    assert (list(first), first.all_keys, first.last_keys) == ([], False, {"default": f"a{KEYS - 1:02}"})
    assert await around(bench, 2, domains_full={"default": ["full.example"]}) == ["due"]
    again = await bench.store.unstarted("default", limit=20, ceiling=1000, turns_taken={"default": "zed"})
    assert again.all_keys is False


async def test_a_new_tenant_of_one_account_gets_a_turn_beside_another_account(bench: Bench) -> None:
    for account in ("default", "second"):
        for tenant in range(15):
            for n in range(2):
                await bench.enqueue(f"{account}-{tenant}-{n}", account=account, fairness_key=f"t{tenant:02}")
    await bench.advance(100)
    await bench.enqueue("new", fairness_key="t99")
    assert "new" in await around(bench, 3)


async def test_a_scheduled_backlog_is_not_started_as_a_whole_in_the_minute_before(bench: Bench) -> None:
    now = (await bench.rows("SELECT sendonce.clock() AS now"))[0]["now"]
    for n in range(10):
        await bench.enqueue(f"k{n}", send_after=(now + timedelta(seconds=30)).isoformat())
    assert len(await bench.store.unstarted("default", limit=20, ceiling=4)) == 4
    assert len(await bench.store.unstarted("default", limit=20, ceiling=4)) == 0
    assert isinstance(await bench.ask("k0"), Wait)
    assert len(await bench.store.unstarted("default", limit=20, ceiling=4)) == 0


async def test_who_waits_for_a_paused_domain_takes_no_place(bench: Bench) -> None:
    for n in range(5):
        await bench.enqueue(f"bad-{n}", sender="shop@bad.example")
    assert len(await bench.store.unstarted("default", limit=20, ceiling=5)) == 5
    await bench.store.account_fault("default", code=550, enhanced="", domain="bad.example", retry_after=600.0)
    assert isinstance(await bench.ask("bad-0"), Paused)
    await bench.enqueue("good")
    assert await keys(bench, ceiling=5) == ["good"]


async def test_a_domain_that_the_fallback_may_not_send_from_takes_no_place_either(bench: Bench) -> None:
    bench.store = Store(bench.pool, {"default": "settings-1", "second": "s"}, {"default": "second"})
    await bench.store.account_fault("default", code=401, enhanced="", retry_after=600.0)
    await bench.store.account_fault("second", code=550, enhanced="", domain="bad.example", retry_after=600.0)
    for n in range(5):
        await bench.enqueue(f"bad-{n}", sender="shop@bad.example")
    await bench.enqueue("good")
    got = await bench.store.unstarted("default", limit=20, ceiling=5)
    assert [(row.key, row.account, row.route) for row in got] == [("good", "default", "second")]


async def test_only_so_many_to_one_destination(bench: Bench) -> None:
    bench.store = Store(bench.pool, {"default": "settings-1"}, at_once={"default": {"slow.example": 2}})
    for n in range(5):
        await bench.enqueue(f"slow-{n}", to=[f"r{n}@slow.example", f"r{n}@other.example"])
    await bench.enqueue("quick", to=["bob@quick.example"])
    assert await keys(bench) == ["quick", "slow-0", "slow-1"]
    assert await keys(bench) == []
    claimed = await bench.claim("slow-0")
    await bench.begin(claimed)
    assert await keys(bench) == []
    await bench.settle(claimed, Accepted(Reply(250)))
    assert await keys(bench) == ["slow-2"]


async def test_a_cap_is_for_one_call(bench: Bench) -> None:
    for n in range(5):
        await bench.enqueue(f"k{n}")
    assert len(await bench.store.unstarted("default", limit=20, ceiling=5, caps={"default": 2})) == 2
    assert len(await bench.store.unstarted("default", limit=20, ceiling=5, caps={"other": 2})) == 3


def test_whose_turn_was_the_last() -> None:
    def row(key: str, account: str = "default") -> Startable:
        return Startable(uuid4(), "k", account, "default", key)

    kept: dict[str, str] = {}

    def take(*found: Startable, started: int, **last_keys: str) -> dict[str, str]:
        turns = Turns()
        turns.extend(found)
        turns.last_keys = last_keys
        _take_turns(kept, turns, found[:started])
        return kept

    assert take(row("b"), row("c"), started=2, default="d") == {"default": "c"}
    assert take(row("d"), row("e"), started=1, default="f") == {"default": "d"}, "e had no slot, and is the next"
    assert take(row("e"), started=0, default="f") == {"default": "d"}
    assert take(started=0, default="m", second="x") == {"default": "m", "second": "x"}, "nothing there could be started"
    assert take(row("a"), started=1, default="a", second="y") == {"default": "a", "second": "y"}


async def test_the_ceiling_counts_flights_and_started_and_due_but_no_sleepers(bench: Bench) -> None:
    for n in range(6):
        await bench.enqueue(f"k{n}")
    assert len(await bench.store.unstarted("default", limit=10, ceiling=3)) == 3
    assert await bench.store.unstarted("default", limit=10, ceiling=3) == []
    await bench.attempt(Deferred(Reply(451)), "k0")  # sleeps now
    await bench.attempt(Unanswered(), "k1")  # held now
    assert len(await bench.store.unstarted("default", limit=10, ceiling=3)) == 2
    await bench.enqueue("elsewhere", account="second")
    got = await bench.store.unstarted("default", limit=10, ceiling=3)
    assert [row.key for row in got] == ["elsewhere"]


async def test_workflows_that_vanished_do_not_fill_the_ceiling(bench: Bench) -> None:
    for n in range(4):
        await bench.enqueue(f"k{n}")
    assert len(await bench.store.unstarted("default", limit=10, ceiling=2)) == 2
    await bench.advance(61)
    assert len(await bench.store.unstarted("default", limit=10, ceiling=2)) == 2


async def test_a_full_account_does_not_keep_another_waiting(bench: Bench) -> None:
    for n in range(30):
        await bench.enqueue(f"k{n}")
    await bench.enqueue("z", account="second")
    got = await bench.store.unstarted("default", limit=10, ceiling=100, accounts_full=["default"])
    assert [row.key for row in got] == ["z"]


async def test_a_backlog_of_one_account_is_not_in_front_of_anothers_mail(bench: Bench) -> None:
    for n in range(60):
        await bench.enqueue(f"k{n}")
    await bench.enqueue("z", account="second")
    got = await bench.store.unstarted("default", limit=20, ceiling=5)
    assert Counter(row.account for row in got) == {"default": 5, "second": 1}


async def test_every_worker_of_the_lane_brings_places_of_its_own(bench: Bench) -> None:
    for n in range(30):
        await bench.enqueue(f"k{n}")
    await bench.store.beat("w1", "worker", ["default"])
    await bench.store.beat("w2", "worker", ["default", "bulk"])
    await bench.store.beat("w3", "worker", ["bulk"])
    await bench.store.beat("s1", "starter", ["default"])
    assert len(await bench.store.unstarted("default", limit=100, ceiling=5)) == 10
    await bench.advance(20)
    assert await bench.store.unstarted("default", limit=100, ceiling=5) == []


async def test_a_lane_that_nobody_serves_is_alarmed_until_somebody_does(bench: Bench) -> None:
    await bench.store.beat("w1", "worker", ["default"])
    await bench.enqueue("k1", lane="typo")
    await bench.enqueue("k2", lane="default")
    assert await bench.store.raise_due_alarms() == 0
    await bench.advance(301)
    await bench.store.beat("w1", "worker", ["default"])
    for _ in range(3):
        await bench.store.raise_due_alarms()
    assert await bench.open_alarms() == ["unserved"]
    await bench.store.beat("w2", "worker", ["typo"])
    await bench.store.unstarted("typo", limit=10, ceiling=10)
    await bench.store.raise_due_alarms()
    assert await bench.open_alarms() == ["unserved"], "started, and no workflow has asked yet"
    await bench.ask("k1")
    await bench.store.raise_due_alarms()
    assert await bench.open_alarms() == []


async def test_started_mail_of_a_lane_without_a_worker_is_alarmed_and_expires(bench: Bench) -> None:
    now = (await bench.rows("SELECT sendonce.clock() AS now"))[0]["now"]
    for key, fields in {"late": {"expires_at": (now + timedelta(seconds=400)).isoformat()}, "mail": {}}.items():
        await bench.enqueue(key, lane="extra", **fields)
        await bench.attempt(Deferred(Reply(451, "4.7.1")), key)
    lanes = {"default": bench.lane, "extra": bench.lane}
    await bench.advance(350)
    await bench.store.beat("w1", "worker", ["default", "extra"])
    await bench.store.raise_due_alarms()
    assert await bench.open_alarms() == []
    await bench.advance(61)
    # The new worker serves one lane only; a starter alone delivers nothing.
    await bench.store.beat("w2", "worker", ["default"])
    await bench.store.beat("s1", "starter", ["default", "extra"])
    await bench.store.raise_due_alarms()
    assert await bench.open_alarms() == ["unserved"]
    await bench.store.sweep_silent(lanes, actor="w2")
    assert (await bench.email("late"))["stage"] == "expired"
    assert (await bench.email("mail"))["stage"] == "pending"
    await bench.claim("mail")
    await bench.store.raise_due_alarms()
    assert await bench.open_alarms() == ["expired"]


async def test_a_deadline_passes_also_where_nobody_starts_anything(bench: Bench) -> None:
    await bench.enqueue("k1", lane="typo", expires_at="2999-01-01T00:00:00Z")
    await bench.run("UPDATE sendonce.email SET expires_at = sendonce.clock() + interval '10 seconds'")
    await bench.store.sweep_silent({}, actor="w1")
    assert (await bench.email("k1"))["stage"] == "pending"
    await bench.advance(11)
    await bench.store.sweep_silent({}, actor="w1")
    assert (await bench.email("k1"))["stage"] == "expired"


async def test_a_sleeper_that_has_just_become_due_is_not_overdue(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Deferred(Reply(451), retry_after=600))
    await bench.advance(601)
    assert await bench.store.overdue("default", limit=10) == []
    await bench.advance(61)
    assert len(await bench.store.overdue("default", limit=10)) == 1


async def test_a_paused_account_starts_nothing_but_its_probe(bench: Bench) -> None:
    for n in range(5):
        await bench.enqueue(f"k{n}")
    await bench.store.account_fault("default", code=535, enhanced="")
    assert await bench.store.unstarted("default", limit=10, ceiling=100) == []
    await bench.advance(16)
    assert len(await bench.store.unstarted("default", limit=10, ceiling=100)) == 1


async def test_a_start_that_did_not_happen_is_taken_back_unless_a_workflow_asked(bench: Bench) -> None:
    await bench.enqueue("k1")
    await bench.enqueue("k2")
    got = await bench.store.unstarted("default", limit=10, ceiling=100)
    await bench.store.touch(bench.ids["k2"])
    await bench.store.unstamp([row.email_id for row in got])
    again = await bench.store.unstarted("default", limit=10, ceiling=100)
    assert [row.key for row in again] == ["k1"]


async def test_a_backlog_that_was_never_started_is_not_overdue(bench: Bench) -> None:
    await bench.enqueue()
    await bench.advance(3600)
    assert await bench.store.overdue("default", limit=10) == []


async def test_a_vanished_workflow_is_found_after_a_minute_and_then_less_and_less_often(bench: Bench) -> None:
    await bench.enqueue()
    await bench.store.unstarted("default", limit=10, ceiling=100)
    await bench.advance(55)
    assert await bench.store.overdue("default", limit=10) == []
    await bench.advance(6)
    got = await asyncio.gather(*(bench.store.overdue("default", limit=10) for _ in range(4)))
    assert sum(len(part) for part in got) == 1
    await bench.advance(61)
    assert await bench.store.overdue("default", limit=10) == []
    await bench.advance(60)
    assert len(await bench.store.overdue("default", limit=10)) == 1
    await bench.store.touch(bench.ids["k1"])  # seen: the back-off starts anew
    await bench.advance(61)
    assert len(await bench.store.overdue("default", limit=10)) == 1


async def test_restarts_that_did_not_happen_make_nobody_wait_longer(bench: Bench) -> None:
    """Temporal was away for hours: once it is back, what it has lost is started again within a minute or so."""
    await bench.enqueue()
    await bench.store.unstarted("default", limit=10, ceiling=100)
    await bench.store.touch(bench.ids["k1"])
    for _ in range(8):
        await bench.advance(61)
        [row] = await bench.store.overdue("default", limit=10)
        await bench.store.unstamp([row.email_id])
    # Those that did happen count as before.
    await bench.advance(61)
    assert len(await bench.store.overdue("default", limit=10)) == 1
    await bench.advance(61)
    assert await bench.store.overdue("default", limit=10) == []


async def test_sleepers_held_and_paused_mails_are_not_overdue_lapsed_claims_are(bench: Bench) -> None:
    for key in ("sleeps", "held", "silent", "lapsed", "final", "busy"):
        await bench.enqueue(key)
    await bench.enqueue("paused", account="second")
    await bench.store.unstarted("default", limit=10, ceiling=100)
    await bench.attempt(Deferred(Reply(451), retry_after=7200), "sleeps")
    await bench.store.hold(bench.ids["held"], "test", actor="t")
    await bench.attempt(Unanswered(), "silent")
    await bench.store.withdraw(bench.ids["final"], "final", lane=bench.lane, actor="t")
    await bench.claim("lapsed")
    busy = await bench.claim("busy")
    await bench.begin(busy)
    await bench.run(
        "INSERT INTO sendonce.account (name, settings_digest, paused_at, probe_at)"
        " VALUES ('second', 's', sendonce.clock(), sendonce.clock() + interval '1 day')"
    )
    await bench.advance(90)
    from sendonce.store import Store

    store = Store(bench.pool, {"default": "settings-1", "second": "s"})
    assert [row.key for row in await store.overdue("default", limit=10)] == ["lapsed"]


async def test_an_unknown_whose_replay_is_due_can_be_overdue(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Unanswered(), key_window=86400.0)
    await bench.advance(95)
    assert [row.key for row in await bench.store.overdue("default", limit=10)] == ["k1"]


async def plan(bench: Bench, query: str, params: dict[str, object]) -> str:
    rows = await bench.rows("EXPLAIN " + query, params)
    return "\n".join(str(row["QUERY PLAN"]) for row in rows)


async def test_a_due_backlog_is_not_read_through(bench: Bench) -> None:
    await bench.run(
        "INSERT INTO sendonce.email (id, account, key, lane, fairness_key, created_at, next_attempt_at)"
        " SELECT gen_random_uuid(), 'default', 'f' || n, 'default', 't' || n % 3, sendonce.clock(),"
        "   sendonce.clock() - n * interval '1 second' FROM generate_series(1, 20000) n"
    )
    await bench.run("ANALYZE sendonce.email")
    params = {"lane": "default", "limit": 20, "ceiling": 20, "full": [], "ahead": 60.0, "turns": Jsonb({})}
    params |= {"domains_full": Jsonb({}), "caps": Jsonb({}), "paced": [], "at_once": Jsonb({}), "locked": []}
    params |= {"accounts": [], "digests": [], "fallbacks": []}
    async with bench.pool.connection() as conn, conn.transaction():
        await conn.execute(turns_of_store.IN_ORDER)
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {turns_of_store._UNSTARTED}"
        plan = await (await conn.execute(explain.encode(), params)).fetchone()
    assert plan is not None

    def read(node: dict[str, Any]) -> list[int]:
        here = [node["Actual Rows"] * node["Actual Loops"]] if node.get("Relation Name") == "email" else []
        return here + [count for child in node.get("Plans", []) for count in read(child)]

    assert max(read(plan[0][0]["Plan"])) <= 200


@pytest.mark.parametrize("what", ["overdue", "unstarted"])
async def test_a_lane_on_hold_is_not_read(bench: Bench, what: str) -> None:
    """Whoever holds back 200,000 mails does not pay for each of them at every look."""
    await bench.run(
        "INSERT INTO sendonce.email (id, account, key, lane, created_at, next_attempt_at, started_at, seen_at, claims)"
        " SELECT gen_random_uuid(), 'default', 'f' || n, 'default', t, t, t, t, 1"
        " FROM (SELECT n, sendonce.clock() - n %% 2 * interval '1 hour' AS t FROM generate_series(1, 5000) n) AS f",
        [],
    )
    await bench.enqueue("waits")
    await bench.run("ANALYZE sendonce.email")
    async with bench.pool.connection() as conn:
        await holds.pause(conn, "lane", "default", actor="ops", why="bad link")
    params: dict[str, Any] = {"lane": "default", "limit": 20, "after": 60.0}
    params |= {"ceiling": 20, "full": [], "ahead": 60.0, "turns": Jsonb({})}
    params |= {"domains_full": Jsonb({}), "caps": Jsonb({}), "paced": []}
    params |= {"at_once": Jsonb({"default": {"example.org": 5}})}
    params |= {"accounts": [], "digests": [], "fallbacks": [], "locked": []}
    query = dispatch_of_store._OVERDUE if what == "overdue" else turns_of_store._UNSTARTED
    assert await rows_read(bench, query, params) <= 5


async def rows_read(bench: Bench, query: str, params: dict[str, Any]) -> int:
    """Rows of mails that the statement reads, those included that a filter throws away."""
    async with bench.pool.connection() as conn, conn.transaction():
        await conn.execute(turns_of_store.IN_ORDER)
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"
        plan = await (await conn.execute(explain.encode(), params)).fetchone()
    assert plan is not None

    def read(node: dict[str, Any]) -> int:
        here = 0
        if node.get("Relation Name") == "email" and "Scan" in node["Node Type"]:
            here = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        return int(here) + sum(read(child) for child in node.get("Plans", []))

    return read(plan[0][0]["Plan"])


async def test_the_hot_queries_are_index_scans_with_many_rows(bench: Bench) -> None:
    from sendonce.store import claims, dispatch, leases, mail, offers, routes, sweeps, turns

    await bench.run(
        "INSERT INTO sendonce.email (id, account, key, lane, stage, created_at, next_attempt_at, started_at, seen_at)"
        " SELECT gen_random_uuid(), 'default', 'f' || n, 'default',"
        "   CASE WHEN n % 10 = 0 THEN 'pending' ELSE 'sent' END, sendonce.clock(),"
        "   sendonce.clock() + interval '1 day',"
        "   CASE WHEN n % 20 = 0 THEN NULL ELSE sendonce.clock() END, sendonce.clock()"
        " FROM generate_series(1, 30000) n"
    )
    await bench.run("ANALYZE sendonce.email")
    some = "00000000-0000-0000-0000-000000000000"
    accounts = {"accounts": ["default"], "digests": ["settings-1"], "fallbacks": ["second"]}
    cases: dict[str, tuple[str, dict[str, object]]] = {
        "unstarted": (
            turns._UNSTARTED,
            {"lane": "default", "limit": 20, "ceiling": 20, "full": [], "ahead": 60.0, "turns": Jsonb({"default": "a"})}
            | {"domains_full": Jsonb({"default": ["example.org"]}), "caps": Jsonb({}), "paced": ["default"]}
            | {"at_once": Jsonb({"default": {"example.net": 5}}), "locked": []}
            | accounts,
        ),
        "overdue": (dispatch._OVERDUE, {"lane": "default", "limit": 20, "after": 60.0} | accounts),
        "silent": (sweeps._SILENT, {}),
        "closing": (sweeps._CLOSING, {}),
        "expired": (sweeps._EXPIRED, {}),
        "unserved": (sweeps._UNSERVED, {"after": 300.0}),
        "alarms": (sweeps._ALARMS.replace("%s", "100"), {}),
        "renew": (leases._RENEW, {"leases": [some], "lease_seconds": 20.0}),
        "lock": (mail._LOCK, {"id": some}),
        "claim": (
            claims._CLAIM,
            {
                "id": some,
                "key": "k",
                "lease": some,
                "worker": "w",
                "lease_seconds": 20.0,
                "alone": False,
                "outage_ago": None,
                "unknown_policy": "hold",
                "digests": Jsonb({}),
                "paced": ["default"],
                "limited": Jsonb({"default": ["example.org"]}),
                "slot": None,
                **routes.params({"default": "second"}),
            },
        ),
        "begin": (
            offers._BEGIN,
            {
                "id": some,
                "attempt": some,
                "worker": "w",
                "generation": 1,
                "slot": "mime",
                "digest": b"",
                "offered": [0],
                "provider_key": "p",
                "identity": "i",
                "key_window": None,
                "window_margin": 0.0,
                "answer_seconds": 600.0,
                "lease_seconds": 20.0,
                "timeline": 1,
            },
        ),
    }
    for name, (query, params) in cases.items():
        text = await plan(bench, query, params)
        assert "Seq Scan on email" not in text, f"{name}:\n{text}"
        assert "email" in text, name


async def test_what_looks_for_pauses_to_end_reads_no_other_alarms(bench: Bench) -> None:
    """Every process does every few seconds, and alarms are kept as long as mails."""
    from sendonce.store import accounts

    await bench.run(
        "INSERT INTO sendonce.alarm (kind, email_id, account)"
        " SELECT 'dead', gen_random_uuid(), 'default' FROM generate_series(1, 30000)"
    )
    await bench.run("ANALYZE sendonce.alarm")
    scope = {"name": "default", "digest": "settings-1", "domain": ""}
    for query, params in ((accounts._FORGOTTEN, {"after": 3600.0}), (accounts._WORKS, scope)):
        text = await plan(bench, query, {"why": "", "worked": False, **params})
        assert "Seq Scan on alarm" not in text, text
