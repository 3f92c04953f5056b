"""The one composition root: pools, client, activities, Temporal workers, starter, upkeep; and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import psycopg
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sendonce.activities.attempt import Delivery
from sendonce.activities.failures import client_options, where
from sendonce.activities.inflight import Flights
from sendonce.activities.leases import LeaseKeeper, StoreHealth
from sendonce.activities.look_ups import LookUps
from sendonce.activities.poke import SignalPoker
from sendonce.activities.redirect import Guard
from sendonce.activities.transmission import Means
from sendonce.activities.upkeep import UPKEEP_SECONDS, WAKE_SECONDS, Upkeep, forever
from sendonce.starter import Starter, listen
from sendonce.store import Store, open_pool
from sendonce.store.migrate import check
from sendonce.worker_config import WorkerConfig
from sendonce.workflows import EmailDelivery
from sendonce.workflows.port import task_queue

__all__ = ["WorkerConfig", "run_until_signal", "serve"]

logger = logging.getLogger(__name__)

LOCAL_ACTIVITIES = 150
"""Attempts at once that a lane's workflows may wait for; each holds its place at most ``hand_off_seconds``."""

WORKFLOW_TASKS = 200
"""More than attempts, polls (5) and 2 together: with fewer slots free, eager starts silently stop being eager."""

LONGEST_BACK_OFF = 30.0


async def run_until_signal(
    config: WorkerConfig, *, ready: Callable[[], None] = lambda: None, stop: asyncio.Event | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down in order; a second signal ends the process at once.

    ``ready`` is called when everything runs. ``stop`` ends it too when set.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def ask() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, ask)
    try:
        await serve(config, stop, ready=ready)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def serve(
    config: WorkerConfig,
    stop: asyncio.Event,
    *,
    client: Client | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run a worker until ``stop``. Comes up, and goes on, while the store or Temporal is away.

    ``client`` replaces the connection that ``config.temporal`` describes. ``ready`` is called when everything runs.
    Raises :class:`~sendonce.errors.StoreNotReady` when the schema is missing or older than this release.
    """
    worker_id = config.worker_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    if not await _store_is_ready(config, stop):
        return
    poker, health = SignalPoker(), StoreHealth()
    flights = Flights(poker, config.at_once())
    async with AsyncExitStack() as closing:
        pool = open_pool(config.database_url, name=worker_id, max_size=config.pool_size)
        lease_pool = open_pool(config.database_url, name=f"{worker_id} leases", max_size=1)
        for opened in (pool, lease_pool):
            closing.push_async_callback(opened.close)
            await opened.open()
        store, lease_store = config.store(pool), Store(lease_pool, config.digests)
        for transport in config.transports.values():
            closing.push_async_callback(transport.close)
        keeper = LeaseKeeper(
            lease_store,
            flights,
            health,
            lease_seconds=config.lease_seconds,
            renew_seconds=config.renew_seconds,
        )
        served = [lane.name for lane in config.served_lanes()]
        upkeep = Upkeep(store, poker, config.lanes, config.transports, worker_id, served)
        loops = _Loops()
        closing.push_async_callback(loops.end)
        loops.start(forever("leases", config.renew_seconds, keeper.renew, health))
        loops.start(forever("heartbeat", UPKEEP_SECONDS, upkeep.beat, health))
        loops.start(forever("sweeps", UPKEEP_SECONDS, upkeep.sweep, health))
        loops.start(forever("wakes", WAKE_SECONDS, upkeep.wake, health))
        loops.start(forever("events", UPKEEP_SECONDS, upkeep.join_events, health))
        loops.start(forever("alarms", UPKEEP_SECONDS, upkeep.deliver_alarms, health))
        look_ups = LookUps(store, config.transports, poker, config.lanes, worker_id)
        loops.start(forever("look-ups", UPKEEP_SECONDS, look_ups.round, health))

        client = client or await _connect(config, stop)
        if client is None:
            return
        poker.client = client
        means = Means(
            store,
            flights,
            health,
            config.transports,
            Guard(
                config.redirect_all_to, None if config.allowed_domains is None else frozenset(config.allowed_domains)
            ),
            worker_id,
            config.lease_seconds,
            config.window_margin,
            config.templates,
            config.template_patience,
        )
        delivery = Delivery(
            means, config.lanes, hand_off_seconds=config.hand_off_seconds, breaker_mails=config.breaker_mails
        )
        lanes = _TemporalWorkers(client, delivery, config, stop)
        starter = Starter(
            store,
            client,
            config.served_lanes(),
            actor=worker_id,
            prefix=config.task_queue_prefix,
            poll_seconds=config.poll_seconds,
            overdue_seconds=config.overdue_seconds,
            full_accounts=flights.full_accounts,
            full_domains=flights.full_domains,
        )
        lanes.start()
        starting = asyncio.create_task(_start_workflows(config, starter, stop))
        # It ends before it is told to only by a fault of ours; a supervisor is to start the process anew.
        starting.add_done_callback(lambda task: stop.set() if not task.cancelled() and task.exception() else None)
        logger.info(
            "ready: worker=%s lanes=%s accounts=%s",
            worker_id,
            ",".join(lane.name for lane in config.served_lanes()),
            ",".join(config.transports) or "-",
        )
        try:
            ready()
            await stop.wait()
        finally:
            await _shut_down(config, starting, flights, lanes, stop)
        starting.result()
        lanes.raise_failure()


async def _start_workflows(config: WorkerConfig, starter: Starter, stop: asyncio.Event) -> None:
    if not config.with_starter:
        return
    listening = asyncio.create_task(listen(config.database_url, starter.wake)) if config.notify else None
    try:
        await starter.run(stop)
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.wait({listening})


async def _shut_down(
    config: WorkerConfig, starting: asyncio.Task[None], flights: Flights, lanes: _TemporalWorkers, stop: asyncio.Event
) -> None:
    """No new starts, no new claims, no new tasks; then what has begun gets its time. Leases are kept throughout."""
    logger.info("stopping: %d attempts in flight", len(flights))
    stop.set()
    await asyncio.wait({starting})
    flights.close()
    ending = asyncio.create_task(lanes.end())
    cut = await flights.drain(config.drain_seconds)
    await ending
    logger.info("stopped: %d attempts were cut after %g s", cut, config.drain_seconds)


class _Loops:
    """Background tasks that end together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, body: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(body))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _TemporalWorkers:
    """One Temporal worker per lane on one client, each replaced when it fails."""

    def __init__(self, client: Client, delivery: Delivery, config: WorkerConfig, stop: asyncio.Event) -> None:
        self._client = client
        self._stop = stop
        self._delivery = delivery
        self._queues = [task_queue(config.task_queue_prefix, lane.name) for lane in config.served_lanes()]
        self._current: dict[str, Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()

    def start(self) -> None:
        for queue in self._queues:
            self._current[queue] = self._worker(queue)
            task = asyncio.create_task(self._run(queue))
            # One that could not be replaced ends the process, in order: a supervisor is to start it anew.
            task.add_done_callback(
                lambda ended: self._stop.set() if not ended.cancelled() and ended.exception() else None
            )
            self._tasks.append(task)

    async def _run(self, queue: str) -> None:
        delay = 1.0
        while not self._ending.is_set():
            try:
                await self._current[queue].run()
            except Exception as error:
                logger.error("worker of %s ended, next in %.0f s: %s", queue, delay, where(error))
                await _pause(self._ending, delay)
                delay = min(LONGEST_BACK_OFF, delay * 2)
                if self._ending.is_set():
                    return
                self._current[queue] = self._worker(queue)

    async def end(self) -> None:
        self._ending.set()
        closing = [asyncio.create_task(worker.shutdown()) for worker in self._current.values()]
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)

    def raise_failure(self) -> None:
        """Raise what ended a worker that could not be replaced."""
        for task in self._tasks:
            task.result()

    def _worker(self, queue: str) -> Worker:
        return Worker(
            self._client,
            task_queue=queue,
            workflows=[EmailDelivery],
            activities=[self._delivery.attempt, self._delivery.withdraw],
            workflow_runner=SandboxedWorkflowRunner(
                restrictions=SandboxRestrictions.default.with_passthrough_modules("sendonce")
            ),
            max_concurrent_workflow_tasks=WORKFLOW_TASKS,
            max_concurrent_local_activities=LOCAL_ACTIVITIES,
            # Every activity here is a local one: nothing to poll for.
            no_remote_activities=True,
        )


async def _store_is_ready(config: WorkerConfig, stop: asyncio.Event) -> bool:
    """Wait for the store and check its schema; False when ``stop`` came first."""
    delay = 1.0
    while not stop.is_set():
        try:
            await asyncio.to_thread(check, config.database_url)
        except psycopg.OperationalError as error:
            # The driver's words: host, user and database, never the password.
            why = " ".join(str(error).split())[:300]
            logger.warning("the store cannot be reached (%s); next try in %.0f s", why, delay)
            await _pause(stop, delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)
        else:
            return True
    return False


async def _connect(config: WorkerConfig, stop: asyncio.Event) -> Client | None:
    """Wait for Temporal and its namespace; None when ``stop`` came first."""
    delay = 1.0
    while not stop.is_set():
        try:
            client = await Client.connect(**{**config.temporal, **client_options()})
            # A worker whose namespace is missing fails for good: the SDK lets nobody take its place.
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
            return client
        except (RuntimeError, RPCError) as error:
            reason = error.status.name if isinstance(error, RPCError) else type(error).__name__
            logger.warning(
                "Temporal at %s, namespace %s, cannot be used (%s); next try in %.0f s",
                config.temporal.get("target_host", "its default address"),
                config.temporal.get("namespace", "default"),
                reason,
                delay,
            )
            await _pause(stop, delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)
    return None


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    await asyncio.wait({waiting := asyncio.ensure_future(stop.wait())}, timeout=seconds)
    waiting.cancel()
