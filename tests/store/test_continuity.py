"""Another server behind the store, as far as it can be told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sendonce.activities.continuity import Continuity
from sendonce.store import continuity
from sendonce.store.continuity import Identity, difference

from .conftest import Bench


def halts(watch: Continuity) -> bool:
    """Asked anew each time, which a type checker does not expect of a property."""
    return watch.halted


HERE = Identity("7", 1, 16384, 1000, datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"position": 1001, "started_at": datetime(2030, 2, 1, tzinfo=UTC)}, ""),
        ({"system_id": "8", "timeline": 9}, "other_system"),
        ({"timeline": 2}, "other_timeline"),
        ({"database_oid": 5}, "other_database"),
        ({"position": 999}, "went_back"),
        ({"system_id": None, "timeline": None, "position": None}, ""),
    ],
)
def test_what_is_told_apart(change: dict[str, Any], why: str) -> None:
    now = replace(HERE, **change)
    assert difference(HERE, now) == why
    assert difference(None, now) == ""
    assert why in continuity.REASONS or not why


async def test_a_new_connection_to_another_server_halts_at_once_and_for_good(bench: Bench) -> None:
    watch = Continuity(["q"])
    assert halts(watch)
    await watch.look(bench.store)
    assert not halts(watch)
    _, now = await bench.store.server()
    watch.connected(now)
    assert not halts(watch)
    assert now.timeline is not None
    watch.connected(replace(now, timeline=now.timeline + 1))
    assert halts(watch)
    # The right server again does not make it good: in between something may have been read from the other.
    watch.connected(now)
    for _ in range(2):
        await watch.look(bench.store)
        assert halts(watch)
    assert await bench.open_alarms() == ["halted"]
    # Every process sees it, and goes on when somebody says so.
    other = Continuity(["q"])
    await other.look(bench.store)
    assert halts(other)
    await bench.store.go_on("olga", "looked")
    for one in (watch, other):
        await one.look(bench.store)
        assert not halts(one)
    assert await bench.open_alarms() == []


async def test_a_log_position_that_went_back_halts_whoever_remembers(bench: Bench) -> None:
    watch = Continuity(["q"])
    await watch.look(bench.store)
    _, now = await bench.store.server()
    assert now.position is not None
    watch.connected(replace(now, position=0))
    assert halts(watch)
    await watch.look(bench.store)
    rows = await bench.rows("SELECT halted_why FROM sendonce.continuity")
    assert rows == [{"halted_why": "went_back"}]


async def test_an_answer_that_was_overtaken_by_a_later_one_halts_nobody(bench: Bench) -> None:
    watch = Continuity(["q"])
    await watch.look(bench.store)
    _, early = await bench.store.server()
    await bench.enqueue()
    await watch.look(bench.store)
    # A new connection was asked before that look, and its answer took longer.
    _, late = await bench.store.server()
    assert early.position is not None
    assert late.position is not None
    assert early.position < late.position
    watch.connected(early)
    assert not halts(watch)
    watch.connected(replace(late, position=early.position))
    assert halts(watch), "asked afterwards"


@pytest.mark.parametrize(("failover", "halted"), [("halt", True), ("go_on", False)])
async def test_a_promotion_is_let_through_only_if_the_settings_say_so(
    bench: Bench, failover: Any, halted: bool
) -> None:
    await Continuity(["q"]).look(bench.store)
    await bench.run("UPDATE sendonce.continuity SET timeline = timeline - 1")
    watch = Continuity(["q"], failover=failover)
    await watch.look(bench.store)
    assert halts(watch) is halted
    # Another cluster is another matter.
    await bench.run("UPDATE sendonce.continuity SET system_id = 'other', halted_at = NULL")
    watch = Continuity(["q"], failover=failover)
    await watch.look(bench.store)
    assert halts(watch)


async def test_what_a_doctor_shows(bench: Bench) -> None:
    async with bench.pool.connection() as conn:
        found = await continuity.facts(conn)
    assert found["synchronous_commit"] == "on"
    assert (found["standbys"], found["in_recovery"], found["halted_at"]) == ([], False, None)


async def test_who_looked_before_somebody_let_it_go_on_does_not_halt_it_again(bench: Bench) -> None:
    """A process's look is under way while an operator decides."""
    before, _ = await bench.store.server()
    assert await bench.store.halt("other_database", epoch=before.epoch)
    await bench.store.go_on("olga", "a copy")
    assert not await bench.store.halt("other_database", epoch=before.epoch)
    after, _ = await bench.store.server()
    assert (after.halted_at, await bench.open_alarms()) == (None, [])
    assert await bench.store.halt("other_database", epoch=after.epoch)
