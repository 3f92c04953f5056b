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
from functools import partial
from typing import TypeVar

import psycopg
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from sendonce.activities.continuity import Continuity
from sendonce.activities.failures import client_options, said_of
from sendonce.activities.pulse import Pulse
from sendonce.activities.rotation import Rotation, Rotator, close_all
from sendonce.activities.upkeep import UPKEEP_SECONDS, Loops, forever
from sendonce.starter import Starter, listen
from sendonce.store import Store, open_pool
from sendonce.store.examination import why
from sendonce.watching.health import watch_temporal
from sendonce.watching.watch import Watch
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
        transports = dict(config.transports)
        closing.push_async_callback(close_all, transports)
        served, pulse = [lane.name for lane in config.served_lanes()], Pulse()
        continuity = Continuity(config.task_queues(), failover=config.failover, kept_days=config.kept_days)
        pool = open_pool(
            config.database_url,
            name=name,
            max_size=config.pool_size,
            pooler=config.pooler,
            connected=continuity.connected,
        )
        watch_pool = open_pool(config.database_url, name=f"{name} watch", max_size=2, pooler=config.pooler)
        for opened in (pool, watch_pool):
            closing.push_async_callback(opened.close)
        watch = Watch(
            config.watching,
            Store(watch_pool),
            pulse,
            process=name,
            kind="starter",
            served=served,
            accounts=list(config.transports),
            lanes=list(config.lanes),
            pools={"mails": pool, "watch": watch_pool},
        )
        closing.push_async_callback(watch.close)
        await watch.open()
        await _reached("the store", config.check_store)
        for opened in (pool, watch_pool):
            await opened.open()
        # Before Temporal is there: alarms are told, and this process is alive.
        loops = Loops()
        closing.push_async_callback(loops.end)
        for loop, body in watch.loops():
            loops.start(forever(loop, UPKEEP_SECONDS, body, watch.health, pulse))
        client = await _reached(
            "Temporal", lambda: Client.connect(**{**config.temporal, **client_options(config.payload_codec)})
        )
        store = config.store(pool)
        rotator = Rotator(config.rotated or Rotation, transports, (store,))
        rotator.client = client
        starter = Starter(
            store,
            client,
            config.served_lanes(),
            actor=name,
            prefix=config.task_queue_prefix,
            poll_seconds=config.poll_seconds,
            overdue_seconds=config.overdue_seconds,
            halted=lambda: continuity.halted,
            pulse=pulse,
        )
        await _reached("the store", lambda: continuity.look(store, client))
        look = partial(continuity.look, store, client)
        loops.start(forever("continuity", UPKEEP_SECONDS, look, watch.health, pulse))
        if config.rotated is not None:
            loops.start(forever("rotation", UPKEEP_SECONDS, rotator.round, watch.health, pulse))
        if config.watching.listen is not None:
            ask = partial(client.workflow_service.get_system_info, GetSystemInfoRequest())
            loops.start(watch_temporal(ask, pulse, seconds=UPKEEP_SECONDS))
        if config.listens:
            loops.start(listen(config.database_url, starter.wake))
        starting.set()
        pulse.ready = True
        logger.info("ready: starter=%s lanes=%s", name, ",".join(served))
        await starter.run(stop)
        pulse.stopping = True


async def _reached(what: str, connect: Callable[[], Awaitable[_Found]]) -> _Found:
    delay = 1.0
    while True:
        try:
            return await connect()
        except (psycopg.OperationalError, RuntimeError, RPCError) as error:
            said = why(error) if isinstance(error, psycopg.Error) else said_of(error)
            logger.warning("%s cannot be reached (%s); next try in %.0f s", what, said, delay)
            await asyncio.sleep(delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)
