"""A process that starts workflows and delivers nothing: ``sendonce starter``."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import psycopg
from temporalio.client import Client
from temporalio.service import RPCError

from sendonce.activities.failures import client_options
from sendonce.activities.leases import StoreHealth
from sendonce.activities.upkeep import UPKEEP_SECONDS, forever
from sendonce.starter import Starter, listen
from sendonce.store import open_pool
from sendonce.store.migrate import check
from sendonce.worker import LONGEST_BACK_OFF, WorkerConfig

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")


async def start_until_signal(config: WorkerConfig) -> None:
    """Start workflows for new mails until SIGTERM or SIGINT. Comes up, and goes on, while a server is away.

    Raises :class:`~sendonce.errors.StoreNotReady` when the schema is missing or older than this release.
    """
    stop, starting = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(_serve(config, stop, starting))
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        if not starting.is_set():
            serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        with suppress(asyncio.CancelledError):
            await serving
        logger.info("stopped")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _serve(config: WorkerConfig, stop: asyncio.Event, starting: asyncio.Event) -> None:
    """``starting`` is set once ``stop`` ends it in order; before that, it may be cancelled."""
    name = config.worker_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    async with AsyncExitStack() as closing:
        for transport in config.transports.values():
            closing.push_async_callback(transport.close)
        await _reached("the store", lambda: asyncio.to_thread(check, config.database_url))
        client = await _reached("Temporal", lambda: Client.connect(**{**config.temporal, **client_options()}))
        pool = open_pool(config.database_url, name=name, max_size=config.pool_size)
        closing.push_async_callback(pool.close)
        await pool.open()
        store = config.store(pool)
        starter = Starter(
            store,
            client,
            config.served_lanes(),
            actor=name,
            prefix=config.task_queue_prefix,
            poll_seconds=config.poll_seconds,
            overdue_seconds=config.overdue_seconds,
        )
        async with asyncio.TaskGroup() as group:
            served = [lane.name for lane in config.served_lanes()]
            beside = [
                group.create_task(
                    forever("heartbeat", UPKEEP_SECONDS, lambda: store.beat(name, "starter", served), StoreHealth())
                )
            ]
            if config.notify:
                beside.append(group.create_task(listen(config.database_url, starter.wake)))
            starting.set()
            logger.info("ready: starter=%s lanes=%s", name, ",".join(served))
            await starter.run(stop)
            for task in beside:
                task.cancel()


async def _reached(what: str, connect: Callable[[], Awaitable[_Found]]) -> _Found:
    delay = 1.0
    while True:
        try:
            return await connect()
        except (psycopg.OperationalError, RuntimeError, RPCError) as error:
            logger.warning("%s cannot be reached (%s); next try in %.0f s", what, type(error).__name__, delay)
            await asyncio.sleep(delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)
