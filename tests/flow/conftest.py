"""A whole worker per test: real store, real Temporal, and a transport that does what the test says."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import temporalio.client
import temporalio.worker
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from sendonce.activities.failures import client_options
from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.embedded import EmbeddedTemporal
from sendonce.outcome import Accepted, AttemptResult, Outcome, Reply, same_for_all
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.worker import WorkerConfig, serve

Step = Callable[[Job, Gate], Awaitable[AttemptResult]]

ACCEPTED = Accepted(Reply(250, "2.0.0", "queued"), "Q1")
DEADLINE = 30.0
"""Seconds a test waits for something to be seen."""


async def offer(job: Job, gate: Gate) -> None:
    """Begin, and say that the mail is written."""
    await gate.begin(tuple(r.ordinal for r in job.recipients))
    gate.offered()


def answer(outcome: Outcome) -> Step:
    """Offer the mail, and get this answer for everybody."""

    async def step(job: Job, gate: Gate) -> AttemptResult:
        await offer(job, gate)
        return same_for_all(tuple(r.ordinal for r in job.recipients), outcome)

    return step


class Relay:
    """A transport of the user's own: one step per transmission, in order; the last one repeats."""

    capability = Capability()
    identity = "relay:one"
    settings_digest = "settings-1"

    def __init__(self, *steps: Step, key_window: float | None = None) -> None:
        self.steps = list(steps) or [answer(ACCEPTED)]
        self.key_window = key_window
        self.jobs: list[Job] = []
        self.at_once = self.most_at_once = 0
        self.closed = False

    def slot(self, generation: int) -> str:
        return "mime"

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        return Rendering(f"{mail.message_id} {mail.content.subject}".encode())

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        step = self.steps[min(len(self.jobs), len(self.steps) - 1)]
        self.jobs.append(job)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            return await step(job, gate)
        finally:
            self.at_once -= 1

    async def close(self) -> None:
        self.closed = True


LANE = LanePolicy("default", RetryPolicy(delays=(0.25,), jitter=0, max_attempts=50, max_age=86400.0))


@dataclass
class Flow:
    """The world of one test."""

    database_url: str
    postgres_url: str
    client: Client
    target: str
    prefix: str = field(default_factory=lambda: f"t{uuid4().hex[:10]}")
    ids: dict[str, UUID] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    """Ids of further workflows whose histories are worth keeping."""

    async def rows(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        connection = await psycopg.AsyncConnection.connect(self.database_url, autocommit=True, row_factory=dict_row)
        async with connection:
            cursor = await connection.execute(query.encode(), params)
            return await cursor.fetchall() if cursor.description else []

    async def enqueue(self, name: str = "k", **fields: Any) -> str:
        """Commit a mail; returns its key, which is unique on the shared server."""
        key = f"{self.prefix}-{name}"
        message: dict[str, Any] = {
            "key": key,
            "sender": "Shop <shop@example.com>",
            "to": ["ann@example.org"],
            "subject": "Your order",
            "text": "Thank you.",
        } | fields
        rows = await self.rows("SELECT * FROM sendonce.enqueue(%s)", [Jsonb(message)])
        assert rows[0]["status"] == "created", rows
        self.ids[key] = rows[0]["email_id"]
        return key

    async def email(self, key: str) -> dict[str, Any]:
        return (await self.rows("SELECT * FROM sendonce.email WHERE id = %s", [self.ids[key]]))[0]

    async def attempts(self, key: str) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM sendonce.attempt WHERE email_id = %s ORDER BY number", [self.ids[key]])

    async def alarms(self) -> list[str]:
        return [r["kind"] for r in await self.rows("SELECT kind FROM sendonce.alarm WHERE closes IS NULL ORDER BY id")]

    async def own_clock(self) -> None:
        """Let the test move the store's clock, by :meth:`advance`."""
        await self.rows("CREATE TABLE public.test_clock (off interval NOT NULL)")
        await self.rows("INSERT INTO public.test_clock VALUES ('0')")
        await self.rows(
            "CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE"
            " AS $$ SELECT clock_timestamp() + off FROM public.test_clock $$"
        )

    async def advance(self, seconds: float) -> None:
        await self.rows("UPDATE public.test_clock SET off = off + %s * interval '1 second'", [seconds])

    async def until_stage(self, key: str, *stages: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait until the mail is at one of these stages; returns its row."""
        found: dict[str, Any] = {}

        async def there() -> bool:
            found.update(await self.email(key))
            return found["stage"] in stages

        await until(there, f"stage {stages}, at last {found.get('stage')}", seconds)
        return found

    async def rows_until(self, query: str, params: Any = None, seconds: float = DEADLINE) -> list[dict[str, Any]]:
        """Ask until there is a row."""
        found: list[dict[str, Any]] = []

        async def there() -> bool:
            found[:] = await self.rows(query, params)
            return bool(found)

        await until(there, query, seconds)
        return found

    async def until(self, there: Callable[[], Awaitable[bool]], what: str) -> None:
        await until(there, what)

    def config(self, *relays: Relay, **changes: Any) -> WorkerConfig:
        transports = dict(zip(("default", "other"), relays, strict=False))
        settings: dict[str, Any] = {
            "database_url": self.database_url,
            "transports": transports,
            "lanes": {"default": LANE},
            "task_queue_prefix": self.prefix,
            "drain_seconds": 5.0,
            "poll_seconds": 0.2,
            "sandboxed": True,
        } | changes
        return WorkerConfig(**settings)

    @asynccontextmanager
    async def worker(self, *relays: Relay, client: Client | None = None, **changes: Any) -> AsyncIterator[Running]:
        """A worker in this process, up and ready; shut down in order at the end."""
        ready, stop = asyncio.Event(), asyncio.Event()
        config = self.config(*(relays or (Relay(),)), **changes)
        task = asyncio.create_task(serve(config, stop, client=client or self.client, ready=ready.set))
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE)
            if task.done():
                task.result()
            yield Running(task, stop)
        finally:
            waiting.cancel()
            stop.set()
            await task

    def handle(self, key: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(key)

    async def details(self, key: str) -> str:
        """What the Temporal UI shows as the workflow's current details; a worker must run."""
        found: WorkflowMetadata = await self.handle(key).query(
            "__temporal_workflow_metadata", result_type=WorkflowMetadata
        )
        return found.current_details

    async def until_details(self, key: str, part: str) -> str:
        """Wait until they hold ``part``."""
        await self.until_event(key, "workflow_execution_started")
        found: list[str] = []

        async def there() -> bool:
            found[:] = [await self.details(key)]
            return part in found[0]

        await until(there, f"details with {part!r}")
        return found[0]

    async def until_closed(self, key: str) -> None:
        """Wait until the workflow has ended, however."""
        await self.until_event(key, "workflow_execution_started")
        with suppress(WorkflowFailureError):
            await self.handle(key).result()

    async def attributes(self, key: str) -> dict[str, Any]:
        """The search attributes of the workflow that are ours."""
        described = await self.handle(key).describe()
        found = {pair.key.name: pair.value for pair in described.typed_search_attributes}
        return {name: value for name, value in found.items() if name.startswith("Send")}

    async def until_attribute(self, key: str, name: str, value: str) -> None:
        await self.until_event(key, "workflow_execution_started")

        async def there() -> bool:
            return (await self.attributes(key)).get(name) == value

        await until(there, f"{name} = {value}")

    async def update(self, key: str, name: str, given: Any = None, *, id: str | None = None) -> dict[str, Any]:  # noqa: A002
        """Send an update as the Temporal UI does; returns what it says."""
        args = [] if given is None else [given]
        answered: dict[str, Any] = await self.handle(key).execute_update(name, args=args, id=id)
        return answered

    async def refused(self, key: str, name: str, given: Any = None, *, id: str | None = None) -> tuple[str, str]:  # noqa: A002
        """The same, for an update that is refused: the failure's type and words."""
        with pytest.raises(WorkflowUpdateFailedError) as failure:
            await self.update(key, name, given, id=id)
        cause = failure.value.cause
        assert isinstance(cause, ApplicationError)
        return str(cause.type), cause.message

    async def events(self, key: str) -> list[str]:
        """The workflow's history, as names of event types; empty while there is no workflow."""
        try:
            history = await self.handle(key).fetch_history()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return []
        return [str(event.WhichOneof("attributes")).removesuffix("_event_attributes") for event in history.events]

    async def until_event(self, key: str, name: str, seconds: float = DEADLINE) -> None:
        async def there() -> bool:
            return name in await self.events(key)

        await until(there, f"event {name}", seconds)

    @asynccontextmanager
    async def store_away(self) -> AsyncIterator[None]:
        """Nobody can reach the database, and whoever did has lost the connection."""
        await self.shut(True)
        try:
            yield
        finally:
            await self.shut(False)

    async def shut(self, away: bool) -> None:
        name = str(conninfo_to_dict(self.database_url)["dbname"])
        connection = await psycopg.AsyncConnection.connect(self.postgres_url, autocommit=True)
        async with connection:
            statement = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
            await connection.execute(statement.format(sql.Identifier(name), sql.Literal(not away)))
            if away:
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
                )


@dataclass
class Running:
    """A worker that runs."""

    task: asyncio.Task[None]
    stop: asyncio.Event


async def until(there: Callable[[], Awaitable[bool]], what: str, seconds: float = DEADLINE) -> None:
    """Look again and again, for at most ``seconds``."""
    end = time.monotonic() + seconds
    while not await there():
        assert time.monotonic() < end, f"not seen within {seconds:g} s: {what}"
        await asyncio.sleep(0.02)


@pytest.fixture
async def flow(
    database_url: str, postgres_url: str, temporal: EmbeddedTemporal, brisk: None, request: pytest.FixtureRequest
) -> AsyncIterator[Flow]:
    """``FLOW_HISTORIES=<folder>`` keeps the histories of the test's mails there, to be replayed by other releases."""
    # The identity is written into histories: not this machine's name.
    client = await Client.connect(temporal.target, namespace=temporal.namespace, identity="worker", **client_options())
    flow = Flow(database_url, postgres_url, client, temporal.target)
    yield flow
    if "FLOW_HISTORIES" in os.environ:
        name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
        kept = [(name, key) for key in flow.ids] + [(f"{name}_other", key) for key in flow.others]
        for file, key in kept:
            history = await flow.handle(key).fetch_history()
            (Path(os.environ["FLOW_HISTORIES"]) / f"{file}.json").write_text(history.to_json() + "\n")


@pytest.fixture
def relay() -> type[Relay]:
    """The class of the scripted transport."""
    return Relay


class StoreClock(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Before each activity the store's clock is set to the server's."""

    def __init__(self, environment: WorkflowEnvironment, database_url: str) -> None:
        self._environment = environment
        self._database_url = database_url

    async def sync(self) -> None:
        now = await self._environment.get_current_time()
        connection = await psycopg.AsyncConnection.connect(self._database_url, autocommit=True)
        async with connection:
            await connection.execute("UPDATE public.test_clock SET off = %s - clock_timestamp()", [now])

    def intercept_activity(
        self,
        next: temporalio.worker.ActivityInboundInterceptor,  # noqa: A002
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _Synced(next, self)


class _Synced(temporalio.worker.ActivityInboundInterceptor):
    def __init__(self, following: temporalio.worker.ActivityInboundInterceptor, clock: StoreClock) -> None:
        super().__init__(following)
        self._clock = clock

    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:  # noqa: A002
        await self._clock.sync()
        return await super().execute_activity(input)


Virtual = Callable[[Flow, WorkflowEnvironment], Awaitable[Client]]


@pytest.fixture
def virtual() -> Virtual:
    """Make a client of the time-skipping server whose workers keep the store's clock with it."""
    return _virtual


async def _virtual(flow: Flow, environment: WorkflowEnvironment) -> Client:
    await flow.own_clock()
    clock = StoreClock(environment, flow.database_url)
    await clock.sync()
    config = environment.client.config()
    config["interceptors"] = [*config["interceptors"], clock]
    config["data_converter"] = client_options()["data_converter"]
    flow.client = Client(**config)
    return flow.client
