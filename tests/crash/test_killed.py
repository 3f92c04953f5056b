"""A worker dies by SIGKILL at a named point, and another one takes over: one copy, and nothing is left behind.

Before the offer, and with a provider that honours keys at any point, the mail is sent. Offered by SMTP and
unanswered it is unknown: the relay may have it, and nobody can ask. What has to come of a mail at a provider with an
API is read off its capability, by :func:`tests.crash.dying.by_documents`.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sendonce.settings.transports import BUILT_IN
from tests.crash.dying import INSTANTS, End, Point, check, die
from tests.crash.providers import PROVIDERS

if TYPE_CHECKING:
    from tests.crash.world import World

COMMITS = [f"{when} {method}" for method in ("claim", "pin", "begin", "settle") for when in ("before", "after")]
# The relay may have it.
UNKNOWN = End(("unknown",))
# The answer has been read, or is on its way: the worker may just have had the time to record it.
ANSWERED = End(("unknown", "sent"))
BY_SMTP = [
    *[Point("smtp", at, end=End()) for at in COMMITS if at not in ("after begin", "before settle")],
    # Begun is all that is known: that the dot was not written died with the process.
    Point("smtp", "after begin", end=End(("unknown",), copies=(0,))),
    Point("smtp", "before settle", end=UNKNOWN),
    # Nothing of the conversation before the dot can lead to acceptance.
    *[Point("smtp", at, end=End()) for at in ("connect", "ehlo", "mail", "rcpt", "data", "rset")],
    # Once the body is written the worker begins: it may just have had the time, and the dot has not come.
    Point("smtp", "body", end=End(("sent", "unknown"), copies=(0, 1))),
    *[Point("secure", at, end=End()) for at in ("starttls", "auth")],
    Point("secure", "quit", end=ANSWERED),
    Point("smtp", "dot", end=UNKNOWN),
    Point("smtp", "replied", end=ANSWERED),
]
BY_HTTP = [Point("gateway", at) for at in (*COMMITS, "request", "accepted", "answered")]
# One provider that knows the key again, one that can be asked, one that cannot.
PHASES = ("before begin", "after begin", "request", "accepted", "answered", "before settle", "after settle")
BY_API = [
    *[Point(provider, at) for provider in ("resend", "postmark", "postmark that finds nothing") for at in PHASES],
    *[Point(f"{provider} by TLS", at) for provider in ("resend", "postmark") for at in ("tls", "request")],
]
POLICIES = ("hold", "resend")

MATRIX = {str(point): point for point in (*BY_SMTP, *BY_HTTP)}
TELLING = [
    MATRIX["smtp: after claim"],
    MATRIX["smtp: dot"],
    MATRIX["smtp: before settle"],
    MATRIX["gateway: accepted"],
    Point("resend by TLS", "tls"),
    Point("resend", "after begin"),
    Point("resend", "before settle", "resend"),
    Point("resend", "after settle"),
    Point("postmark", "before begin"),
    Point("postmark", "request"),
    Point("postmark", "after settle", "resend"),
    Point("postmark that finds nothing", "after begin"),
    Point("postmark that finds nothing", "before settle"),
    Point("postmark that finds nothing", "before settle", "resend"),
    Point("brevo that finds nothing", "request"),
    # One that knows no keys and cannot be asked, one whose key guarantees nothing, one that knows it again.
    *[Point(provider, at) for provider in ("ses", "brevo", "lettermint") for at in INSTANTS],
]


async def test_a_worker_killed_at_a_telling_point_costs_no_copy_and_loses_nothing(world: World) -> None:
    await check(await die(world, TELLING))


@pytest.mark.slow
@pytest.mark.parametrize("point", MATRIX.values(), ids=str)
async def test_a_worker_killed_anywhere_costs_no_copy_and_loses_nothing(world: World, point: Point) -> None:
    await check(await die(world, [point]))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_worker_killed_in_any_phase_of_a_request_costs_no_copy_that_can_be_known(
    world: World, policy: str
) -> None:
    await check(await die(world, [replace(point, policy=policy) for point in BY_API]))


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_worker_killed_around_a_request_to_any_provider(world: World, provider: str) -> None:
    mails = await die(world, [Point(provider, at, policy) for at in INSTANTS for policy in POLICIES])
    await check(mails)


def test_every_provider_has_its_place_in_the_matrix() -> None:
    assert {name.split()[0] for name in PROVIDERS} == BUILT_IN.keys() - {"smtp", "http"}


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
