"""An installation whose workers are processes that can be killed or frozen; everything around them is real."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from temporalio.client import Client, WorkflowHandle

from sendonce.testing.certificate import Certificate
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.http_server import HttpServer
from sendonce.testing.smtp_server import SmtpServer
from tests.crash.door import Door
from tests.crash.forks import Forks, Worker

DEADLINE = 60.0
"""Seconds after a crash within which every mail must have ended, or say what it waits for."""

ANSWER_SECONDS = 120.0
WINDOW_MARGIN = 60.0

SETTINGS = """
[store]
database_url = "{world.database_url}"
pool_size = 5
[temporal]
address = "{world.target}"
task_queue_prefix = "{world.prefix}"
[worker]
lanes = ["default"]
with_starter = {starter}
lease_seconds = {world.lease_seconds}
window_margin_seconds = {margin}
[starter]
poll_seconds = 0.2
overdue_seconds = 5
[lanes.default]
answer_seconds = {answer}
places = {world.places}
[lanes.default.retry]
delays = [1]
jitter = 0
max_attempts = 100
"""

SMTP = 'transport = "smtp"\nhost = "127.0.0.1"\nport = {server.port}\ntls = "none"'
SECURE = """transport = "smtp"
host = "127.0.0.1"
port = {server.port}
ca_file = "{ca}"
username = "shop"
password = "hunter2-secret"
pool = {{ idle_seconds = 0 }}"""
GATEWAY = 'transport = "http"\nurl = "{server.url}"'

OPEN_ALARMS = """
SELECT a.kind, a.email_id FROM sendonce.alarm a
WHERE a.closes IS NULL AND NOT EXISTS (SELECT FROM sendonce.alarm c WHERE c.closes = a.id) ORDER BY a.id
"""

Playing = SmtpServer | HttpServer


class World:
    """One installation: a database, worker processes, and a playing server for each account.

    There are three relays and a gateway with keys; the account ``secure`` logs in by STARTTLS and leaves after each
    mail. Others are added by :meth:`play`.
    """

    def __init__(self, folder: Path, database_url: str, client: Client, certificate: Certificate, forks: Forks) -> None:
        self.folder = folder
        self.database_url = database_url
        self.client = client
        self.certificate = certificate
        self.target = client.service_client.config.target_host
        self.prefix = f"c{uuid4().hex[:10]}"
        self.places = 20
        self.lease_seconds = 5
        self.with_starter = True
        """Whether workers start workflows too."""
        self.relay, self.other = SmtpServer(), SmtpServer()
        self.secure = SmtpServer(tls=certificate.context, credentials={"shop": "hunter2-secret"})
        self.gateway = HttpGateway()
        self.servers: dict[str, Playing] = {}
        """By account."""
        self.once: dict[tuple[str, str], Callable[[], Awaitable[None]]] = {}
        """What happens the first time that the server of an account comes to a point of its conversations."""
        self.workers: list[Worker] = []
        self._forks = forks
        self._accounts: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._doors: list[Door] = []
        self._connecting = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[dict[str, Any]] | None = None

    async def _event(self, account: str, name: str, _: object) -> None:
        act = self.once.pop((account, name), None)
        if act is not None:
            await act()

    async def __aenter__(self) -> World:
        self.folder.mkdir()
        await self.play("default", self.relay, SMTP)
        await self.play("other", self.other, SMTP)
        await self.play("secure", self.secure, SECURE)
        await self.play("gateway", self.gateway, GATEWAY)
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for one in (*self._doors, *self.servers.values()):
            await one.close()
        if self._connection is not None:
            await self._connection.close()

    # Accounts and workers

    async def play(self, account: str, server: Playing, settings: str) -> None:
        """Start the server of an account; in its ``settings`` stand ``{server.port}`` and the like, ``{origin}`` of a
        provider, and ``{ca}``.
        """
        await server.start()
        server.on_event = partial(self._event, account)
        self.servers[account] = server
        origin = ""
        if isinstance(server, HttpServer):
            origin = server.origin
            if server.tls is not None:
                door = Door(server.port, partial(self._event, account, "tls", None))
                await door.open()
                self._doors.append(door)
                origin = f"https://127.0.0.1:{door.port}"
        self._accounts[account] = settings.format(server=server, origin=origin, ca=self.certificate.file)

    @property
    def settings(self) -> Path:
        """The file of settings, as the accounts are now."""
        file = self.folder / "sendonce.toml"
        text = SETTINGS.format(
            world=self, starter=str(self.with_starter).lower(), margin=WINDOW_MARGIN, answer=ANSWER_SECONDS
        )
        accounts = [f"[accounts.{name}]\n{settings}\n" for name, settings in self._accounts.items()]
        # Whole or not at all: a worker may be reading it.
        new = file.with_suffix(".new")
        new.write_text(text + "".join(accounts), encoding="utf-8")
        new.replace(file)
        return file

    def worker(self, *stop: str, holds: Mapping[UUID, str] | None = None) -> Worker:
        """Start a worker process. ``stop`` and ``holds`` (by mail) are points of the store: see
        ``worker_process.py``.
        """
        points = {str(email): point for email, point in (holds or {}).items()}
        return self._process("worker", stop, points)

    def starter(self, *stop: str) -> Worker:
        """Start a process that starts workflows and delivers nothing; ``stop`` as for a worker."""
        return self._process("starter", stop, {})

    def _process(self, kind: str, stop: Sequence[str], holds: Mapping[str, str]) -> Worker:
        log = self.folder / f"{kind}-{len(self.workers)}.log"
        process = self._forks.process(kind, self.settings, log, stop=stop or None, holds=holds)
        self.workers.append(process)
        return process

    async def ready(self, worker: Worker) -> None:
        """Wait until the worker serves."""
        await self.said(worker, "ready: ")

    async def said(self, worker: Worker, words: str) -> None:
        """Wait until the worker's log holds ``words``."""

        async def there() -> bool:
            return words in worker.log()

        await self.until(there, f"{words!r} in the log")

    async def ended(self, worker: Worker) -> int:
        """Wait for the worker's end; returns its exit status."""

        async def there() -> bool:
            return not worker.running

        await self.until(there, "the end of the worker")
        assert worker.returncode is not None
        return worker.returncode

    async def is_frozen(self, worker: Worker) -> None:
        """Wait until the worker is stopped by SIGSTOP."""

        async def there() -> bool:
            return worker.stopped

        await self.until(there, "the worker's stop")

    async def pass_time(self, seconds: float) -> None:
        """Nobody works for so long: the store's clock and those of the providers move on."""
        await self.rows("CREATE TABLE IF NOT EXISTS public.test_clock (off interval NOT NULL)")
        await self.rows("INSERT INTO public.test_clock SELECT '0' WHERE NOT EXISTS (SELECT FROM public.test_clock)")
        await self.rows("UPDATE public.test_clock SET off = off + %s * interval '1 second'", [seconds])
        await self.rows(
            "CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE"
            " AS $$ SELECT clock_timestamp() + off FROM public.test_clock $$"
        )
        for server in self.servers.values():
            if isinstance(server, HttpServer):
                server.advance(seconds)

    # Mails

    async def rows(self, query: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """What a statement finds."""
        try:
            return await self._rows(query, params)
        except psycopg.OperationalError:
            # The server was stopped in between.
            self._connection = None
            return await self._rows(query, params)

    async def _rows(self, query: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        async with self._connecting:
            if self._connection is None:
                self._connection = await psycopg.AsyncConnection[dict[str, Any]].connect(
                    self.database_url, autocommit=True, row_factory=dict_row
                )
            connection = self._connection
        cursor = await connection.execute(query.encode(), params)
        return await cursor.fetchall() if cursor.description else []

    async def enqueue(self, account: str = "default", **fields: Any) -> str:
        """Commit a mail to a mailbox of its own (the key at example.org); returns its key."""
        return (await self.enqueue_many(1, account, **fields))[0]

    async def enqueue_many(self, count: int, account: str = "default", **fields: Any) -> list[str]:
        """So many of them."""
        keys = [f"{self.prefix}-{next(self._numbers)}" for _ in range(count)]
        usual = {"sender": "shop@example.com", "subject": "Your order", "text": "Thank you.", "account": account}
        mails = [Jsonb(usual | {"key": key, "to": [f"{key}@example.org"]} | fields) for key in keys]
        made = await self.rows("SELECT e.* FROM unnest(%s::jsonb[]) m, sendonce.enqueue(m) e", [mails])
        assert [row["status"] for row in made] == ["created"] * count
        return keys

    async def email(self, key: str) -> dict[str, Any]:
        """The mail's row."""
        return (await self.rows("SELECT * FROM sendonce.email WHERE key = %s", [key]))[0]

    async def attempts(self, key: str) -> list[dict[str, Any]]:
        """The mail's attempts, in their order."""
        return await self.rows(
            "SELECT t.* FROM sendonce.attempt t JOIN sendonce.email e ON e.id = t.email_id"
            " WHERE e.key = %s ORDER BY t.number",
            [key],
        )

    async def stages(self) -> dict[str, int]:
        """How many mails stand at each stage."""
        rows = await self.rows("SELECT stage, count(*) AS n FROM sendonce.email GROUP BY stage")
        return {row["stage"]: row["n"] for row in rows}

    async def open_alarms(self, key: str | None = None) -> list[str]:
        """The kinds of the alarms that are open, of all mails or of one."""
        email = None if key is None else (await self.email(key))["id"]
        return [row["kind"] for row in await self.rows(OPEN_ALARMS) if email in (None, row["email_id"])]

    def copies(self, key: str) -> int:
        """How many copies of a mail the servers took."""
        return sum(server.mailbox.copies(f"{key}@example.org") for server in self.servers.values())

    def handle(self, key: str, account: str = "default") -> WorkflowHandle[Any, Any]:
        """The mail's workflow."""
        return self.client.get_workflow_handle(key if account == "default" else f"{key}@{account}")

    # Waiting

    async def until(self, there: Callable[[], Awaitable[bool]], what: str | Callable[[], str]) -> None:
        """Look again and again whether ``there`` answers True."""
        await self._until(there, what, DEADLINE)

    async def _until(self, there: Callable[[], Awaitable[bool]], what: str | Callable[[], str], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not await there():
            assert time.monotonic() < end, (
                f"not seen within {seconds:g} s: {what if isinstance(what, str) else what()}\n{self.logs()}"
            )
            await asyncio.sleep(0.05)

    async def until_stage(self, key: str, *stages: str) -> dict[str, Any]:
        """Wait until the mail is at one of these stages; returns its row."""
        found: dict[str, Any] = {}

        async def there() -> bool:
            found.update(await self.email(key))
            return found["stage"] in stages

        await self.until(there, lambda: f"stage {stages}; the mail is {found}")
        return found

    async def until_stages(self, expected: dict[str, int], seconds: float = DEADLINE) -> None:
        """Wait until so many mails stand at each stage."""
        found: dict[str, int] = {}

        async def there() -> bool:
            found.clear()
            found.update(await self.stages())
            return found == expected

        await self._until(there, lambda: f"stages {expected}; they are {found}", seconds)

    async def until_none(self, query: str, seconds: float = DEADLINE) -> None:
        """Wait until the query finds no row."""
        found: list[dict[str, Any]] = []

        async def there() -> bool:
            found[:] = await self.rows(query)
            return not found

        await self._until(there, lambda: f"{len(found)} rows left of {query}", seconds)

    async def until_alarm(self, kind: str) -> None:
        """Wait until such an alarm is open."""

        async def there() -> bool:
            return kind in await self.open_alarms()

        await self.until(there, f"alarm {kind}")

    def logs(self) -> str:
        """What the workers have logged."""
        return "\n".join(f"{worker.log_file.name}:\n{worker.log()}" for worker in self.workers)
