"""Celery with Redis: tasks in memory and in an append-only file. https://docs.celeryq.dev"""

from __future__ import annotations

import asyncio
import os
import smtplib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery

from bench.mail import message
from bench.part import ROOT, Handler

PROCESSES = 4
BROKER = "BENCH_BROKER"

app = Celery("bench", broker=os.environ.get(BROKER, ""))
# A task is taken off the queue when it has ended, not when it begins: else a crash loses its mail.
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4)


@app.task(name="send")
def send(key: str, port: int) -> None:
    """Open a connection and send."""
    with smtplib.SMTP("127.0.0.1", port) as connection:
        connection.send_message(message(key))


@asynccontextmanager
async def worker(broker: str, port: int) -> AsyncIterator[Handler]:  # noqa: ARG001
    """The command ``celery worker``, below this process; no commands."""

    async def handle(_: dict[str, Any]) -> None:
        return None

    arguments = ("-A", "bench.peer_celery", "worker", "-c", str(PROCESSES), "--loglevel", "ERROR")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "celery", *arguments, *quiet),
        env={**os.environ, BROKER: broker},
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        yield handle
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def application(broker: str, port: int) -> AsyncIterator[Handler]:
    """Command: queue ``number`` mails."""
    app.conf.broker_url = broker

    def queue(prefix: str, number: int) -> None:
        for n in range(number):
            send.delay(f"{prefix}-{n}", port)

    async def handle(command: dict[str, Any]) -> None:
        await asyncio.to_thread(queue, command["prefix"], command["number"])

    yield handle
