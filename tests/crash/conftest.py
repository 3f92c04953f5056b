"""An installation whose workers are processes that can be killed or frozen; everything around them is real."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from temporalio.client import Client, WorkflowHandle

import sendonce
from sendonce import embedded
from sendonce.activities.failures import client_options
from sendonce.embedded import ChildProcess, EmbeddedPostgres, EmbeddedTemporal
from sendonce.store.migrate import migrate
from sendonce.testing.certificate import Certificate, self_signed
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.smtp_server import SmtpServer

LEASE_SECONDS = 5
DEADLINE = 60.0
"""Seconds after a crash within which every mail must have ended, or say what it waits for."""

SETTINGS = """
[store]
database_url = "{database_url}"
pool_size = 5
[temporal]
address = "{target}"
task_queue_prefix = "{prefix}"
[worker]
lanes = ["default"]
lease_seconds = {lease}
[starter]
poll_seconds = 0.2
overdue_seconds = 5
[lanes.default]
answer_seconds = 120
places = {places}
[lanes.default.retry]
delays = [1]
jitter = 0
max_attempts = 100
[accounts.default]
transport = "smtp"
host = "127.0.0.1"
port = {relay}
tls = "none"
[accounts.other]
transport = "smtp"
host = "127.0.0.1"
port = {other}
tls = "none"
[accounts.secure]
transport = "smtp"
host = "127.0.0.1"
port = {secure}
ca_file = "{certificate}"
username = "shop"
password = "hunter2-secret"
pool = {{ idle_seconds = 0 }}
[accounts.gateway]
transport = "http"
url = "{gateway}"
"""

OPEN_ALARMS = """
SELECT a.kind, a.email_id FROM sendonce.alarm a
WHERE a.closes IS NULL AND NOT EXISTS (SELECT FROM sendonce.alarm c WHERE c.closes = a.id) ORDER BY a.id
"""


class World:
    """One installation: a database, a relay for each of three accounts, a gateway with keys, and worker processes.

    The account ``secure`` logs in by STARTTLS and leaves after each mail.
    """

    def __init__(self, folder: Path, database_url: str, client: Client, certificate: Certificate) -> None:
        self.folder = folder
        self.database_url = database_url
        self.client = client
        self.target = client.service_client.config.target_host
        self.prefix = f"c{uuid4().hex[:10]}"
        self.places = 20
        self.relay = SmtpServer(on_event=self._event)
        self.other = SmtpServer()
        self.certificate = certificate.file
        self.secure = SmtpServer(tls=certificate.context, credentials={"shop": "hunter2-secret"}, on_event=self._event)
        self.gateway = HttpGateway(on_event=self._event)
        self.once: dict[str, Callable[[], Awaitable[None]]] = {}
        """What happens the first time that the relay or the gateway comes to a point, by the point's name."""
        self.workers: list[ChildProcess] = []
        self._numbers = itertools.count(1)

    @property
    def servers(self) -> tuple[SmtpServer | HttpGateway, ...]:
        return self.relay, self.other, self.secure, self.gateway

    async def _event(self, name: str, _: object) -> None:
        act = self.once.pop(name, None)
        if act is not None:
            await act()

    async def __aenter__(self) -> World:
        self.folder.mkdir()
        for server in self.servers:
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for server in self.servers:
            await server.close()

    def worker(self, *point: str) -> ChildProcess:
        """Start a worker process; ``point`` as in ``worker_process.py``."""
        file = self.folder / "sendonce.toml"
        file.write_text(
            SETTINGS.format(
                database_url=self.database_url,
                target=self.target,
                prefix=self.prefix,
                lease=LEASE_SECONDS,
                places=self.places,
                relay=self.relay.port,
                other=self.other.port,
                secure=self.secure.port,
                certificate=self.certificate,
                gateway=self.gateway.url,
            ),
            encoding="utf-8",
        )
        # The same package as these tests have, wherever they found it.
        root = str(Path(sendonce.__file__).parents[1])
        script = Path(__file__).with_name("worker_process.py")
        worker = ChildProcess(
            [sys.executable, script, file, *point],
            env={**os.environ, "PYTHONPATH": root},
            log=self.folder / f"worker-{len(self.workers)}.log",
        )
        self.workers.append(worker)
        return worker

    async def ready(self, worker: ChildProcess) -> None:
        """Wait until the worker serves."""
        await self.said(worker, "ready: ")

    async def said(self, worker: ChildProcess, words: str) -> None:
        """Wait until the worker's log holds ``words``."""

        async def there() -> bool:
            return words in log(worker)

        await until(there, lambda: f"{words!r} in the log:\n{log(worker)}")

    async def ended(self, worker: ChildProcess) -> int:
        """Wait for the worker's end; returns its exit status."""

        async def there() -> bool:
            return not worker.running

        await until(there, lambda: f"the end of the worker; its log:\n{log(worker)}")
        assert worker.returncode is not None
        return worker.returncode

    async def is_frozen(self, worker: ChildProcess) -> None:
        """Wait until the worker is stopped by SIGSTOP."""

        async def there() -> bool:
            return is_stopped(worker.pid)

        await until(there, lambda: f"the worker's stop; its log:\n{log(worker)}")

    async def rows(self, query: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
        connection = await psycopg.AsyncConnection.connect(self.database_url, autocommit=True, row_factory=dict_row)
        async with connection:
            cursor = await connection.execute(query.encode(), params)
            return await cursor.fetchall() if cursor.description else []

    async def enqueue(self, account: str = "default", **fields: Any) -> str:
        """Commit a mail to a mailbox of its own (the key at example.org); returns its key."""
        return (await self.enqueue_many(1, account, **fields))[0]

    async def enqueue_many(self, count: int, account: str = "default", **fields: Any) -> list[str]:
        keys = [f"{self.prefix}-{next(self._numbers)}" for _ in range(count)]
        usual = {"sender": "shop@example.com", "subject": "Your order", "text": "Thank you.", "account": account}
        mails = [Jsonb(usual | {"key": key, "to": [f"{key}@example.org"]} | fields) for key in keys]
        made = await self.rows("SELECT e.* FROM unnest(%s::jsonb[]) m, sendonce.enqueue(m) e", [mails])
        assert [row["status"] for row in made] == ["created"] * count
        return keys

    async def email(self, key: str) -> dict[str, Any]:
        return (await self.rows("SELECT * FROM sendonce.email WHERE key = %s", [key]))[0]

    async def attempts(self, key: str) -> list[dict[str, Any]]:
        return await self.rows(
            "SELECT t.* FROM sendonce.attempt t JOIN sendonce.email e ON e.id = t.email_id"
            " WHERE e.key = %s ORDER BY t.number",
            [key],
        )

    async def stages(self) -> dict[str, int]:
        """How many mails stand at each stage."""
        rows = await self.rows("SELECT stage, count(*) AS n FROM sendonce.email GROUP BY stage")
        return {row["stage"]: row["n"] for row in rows}

    async def open_alarms(self) -> list[str]:
        return [row["kind"] for row in await self.rows(OPEN_ALARMS)]

    async def until_stage(self, key: str, *stages: str) -> dict[str, Any]:
        """Wait until the mail is at one of these stages; returns its row."""
        found: dict[str, Any] = {}

        async def there() -> bool:
            found.update(await self.email(key))
            return found["stage"] in stages

        await until(there, lambda: f"stage {stages}; the mail is {found}\n{self.logs()}")
        return found

    async def until_stages(self, expected: dict[str, int], seconds: float = DEADLINE) -> None:
        """Wait until so many mails stand at each stage."""
        found: dict[str, int] = {}

        async def there() -> bool:
            found.clear()
            found.update(await self.stages())
            return found == expected

        await until(there, lambda: f"stages {expected}; they are {found}\n{self.logs()}", seconds)

    async def until_none(self, query: str, seconds: float = DEADLINE) -> None:
        """Wait until the query finds no row."""
        found: list[dict[str, Any]] = []

        async def there() -> bool:
            found[:] = await self.rows(query)
            return not found

        await until(there, lambda: f"{len(found)} rows left of {query}\n{self.logs()}", seconds)

    async def until_alarm(self, kind: str) -> None:
        """Wait until such an alarm is open."""

        async def there() -> bool:
            return kind in await self.open_alarms()

        await until(there, lambda: f"alarm {kind}\n{self.logs()}")

    async def until(self, there: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until ``there`` answers True."""
        await until(there, lambda: f"{what}\n{self.logs()}")

    def copies(self, key: str) -> int:
        """How many copies of a mail the relays and the gateway took."""
        return sum(s.mailbox.copies(f"{key}@example.org") for s in self.servers)

    def handle(self, key: str, account: str = "default") -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(key if account == "default" else f"{key}@{account}")

    def logs(self) -> str:
        return "\n".join(log(worker) for worker in self.workers)


def log(worker: ChildProcess) -> str:
    """What the worker has logged so far."""
    assert worker.log is not None
    return worker.log.read_text() if worker.log.exists() else ""


def is_stopped(child: int) -> bool:
    """Whether a child process has been stopped by a signal, as told by its parent's waitid()."""
    return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


async def until(there: Callable[[], Awaitable[bool]], what: Callable[[], str], seconds: float = DEADLINE) -> None:
    """Look again and again, for at most ``seconds``."""
    end = time.monotonic() + seconds
    while not await there():
        assert time.monotonic() < end, f"not seen within {seconds:g} s: {what()}"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1")


MakeWorld = Callable[..., Awaitable[World]]


@pytest.fixture
async def make_world(
    postgres_url: str, template: str, temporal: EmbeddedTemporal, tmp_path: Path, certificate: Certificate
) -> AsyncIterator[MakeWorld]:
    """Make installations; ``postgres`` and ``temporal`` replace the shared servers, for a test that stops them."""
    made: list[str] = []

    async def make(*, postgres: EmbeddedPostgres | None = None, own_temporal: EmbeddedTemporal | None = None) -> World:
        name = f"test_{uuid4().hex}"
        if postgres is None:
            url = embedded.create_database(postgres_url, name, template)
            made.append(name)
        else:
            url = postgres.create_database(name)
            await asyncio.to_thread(migrate, url)
        client = await Client.connect((own_temporal or temporal).target, **client_options())
        return await closing.enter_async_context(World(tmp_path / name, url, client, certificate))

    async with AsyncExitStack() as closing:
        yield make
    for name in made:
        embedded.drop_database(postgres_url, name)


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    """One installation on the shared servers."""
    return await make_world()
