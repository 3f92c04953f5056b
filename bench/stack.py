"""The servers of a measurement: PostgreSQL for the whole run, everything else fresh for each, all on loopback."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

from bench.part import ROOT, Part, PartFailed
from sendonce.embedded import ChildProcess, EmbeddedPostgres, EmbeddedTemporal, clean_environment
from sendonce.search_attributes import NAMES
from sendonce.store.migrate import migrate

READY_SECONDS = 30.0

POSTGRES = {
    # What a server that is set up has: the first page of the manual on tuning. Durable: fsync is on.
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "random_page_cost": "1.1",
}

SETTINGS = """\
[store]
database_url = "{database_url}"

[temporal]
address = "{target}"
namespace = "default"

{accounts}
"""

ACCOUNT = """\
[accounts.{name}]
transport = "smtp"
host = "127.0.0.1"
port = {port}
tls = "none"
"""

TEMPLATE = "bench_template"


@dataclass
class Machine:
    """What lasts for the whole run."""

    folder: Path
    """For logs and settings; removed at the end."""
    postgres: EmbeddedPostgres
    _numbers: count[int] = field(default_factory=count)

    def number(self) -> int:
        """Another one each time."""
        return next(self._numbers)

    async def database(self, *, migrated: bool = True) -> str:
        """URL of a fresh database: with our schema and an application's table ``orders``, or with nothing."""
        name = f"bench_{self.number()}"
        template = TEMPLATE if migrated else None
        return await asyncio.to_thread(self.postgres.create_database, name, template)

    async def drop(self, url: str) -> None:
        """Drop a database. What is left to write of it is no longer written in the next measurement."""
        await asyncio.to_thread(self.postgres.drop_database, url.rpartition("/")[2])
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Let everything be written that waits to be."""
        connection = await psycopg.AsyncConnection.connect(self.postgres.url, autocommit=True)
        async with connection:
            await connection.execute("CHECKPOINT")


@asynccontextmanager
async def machine() -> AsyncIterator[Machine]:
    """PostgreSQL and a folder."""
    with tempfile.TemporaryDirectory(prefix="sendonce-bench-") as folder:
        postgres = await asyncio.to_thread(lambda: EmbeddedPostgres.start(durable=True, options=POSTGRES))
        try:
            url = await asyncio.to_thread(postgres.create_database, TEMPLATE)
            await asyncio.to_thread(_prepare, url)
            yield Machine(Path(folder), postgres)
        finally:
            await asyncio.to_thread(postgres.stop)


def _prepare(url: str) -> None:
    migrate(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id text PRIMARY KEY, placed_at timestamptz DEFAULT now())")


@asynccontextmanager
async def temporal(*, tuned: bool = True) -> AsyncIterator[EmbeddedTemporal]:
    """A dev server of this measurement's own, in memory: what a workflow costs grows with the histories it keeps.

    ``tuned``: with the settings of ``sendonce up``; else as ``temporal server start-dev`` has it.
    """
    keywords = dict.fromkeys(NAMES, "Keyword") if tuned else {}
    server = await asyncio.to_thread(lambda: EmbeddedTemporal.start(search_attributes=keywords, tuned=tuned))
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def sink(machine: Machine, stall_seconds: float = 0.0) -> AsyncIterator[tuple[Part, int]]:
    """The SMTP server, and its port."""
    async with await Part.start("bench.sink:sink", machine.folder, stall_seconds=stall_seconds) as part:
        yield part, await part.call(port=True)


def settings(database_url: str, target: str, ports: Mapping[str, int]) -> str:
    """``sendonce.toml`` with these accounts, by their ports; everything else as it is by default."""
    accounts = "\n".join(ACCOUNT.format(name=name, port=port) for name, port in ports.items())
    return SETTINGS.format(database_url=database_url, target=target, accounts=accounts)


@asynccontextmanager
async def worker(
    machine: Machine, text: str, *, command: str = "worker", python: Sequence[str] = (sys.executable,)
) -> AsyncIterator[ChildProcess]:
    """``sendonce worker`` (or ``starter``) with these settings, once it is ready."""
    file = machine.folder / f"sendonce-{machine.number()}.toml"
    file.write_text(text, encoding="utf-8")
    log = file.with_suffix(".log")
    process = ChildProcess(
        [*python, "-m", "sendonce", command, "--config", str(file)],
        # The SDK would read the user's own profile, whose key and TLS belong to another server.
        env={**clean_environment(), "TEMPORAL_CONFIG_FILE": os.devnull, "PYTHONPATH": str(ROOT)},
        log=log,
    )
    try:
        end = time.monotonic() + READY_SECONDS
        while "ready: " not in (said := log.read_text(encoding="utf-8", errors="replace")):
            if not process.running or time.monotonic() > end:
                raise PartFailed(f"sendonce {command} does not serve: {said[-2000:]}")
            await asyncio.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 40.0)
        except TimeoutError:
            process.kill()


@dataclass
class Servers:
    """Everything that a mail of ours meets, but what sends it."""

    url: str
    settings: str
    """The text of ``sendonce.toml``."""
    sink: Part
    port: int
    temporal: EmbeddedTemporal
    feeder: Part
    postgres_pid: int

    @property
    def pids(self) -> dict[str, int]:
        """By what is reported."""
        return {
            "store": self.postgres_pid,
            "Temporal": self.temporal.pid,
            "enqueueing": self.feeder.pid,
            "relay": self.sink.pid,
        }

    async def drained(self, seconds: float = 120.0) -> None:
        """Return once no row waits any more. Raises :class:`PartFailed` when that takes longer."""
        connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        end = time.monotonic() + seconds
        async with connection:
            waiting = "SELECT 1 FROM sendonce.email WHERE stage <> 'sent' LIMIT 1"
            while await (await connection.execute(waiting)).fetchone():
                if time.monotonic() > end:
                    raise PartFailed(f"mails were not sent within {seconds:g} s")
                await asyncio.sleep(0.02)


@dataclass
class Ours(Servers):
    """The same with a worker, whose starter starts the workflows."""

    worker: ChildProcess

    @property
    def pids(self) -> dict[str, int]:
        """By what is reported."""
        store, engine, *others = super().pids.items()
        return dict([store, engine, ("worker", self.worker.pid), *others])


@asynccontextmanager
async def servers(machine: Machine, *, stalled: float | None = None) -> AsyncIterator[Servers]:
    """``stalled``: with an account ``slow`` too, whose relay answers after that many seconds."""
    async with AsyncExitStack() as closing:
        url = await machine.database()
        closing.push_async_callback(machine.drop, url)
        part, port = await closing.enter_async_context(sink(machine))
        ports = {"default": port}
        if stalled is not None:
            _, ports["slow"] = await closing.enter_async_context(sink(machine, stalled))
        server = await closing.enter_async_context(temporal())
        feeder = await closing.enter_async_context(
            await Part.start("bench.feed:feeder", machine.folder, database_url=url)
        )
        text = settings(url, server.target, ports)
        yield Servers(url, text, part, port, server, feeder, machine.postgres.pid)


@asynccontextmanager
async def ours(machine: Machine, *, stalled: float | None = None) -> AsyncIterator[Ours]:
    """A whole installation; ``stalled`` as for :func:`servers`."""
    async with servers(machine, stalled=stalled) as around, worker(machine, around.settings) as process:
        yield Ours(**vars(around), worker=process)
