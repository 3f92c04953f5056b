"""pgqueuer: jobs in PostgreSQL, taken in batches. https://pgqueuer.readthedocs.io"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiosmtplib
import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.mail import message
from bench.part import Handler

ENTRY = "send"


@asynccontextmanager
async def worker(database_url: str, port: int) -> AsyncIterator[Handler]:
    """Runs jobs; no commands."""
    connection = await asyncpg.connect(database_url)
    queue = PgQueuer.from_asyncpg_connection(connection)
    await Queries(AsyncpgDriver(connection)).install()

    @queue.entrypoint(ENTRY)
    async def send(job: Any) -> None:
        key = json.loads(job.payload)
        await aiosmtplib.send(message(key), hostname="127.0.0.1", port=port, start_tls=False)

    async def handle(_: dict[str, Any]) -> None:
        return None

    running = asyncio.create_task(queue.run(batch_size=10))
    try:
        yield handle
    finally:
        running.cancel()
        await asyncio.wait({running})
        await connection.close()


@asynccontextmanager
async def application(database_url: str, port: int) -> AsyncIterator[Handler]:  # noqa: ARG001
    """Command: enqueue ``number`` mails, a transaction each."""
    connection = await asyncpg.connect(database_url)
    queries = Queries(AsyncpgDriver(connection))

    async def handle(command: dict[str, Any]) -> None:
        for n in range(command["number"]):
            await queries.enqueue(ENTRY, json.dumps(f"{command['prefix']}-{n}").encode())

    try:
        yield handle
    finally:
        await connection.close()
