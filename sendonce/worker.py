"""The one composition root: pools, client, activities, Temporal workers, starter, upkeep; and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import psycopg
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sendonce.activities.attempt import Delivery
from sendonce.activities.continuity import Continuity
from sendonce.activities.failures import client_options, said_of, where
from sendonce.activities.inflight import Flights
from sendonce.activities.leases import LeaseKeeper, StoreHealth
from sendonce.activities.look_ups import LookUps
from sendonce.activities.poke import SignalPoker
from sendonce.activities.pulse import Pulse
from sendonce.activities.redirect import Guard
from sendonce.activities.retention import Rounds, keep_schedule
from sendonce.activities.rotation import Rotation, Rotator, close_all
from sendonce.activities.telling import Telling
from sendonce.activities.transmission import Means
from sendonce.activities.upkeep import UPKEEP_SECONDS, WAKE_SECONDS, Loops, Upkeep, forever
from sendonce.ending import end
from sendonce.precedence import Precedence
from sendonce.starter import Starter, listen
from sendonce.store import Store, open_pool
from sendonce.store.examination import why
from sendonce.watching.health import watch_temporal
from sendonce.watching.watch import Watch
from sendonce.worker_config import WorkerConfig
from sendonce.workflows import EmailDelivery, EmailOutcome
from sendonce.workflows.port import task_queue
from sendonce.workflows.upkeep import Upkeep as UpkeepWorkflow
from sendonce.workflows.upkeep import upkeep_id

__all__ = ["WorkerConfig", "run_until_signal", "serve"]

logger = logging.getLogger(__name__)

LOCAL_ACTIVITIES = 150
"""Attempts at once that a lane's workflows may wait for; each holds its place at most ``hand_off_seconds``."""

WORKFLOW_TASKS = 200
"""More than attempts, polls (5) and 2 together: with fewer slots free, eager starts silently stop being eager."""

_SANDBOX = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("sendonce"))

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
    poker, health, pulse = SignalPoker(), StoreHealth(), Pulse()
    precedence = Precedence()
    continuity = Continuity(config.task_queues(), failover=config.failover, kept_days=config.kept_days)
    flights = Flights(
        poker,
        config.at_once(),
        begins=lambda flight: precedence.arrives(flight.email_id),
        halted=lambda: continuity.halted,
        timeline=lambda: continuity.timeline,
    )
    served = [lane.name for lane in config.served_lanes()]
    async with AsyncExitStack() as closing:
        pool = open_pool(
            config.database_url,
            name=worker_id,
            max_size=config.pool_size,
            pooler=config.pooler,
            connected=continuity.connected,
        )
        lease_pool = open_pool(config.database_url, name=f"{worker_id} leases", max_size=1, pooler=config.pooler)
        watch_pool = open_pool(config.database_url, name=f"{worker_id} watch", max_size=2, pooler=config.pooler)
        for opened in (pool, lease_pool, watch_pool):
            closing.push_async_callback(opened.close)
        watch = Watch(
            config.watching,
            Store(watch_pool),
            pulse,
            process=worker_id,
            kind="worker",
            served=served,
            accounts=list(config.transports),
            lanes=list(config.lanes),
            pools={"mails": pool, "leases": lease_pool, "watch": watch_pool},
            in_flight=lambda: len(flights),
        )
        # It listens before anything else is there: that is when it is asked whether this process is ready.
        closing.push_async_callback(watch.close)
        await watch.open()
        if not await _store_is_ready(config, stop):
            return
        for opened in (pool, lease_pool, watch_pool):
            await opened.open()
        store, lease_store = config.store(pool), Store(lease_pool, config.digests)
        transports = dict(config.transports)
        rotator = Rotator(config.rotated or Rotation, transports, (store, lease_store), flights)
        closing.push_async_callback(close_all, transports)
        keeper = LeaseKeeper(
            lease_store,
            flights,
            health,
            lease_seconds=config.lease_seconds,
            renew_seconds=config.renew_seconds,
        )
        upkeep = Upkeep(store, poker, config.lanes, transports, worker_id)
        loops = Loops()
        closing.push_async_callback(loops.end)
        loops.start(forever("leases", config.renew_seconds, keeper.renew, health, pulse))
        loops.start(forever("sweeps", UPKEEP_SECONDS, upkeep.sweep, health, pulse))
        loops.start(forever("wakes", WAKE_SECONDS, upkeep.wake, health, pulse))
        loops.start(forever("events", UPKEEP_SECONDS, upkeep.join_events, health, pulse))
        telling = Telling(store)
        loops.start(forever("news", WAKE_SECONDS, telling.round, health, pulse))
        look_ups = LookUps(store, transports, poker, config.lanes, worker_id)
        loops.start(forever("look-ups", UPKEEP_SECONDS, look_ups.round, health, pulse))
        for name, body in watch.loops():
            loops.start(forever(name, UPKEEP_SECONDS, body, watch.health, pulse))

        client = client or await _connect(config, stop)
        if client is None:
            return
        poker.client = telling.client = rotator.client = client
        if config.rotated is not None:
            loops.start(forever("rotation", UPKEEP_SECONDS, rotator.round, health, pulse))
        if not await _is_the_store_that_it_was(continuity, store, client, stop):
            return
        loops.start(forever("continuity", UPKEEP_SECONDS, lambda: continuity.look(store, client), health, pulse))
        if config.watching.listen is not None:
            ask = partial(client.workflow_service.get_system_info, GetSystemInfoRequest())
            loops.start(watch_temporal(ask, pulse, seconds=UPKEEP_SECONDS))
        means = Means(
            store,
            flights,
            health,
            transports,
            Guard(
                config.redirect_all_to, None if config.allowed_domains is None else frozenset(config.allowed_domains)
            ),
            worker_id,
            config.lease_seconds,
            config.window_margin,
            config.templates,
            config.template_patience,
            watch.observer,
        )
        delivery = Delivery(
            means, config.lanes, hand_off_seconds=config.hand_off_seconds, breaker_mails=config.breaker_mails
        )
        lanes = _TemporalWorkers(client, delivery, telling, config, stop)
        if config.retention is not None:
            lanes.serve_upkeep(Rounds(store, config.retention, config.lanes, worker_id))
            loops.start(keep_schedule(client, config.task_queue_prefix, config.retention))
            # Here, because whoever erases with time has the rights for it.
            loops.start(forever("erasures", UPKEEP_SECONDS, upkeep.erase, health, pulse))
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
            precedence=precedence,
            in_flight=flights.young,
            halted=lambda: continuity.halted,
            pulse=pulse,
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
        pulse.ready = True
        try:
            ready()
            await stop.wait()
        finally:
            pulse.stopping = True
            await _shut_down(config, starting, flights, lanes, stop)
        starting.result()
        lanes.raise_failure()


async def _start_workflows(config: WorkerConfig, starter: Starter, stop: asyncio.Event) -> None:
    if not config.with_starter:
        return
    listening = asyncio.create_task(listen(config.database_url, starter.wake)) if config.listens else None
    try:
        await starter.run(stop)
    finally:
        if listening is not None:
            await end([listening])


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


class _TemporalWorkers:
    """One Temporal worker per lane on one client, each replaced when it fails."""

    def __init__(
        self, client: Client, delivery: Delivery, telling: Telling, config: WorkerConfig, stop: asyncio.Event
    ) -> None:
        self._client = client
        self._telling = telling
        self._stop = stop
        self._delivery = delivery
        self._runner = _SANDBOX if config.sandboxed else UnsandboxedWorkflowRunner()
        self._queues = [task_queue(config.task_queue_prefix, lane.name) for lane in config.served_lanes()]
        self._rounds: Rounds | None = None
        self._upkeep_queue = upkeep_id(config.task_queue_prefix)
        self._current: dict[str, Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()

    def serve_upkeep(self, rounds: Rounds) -> None:
        """Serve the upkeep's queue, too. To be called before :meth:`start`."""
        self._rounds = rounds
        self._queues.append(self._upkeep_queue)

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
        await end(closing)

    def raise_failure(self) -> None:
        """Raise what ended a worker that could not be replaced."""
        for task in self._tasks:
            task.result()

    def _worker(self, queue: str) -> Worker:
        if self._rounds is not None and queue == self._upkeep_queue:
            # One round at a time is all there ever is.
            return Worker(
                self._client,
                task_queue=queue,
                workflows=[UpkeepWorkflow],
                activities=[self._rounds.round],
                workflow_runner=self._runner,
                max_concurrent_workflow_tasks=2,
                max_concurrent_local_activities=1,
                max_concurrent_workflow_task_polls=2,
                no_remote_activities=True,
            )
        return Worker(
            self._client,
            task_queue=queue,
            workflows=[EmailDelivery, EmailOutcome],
            activities=[self._delivery.attempt, self._delivery.withdraw, self._delivery.act, self._telling.watch],
            workflow_runner=self._runner,
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
            await config.check_store()
        except psycopg.OperationalError as error:
            logger.warning("the store cannot be reached (%s); next try in %.0f s", why(error), delay)
            await _pause(stop, delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)
        else:
            return True
    return False


async def _is_the_store_that_it_was(continuity: Continuity, store: Store, client: Client, stop: asyncio.Event) -> bool:
    """Take the first look at it, before anything is started; False when ``stop`` came first."""
    while not stop.is_set():
        try:
            await continuity.look(store, client)
        except psycopg.OperationalError as error:
            logger.warning("the store cannot be reached (%s); trying on", type(error).__name__)
            await _pause(stop, 1.0)
        else:
            return True
    return False


async def _connect(config: WorkerConfig, stop: asyncio.Event) -> Client | None:
    """Wait for Temporal and its namespace; None when ``stop`` came first."""
    delay = 1.0
    while not stop.is_set():
        try:
            client = await Client.connect(**{**config.temporal, **client_options(config.payload_codec)})
            # A worker whose namespace is missing fails for good: the SDK lets nobody take its place.
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
            return client
        except (RuntimeError, RPCError) as error:
            logger.warning(
                "Temporal at %s, namespace %s, cannot be used (%s); next try in %.0f s",
                config.temporal.get("target_host", "its default address"),
                config.temporal.get("namespace", "default"),
                said_of(error),
                delay,
            )
            await _pause(stop, delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)
    return None


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    await asyncio.wait({waiting := asyncio.ensure_future(stop.wait())}, timeout=seconds)
    waiting.cancel()
