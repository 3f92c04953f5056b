"""Workers and starters come and go while mails flow, in order or killed: nothing is lost, and nothing goes twice."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sendonce.testing.smtp_server import SmtpSession
    from tests.crash.forks import Worker
    from tests.crash.world import World

STAMPED = 10
"""Fewer than the places of the account: what a dead starter has stamped leaves room for the other's."""

REPLY_SECONDS = 0.03
"""How long the relay takes at each final dot, so that at any moment some mails are offered and unanswered."""


class Relay:
    """The relay as these processes see it: slow, and silent for a while towards one of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._silent_to: Worker | None = None
        self._go_on = asyncio.Event()
        self._held: list[str] = []
        world.relay.on_event = self._event

    async def _event(self, name: str, session: SmtpSession) -> None:
        if name != "dot":
            return
        (recipient,) = session.recipients
        key = recipient.partition("@")[0]
        if self._silent_to is not None and await holds(self._world, self._silent_to, key):
            self._held.append(key)
            await self._go_on.wait()
        await asyncio.sleep(REPLY_SECONDS)

    def hold(self, worker: Worker) -> None:
        """Take what this worker offers from now on, and do not answer."""
        self._silent_to, self._held = worker, []
        self._go_on.clear()

    def answer(self) -> list[str]:
        """Answer all; returns the keys of the mails that have waited for it."""
        self._silent_to = None
        self._go_on.set()
        return self._held

    async def holds(self, number: int) -> None:
        """Wait until so many mails wait for an answer."""

        async def there() -> bool:
            return len(self._held) >= number

        await self._world.until(there, f"{number} mails that are offered and unanswered")

    async def arrived(self, number: int) -> None:
        """Wait until it has taken so many."""

        async def there() -> bool:
            return self._world.relay.mailbox.copies() >= number

        await self._world.until(there, f"{number} mails at the relay")


async def holds(world: World, worker: Worker, key: str) -> bool:
    """Whether the mail's last attempt is this worker's."""
    (*_, last) = await world.attempts(key)
    return f"-{worker.pid}-" in last["worker"]


async def is_gone(world: World, worker: Worker) -> None:
    """Wait until the store has ended what a killed worker's connections had asked for."""
    await world.until_none(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        f" AND strpos(application_name, '-{worker.pid}-') > 0"
    )


@pytest.mark.slow
async def test_workers_and_starters_come_and_go_while_mails_flow(world: World) -> None:
    world.with_starter = False
    relay = Relay(world)
    keys = await world.enqueue_many(STAMPED)
    # One starter dies between its commit, which says that these mails are started, and the starts.
    lost = world.starter("after", "unstarted")
    await world.is_frozen(lost)
    stamped = await world.rows("SELECT key FROM sendonce.email WHERE started_at IS NOT NULL AND seen_at IS NULL")
    assert sorted(row["key"] for row in stamped) == sorted(keys)
    starter, first = world.starter(), world.worker()
    keys += await world.enqueue_many(40)
    assert lost.kill() == -signal.SIGKILL
    await relay.arrived(20)

    second = world.worker()
    await world.ready(second)
    relay.hold(first)
    keys += await world.enqueue_many(40)
    await relay.holds(2)
    first.signal(signal.SIGTERM)
    await world.said(first, "stopping: ")
    finished = relay.answer()
    assert await world.ended(first) == 0, world.logs()

    third = world.worker()
    await world.ready(third)
    relay.hold(third)
    keys += await world.enqueue_many(40)
    await relay.holds(3)
    assert third.kill() == -signal.SIGKILL
    await is_gone(world, third)
    rows = await world.rows("SELECT key FROM sendonce.email WHERE stage IN ('transmitting', 'unknown')")
    in_doubt = {row["key"] for row in rows if await holds(world, third, row["key"])}
    offered = relay.answer()
    assert in_doubt >= set(offered)

    fourth = world.worker()
    await world.ready(fourth)
    relay.hold(fourth)
    keys += await world.enqueue_many(20)
    await relay.holds(1)
    relay.answer()
    await world.until_stages({"sent": len(keys) - len(in_doubt), "unknown": len(in_doubt)}, seconds=45)
    unknown = await world.rows("SELECT key, next_attempt_at FROM sendonce.email WHERE stage = 'unknown'")
    # What was being transmitted when its worker was killed, and nothing else; it is held, and somebody is told.
    assert {row["key"]: row["next_attempt_at"] for row in unknown} == dict.fromkeys(in_doubt)
    await world.until_none(
        "SELECT 1 FROM sendonce.email e WHERE e.stage = 'unknown'"
        " AND NOT EXISTS (SELECT FROM sendonce.alarm a WHERE a.email_id = e.id AND a.kind = 'unknown')"
    )
    assert await world.open_alarms() == ["unknown"] * len(in_doubt)
    certain = [key for key in keys if key not in in_doubt]
    assert {key: world.copies(key) for key in certain} == dict.fromkeys(certain, 1)
    assert {key: world.copies(key) for key in offered} == dict.fromkeys(offered, 1)
    assert all(world.copies(key) <= 1 for key in in_doubt)
    # The first left in order: it waited for its answers, and has left nothing behind.
    assert all([await holds(world, first, key) for key in finished])
    left = await world.rows("SELECT worker FROM sendonce.attempt WHERE ended_at IS NULL")
    assert all(f"-{third.pid}-" in row["worker"] for row in left)
    assert starter.running
    for process in (starter, second, fourth):
        process.signal(signal.SIGTERM)
        assert await world.ended(process) == 0, world.logs()
    assert sum(map(world.copies, keys)) == world.relay.mailbox.copies()
