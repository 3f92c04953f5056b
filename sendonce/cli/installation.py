"""What the doctor looks at besides the accounts: versions, the store, Temporal, and their clocks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from datetime import UTC, timedelta
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any

from sendonce import settings
from sendonce.activities.transports.doctor_step import Step
from sendonce.cli.base import CHECK_STORE, NO_SETTINGS, told_where
from sendonce.cli.output import span
from sendonce.errors import StoreNotReady

if TYPE_CHECKING:
    from temporalio.client import Client

    from sendonce.settings import Settings

CLOCKS_APART = 1.0
"""Seconds that two clocks may differ without a word."""

OLD_TRANSACTION = 900.0
"""Seconds that a transaction may be open without a word."""

TIMEOUT = timedelta(seconds=10)
LIBRARIES = ("temporalio", "psycopg", "sqlalchemy", "pydantic", "httpx")


async def examine(found: Settings) -> AsyncGenerator[Step, None]:
    """Each step as it ends. One that failed does not keep the others from being looked at."""
    libraries = {name: version(name) for name in LIBRARIES}
    yield Step(
        "versions",
        "ok",
        f"sendonce {version('sendonce')}, Python {python_version()}, "
        + ", ".join(f"{name} {number}" for name, number in libraries.items()),
        details={"sendonce": version("sendonce"), "python": python_version(), **libraries},
    )
    async for step in _store(found):
        yield step
    async for step in _temporal(found):
        yield step


async def _store(found: Settings) -> AsyncGenerator[Step, None]:
    import psycopg

    from sendonce.store import continuity, examination, migrate, transactions
    from sendonce.store.connecting import connect_options

    url = found.database_url
    started = time.monotonic()
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, **connect_options(url)) as conn:
            facts = await examination.server(conn)
            yield _server(facts, time.monotonic() - started)
            yield _clock("clock", "the database", facts.ahead)
            yield _durability(facts)
            try:
                schema = await _schema(url)
            except StoreNotReady as error:
                yield Step("schema", "fail", str(error), "run 'sendonce migrate', with this release")
                return
            yield schema
            yield _transactions(await transactions.old(conn, 0), await transactions.hidden(conn))
            yield _continuity(await continuity.facts(conn))
            standing = await examination.standing(conn)
            yield await _notify(url, standing)
            yield _processes(standing)
            yield _attention(standing)
    except psycopg.OperationalError as error:
        yield Step(
            "store",
            "fail",
            examination.why(error),
            CHECK_STORE if found.source != "environment" or told_where() else NO_SETTINGS,
        )
    except psycopg.Error as error:
        yield Step("store", "fail", examination.why(error), f"schema at {migrate.head()}? its owner can grant rights")


def _server(facts: Any, seconds: float) -> Step:
    what = f"PostgreSQL {facts.version}, answers in {facts.round_trip * 1000:.1f} ms"
    details = {"server": facts.version, "round_trip": round(facts.round_trip, 6)}
    if facts.standby:
        return Step("store", "fail", f"{what}: a standby, which is read-only", "name the primary in database_url",
                    seconds, details)  # fmt: skip
    return Step("store", "ok", what, "", seconds, details)


def _clock(name: str, whose: str, ahead: float) -> Step:
    details = {"ahead": round(ahead, 3)}
    if abs(ahead) <= CLOCKS_APART:
        return Step(name, "ok", f"{whose} and this host agree within {abs(ahead):.2f} s", details=details)
    way = "ahead of" if ahead > 0 else "behind"
    return Step(
        name, "warn", f"the clock of {whose} is {abs(ahead):.1f} s {way} this host's",
        "set both by NTP: times in logs, tokens and certificates go wrong; mail is timed by the database alone",
        details=details,
    )  # fmt: skip


def _durability(facts: Any) -> Step:
    standbys = facts.standbys or "no synchronous standby"
    what = f"synchronous_commit = {facts.synchronous_commit}, {standbys}, {facts.replicas} streaming"
    details = {
        "synchronous_commit": facts.synchronous_commit,
        "synchronous_standby_names": facts.standbys,
        "replicas": facts.replicas,
        "fsync": facts.fsync,
    }
    if not facts.fsync:
        return Step("durable", "warn", "fsync is off: after a crash of the machine mails may be lost or sent twice",
                    "turn fsync on", details=details)  # fmt: skip
    if facts.replicas and not facts.standbys:
        return Step(
            "durable", "warn", what,
            "a failover to an asynchronous standby forgets the last seconds: set synchronous_standby_names, or see "
            "'After a restore' in the documentation",
            details=details,
        )  # fmt: skip
    return Step("durable", "ok", what, details=details)


def _transactions(found: list[Any], hidden: int) -> Step:
    """Whether one is old; ``hidden``: sessions of which the owner of the schema, and so the alarm, cannot know it."""
    oldest = found[0].age if found else 0.0
    details = {"oldest": round(oldest, 1), "hidden": hidden}
    unseen = f"; {hidden} sessions are not shown to the schema's owner (pg_read_all_stats)" if hidden else ""
    if oldest <= OLD_TRANSACTION:
        return Step("transactions", "ok", f"none has been open for long{unseen}", details=details)
    return Step(
        "transactions", "warn",
        f"one has been open for {span(oldest)}: no vacuum removes what is done with meanwhile, and finding new mail "
        f"takes longer and longer{unseen}",
        "end it: see pg_stat_activity (xact_start) and pg_prepared_xacts; idle_in_transaction_session_timeout keeps "
        "others from staying open",
        details=details,
    )  # fmt: skip


async def _schema(url: str) -> Step:
    import asyncio

    from sendonce.store import migrate

    await asyncio.to_thread(migrate.check, url)
    return Step("schema", "ok", f"at {migrate.head()}, as this release needs it", details={"schema": migrate.head()})


def _continuity(facts: dict[str, Any]) -> Step:
    """Whether this store may send, and which standbys would take over."""
    from sendonce.store.continuity import REASONS

    details = {name: facts[name] for name in ("system_id", "timeline", "halted_why", "allowed_by", "standbys")}
    details |= {name: facts[name] and facts[name].isoformat() for name in ("halted_at", "allowed_at")}
    if facts["halted_at"] is not None:
        why = REASONS.get(facts["halted_why"], facts["halted_why"])
        return Step(
            "continuity", "fail", f"halted since {facts['halted_at'].astimezone(UTC):%Y-%m-%d %H:%M} UTC: {why}",
            "nothing is sent until 'sendonce reconcile --after-restore' has let the workers go on; see 'What halts' in "
            "the documentation",
            details=details,
        )  # fmt: skip
    if facts["standbys"] is None:
        standbys = "not shown to this role (pg_read_all_stats)"
    else:
        standbys = ", ".join(f"{one['application_name']} ({one['sync_state']})" for one in facts["standbys"]) or "none"
    return Step("continuity", "ok", f"not halted; standbys: {standbys}", details=details)


async def _notify(url: str, standing: Any) -> Step:
    from sendonce.store import examination

    if not standing.notify:
        return Step("listen", "skip", "notifications are turned off for this installation: mail is found by polling")
    took = await examination.notifies(url)
    if took is None:
        return Step(
            "listen", "warn", "no notification arrived: mail is found by polling, up to a second later",
            "give workers a connection of their own, not one of a pooler that changes sessions between transactions",
        )  # fmt: skip
    return Step("listen", "ok", f"a notification took {took * 1000:.0f} ms", details={"seconds": round(took, 4)})


def _processes(standing: Any) -> Step:
    served = ", ".join(f"{lane}: {count}" for lane, count in sorted(standing.workers.items())) or "none"
    what = f"workers alive by lane: {served}; starters of their own: {standing.starters}"
    details = {"workers": standing.workers, "starters": standing.starters}
    alone = [lane for lane in standing.waiting if lane not in standing.workers]
    if alone:
        return Step("workers", "warn", f"{what}; mail waits in {', '.join(alone)}, which nobody serves",
                    "start a worker: sendonce worker", details=details)  # fmt: skip
    return Step("workers", "ok", what, details=details)


def _attention(standing: Any) -> Step:
    details = {"holds": standing.holds, "open_alarms": standing.open_alarms}
    what = f"holds: {standing.holds}, open alarms: {standing.open_alarms}"
    if standing.holds or standing.open_alarms:
        return Step("alarms", "warn", what, "see 'sendonce pause' and 'sendonce alarms'", details=details)
    return Step("alarms", "ok", what, details=details)


async def _temporal(found: Settings) -> AsyncGenerator[Step, None]:
    from temporalio.client import Client
    from temporalio.service import RPCError

    from sendonce.activities.failures import said_of

    connection = settings.temporal_connection(found)
    where = f"{connection['target_host']}, namespace {connection.get('namespace', 'default')}"
    fix = "check [temporal] address, namespace and keys, or SENDONCE_TEMPORAL_ADDRESS"
    started = time.monotonic()
    try:
        client = await Client.connect(**connection)
        server = await _namespace(client)
    except (RPCError, RuntimeError) as error:
        yield Step("temporal", "fail", f"{where}: {said_of(error)}", fix, time.monotonic() - started)
        return
    yield Step("temporal", "ok", f"server {server or 'of unknown version'} at {where}", "",
               time.monotonic() - started, {"server": server})  # fmt: skip
    for look in (_temporal_clock, _search_attributes):
        try:
            yield await look(client)
        except RPCError as error:
            yield Step(look.__name__.strip("_"), "warn", f"Temporal does not say ({error.status.name})")


async def _namespace(client: Client) -> str:
    """The server's version; raises when the namespace is not there."""
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
    from temporalio.service import RPCError

    await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace), timeout=TIMEOUT
    )
    try:
        found = await client.workflow_service.get_cluster_info(GetClusterInfoRequest(), timeout=TIMEOUT)
    except RPCError:
        # Temporal Cloud does not tell.
        return ""
    return str(found.server_version)


async def _temporal_clock(client: Client) -> Step:
    """Nothing but a run tells what time it is there: one that nobody serves, ended at once."""
    before = time.time()
    handle = await client.start_workflow(
        "SendonceDoctor",
        id=f"sendonce-doctor-{uuid.uuid4()}",
        task_queue="sendonce-doctor",
        execution_timeout=timedelta(minutes=1),
        rpc_timeout=TIMEOUT,
    )
    after = time.time()
    try:
        started = (await handle.describe(rpc_timeout=TIMEOUT)).start_time.timestamp()
    finally:
        await handle.terminate(reason="sendonce doctor has looked at the clock", rpc_timeout=TIMEOUT)
    # It began somewhere between the two.
    ahead = started - after if started > after else min(0.0, started - before)
    return _clock("temporal clock", "Temporal", ahead)


async def _search_attributes(client: Client) -> Step:
    from sendonce.search_attributes import missing

    absent = await missing(client)
    if absent:
        return Step("attributes", "warn", f"search attributes are missing: {', '.join(absent)}", "run 'sendonce setup'",
                    details={"missing": absent})  # fmt: skip
    return Step("attributes", "ok", "search attributes are registered", details={"missing": absent})
