"""Mails whose worker dies by SIGKILL at a named point, and how each has to end.

A worker takes on one mail for each point, each at an account of its own. Every mail stands still at its point: before
or after a commit in the worker, or in the provider's conversation at its server. Once all have come to theirs the
worker is killed. The servers go on with what they have read, and the clocks with the time that nobody works; then
another worker takes over.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from sendonce.testing import smtp_misbehaviour
from sendonce.testing.http_server import HttpServer
from sendonce.testing.smtp_server import SmtpServer
from tests.crash.providers import open_account, transports
from tests.crash.world import ANSWER_SECONDS, WINDOW_MARGIN, World

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport
    from sendonce.testing.http_request import HttpRequest

DEAD_SECONDS = ANSWER_SECONDS + 30.0
"""Longer than a lease and the answer timer, shorter than the window of any provider."""

LOST = ("after begin", "request", "accepted", "answered", "before settle")
"""Where all that the store knows of a request is that it was to be offered. At ``after begin`` no octet of it was
written; later the provider has it. At ``answered`` the answer is on its way, and may have been recorded.
"""

INSTANTS = ("before begin", "request", "before settle", "after settle")
"""Tried with every provider: before the request, after it was written, after its answer was read, and after the row was
marked."""


@dataclass(frozen=True)
class End:
    """What must come of a mail. Of copies and requests, any of these numbers."""

    stages: tuple[str, ...] = ("sent",)
    copies: tuple[int, ...] = (1,)
    requests: tuple[int, ...] = ()
    """By HTTP; none given: not looked at."""
    asked: bool = False
    """Whether the provider is asked before it is left at that."""


@dataclass(frozen=True)
class Point:
    """Where the worker dies, with a mail at which provider."""

    provider: str
    at: str
    """``before`` or ``after`` a method of the store, or what the server calls this point of a conversation."""
    policy: str = "hold"
    end: End | None = None
    """None: by what the provider documents."""
    window: float | None = None
    """For how many seconds the provider knows a key, and the account's settings say so; None: as documented."""

    def __str__(self) -> str:
        return f"{self.provider}: {self.at}" + (f", {self.policy}" if self.policy != "hold" else "")


@dataclass
class Mail:
    """The mail of a point."""

    world: World
    point: Point
    account: str
    key: str
    email_id: UUID
    dead_seconds: float
    """For how long nobody works once its worker is dead."""
    halted: asyncio.Event
    """Set when it has come to its point, if that is one of the server's."""

    @property
    def in_the_worker(self) -> bool:
        """Whether it stands still in the worker; if not, at the server."""
        return " " in self.point.at

    def there(self, log: str) -> bool:
        """Whether it has come to its point, ``log`` being its worker's."""
        return f"held: email_id={self.email_id}" in log if self.in_the_worker else self.halted.is_set()

    def requests(self) -> list[HttpRequest]:
        """All that the provider was told and asked."""
        server = self.world.servers[self.account]
        return server.requests if isinstance(server, HttpServer) else []

    def posts(self) -> list[HttpRequest]:
        """The requests that were to send it."""
        return [one for one in self.requests() if one.method == "POST"]


async def die(world: World, points: Sequence[Point], dead_seconds: float = DEAD_SECONDS) -> list[Mail]:
    """Kill a worker at all these points, and let another one take over after so many seconds."""
    world.lease_seconds = 20
    go_on = asyncio.Event()
    mails = [await _mail(world, point, dead_seconds, go_on) for point in points]
    first = world.worker(holds={mail.email_id: mail.point.at for mail in mails if mail.in_the_worker})

    def missing() -> list[str]:
        said = first.log()
        return [str(mail.point) for mail in mails if not mail.there(said)]

    async def all_there() -> bool:
        return not missing()

    await world.until(all_there, lambda: f"each mail at its point; missing are {missing()}")
    assert first.kill() == -signal.SIGKILL
    go_on.set()
    async with asyncio.timeout(10):
        for mail in mails:
            await world.servers[mail.account].idle()
    await world.pass_time(dead_seconds)
    world.worker()
    return mails


async def _mail(world: World, point: Point, dead_seconds: float, go_on: asyncio.Event) -> Mail:
    lines = [] if point.window is None else [f"key_window = {point.window}"]
    account = await open_account(world, point.provider, *lines)
    key = await world.enqueue(account, unknown=point.policy)
    mail = Mail(world, point, account, key, (await world.email(key))["id"], dead_seconds, asyncio.Event())

    async def halt() -> None:
        mail.halted.set()
        await go_on.wait()

    if not mail.in_the_worker:
        world.once[account, point.at] = halt
    server = world.servers[account]
    if point.window is not None:
        assert isinstance(server, HttpServer)
        server.key_window = point.window
    if point.at == "rset":
        assert isinstance(server, SmtpServer)
        server.script.add(smtp_misbehaviour.answer("rcpt", 451, "4.3.0 later", times=1))
    return mail


async def check(mails: Sequence[Mail]) -> None:
    """Each ends as it has to, and stays so."""
    world = mails[0].world
    by_account = transports(world)
    ends = [mail.point.end or by_documents(by_account[mail.account], mail) for mail in mails]
    await asyncio.gather(*(_ended(mail, wanted) for mail, wanted in zip(mails, ends, strict=True)))
    # Whatever came last may have done harm to another.
    for mail, wanted in zip(mails, ends, strict=True):
        found = (await world.email(mail.key))["stage"], world.copies(mail.key)
        assert found[0] in wanted.stages, f"{mail.point}: stage and copies {found}"
        assert found[1] in wanted.copies, f"{mail.point}: stage and copies {found}"
        assert not wanted.requests or len(mail.posts()) in wanted.requests, (
            f"{mail.point}: {len(mail.posts())} requests"
        )
    for transport in by_account.values():
        await transport.close()


async def _ended(mail: Mail, wanted: End) -> None:
    world = mail.world
    found = await world.until_stage(mail.key, *wanted.stages)
    if found["stage"] == "sent":
        await world.handle(mail.key, mail.account).result()
        assert await world.open_alarms(mail.key) == [], str(mail.point)
        return

    # Nobody sends it, somebody is told, and whoever can be asked has been asked.
    async def held() -> bool:
        found.update(await world.email(mail.key))
        return found["next_attempt_at"] is None and "unknown" in await world.open_alarms(mail.key)

    await world.until(
        held, lambda: f"{mail.point}: held with an alarm; it is {found['stage']}, with {world.copies(mail.key)} copies"
    )
    if wanted.asked:

        async def asked() -> bool:
            return any(one.method == "GET" for one in mail.requests())

        await world.until(asked, f"a look-up of {mail.point}")


def by_documents(transport: Transport, mail: Mail) -> End:
    """What must come of it by what the provider documents."""
    point, capability, window = mail.point, transport.capability, transport.key_window
    if point.at not in LOST:
        return End(requests=(1,))
    taken = int(point.at != "after begin")
    recorded = point.at == "answered"
    lag = getattr(mail.world.servers[mail.account], "search_lag", 0.0)
    found = bool(capability.look_up) and taken > 0 and lag < mail.dead_seconds
    if window is not None and not capability.key_assumed and mail.dead_seconds < window - WINDOW_MARGIN:
        # The same request again, unless it has been found before, and no second mail of it.
        return End(requests=(1, 2) if found or recorded else (1 + taken,))
    if point.policy == "resend":
        # It does not wait for what a look-up finds.
        either = (1, 2) if found or recorded else (1 + taken,)
        return End(copies=either, requests=either)
    stages = ("sent",) if found else ("unknown", "sent") if recorded else ("unknown",)
    return End(stages, copies=(taken,), requests=(taken,), asked=bool(capability.look_up))
