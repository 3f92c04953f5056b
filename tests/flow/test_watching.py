"""A worker that is watched: metrics, health, traces and alarms of real deliveries, and the store going away."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pytest
import sqlalchemy
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client.parser import text_string_to_metric_families

from sendonce import OutgoingEmail, embedded, enqueue
from sendonce.activities.pulse import Pulse
from sendonce.activities.upkeep import Upkeep
from sendonce.errors import ConfigurationError
from sendonce.outcome import Accepted, Deferred, Refused, Reply, Unanswered
from sendonce.starter import Starter
from sendonce.store import Store, open_pool
from sendonce.watching.config import Watching
from sendonce.watching.lateness import Limits
from tests.flow.conftest import LANE, answer

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay

OK = Accepted(Reply(250, "2.0.0", "ok ann@example.org"), "Q1")


class Door:
    """The endpoint of a worker."""

    def __init__(self) -> None:
        self.port = embedded.free_port()
        self.watching = Watching(listen=("127.0.0.1", self.port), sample_seconds=0.1)

    async def ask(self, path: str) -> tuple[int, str]:
        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as got:
                    return got.status, got.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(get)

    async def reasons(self) -> list[str]:
        status, body = await self.ask("/readyz")
        found: list[str] = json.loads(body).get("reasons", [])
        assert (status == 503) == bool(found)
        return found

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name and the values of its labels, in the order of their names."""
        _, text = await self.ask("/metrics")
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def until_ready(self, flow: Flow) -> None:
        async def ready() -> bool:
            return not await self.reasons()

        await flow.until(ready, "ready")


@pytest.fixture
def door() -> Door:
    return Door()


async def test_metrics_say_what_happened_and_name_nobody(flow: Flow, relay: type[Relay], door: Door) -> None:
    first = relay(answer(OK), answer(Refused(Reply(550, "5.1.1"))), answer(Deferred(Reply(451))), answer(OK))
    async with flow.worker(first, relay(answer(Unanswered())), watching=door.watching):
        await flow.until_stage(await flow.enqueue("one"), "sent")
        await flow.until_stage(await flow.enqueue("two"), "failed")
        await flow.until_stage(await flow.enqueue("three", fairness_key="tenant-9"), "sent")
        await flow.until_stage(await flow.enqueue("four", account="other"), "unknown")
        await flow.enqueue("five", account="nobody-knows", send_after="2099-01-01T00:00:00Z")

        async def counted() -> bool:
            found = await door.metrics()
            stages = ("pending", "unknown")
            outstanding = [found.get(("sendonce_outstanding", "other", "default", stage)) for stage in stages]
            return outstanding == [1, 1] and ("sendonce_alarm_messages_total", "arrived", "log") in found

        await flow.until(counted, "the mail of an account that is not configured, and the first alarm told")
        found = await door.metrics()
        _, text = await door.ask("/metrics")
    assert found["sendonce_replies_total", "default", "accepted", "2xx"] == 2
    assert found["sendonce_replies_total", "default", "refused", "5xx"] == 1
    assert found["sendonce_replies_total", "default", "deferred", "4xx"] == 1
    assert found["sendonce_replies_total", "other", "unanswered", "none"] == 1
    assert found["sendonce_unknowns_total", "other"] == 1
    assert found["sendonce_accepted_seconds_count", "default"] == 2
    assert 0 < found["sendonce_accepted_seconds_sum", "default"] < 60
    assert found["sendonce_attempts_to_success_bucket", "default", "1.0"] == 1
    assert found["sendonce_attempts_to_success_sum", "default"] == 3
    assert found["sendonce_outstanding", "other", "default", "unknown"] == 1
    assert found["sendonce_alarms_open", "unknown"] == 1
    assert found["sendonce_oldest_due_seconds", "default"] == 0
    assert found["sendonce_alarm_messages_total", "arrived", "log"] >= 1
    assert found["sendonce_store_up",] == found["sendonce_temporal_up",] == 1
    assert found["sendonce_loop_dead", "leases"] == found["sendonce_loop_dead", "starter:default"] == 0
    assert found["sendonce_pool_connections", "mails", "most"] == 10
    assert {key[0] for key in found} >= {"sendonce_build_info", "process_cpu_seconds_total"}
    for personal in ("ann", "example", "tenant", "nobody-knows", flow.prefix):
        assert personal not in text


async def test_a_store_that_goes_and_comes_back_is_seen_and_said_once(
    flow: Flow, relay: type[Relay], door: Door, caplog: pytest.LogCaptureFixture, impatient_watch: None
) -> None:
    async with flow.worker(relay(), watching=door.watching):
        await door.until_ready(flow)
        async with flow.store_away():

            async def away() -> bool:
                return await door.reasons() == ["store_away"]

            await flow.until(away, "the store is away")
            assert (await door.ask("/healthz"))[0] == 200
            # The other loops go on, and so does what shows them.
            before = (await door.metrics())["sendonce_loop_age_seconds", "sample"]

            async def round_and_round() -> bool:
                return (await door.metrics())["sendonce_loop_age_seconds", "sample"] < before

            await flow.until(round_and_round, "the loop comes round without the store")
        await door.until_ready(flow)
        await flow.until_stage(await flow.enqueue(), "sent")
    said = [record.getMessage() for record in caplog.records if record.name == "sendonce.activities.upkeep"]
    for loop in ("heartbeat", "sample", "alarms", "alarms:log", "judge"):
        ours = [line for line in said if line.startswith(f"{loop}: ")]
        assert len([line for line in ours if "cannot be reached" in line]) <= 1, ours
        assert len([line for line in ours if "is back" in line]) <= 1, ours
    assert [line for line in said if line.startswith("heartbeat: ")][-1] == "heartbeat: the store is back"


@pytest.mark.timeout(180)  # it starts a server of its own, twice
async def test_temporal_away_is_seen(flow: Flow, relay: type[Relay], door: Door, tmp_path: Path) -> None:
    server = await asyncio.to_thread(embedded.EmbeddedTemporal.start, tmp_path / "temporal")
    try:
        config = {"target_host": server.target}
        async with flow.worker(relay(), client=await _client(server.target), temporal=config, watching=door.watching):
            await door.until_ready(flow)
            await asyncio.to_thread(server.kill)

            async def away() -> bool:
                return await door.reasons() == ["temporal_away"]

            await flow.until(away, "Temporal is away")
            assert (await door.metrics())["sendonce_temporal_up",] == 0
            await asyncio.to_thread(server.restart)
            await door.until_ready(flow)
    finally:
        await asyncio.to_thread(server.stop)


async def _client(target: str) -> Any:
    from temporalio.client import Client

    from sendonce.activities.failures import client_options

    return await Client.connect(target, **client_options())


@pytest.fixture
def impatient_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits a second for a connection; else five."""
    from functools import partial

    from sendonce.store import open_pool

    monkeypatch.setattr("sendonce.worker.open_pool", partial(open_pool, timeout=1.0))


async def test_a_loop_that_hangs_is_seen_from_inside_and_alarmed(
    flow: Flow, relay: type[Relay], door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(self: Upkeep) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Upkeep, "join_events", hang)
    monkeypatch.setattr("sendonce.activities.upkeep.patience", lambda seconds: 2.0 if seconds < 1 else 60.0)
    # Whoever judges must have been there for a while.
    monkeypatch.setattr("sendonce.store.heartbeats.judge.__kwdefaults__", {"silent_seconds": 1.5})
    async with flow.worker(relay(), watching=door.watching):
        query = "SELECT 1 FROM sendonce.alarm WHERE kind = 'loop_dead' AND detail LIKE 'loop events of worker %'"
        await flow.rows_until(query)
        assert "loop_dead:events" in await door.reasons()

        async def logged() -> bool:
            return "alarm: kind=loop_dead" in caplog.text

        await flow.until(logged, "the alarm in the log")
        # Mail goes on.
        await flow.until_stage(await flow.enqueue(), "sent")
    # It left in order: nobody misses it.
    assert await flow.rows("SELECT FROM sendonce.process") == []


async def test_a_transaction_that_business_code_leaves_open_is_alarmed_until_it_ends(
    flow: Flow, relay: type[Relay], door: Door, database_url: str
) -> None:
    watching = replace(door.watching, sample_seconds=0.05, limits=Limits(old_transaction_seconds=1.0))
    query = "SELECT 1 FROM sendonce.alarm_state WHERE kind = 'old_transaction' AND open"
    async with flow.worker(relay(), watching=watching):
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await connection.execute("SELECT 1")
            await flow.rows_until(query)

        async def ended() -> bool:
            return not await flow.rows(query)

        await flow.until(ended, "the end of the alarm")


async def test_a_worker_that_cannot_listen_says_so(flow: Flow, relay: type[Relay], door: Door) -> None:
    async with flow.worker(relay(), watching=door.watching):
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127.0.0.1 port {door.port}"):
            async with flow.worker(relay(), watching=door.watching):
                pass


# Traces -----------------------------------------------------------------------------------------------------------


class Kept(SpanExporter):
    """An exporter as another package would register it."""

    spans: ClassVar[list[ReadableSpan]] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ReadableSpan]:
    """What was exported; the exporter is found by its entry point."""
    metadata = tmp_path / "site-packages" / "kept_exporter-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kept-exporter\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[opentelemetry_traces_exporter]\nkept = kept_exporter:Kept\n")
    monkeypatch.syspath_prepend(str(metadata.parent))
    import sys
    from types import ModuleType

    module = ModuleType("kept_exporter")
    module.Kept = Kept  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kept_exporter", module)
    monkeypatch.setattr(Kept, "spans", [])
    return Kept.spans


def traced(url: str, key: str) -> Callable[[], str]:
    """Enqueue under a span, as business code does; returns the trace's id."""

    def run() -> str:
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        email = OutgoingEmail(key=key, sender="shop@example.com", to="ann.secret@example.org", subject="Hi", text="Hi")
        with TracerProvider().get_tracer("shop").start_as_current_span("order") as span, engine.begin() as connection:
            enqueue(connection, email)
        engine.dispose()
        return f"{span.get_span_context().trace_id:032x}"

    return run


async def test_a_trace_goes_from_enqueueing_to_the_provider(
    flow: Flow, relay: type[Relay], kept: list[ReadableSpan]
) -> None:
    key = f"{flow.prefix}-traced"
    transport = relay(answer(Deferred(Reply(451, "4.7.1", "not now, ann.secret"))), answer(OK))
    async with flow.worker(transport, watching=Watching(trace_exporter="kept", trace_service="mail")):
        trace = await asyncio.to_thread(traced(flow.database_url, key))
        (row,) = await flow.rows("SELECT id FROM sendonce.email WHERE key = %s", [key])
        flow.ids[key] = row["id"]
        await flow.until_stage(key, "sent")
        untraced = await flow.enqueue("untraced")
        await flow.until_stage(untraced, "sent")
    ours = [span for span in kept if span.context and f"{span.context.trace_id:032x}" == trace]
    attempts = [span for span in ours if span.name == "sendonce.attempt"]
    sends = [span for span in ours if span.name == "sendonce.transmit"]
    assert [
        (span.attributes["sendonce.attempt"], span.attributes["sendonce.outcome"], span.attributes["sendonce.code"])
        for span in attempts
        if span.attributes
    ] == [(1, "deferred", 451), (2, "accepted", 250)]
    assert [send.parent and send.parent.span_id for send in sends] == [one.context.span_id for one in attempts]
    assert all(span.resource.attributes["service.name"] == "mail" for span in ours)
    # The other mail has a trace of its own.
    assert len({span.context.trace_id for span in kept if span.context}) == 2
    shown = "".join(span.to_json() for span in kept)
    assert "ann.secret" not in shown
    assert "example" not in shown
    # Temporal carries nothing of it.
    history = (await flow.handle(key).fetch_history()).to_json()
    assert trace not in history


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", False),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", False),
        ("ann@example.org", False),
        ("", False),
    ],
)
async def test_only_what_is_a_traceparent_is_kept_and_it_is_not_content(flow: Flow, given: str, kept: bool) -> None:
    message = {"key": "k", "sender": "a@example.com", "to": ["b@example.org"], "subject": "s", "text": "t"}
    query = "SELECT status FROM sendonce.enqueue(%s)"
    statuses = [
        (await flow.rows(query, [json.dumps(message | {"traceparent": value})]))[0]["status"] for value in (given, None)
    ]
    assert statuses == ["created", "exists"]
    (row,) = await flow.rows("SELECT traceparent FROM sendonce.email_content")
    assert row["traceparent"] == (given if kept else None)


def test_an_exporter_that_is_not_there_is_named() -> None:
    from sendonce.watching.tracing import open_tracing

    with pytest.raises(ConfigurationError, match="no exporter 'nowhere'"):
        open_tracing("nowhere", "sendonce")


async def test_loops_of_starters_come_round_while_everything_is_halted(flow: Flow) -> None:
    seconds, stop, pulse = [0.0], asyncio.Event(), Pulse(lambda: seconds[0])
    async with open_pool(flow.database_url, name="test", max_size=2) as pool:
        starter = Starter(
            Store(pool), flow.client, [LANE], actor="test", poll_seconds=0.05, halted=lambda: True, pulse=pulse
        )
        running = asyncio.create_task(starter.run(stop))

        async def came_round() -> bool:
            return "starter:default" in pulse.beats() and not pulse.dead()

        await flow.until(came_round, "a loop")
        seconds[0] += 3600.0
        await flow.until(came_round, "another round, an hour later")
        stop.set()
        await running
