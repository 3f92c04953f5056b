"""Mail by Temporal as one writes it first: one workflow, one activity that opens a connection and sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import aiosmtplib
    from temporalio.client import Client
    from temporalio.worker import Worker

    from bench.engine import QUEUE, connect
    from bench.mail import AT_ONCE, message
    from bench.part import Handler


@workflow.defn
class NaiveMail:
    """One workflow, one activity."""

    @workflow.run
    async def run(self, key: str, port: int) -> None:
        """Send it."""
        await workflow.execute_activity(send, args=[key, port], start_to_close_timeout=timedelta(seconds=60))


@activity.defn
async def send(key: str, port: int) -> None:
    """Open a connection and send."""
    await aiosmtplib.send(message(key), hostname="127.0.0.1", port=port, start_tls=False)


async def _client(target: str, tuned: bool) -> Client:
    """With the SDK's defaults, or like ours."""
    return await (connect(target) if tuned else Client.connect(target))


@asynccontextmanager
async def worker(target: str, tuned: bool) -> AsyncIterator[Handler]:
    """Runs them, with the SDK's defaults; no commands."""

    async def handle(_: dict[str, Any]) -> None:
        return None

    async with Worker(await _client(target, tuned), task_queue=QUEUE, workflows=[NaiveMail], activities=[send]):
        yield handle


@asynccontextmanager
async def application(target: str, port: int, tuned: bool) -> AsyncIterator[Handler]:
    """Command: start ``number`` of them, so many calls at a time; nobody waits for their ends."""
    client = await _client(target, tuned)

    async def handle(command: dict[str, Any]) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(n: int) -> None:
            key = f"{command['prefix']}-{n}"
            async with places:
                await client.start_workflow(NaiveMail.run, args=[key, port], id=key, task_queue=QUEUE)

        await asyncio.gather(*(one(n) for n in range(command["number"])))

    yield handle
