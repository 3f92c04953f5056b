"""A worker dies by SIGKILL at a named point, and another one takes over: one copy, and nothing is left behind.

Before the offer, and with a provider that honours keys at any point, the mail is sent. Offered by SMTP and
unanswered it is unknown: the relay may have it, and nobody can ask.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sendonce.testing import smtp_misbehaviour

if TYPE_CHECKING:
    from sendonce.embedded import ChildProcess
    from tests.crash.conftest import MakeWorld, World


@dataclass(frozen=True)
class Point:
    """Where the worker dies: before or after a commit, or at a point of the provider's conversation."""

    account: str
    at: str
    copies: int = 1
    stage: str = "sent"

    @property
    def statement(self) -> tuple[str, ...]:
        """The point as an argument of the worker process; empty when the provider kills it."""
        when, _, method = self.at.partition(" ")
        return ("SIGKILL", when, method) if method else ()

    def __str__(self) -> str:
        return f"{self.account}: {self.at}"


COMMITS = [f"{when} {method}" for method in ("claim", "pin", "begin", "settle") for when in ("before", "after")]
BY_SMTP = [
    *[Point("default", at) for at in COMMITS if at not in ("after begin", "before settle")],
    # Begun is all that is known: that the dot was not written died with the process.
    Point("default", "after begin", copies=0, stage="unknown"),
    Point("default", "before settle", stage="unknown"),
    # Nothing of the conversation before the dot can lead to acceptance.
    *[Point("default", at) for at in ("connect", "ehlo", "mail", "rcpt", "data", "body", "rset")],
    *[Point("secure", at) for at in ("starttls", "auth")],
    # The answer has been read; whether it was recorded in time nobody knows.
    Point("secure", "quit", stage="unknown"),
    Point("default", "dot", stage="unknown"),
    Point("default", "replied", stage="unknown"),
]
BY_HTTP = [Point("gateway", at) for at in (*COMMITS, "request", "accepted", "answered")]

MATRIX = {str(point): point for point in (*BY_SMTP, *BY_HTTP)}
TELLING = [
    MATRIX[name]
    for name in (
        "default: after claim",
        "default: dot",
        "default: before settle",
        "gateway: accepted",
    )
]


def killing(worker: ChildProcess) -> Callable[[], Awaitable[None]]:
    async def kill() -> None:
        worker.kill()

    return kill


async def killed(world: World, point: Point) -> str:
    """One mail, whose worker dies at ``point`` and is followed by another; returns its key once it has settled."""
    key = await world.enqueue(point.account)
    if point.at == "rset":
        world.relay.script.add(smtp_misbehaviour.answer("rcpt", 451, "4.3.0 later", times=1))
    first = world.worker(*point.statement)
    if not point.statement:
        world.once[point.at] = killing(first)
    assert await world.ended(first) == -signal.SIGKILL, f"{point}:\n{world.logs()}"
    world.worker()
    # The reply is on its way when the relay says so: the worker may just have had the time to record it.
    found = await world.until_stage(key, point.stage, *(["sent"] if point.at in ("replied", "quit") else []))
    assert world.copies(key) == point.copies, str(point)
    if found["stage"] == "sent":
        await world.handle(key, point.account).result()
    else:
        assert found["alarm_at"] is not None or await world.open_alarms() == ["unknown"], str(point)
    return key


async def test_a_worker_killed_at_a_telling_point_costs_no_copy_and_loses_nothing(make_world: MakeWorld) -> None:
    worlds = [await make_world() for _ in TELLING]
    await asyncio.gather(*(killed(world, point) for world, point in zip(worlds, TELLING, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("point", MATRIX.values(), ids=str)
async def test_a_worker_killed_anywhere_costs_no_copy_and_loses_nothing(world: World, point: Point) -> None:
    key = await killed(world, point)
    found = await world.email(key)
    if found["stage"] == "unknown":
        await world.until_alarm("unknown")
        assert (await world.email(key))["next_attempt_at"] is None
    assert world.copies(key) == point.copies


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_worker_killed_again_and_again_sends_no_mail_twice(world: World, seed: int) -> None:
    rng = random.Random(seed)
    world.places = 5

    async def slow(name: str, _: object) -> None:
        if name in ("dot", "accepted"):
            await asyncio.sleep(rng.uniform(0, 0.5))

    world.relay.on_event = slow
    world.gateway.on_event = slow
    by_smtp = await world.enqueue_many(50)
    by_http = await world.enqueue_many(50, "gateway")
    for _ in range(10):
        worker = world.worker()
        await world.ready(worker)
        # Any moment of what follows will do; the clock picks it.
        await asyncio.sleep(rng.uniform(0, 2))
        worker.kill()
    world.worker()
    await world.until_none(
        "SELECT 1 FROM sendonce.email WHERE stage NOT IN ('sent', 'unknown')"
        " OR (stage = 'unknown' AND account = 'gateway')",
        seconds=200,
    )
    assert [world.copies(key) for key in by_http] == [1] * 50
    rows = await world.rows("SELECT key, stage FROM sendonce.email WHERE account = 'default'")
    stages = {row["key"]: row["stage"] for row in rows}
    for key in by_smtp:
        assert world.copies(key) == 1 if stages[key] == "sent" else world.copies(key) <= 1
    silent = [key for key in by_smtp if stages[key] == "unknown"]
    # The seed has done something: without a kill in an offer this would prove little.
    assert silent
    await world.until_none(
        "SELECT 1 FROM sendonce.email e WHERE e.stage = 'unknown'"
        " AND NOT EXISTS (SELECT FROM sendonce.alarm a WHERE a.email_id = e.id AND a.kind = 'unknown')"
    )
