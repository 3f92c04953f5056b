"""All that watches one process, put together: heartbeat, alarms, counts, health, and the endpoint that shows them."""

from __future__ import annotations

import asyncio
import http.client
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg_pool import AsyncConnectionPool

from sendonce.activities.leases import StoreHealth
from sendonce.activities.observer import Observer
from sendonce.activities.pulse import Pulse
from sendonce.errors import ConfigurationError
from sendonce.outcome import AttemptResult
from sendonce.store import Store
from sendonce.store.heartbeats import SILENT_SECONDS
from sendonce.store.records import Claimed, Standing
from sendonce.watching.config import Watching
from sendonce.watching.endpoint import Answer, Endpoint
from sendonce.watching.health import TICK_SECONDS, Health
from sendonce.watching.lateness import Lateness
from sendonce.watching.sinks import LogSink
from sendonce.watching.telling import Teller
from sendonce.watching.transactions import OldTransactions

if TYPE_CHECKING:
    from sendonce.watching.metrics import Metrics, Seen
    from sendonce.watching.tracing import Tracing

logger = logging.getLogger(__name__)

SDK_SECONDS = 2.0
"""How long the Temporal SDK's own metrics are waited for."""

Loop = tuple[str, Callable[[], Awaitable[object]]]


class Watch:
    """What watches one process. Open it, run its loops, close it when they have ended."""

    def __init__(
        self,
        watching: Watching,
        store: Store,
        pulse: Pulse,
        *,
        process: str,
        kind: str,
        served: Sequence[str],
        accounts: Sequence[str],
        lanes: Sequence[str],
        pools: Mapping[str, AsyncConnectionPool],
        in_flight: Callable[[], int] = lambda: 0,
    ) -> None:
        """``store`` must be over connections that no mail needs. ``served`` are the lanes of this process, ``lanes``
        and ``accounts`` all that are configured. ``kind``: worker or starter.
        """
        self._watching = watching
        self._store = store
        self._pulse = pulse
        self._process, self._kind, self._served = process, kind, list(served)
        self._accounts, self._lanes = list(accounts), list(lanes)
        self._pools = dict(pools)
        self._in_flight = in_flight
        self._sinks = [LogSink(), *watching.sinks]
        self._lateness = Lateness(store, watching.limits)
        self._transactions = OldTransactions(store, watching.limits.old_transaction_seconds)
        self._health = Health(pulse)
        self._closing = AsyncExitStack()
        self._metrics: Metrics | None = None
        self._seen: Seen | None = None
        self.health = StoreHealth()
        """Of these loops alone: whether they reach the store says nothing about the mails' connections."""
        self.observer: Observer = Observer()
        self.port: int | None = None
        """Where the endpoint listens; None: it does not."""

    async def open(self) -> None:
        """Bind the endpoint, begin to trace. Raises ConfigurationError when something cannot be."""
        tracing = None
        if self._watching.trace_exporter is not None:
            from sendonce.watching.tracing import open_tracing

            tracing = open_tracing(self._watching.trace_exporter, self._watching.trace_service)
            self._closing.push_async_callback(tracing.close)
        if self._watching.listen is not None:
            self._listen(*self._watching.listen)
        if tracing is not None or self._metrics is not None:
            self.observer = _Observing(self._metrics, tracing)
        for sink in self._sinks:
            self._closing.push_async_callback(sink.close)
        ticking = asyncio.create_task(self._tick())
        self._closing.callback(ticking.cancel)

    def _listen(self, host: str, port: int) -> None:
        # Loaded here: a process that nobody asks needs no client of Prometheus.
        from sendonce.watching.metrics import Metrics, Seen

        self._seen = Seen()
        self._metrics = Metrics(
            self._pulse, self._seen, accounts=self._accounts, lanes=self._lanes, clock=time.monotonic
        )
        routes = {"/metrics": self._shown, "/healthz": self._health.alive, "/readyz": self._health.readiness}
        try:
            endpoint = Endpoint(host, port, routes)
        except OSError as error:
            raise ConfigurationError(f"[watch] cannot listen on {host} port {port}: {error.strerror}") from None
        self._closing.callback(endpoint.close)
        self.port = endpoint.port
        logger.info("metrics and health: http://%s:%d/metrics, /healthz, /readyz", host, self.port)

    def loops(self) -> list[Loop]:
        """What is to come round every few seconds, by name."""
        told = self._metrics.told if self._metrics is not None else lambda _sink, _arrived: None
        teller = Teller(self._store, self._sinks, repeat_seconds=self._watching.repeat_seconds, counted=told)
        return [
            ("heartbeat", self.beat),
            ("judge", self._judge),
            ("sample", self._sample),
            ("alarms", teller.take),
            *((f"alarms:{sink.audience.name}", partial(teller.tell, sink)) for sink in self._sinks),
        ]

    async def close(self) -> None:
        """Leave: nobody is to miss this process."""
        with suppress(psycopg.OperationalError, TimeoutError):
            async with asyncio.timeout(SILENT_SECONDS / 10):
                await self._store.leave(self._process)
        await self._closing.aclose()

    async def beat(self) -> None:
        """Say that this process is alive, and how its loops are."""
        try:
            await self._store.beat(self._process, self._kind, self._served, self._pulse.beats())
        except BaseException:
            self._pulse.store_up = False
            raise
        self._pulse.store_up = True

    async def _judge(self) -> None:
        ago = self.health.ago()
        # While we were away nobody could be seen.
        if ago is None or ago > SILENT_SECONDS:
            await self._store.judge_heartbeats(self._process)

    async def _sample(self) -> None:
        sample = await self._store.sample(every_seconds=self._watching.sample_seconds)
        if self._seen is not None:
            self._seen.sample, self._seen.sampled_at = sample, time.monotonic()
        if sample.fresh:
            await self._lateness.judge(sample)
            await self._transactions.judge()

    async def _tick(self) -> None:
        while True:
            self._health.tick()
            if self._seen is not None:
                self._seen.in_flight = self._in_flight()
                self._seen.pools = {name: _states(pool) for name, pool in self._pools.items()}
            await asyncio.sleep(TICK_SECONDS)

    def _shown(self) -> Answer:
        from sendonce.watching.metrics import CONTENT_TYPE

        assert self._metrics is not None
        return Answer(200, self._metrics.text() + _of_sdk(self._watching.sdk_metrics), CONTENT_TYPE)


def _states(pool: AsyncConnectionPool) -> dict[str, int]:
    stats = pool.get_stats()
    idle, size = stats.get("pool_available", 0), stats.get("pool_size", 0)
    waiting = stats.get("requests_waiting", 0)
    return {
        "used": size - idle,
        "idle": idle,
        "most": stats.get("pool_max", 0),
        "waited_for": waiting,
    }


def _of_sdk(address: str | None) -> bytes:
    """What the Temporal SDK shows on loopback; nothing when it does not answer."""
    if address is None:
        return b""
    connection = http.client.HTTPConnection(address, timeout=SDK_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


class _Observing(Observer):
    """Hands what is told of attempts to the metrics and the traces, as far as there are any."""

    def __init__(self, metrics: Metrics | None, tracing: Tracing | None) -> None:
        self._metrics = metrics
        self._tracing = tracing

    def settled(self, claimed: Claimed, result: AttemptResult, standing: Standing) -> None:
        if self._metrics is not None:
            self._metrics.settled(claimed, result, standing)
        if self._tracing is not None:
            self._tracing.settled(result, standing)

    def no_slot(self, account: str, lane: str) -> None:
        if self._metrics is not None:
            self._metrics.no_slot(account, lane)

    def attempting(self, claimed: Claimed) -> AbstractContextManager[None]:
        return super().attempting(claimed) if self._tracing is None else self._tracing.attempting(claimed)

    def transmitting(self, claimed: Claimed) -> AbstractContextManager[None]:
        return super().transmitting(claimed) if self._tracing is None else self._tracing.transmitting(claimed)
