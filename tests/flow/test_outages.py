"""The store or Temporal goes away, or the process ends, at the worst moment: nothing is lost, nothing goes twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial, partialmethod
from typing import TYPE_CHECKING

import psycopg
import pytest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from sendonce import embedded
from sendonce.activities.failures import client_options
from sendonce.activities.inflight import Flights
from sendonce.activities.leases import StoreHealth
from sendonce.activities.poke import SignalPoker
from sendonce.activities.pulse import Pulse
from sendonce.activities.transports.base import Gate, Job
from sendonce.activities.upkeep import Upkeep, forever
from sendonce.embedded import EmbeddedTemporal
from sendonce.ending import end
from sendonce.outcome import Accepted, AttemptResult, Deferred, Reply, same_for_all
from sendonce.store import Store, open_pool
from sendonce.worker import serve
from sendonce.workflows.port import Wake
from tests.flow.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flow.conftest import Flow, Relay

ACCEPTED = Accepted(Reply(250, "2.0.0"), "Q1")


class Provider:
    """Takes the mail, tells the test, and answers when told to."""

    def __init__(self, *, offer: bool = True) -> None:
        self.offer = offer
        self.there, self.go, self.cut = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        if self.offer:
            await gate.begin(ordinals)
            gate.offered()
        self.there.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cut.set()
            raise
        if not self.offer:
            await gate.begin(ordinals)
            gate.offered()
        return same_for_all(ordinals, ACCEPTED)


async def deferred(job: Job, gate: Gate) -> AttemptResult:
    ordinals = tuple(r.ordinal for r in job.recipients)
    await gate.begin(ordinals)
    gate.offered()
    return same_for_all(ordinals, Deferred(Reply(451, "4.7.1")))


async def accepted(job: Job, gate: Gate) -> AttemptResult:
    ordinals = tuple(r.ordinal for r in job.recipients)
    await gate.begin(ordinals)
    gate.offered()
    return same_for_all(ordinals, ACCEPTED)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits a second for a connection, or for what it cut at its end; else five."""
    monkeypatch.setattr("sendonce.worker.open_pool", partial(open_pool, timeout=1.0))
    monkeypatch.setattr(Flights, "drain", partialmethod(Flights.drain, last_seconds=1.0))


@pytest.mark.parametrize(
    ("hand_off", "carried_by"),
    [(None, "timer_started"), (0.2, "workflow_execution_signaled")],
    ids=["as the answer", "by a signal"],
)
async def test_an_outcome_that_could_not_be_recorded_survives_its_process(
    flow: Flow, relay: type[Relay], impatient: None, hand_off: float | None, carried_by: str
) -> None:
    provider = Provider()
    transport = relay(provider)
    async with AsyncExitStack() as down:
        async with flow.worker(transport, drain_seconds=0.1, hand_off_seconds=hand_off):
            key = await flow.enqueue()
            await provider.there.wait()
            if hand_off:
                # The activity has answered: what comes now can reach the workflow by a signal only.
                await flow.until_event(key, "marker_recorded")
            await down.enter_async_context(flow.store_away())
            provider.go.set()
            await flow.until_event(key, carried_by)
        await down.aclose()
        async with flow.worker(relay(Provider())) as second:
            found = await flow.until_stage(key, "sent")
            assert not second.task.done()
    assert found["attempts"] == 1
    assert len(transport.jobs) == 1
    assert [a["answers"]["0"]["code"] for a in await flow.attempts(key)] == [250]


async def test_an_outcome_is_recorded_once_the_store_is_back(flow: Flow, relay: type[Relay], impatient: None) -> None:
    provider = Provider()
    transport = relay(provider)
    async with flow.worker(transport, hand_off_seconds=0.2):
        key = await flow.enqueue()
        await flow.until_event(key, "timer_started")
        async with flow.store_away():
            provider.go.set()
            await flow.until_event(key, "workflow_execution_signaled")
        await flow.until_stage(key, "sent")
        await flow.handle(key).result()
    assert len(transport.jobs) == 1


async def test_an_attempt_stops_before_its_lease_can_lapse(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider(offer=False)
    transport = relay(provider)
    async with flow.worker(transport, lease_seconds=2.0, renew_seconds=0.5):
        key = await flow.enqueue()
        await provider.there.wait()
        async with flow.store_away():
            await asyncio.wait_for(provider.cut.wait(), 2.0)
        provider.go.set()
        await flow.until_stage(key, "sent")
    attempts = await flow.attempts(key)
    assert len(attempts) == len(transport.jobs)
    # The store was away: the mail is not blamed.
    assert (await flow.email(key))["lapses"] == 0
    assert [a["counted"] for a in attempts] == [False] * (len(attempts) - 1) + [True]


async def test_a_lease_is_kept_while_the_attempt_runs(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider(offer=False)
    transport = relay(provider)
    async with flow.worker(transport, lease_seconds=2.0, renew_seconds=0.2):
        key = await flow.enqueue()
        await provider.there.wait()
        first = (await flow.email(key))["lease_until"]
        # Renewed beyond two leases: without renewals it would have been cut.
        await flow.rows_until(
            "SELECT 1 FROM sendonce.email WHERE id = %s AND lease_until > %s + interval '4 seconds'",
            [flow.ids[key], first],
        )
        assert not provider.cut.is_set()
        provider.go.set()
        await flow.until_stage(key, "sent")
    assert len(transport.jobs) == 1


async def test_an_attempt_whose_lease_was_revoked_is_stopped(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider(offer=False)
    async with flow.worker(relay(provider), renew_seconds=0.2):
        key = await flow.enqueue()
        await provider.there.wait()
        await flow.handle(key).cancel()
        await asyncio.wait_for(provider.cut.wait(), 10)
        await flow.until_stage(key, "cancelled")


async def test_stopping_gives_back_what_has_not_begun(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider(offer=False)
    async with flow.worker(relay(provider), drain_seconds=60.0) as running:
        key = await flow.enqueue()
        await provider.there.wait()
        running.stop.set()
        # At once: the time to drain is for what has begun.
        await asyncio.wait_for(running.task, 10)
    assert (await flow.email(key))["stage"] == "pending"
    assert [(a["counted"], a["ended_why"]) for a in await flow.attempts(key)] == [(False, "shutdown")]


async def test_stopping_waits_for_the_answer_to_an_offer(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider()
    async with flow.worker(relay(provider), hand_off_seconds=0.2, drain_seconds=30.0) as running:
        key = await flow.enqueue()
        await provider.there.wait()
        running.stop.set()
        await flow.until_event(key, "timer_started")
        provider.go.set()
        await asyncio.wait_for(running.task, 10)
    assert (await flow.email(key))["stage"] == "sent"


async def test_an_offer_that_is_cut_is_recorded_as_unanswered(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider()
    async with flow.worker(relay(provider), hand_off_seconds=0.2, drain_seconds=0.2) as running:
        key = await flow.enqueue()
        await provider.there.wait()
        running.stop.set()
        await asyncio.wait_for(running.task, 15)
    assert provider.cut.is_set()
    assert (await flow.email(key))["stage"] == "unknown"
    assert (await flow.attempts(key))[0]["answers"]["0"]["kind"] == "unanswered"


async def test_a_silent_offer_becomes_unknown_and_its_late_answer_settles_it(flow: Flow, relay: type[Relay]) -> None:
    provider = Provider()
    transport = relay(provider)
    async with flow.worker(transport, hand_off_seconds=0.2, renew_seconds=60.0):
        key = await flow.enqueue()
        await flow.until_event(key, "timer_started")
        await flow.rows("UPDATE sendonce.email SET lease_until = sendonce.clock() - interval '1 minute'")
        await flow.until_stage(key, "unknown")
        await flow.until_event(key, "workflow_execution_signaled")
        provider.go.set()
        await flow.until_stage(key, "sent")
        await flow.handle(key).result()
    assert len(transport.jobs) == 1


async def test_mail_waits_while_temporal_is_away(
    flow: Flow, relay: type[Relay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.starter.RPC_TIMEOUT", timedelta(seconds=2))
    server = await asyncio.to_thread(EmbeddedTemporal.start, tmp_path / "temporal")
    try:
        flow.client = await Client.connect(server.target, **client_options())
        transport = relay()
        async with flow.worker(transport):
            first = await flow.enqueue("first")
            await flow.until_stage(first, "sent")
            await asyncio.to_thread(server.kill)
            second = await flow.enqueue("second")
            # The start fails, and the row waits for a starter again.
            await flow.rows_until("SELECT 1 FROM sendonce.email WHERE stage = 'pending' AND started_at IS NULL")
            await asyncio.to_thread(server.restart)
            await flow.until_stage(second, "sent", seconds=60)
        assert len(transport.jobs) == 2
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_worker_comes_up_before_the_store_and_temporal(flow: Flow, relay: type[Relay]) -> None:
    port = embedded.free_port()
    stop, ready = asyncio.Event(), asyncio.Event()
    config = flow.config(relay(), temporal={"target_host": f"127.0.0.1:{port}"})
    server: EmbeddedTemporal | None = None
    async with flow.store_away():
        task = asyncio.create_task(serve(config, stop, ready=ready.set))
    try:
        await flow.rows_until("SELECT 1 FROM sendonce.process")
        assert not ready.is_set()
        server = await asyncio.to_thread(lambda: EmbeddedTemporal.start(port=port))
        await asyncio.wait_for(ready.wait(), 30)
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
    finally:
        stop.set()
        await task
        if server is not None:
            await asyncio.to_thread(server.stop)


async def test_a_mail_that_temporal_has_forgotten_is_started_again(
    flow: Flow, relay: type[Relay], tmp_path: Path
) -> None:
    server = await asyncio.to_thread(EmbeddedTemporal.start, tmp_path / "temporal")
    try:
        flow.client = await Client.connect(server.target, **client_options())
        transport = relay(deferred, accepted)
        async with flow.worker(transport, overdue_seconds=0.5):
            key = await flow.enqueue(retry={"delays": [1]})
            await flow.until_event(key, "timer_started")
            await asyncio.to_thread(server.wipe)
            await flow.until_stage(key, "sent")
            await flow.handle(key).result()
        assert len(transport.jobs) == 2
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_worker_waits_for_a_namespace_that_is_still_to_come(
    flow: Flow, relay: type[Relay], caplog: pytest.LogCaptureFixture
) -> None:
    namespace = f"n{flow.prefix}"
    config = flow.config(relay(), temporal={"target_host": flow.target, "namespace": namespace})
    ready, stop = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(config, stop, ready=ready.set))
    try:
        async with asyncio.timeout(30):
            while f"namespace {namespace}, cannot be used (NOT_FOUND)" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert not ready.is_set()
        request = RegisterNamespaceRequest(namespace=namespace)
        request.workflow_execution_retention_period.FromSeconds(86400)
        await flow.client.workflow_service.register_namespace(request)
        key = await flow.enqueue()
        await flow.until_stage(key, "sent", seconds=60)
    finally:
        stop.set()
        await serving


async def test_a_poke_that_cannot_be_delivered_raises_nothing() -> None:
    poker = SignalPoker()
    await poker.wake("order-7", Wake())
    poker.client = await Client.connect("127.0.0.1:1", lazy=True)
    await poker.wake("order-7", Wake())


async def test_a_round_that_meets_a_lock_has_not_seen_the_store_away(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    """Lapses are forgiven for an outage. A transaction of somebody's is none."""
    await flow.enqueue()
    health, pulse, met = StoreHealth(), Pulse(), asyncio.Event()

    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(flow.database_url, options="-c lock_timeout=50") as conn:
            try:
                await conn.execute("SELECT FROM sendonce.email FOR UPDATE")
            except psycopg.errors.LockNotAvailable:
                asyncio.get_running_loop().call_soon(met.set)
                raise

    async with await psycopg.AsyncConnection.connect(flow.database_url) as somebody:
        await somebody.execute("SELECT FROM sendonce.email FOR UPDATE")
        round_ = asyncio.create_task(forever("sweep", 60.0, body, health, pulse))
        await met.wait()
        await until(partial(logged, caplog, "open transaction holds a row"), "the round's end")
        await end([round_])
    assert health.ago() is None


async def logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


async def test_a_round_of_waking_leaves_the_rest_to_timers(
    flow: Flow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Temporal that swallows calls lets each take its time; the round must not look stuck for that."""
    monkeypatch.setattr("sendonce.activities.upkeep.WAKE_ROUND_SECONDS", 0.0)
    for n in range(3):
        await flow.enqueue(f"{n}")
    await flow.rows("UPDATE sendonce.email SET started_at = sendonce.clock()")
    await flow.rows("INSERT INTO sendonce.wake (email_id) SELECT id FROM sendonce.email")
    async with open_pool(flow.database_url, name="test") as pool:
        await Upkeep(Store(pool), SignalPoker(), {}, {}, "worker").wake()
    assert "3 workflows are left to their own timers" in caplog.text
