"""Dead loops and dead processes are seen by the others, and nobody is called dead for the store's absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sendonce.store.heartbeats import SERVED_SECONDS, SILENT_SECONDS, Beat

if TYPE_CHECKING:
    from tests.store.conftest import Bench

WELL = {"leases": Beat(1.0, 75.0), "alarms": Beat(2.0, 75.0)}


async def settled_in(bench: Bench, *processes: str) -> None:
    """These have been there for a while, and are alive."""
    for name in processes:
        await bench.store.beat(name, "worker", ["default"], WELL)
    await bench.advance(SILENT_SECONDS + 60)
    for name in processes:
        await bench.store.beat(name, "worker", ["default"], WELL)


async def test_a_loop_that_does_not_come_round_is_alarmed_once_and_until_it_does(bench: Bench) -> None:
    await settled_in(bench, "w1", "w2")
    await bench.store.beat("w2", "worker", ["default"], WELL | {"alarms": Beat(80.0, 75.0)})
    assert await bench.store.judge_heartbeats("w1") == 1
    assert await bench.store.judge_heartbeats("w1") == 1
    # Its own process sees it, too.
    assert await bench.store.judge_heartbeats("w2") == 1
    (alarm,) = await bench.rows("SELECT kind, detail FROM sendonce.alarm")
    assert alarm == {"kind": "loop_dead", "detail": "loop alarms of worker w2 does not come round"}
    await bench.store.beat("w2", "worker", ["default"], WELL)
    assert await bench.store.judge_heartbeats("w1") == 0
    assert await bench.open_alarms() == []


async def test_a_process_that_falls_silent_is_alarmed_and_one_that_leaves_is_not(bench: Bench) -> None:
    await settled_in(bench, "w1", "killed", "leaves")
    await bench.store.leave("leaves")
    await bench.advance(SILENT_SECONDS + 1)
    await bench.store.beat("w1", "worker", ["default"], WELL)
    assert await bench.store.judge_heartbeats("w1") == 1
    assert [a["detail"] for a in await bench.rows("SELECT detail FROM sendonce.alarm")] == ["worker killed is silent"]
    # Its loops are not counted one by one.
    assert await bench.store.conditions("loop_dead") == {"killed"}
    # It is forgotten after a day, and its alarm with it.
    await bench.advance(86400)
    await bench.store.beat("w1", "worker", ["default"], WELL)
    await bench.store.judge_heartbeats("w1")
    assert await bench.open_alarms() == []


async def test_whoever_has_just_come_judges_nobody(bench: Bench) -> None:
    await settled_in(bench, "w1", "w2")
    # The store was away, or everything was down: nobody's last sign of life is recent.
    await bench.advance(3600)
    await bench.store.beat("new", "worker", ["default"], WELL)
    assert await bench.store.judge_heartbeats("new") == 0
    assert await bench.store.judge_heartbeats("never seen") == 0
    assert await bench.open_alarms() == []


async def test_a_loop_that_ended_in_order_is_not_missed(bench: Bench) -> None:
    await settled_in(bench, "w1", "w2")
    await bench.store.beat("w2", "worker", ["default"], {"leases": Beat(0.0, 75.0)})
    await bench.advance(50)
    for name in ("w1", "w2"):
        await bench.store.beat(name, "worker", ["default"], {"leases": Beat(0.0, 75.0)})
    await bench.advance(50)
    assert await bench.store.judge_heartbeats("w1") == 0
    loops = await bench.rows("SELECT process_id, name FROM sendonce.process_loop ORDER BY 1, 2")
    assert [(one["process_id"], one["name"]) for one in loops] == [("w1", "leases"), ("w2", "leases")]


async def pass_by(bench: Bench, seconds: float, *alive: str) -> None:
    """So much time passes, in which these, and no others, give signs of life."""
    await bench.advance(seconds)
    for name in alive:
        await bench.store.beat(name, "worker", ["default"], WELL)


async def test_a_killed_worker_is_missed_until_another_one_takes_its_place(bench: Bench) -> None:
    await settled_in(bench, "w1", "killed")
    await pass_by(bench, SILENT_SECONDS + 1, "w1")
    assert await bench.store.judge_heartbeats("w1") == 1
    await pass_by(bench, 10, "w1")
    # One that does another work, or less of it, is no replacement.
    await bench.store.beat("starter", "starter", ["default"], WELL)
    await bench.store.beat("bulk only", "worker", ["bulk"], WELL)
    assert await bench.store.judge_heartbeats("w1") == 1
    await bench.store.beat("w2", "worker", ["default", "bulk"], WELL)
    assert await bench.store.judge_heartbeats("w1") == 0
    assert await bench.open_alarms() == []
    (end,) = await bench.rows("SELECT detail FROM sendonce.alarm WHERE closes IS NOT NULL")
    assert end["detail"] == "w2 has taken its place"
    # Nor is it raised again when the fewer that are there now end in order.
    await bench.store.leave("w2")
    assert await bench.store.judge_heartbeats("w1") == 0


async def test_who_is_started_anew_at_once_is_not_missed_and_one_takes_one_place(bench: Bench) -> None:
    await settled_in(bench, "w1", "killed", "killed too")
    await pass_by(bench, 5, "w1", "new")
    await pass_by(bench, SILENT_SECONDS, "w1", "new")
    assert await bench.store.judge_heartbeats("w1") == 1
    assert await bench.store.conditions("loop_dead") <= {"killed", "killed too"}
    # The new one dies, too: one more is missed, and two places are taken by two.
    await pass_by(bench, SILENT_SECONDS + 1, "w1")
    assert await bench.store.judge_heartbeats("w1") == 2
    await pass_by(bench, 1, "w1", "w2", "w3")
    assert await bench.store.judge_heartbeats("w1") == 0
    assert await bench.open_alarms() == []
    processes = await bench.rows("SELECT id, replaces IS NULL AS free FROM sendonce.process ORDER BY id")
    assert [(one["id"], one["free"]) for one in processes] == [("w1", True), ("w2", False), ("w3", False)]


async def test_whose_lanes_others_serve_is_missed_for_an_hour(bench: Bench) -> None:
    await settled_in(bench, "w1", "killed")
    await bench.store.beat("bulk", "worker", ["bulk"], WELL)
    await pass_by(bench, SILENT_SECONDS + 1, "w1")
    assert await bench.store.judge_heartbeats("w1") == 2
    await pass_by(bench, SERVED_SECONDS - SILENT_SECONDS - 2, "w1")
    assert await bench.store.judge_heartbeats("w1") == 2
    await pass_by(bench, 2, "w1")
    # The lane that nobody serves is missed on.
    assert await bench.store.judge_heartbeats("w1") == 1
    assert await bench.store.conditions("loop_dead") == {"bulk"}
