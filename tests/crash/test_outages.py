"""PostgreSQL or Temporal goes away under running workers, a relay stalls, a worker is asked to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
from sendonce.testing import smtp_misbehaviour as bad

if TYPE_CHECKING:
    from tests.crash.conftest import MakeWorld
    from tests.crash.world import World

OUTAGE_SECONDS = 20.0


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server of this test's own, to be stopped."""
    with EmbeddedPostgres.start(tmp_path / "postgres") as server:
        yield server


@pytest.fixture
def own_temporal(scrubbed_environment: None) -> Iterator[EmbeddedTemporal]:
    """A server of this test's own, to be wiped."""
    with EmbeddedTemporal.start() as server:
        yield server


def stopping(server: EmbeddedPostgres) -> Callable[[], Awaitable[None]]:
    async def stop() -> None:
        await asyncio.to_thread(server.stop)

    return stop


async def back(server: EmbeddedPostgres) -> None:
    await asyncio.to_thread(server.restart)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("reply", ["on its way", "read"])
async def test_the_store_is_away_between_the_acceptance_and_its_record(
    make_world: MakeWorld, postgres: EmbeddedPostgres, reply: str
) -> None:
    world = await make_world(postgres=postgres)
    key = await world.enqueue()
    if reply == "read":
        worker = world.worker("before", "settle")
        await world.is_frozen(worker)
        await asyncio.to_thread(postgres.stop)
        worker.signal(signal.SIGCONT)
    else:
        world.once["default", "dot"] = stopping(postgres)
        worker = world.worker()
        await world.said(worker, "the store cannot be reached")
    await asyncio.sleep(OUTAGE_SECONDS)
    await back(postgres)
    found = await world.until_stage(key, "sent")
    await world.handle(key).result()
    assert found["attempts"] == 1
    assert world.copies(key) == 1
    assert await world.open_alarms() == []


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_store_is_away_for_a_while_in_the_middle_of_a_run(
    make_world: MakeWorld, postgres: EmbeddedPostgres
) -> None:
    world = await make_world(postgres=postgres)
    keys = await world.enqueue_many(40) + await world.enqueue_many(40, "gateway")
    middle = asyncio.Event()

    async def count(_: str, __: object) -> None:
        if sum(map(world.copies, keys)) >= 20:
            middle.set()

    world.relay.on_event = count
    world.gateway.on_event = count
    workers = [world.worker(), world.worker()]
    await asyncio.wait_for(middle.wait(), 60)
    await asyncio.to_thread(postgres.stop)
    await asyncio.sleep(OUTAGE_SECONDS)
    await back(postgres)
    await world.until_stages({"sent": 80}, seconds=90)
    assert [world.copies(key) for key in keys] == [1] * 80
    assert all(worker.running for worker in workers)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_temporal_forgets_everything_while_many_mails_are_open(
    make_world: MakeWorld, own_temporal: EmbeddedTemporal
) -> None:
    world = await make_world(own_temporal=own_temporal)
    world.relay.script.add(bad.answer("rcpt", 451, "4.7.1 later"))
    keys = await world.enqueue_many(200, retry={"delays": [15]})
    worker = world.worker()
    # Each has a workflow, which sleeps until its second try.
    await world.until_none("SELECT 1 FROM sendonce.email WHERE attempts = 0")
    await asyncio.to_thread(own_temporal.wipe)
    world.relay.script.clear()
    await world.until_stages({"sent": 200}, seconds=120)
    assert [world.copies(key) for key in keys] == [1] * 200
    assert worker.running


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_relay_that_stalls_delays_no_other_account(world: World) -> None:
    release = asyncio.Event()
    world.relay.script.add(bad.late_reply(release))
    world.other.script.add(bad.greylist())
    stalled = await world.enqueue_many(150)
    world.worker()

    async def full() -> bool:
        return (await world.stages()).get("transmitting") == world.places

    await world.until(full, "all places taken")
    others = await world.enqueue_many(30, "other")
    for key in others:
        # First tries and retries alike.
        assert (await world.until_stage(key, "sent"))["attempts"] == 2
    rows = await world.rows("SELECT DISTINCT stage FROM sendonce.email WHERE account = 'default'")
    assert {row["stage"] for row in rows} == {"pending", "transmitting"}
    assert sum(map(world.copies, stalled)) == world.places
    release.set()
    await world.until_stages({"sent": 180}, seconds=120)
    assert [world.copies(key) for key in stalled + others] == [1] * 180


@pytest.mark.slow
async def test_sigterm_awaits_what_was_offered_and_gives_back_the_rest(world: World) -> None:
    answer, never = asyncio.Event(), asyncio.Event()
    world.relay.script.add(bad.late_reply(answer))
    world.other.script.add(bad.late_reply(never, at="data", times=1))
    offered, claimed = await world.enqueue(), await world.enqueue("other")
    first = world.worker()
    await world.until_stage(offered, "transmitting")
    await world.until_stage(claimed, "claimed")
    first.signal(signal.SIGTERM)
    await world.until_stage(claimed, "pending")
    assert first.running
    answer.set()
    assert await world.ended(first) == 0, world.logs()
    assert (await world.email(offered))["stage"] == "sent"
    assert [(a["counted"], a["ended_why"]) for a in await world.attempts(claimed)] == [(False, "shutdown")]
    world.worker()
    await world.until_stage(claimed, "sent")
    assert [world.copies(key) for key in (offered, claimed)] == [1, 1]


@pytest.mark.slow
async def test_the_places_of_a_killed_worker_are_free_again(world: World) -> None:
    world.places = 2
    world.relay.script.add(bad.silent_after_dot(times=2))
    lost = await world.enqueue_many(2)
    first = world.worker()
    for key in lost:
        await world.until_stage(key, "transmitting")
    waiting = await world.enqueue()
    assert first.kill() == -signal.SIGKILL
    assert (await world.email(waiting))["stage"] == "pending"
    world.worker()
    await world.until_stage(waiting, "sent")
    await world.until_stages({"sent": 1, "unknown": 2})
    assert [world.copies(key) for key in (*lost, waiting)] == [1, 1, 1]
