"""Other ways to send mail from a durable queue in Python, each with its own worker; what is not installed is skipped.

All send the same mails to the same sink, a connection each, as the code of a task usually does. None of them asks
before it sends again after a crash: a mail that was accepted and not marked is sent twice.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench import stack
from bench.part import Part
from bench.stack import Machine
from sendonce.embedded import ChildProcess, free_port
from sendonce.embedded.process import accepts_connections, wait_until

if TYPE_CHECKING:
    from bench.throughput import Contender


@dataclass(frozen=True)
class Peer:
    """One of them."""

    module: str
    program: str | None
    """What must be installed on the machine besides."""
    enter: Callable[[Machine], AbstractAsyncContextManager[Contender]]

    def missing(self) -> str | None:
        """Why it cannot take part, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed (make bench does it)"
        if self.program is not None and shutil.which(self.program) is None:
            return f"{self.program} is not installed"
        return None


def _with_postgres(roles: str) -> Callable[[Machine], AbstractAsyncContextManager[Contender]]:
    """A worker and an application, both of the module ``bench.peer_<roles>``, around a database of their own."""

    @asynccontextmanager
    async def enter(machine: Machine) -> AsyncIterator[Contender]:
        async with AsyncExitStack() as closing:
            url = await machine.database(migrated=False)
            closing.push_async_callback(machine.drop, url)
            sink, port = await closing.enter_async_context(stack.sink(machine))
            module = f"bench.peer_{roles}"
            worker, application = await asyncio.gather(
                *(
                    Part.start(f"{module}:{role}", machine.folder, database_url=url, port=port)
                    for role in ("worker", "application")
                )
            )
            for part in (application, worker):
                closing.push_async_callback(part.end)
            pids = {"store": machine.postgres.pid, "worker": worker.pid, "enqueueing": application.pid}
            yield _contender(pids, sink, application)

    return enter


def _contender(pids: dict[str, int], sink: Part, application: Part) -> Contender:
    from bench.throughput import RELAY, Contender, arrived

    async def run(prefix: str, number: int) -> None:
        await application.call(prefix=prefix, number=number)
        await arrived(sink, prefix, number)

    return Contender({**pids, RELAY: sink.pid}, run)


@asynccontextmanager
async def _celery(machine: Machine) -> AsyncIterator[Contender]:
    async with AsyncExitStack() as closing:
        sink, port = await closing.enter_async_context(stack.sink(machine))
        redis_port = free_port()
        folder = machine.folder / f"redis-{machine.number()}"
        folder.mkdir()
        redis = closing.enter_context(
            ChildProcess(
                # Durable, at its own pace: what was queued in the last second can be lost with the machine.
                ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--appendonly", "yes"],
                cwd=folder,
                log=folder / "redis.log",
            )
        )
        wait_until(lambda: accepts_connections(redis_port), 10)
        arguments: dict[str, Any] = {"broker": f"redis://127.0.0.1:{redis_port}/0", "port": port}
        worker = await closing.enter_async_context(
            await Part.start("bench.peer_celery:worker", machine.folder, **arguments)
        )
        application = await closing.enter_async_context(
            await Part.start("bench.peer_celery:application", machine.folder, **arguments)
        )
        pids = {"store": redis.pid, "worker": worker.pid, "enqueueing": application.pid}
        yield _contender(pids, sink, application)


DBOS = "DBOS"

PEERS = {
    DBOS: Peer("dbos", None, _with_postgres("dbos")),
    "procrastinate": Peer("procrastinate", None, _with_postgres("procrastinate")),
    "pgqueuer": Peer("pgqueuer", None, _with_postgres("pgqueuer")),
    "Celery + Redis": Peer("celery", "redis-server", _celery),
}
