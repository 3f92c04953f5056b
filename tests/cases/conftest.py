"""A worker in the test's process, with the real transports, a relay that speaks SMTP, and a gateway with keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from temporalio.client import Client, WorkflowHandle

from sendonce.activities.failures import client_options
from sendonce.activities.transports.http import GatewaySettings, GatewayTransport
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.embedded import EmbeddedTemporal
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.smtp_server import SmtpServer
from sendonce.worker import WorkerConfig, serve
from sendonce.workflows.port import WAKE_SIGNAL, Wake

DEADLINE = 30.0
"""Seconds a test waits for something to be seen."""


@dataclass
class Office:
    """One installation: ``default`` sends by SMTP, ``gateway`` by HTTP under a key, ``keyless`` by HTTP without."""

    database_url: str
    client: Client
    target: str
    relay: SmtpServer
    gateway: HttpGateway
    prefix: str = field(default_factory=lambda: f"w{uuid4().hex[:10]}")

    async def rows(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        connection = await psycopg.AsyncConnection.connect(self.database_url, autocommit=True, row_factory=dict_row)
        async with connection:
            cursor = await connection.execute(query.encode(), params)
            return await cursor.fetchall() if cursor.description else []

    async def enqueue(self, name: str = "k", files: list[dict[str, Any]] | None = None, **fields: Any) -> str:
        """Commit a mail; returns its key, which is unique on the shared server."""
        key = f"{self.prefix}-{name}"
        usual = {"sender": "shop@example.com", "to": ["ann@example.org"], "subject": "Your order", "text": "Thank you."}
        message = Jsonb(usual | fields | {"key": key})
        rows = await self.rows("SELECT * FROM sendonce.enqueue(%s, %s)", [message, Jsonb(files or [])])
        assert rows[0]["status"] == "created", rows
        return key

    async def email(self, key: str) -> dict[str, Any]:
        return (await self.rows("SELECT * FROM sendonce.email WHERE key = %s", [key]))[0]

    async def attempts(self, key: str) -> list[dict[str, Any]]:
        return await self.rows(
            "SELECT t.* FROM sendonce.attempt t JOIN sendonce.email e ON e.id = t.email_id"
            " WHERE e.key = %s ORDER BY t.number",
            [key],
        )

    async def alarms(self) -> list[str]:
        return [r["kind"] for r in await self.rows("SELECT kind FROM sendonce.alarm WHERE closes IS NULL ORDER BY id")]

    async def until_stage(self, key: str, *stages: str) -> dict[str, Any]:
        """Wait until the mail is at one of these stages; returns its row."""
        found: dict[str, Any] = {}

        async def there() -> bool:
            found.update(await self.email(key))
            return found["stage"] in stages

        await until(there, lambda: f"stage {stages}, at last {found}")
        return found

    async def until_row(self, query: str, params: Any = None) -> None:
        """Ask until there is a row."""

        async def there() -> bool:
            return bool(await self.rows(query, params))

        await until(there, lambda: query)

    def handle(self, key: str, account: str = "default") -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(key if account == "default" else f"{key}@{account}")

    async def ask(self, key: str) -> None:
        """Make the mail's workflow ask the store once more, and wait until it has been answered."""
        before = await self.email(key)
        await self.handle(key).signal(WAKE_SIGNAL, Wake())

        async def answered() -> bool:
            return bool((await self.email(key))["seen_at"] > before["seen_at"])

        await until(answered, lambda: "another answer of the store")

    def config(self, lane: LanePolicy, **changes: Any) -> WorkerConfig:
        url = self.gateway.url
        transports = {
            "default": SmtpTransport(SmtpSettings(host="127.0.0.1", port=self.relay.port, tls="none")),
            "gateway": GatewayTransport(GatewaySettings(url=url)),
            "keyless": GatewayTransport(GatewaySettings(url=url, key_header=None, key_window=None)),
        }
        settings: dict[str, Any] = {
            "database_url": self.database_url,
            "transports": transports,
            "lanes": {"default": lane},
            "task_queue_prefix": self.prefix,
            "drain_seconds": 5.0,
            "poll_seconds": 0.2,
        } | changes
        return WorkerConfig(**settings)

    @asynccontextmanager
    async def worker(
        self, lane: LanePolicy | None = None, *, client: Client | None = None, **changes: Any
    ) -> AsyncIterator[None]:
        """A worker, up and ready; shut down in order at the end."""
        ready, stop = asyncio.Event(), asyncio.Event()
        config = self.config(lane or make_lane(), **changes)
        task = asyncio.create_task(serve(config, stop, client=client or self.client, ready=ready.set))
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE)
            if task.done():
                task.result()
            yield
        finally:
            waiting.cancel()
            stop.set()
            await task


def make_lane(**changes: Any) -> LanePolicy:
    """A lane that tries three times, a quarter of a second apart, and waits 2 s for an answer."""
    retry = RetryPolicy(delays=(0.25,), jitter=0, max_attempts=3)
    settings: dict[str, Any] = {"retry": retry, "answer_seconds": 2.0}
    return LanePolicy("default", **(settings | changes))


async def until(there: Callable[[], Awaitable[bool]], what: Callable[[], str], seconds: float = DEADLINE) -> None:
    """Look again and again, for at most ``seconds``."""
    end = time.monotonic() + seconds
    while not await there():
        assert time.monotonic() < end, f"not seen within {seconds:g} s: {what()}"
        await asyncio.sleep(0.02)


@pytest.fixture
async def office(database_url: str, temporal: EmbeddedTemporal, brisk: None) -> AsyncIterator[Office]:
    """One installation with its servers."""
    client = await Client.connect(temporal.target, **client_options())
    async with SmtpServer() as relay, HttpGateway() as gateway:
        yield Office(database_url, client, temporal.target, relay, gateway)


@pytest.fixture
def lane() -> Callable[..., LanePolicy]:
    """Make a lane, see :func:`make_lane`."""
    return make_lane
