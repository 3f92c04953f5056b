"""DBOS: a queue of workflows of one step each. https://docs.dbos.dev/python/tutorials/queue-tutorial"""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, DBOSClient

from bench.mail import AT_ONCE, message
from bench.part import Handler

QUEUE = "mails"
VERSION = "bench"
POLLING_SECONDS = 0.1
"""Between two looks at the queue. Its default, a second, would make it wait more than work."""


@DBOS.step()
def send(key: str, port: int) -> None:
    """Open a connection and send."""
    with smtplib.SMTP("127.0.0.1", port) as connection:
        connection.send_message(message(key))


@DBOS.workflow()
def deliver(key: str, port: int) -> None:
    """One mail."""
    send(key, port)


@asynccontextmanager
async def worker(database_url: str, port: int) -> AsyncIterator[Handler]:  # noqa: ARG001
    """Runs workflows; no commands."""

    def start() -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": database_url,
                "application_version": VERSION,
                "log_level": "WARNING",
            }
        )
        DBOS.launch()
        DBOS.register_queue(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=POLLING_SECONDS)

    async def handle(_: dict[str, Any]) -> None:
        return None

    await asyncio.to_thread(start)
    try:
        yield handle
    finally:
        await asyncio.to_thread(DBOS.destroy)


@asynccontextmanager
async def application(database_url: str, port: int) -> AsyncIterator[Handler]:
    """Command: enqueue ``number`` mails, a transaction each."""
    client = await asyncio.to_thread(lambda: DBOSClient(system_database_url=database_url))

    def enqueue(prefix: str, number: int) -> None:
        options: Any = {"queue_name": QUEUE, "workflow_name": deliver.__qualname__, "app_version": VERSION}
        for n in range(number):
            client.enqueue(options, f"{prefix}-{n}", port)

    async def handle(command: dict[str, Any]) -> None:
        await asyncio.to_thread(enqueue, command["prefix"], command["number"])

    try:
        yield handle
    finally:
        await asyncio.to_thread(client.destroy)
