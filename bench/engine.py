"""Workflows to compare with: empty ones, and the bare path from a notification to code."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
from temporalio import activity, workflow
from temporalio.client import Client, GrpcCompression
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.mail import AT_ONCE
from bench.part import Handler

QUEUE = "bench"
CHANNEL = "bench_bare"


async def connect(target: str) -> Client:
    """A client like ours: gRPC is not compressed, which costs more than it saves here."""
    return await Client.connect(target, grpc_compression=GrpcCompression.NONE)


# The floor ----------------------------------------------------------------------------------------------------------

_ran = asyncio.Semaphore(0)
"""Released by each empty workflow, in the process that also starts them: nobody need ask the server for results."""


@workflow.defn(name="Empty")
class Empty:
    """The least that a workflow can be."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""
        _ran.release()


@asynccontextmanager
async def floor(target: str) -> AsyncIterator[Handler]:
    """Command: run ``number`` empty workflows, started eagerly from the process whose worker runs them."""
    client = await connect(target)

    async def handle(command: dict[str, Any]) -> None:
        prefix, number = command["prefix"], command["number"]

        async def start(n: int) -> Any:
            return await client.start_workflow(
                Empty.run, id=f"{prefix}-{n}", task_queue=QUEUE, request_eager_start=True
            )

        starting = set()
        for n in range(number):
            if n >= AT_ONCE:
                await _ran.acquire()
            starting.add(asyncio.create_task(start(n)))
        handles = await asyncio.gather(*starting)
        for _ in range(min(number, AT_ONCE)):
            await _ran.acquire()
        await handles[-1].result()

    async with Worker(client, task_queue=QUEUE, workflows=[Empty], workflow_runner=UnsandboxedWorkflowRunner()):
        yield handle


# From a notification to code ------------------------------------------------------------------------------------------

_awaited: dict[str, asyncio.Future[float]] = {}


@activity.defn(name="reached")
async def reached(key: str) -> None:
    """Say when this was reached."""
    _awaited.pop(key).set_result(time.monotonic())


@workflow.defn(name="Bare")
class Bare:
    """One local activity."""

    @workflow.run
    async def run(self, key: str) -> None:
        """Run it."""
        await workflow.execute_local_activity("reached", key, start_to_close_timeout=timedelta(seconds=10))


@asynccontextmanager
async def bare(target: str, database_url: str) -> AsyncIterator[Handler]:
    """Command: notify, and say how long it took from the commit of the notification to the first line of an eager
    workflow's local activity. The least that anything built of these parts can take.
    """
    client = await connect(target)
    numbers = itertools.count()

    async def listen(listening: asyncio.Event) -> None:
        connection = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            listening.set()
            async for notify in connection.notifies():
                await client.start_workflow(
                    Bare.run, notify.payload, id=notify.payload, task_queue=QUEUE, request_eager_start=True
                )

    notifier = await psycopg.AsyncConnection.connect(database_url)

    async def handle(_: dict[str, Any]) -> float:
        key = f"bare-{next(numbers)}"
        arrival: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        _awaited[key] = arrival
        await notifier.execute("SELECT pg_notify(%s, %s)", [CHANNEL, key])
        await notifier.commit()
        committed = time.monotonic()
        return await arrival - committed

    listening = asyncio.Event()
    task = asyncio.create_task(listen(listening))
    await listening.wait()
    async with (
        notifier,
        Worker(
            client,
            task_queue=QUEUE,
            workflows=[Bare],
            activities=[reached],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        try:
            yield handle
        finally:
            task.cancel()
            await asyncio.wait({task})
