"""The delivering side of a test: Temporal's time-skipping server, a worker, and the playing providers.

Time moves only here, and only while every workflow sleeps: from one thing that falls due to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from psycopg_pool import AsyncConnectionPool
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from sendonce.activities.failures import client_options
from sendonce.activities.look_ups import LookUps
from sendonce.activities.poke import SignalPoker
from sendonce.activities.upkeep import Upkeep
from sendonce.embedded import start_time_skipping
from sendonce.search_attributes import registered
from sendonce.starter import Starter
from sendonce.store import open_pool
from sendonce.store import testing as store
from sendonce.testing.kit.clock import Clock
from sendonce.testing.kit.provider import Provider
from sendonce.testing.kit.settings import KitSettings
from sendonce.testing.kit.watch import Watch
from sendonce.worker import WorkerConfig, serve

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport

_NAME = "sendonce.testing"
_LATE = 0.02
"""Seconds by which time is moved beyond what falls due, so that it has."""
_STUCK_STEP = 60.0
"""Seconds between two tries to start a mail that waits for a slot."""


class Delivery:
    """One for each test; every method runs in the kit's own loop."""

    def __init__(
        self, database_url: str, settings: KitSettings, clock: Clock, providers: Mapping[str, Provider]
    ) -> None:
        self.watch = Watch(clock)
        self._database_url, self._settings = database_url, settings
        self._clock, self._providers = clock, providers
        self._closing = contextlib.AsyncExitStack()
        self._environment: WorkflowEnvironment
        self._pool: AsyncConnectionPool
        self._starter: Starter
        self._upkeep: Upkeep
        self._look_ups: LookUps
        self.address = ""
        """Where Temporal is."""

    async def start(self) -> None:
        """Bring everything up. Whatever is raised, :meth:`stop` ends what runs."""
        self._environment = await start_time_skipping()
        self._closing.push_async_callback(self._environment.shutdown)
        self.address = self._environment.client.service_client.config.target_host
        await asyncio.to_thread(store.own_clock, self._database_url)
        self._closing.push_async_callback(asyncio.to_thread, store.real_clock, self._database_url)
        transports = await self._transports()
        config = WorkerConfig(
            **{
                "database_url": self._database_url,
                "transports": transports,
                "lanes": self._settings.lanes,
                "templates": self._settings.library(),
                "worker_id": _NAME,
                "drain_seconds": 1.0,
                # An attempt is waited for, however long it takes, and starts are made here.
                "hand_off_seconds": None,
                "with_starter": False,
                **self._settings.options,
            }
        )
        client = self._client()
        registered(client).do_without()
        await self._work(config, client)
        self._pool = open_pool(self._database_url, name=f"{_NAME} kit", max_size=4)
        self._closing.push_async_callback(self._pool.close)
        await self._pool.open()
        made = config.store(self._pool)
        poker = SignalPoker()
        poker.client = client
        self._starter = Starter(made, client, config.served_lanes(), actor=_NAME, prefix=config.task_queue_prefix)
        self._upkeep = Upkeep(made, poker, config.lanes, transports, _NAME)
        self._look_ups = LookUps(made, transports, poker, config.lanes, _NAME)

    async def stop(self) -> None:
        """End everything; the store's clock is the real one again."""
        await self._closing.aclose()

    async def settle(self) -> None:
        """Do everything that is due, without moving time."""
        for provider in self._providers.values():
            await provider.keep_time()
        while True:
            answers = self.watch.answers
            started = await self._starter.once()
            await self._upkeep.sweep()
            await self._upkeep.wake()
            await self._look_ups.round()
            await self.watch.all_asleep()
            if not started and answers == self.watch.answers:
                return

    async def skip(self, seconds: float) -> None:
        """Let so many seconds pass; whatever falls due on the way is done at its time."""
        end = self._clock.now().timestamp() + seconds
        await self.settle()
        while (left := end - self._clock.now().timestamp()) > 0:
            await self._move(min(left, await self._next_in(left)))
            await self.settle()

    async def until_idle(self, seconds: float) -> bool:
        """Let time pass until no mail will be tried again; False when some will be after so many seconds."""
        end = self._clock.now().timestamp() + seconds
        await self.settle()
        while (await self._agenda()).open:
            left = end - self._clock.now().timestamp()
            if left <= 0:
                return False
            await self._move(await self._next_in(left))
            await self.settle()
        return True

    async def alarms(self) -> list[tuple[str, str, str]]:
        """The open alarms: kind, account and detail."""
        async with self._pool.connection() as connection:
            return await store.alarms(connection)

    async def _transports(self) -> dict[str, Transport]:
        transports = {name: one for name, one in self._settings.accounts.items() if not isinstance(one, str)}
        for name, provider in self._providers.items():
            self._closing.push_async_callback(provider.close)
            transports[name] = await provider.start()
        return transports

    def _client(self) -> Client:
        options = self._environment.client.config()
        options["interceptors"] = [*options["interceptors"], self.watch]
        options["data_converter"] = client_options()["data_converter"]
        return Client(**options)

    async def _work(self, config: WorkerConfig, client: Client) -> None:
        ready, stop = asyncio.Event(), asyncio.Event()
        working = asyncio.create_task(serve(config, stop, client=client, ready=ready.set))

        async def end() -> None:
            stop.set()
            await working

        self._closing.push_async_callback(end)
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if working.done():
            working.result()

    async def _agenda(self) -> store.Agenda:
        async with self._pool.connection() as connection:
            return await store.agenda(connection)

    async def _next_in(self, longest: float) -> float:
        """Seconds until something falls due, at most ``longest``."""
        agenda = await self._agenda()
        times = [longest, *([_STUCK_STEP] if agenda.stuck else [])]
        times += [seconds for seconds in (agenda.next_in, self.watch.next_in()) if seconds is not None]
        return max(0.0, min(times)) + _LATE

    async def _move(self, seconds: float) -> None:
        """Move time: Temporal's, then the store's, then the providers'."""
        self.watch.hold()
        before = self._clock.ahead
        await self._environment.sleep(timedelta(seconds=seconds))
        now = await self._environment.get_current_time()
        self._clock.ahead = (now - datetime.now(UTC)).total_seconds()
        async with self._pool.connection() as connection:
            await store.set_ahead(connection, self._clock.ahead)
        for provider in self._providers.values():
            provider.advance(self._clock.ahead - before)
            await provider.keep_time()
        self.watch.go()
