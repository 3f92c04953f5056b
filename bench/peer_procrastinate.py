"""procrastinate: jobs in PostgreSQL. https://procrastinate.readthedocs.io"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiosmtplib
from procrastinate import App, PsycopgConnector

from bench.mail import AT_ONCE, message
from bench.part import Handler


def _app(database_url: str) -> tuple[App, Any]:
    app = App(connector=PsycopgConnector(conninfo=database_url))

    @app.task(name="send")
    async def send(key: str, port: int) -> None:
        await aiosmtplib.send(message(key), hostname="127.0.0.1", port=port, start_tls=False)

    return app, send


@asynccontextmanager
async def worker(database_url: str, port: int) -> AsyncIterator[Handler]:  # noqa: ARG001
    """Runs jobs; no commands."""
    app, _ = _app(database_url)

    async def handle(_: dict[str, Any]) -> None:
        return None

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        running = asyncio.create_task(app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False))
        try:
            yield handle
        finally:
            running.cancel()
            await asyncio.wait({running})


@asynccontextmanager
async def application(database_url: str, port: int) -> AsyncIterator[Handler]:
    """Command: defer ``number`` mails, a transaction each."""
    app, send = _app(database_url)

    async def handle(command: dict[str, Any]) -> None:
        for n in range(command["number"]):
            await send.defer_async(key=f"{command['prefix']}-{n}", port=port)

    async with app.open_async():
        yield handle
