"""Makes a big store: real mails, made by the real statements, copied row by row as often as wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from bench.feed import mail
from bench.measure import CORES
from sendonce.outcome import Accepted, AttemptResult, Deferred, Reply, same_for_all
from sendonce.policy import DEFAULT_LANES
from sendonce.store import Store, open_pool
from sendonce.store.intake import enqueue
from sendonce.store.records import Claimed

LANE = DEFAULT_LANES["default"]
WORKER = "bench"
IDENTITY = "smtp:127.0.0.1:25:"


async def take_on(store: Store, url: str, key: str, *, days: float = 0.0) -> Claimed | None:
    """Enqueue one mail, and claim it unless it is for a later day."""
    one = mail(key)
    if days:
        one = one.model_copy(update={"send_after": datetime.now(UTC) + timedelta(days=days)})
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        enqueued = await enqueue(connection, one)
    if days:
        return None
    claimed = await store.claim(enqueued.id, key, lane=LANE, worker=WORKER, lease_seconds=20)
    assert isinstance(claimed, Claimed)
    return claimed


async def pin(store: Store, claimed: Claimed) -> None:
    """Keep its rendering."""
    body = b"x" * 600
    await store.pin(claimed.email_id, "mime", body=body, method="", url="", headers=(), digest=b"d" * 32)


async def begin(store: Store, claimed: Claimed) -> None:
    """Commit that it is about to be offered."""
    await store.begin(
        claimed.email_id,
        claimed.attempt_id,
        worker=WORKER,
        generation=claimed.generation,
        slot="mime",
        digest=b"d" * 32,
        offered=[0],
        provider_key=f"bench-{claimed.key}",
        identity=IDENTITY,
        key_window=None,
        window_margin=300,
        answer_seconds=600,
        lease_seconds=20,
    )


async def settle(store: Store, claimed: Claimed, *, deferred: bool = False) -> None:
    """Record its answer."""
    outcome = Deferred(Reply(451, "4.7.1", "later")) if deferred else Accepted(Reply(250, "2.0.0", "Ok"))
    result: AttemptResult = same_for_all((0,), outcome)
    await store.settle(claimed.email_id, claimed.attempt_id, result, lane=LANE, actor=WORKER)


async def _originals(url: str) -> None:
    async with open_pool(url, name="bench", max_size=2) as pool:
        store = Store(pool)
        for key, deferred in (("sent", False), ("sleeping", True)):
            claimed = await take_on(store, url, key)
            assert claimed is not None
            await pin(store, claimed)
            await begin(store, claimed)
            await settle(store, claimed, deferred=deferred)
        await take_on(store, url, "scheduled", days=1)


def grow(url: str, finished: int, future: int) -> None:
    """Fill a migrated database with ``finished`` mails that were sent, and ``future`` ones, of which half were tried
    once and sleep, half are scheduled.
    """
    asyncio.run(_originals(url))
    with _connect(url) as connection:
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes i WHERE schemaname = 'sendonce' AND NOT EXISTS ("
            "SELECT FROM pg_constraint c WHERE c.conname = i.indexname)"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(sql.SQL("DROP INDEX sendonce.{}").format(sql.Identifier(name)))
        tables = connection.execute(
            "SELECT c.table_name, array_agg(c.column_name::text), array_agg(c.data_type::text)"
            " FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)"
            " WHERE c.table_schema = 'sendonce' AND t.table_type = 'BASE TABLE' AND c.is_identity = 'NO'"
            " GROUP BY c.table_name HAVING bool_or(c.column_name = 'email_id') OR c.table_name = 'email'"
        ).fetchall()
    copies = {"sent": finished, "sleeping": future // 2, "scheduled": future - future // 2}
    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(lambda original: _number(url, original, copies[original]), copies))
        list(threads.map(lambda table: _copy(url, copies, *table), tables))
        list(threads.map(lambda index: _execute(url, index[1]), indexes))
        list(threads.map(lambda table: _execute(url, f"VACUUM (ANALYZE) sendonce.{table[0]}"), tables))


def _connect(url: str) -> psycopg.Connection[Any]:
    # No check of foreign keys: what is copied kept them.
    options = "-c synchronous_commit=off -c maintenance_work_mem=256MB -c session_replication_role=replica"
    return psycopg.connect(url, autocommit=True, options=options)


def _execute(url: str, statement: str) -> None:
    with _connect(url) as connection:
        connection.execute(statement.encode())


def _number(url: str, original: str, number: int) -> None:
    _execute(
        url,
        # As random as any id, and made faster.
        f"CREATE UNLOGGED TABLE copies_{original} AS SELECT n, md5('{original}' || n)::uuid AS id,"
        f" md5('attempt {original}' || n)::uuid AS attempt FROM generate_series(1, {number}) n",
    )


def _copy(url: str, copies: Mapping[str, int], table: str, names: list[str], types: list[str]) -> None:
    """Copy the rows of a table that belong to the originals, with ids, keys and mailboxes of their own."""
    owner = sql.Identifier("id" if table == "email" else "email_id")
    with _connect(url) as connection:
        for original in copies:
            values = [_value(table, name, kind, original) for name, kind in zip(names, types, strict=True)]
            connection.execute(
                sql.SQL(
                    "INSERT INTO sendonce.{table} ({names}) SELECT {values} FROM sendonce.{table} o, {copies} m"
                    " WHERE o.{owner} = (SELECT e.id FROM sendonce.email e WHERE e.key = {original})"
                ).format(
                    table=sql.Identifier(table),
                    names=sql.SQL(", ").join(map(sql.Identifier, names)),
                    values=sql.SQL(", ").join(values),
                    copies=sql.Identifier(f"copies_{original}"),
                    owner=owner,
                    original=sql.Literal(original),
                )
            )


def _value(table: str, name: str, kind: str, original: str) -> sql.Composable:
    column = sql.SQL("o.{0}").format(sql.Identifier(name))
    if name == "email_id" or (table, name) == ("email", "id"):
        return sql.SQL("m.id")
    if name == "attempt_id" or (table, name) == ("attempt", "id"):
        return sql.SQL("CASE WHEN {0} IS NOT NULL THEN m.attempt END").format(column)
    if name == "message_id":
        return sql.SQL("'<' || m.id || '@bookstore.example>'")
    if name in ("key", "mailbox", "provider_key"):
        return sql.SQL("replace({0}, {1}, {2} || m.n)").format(
            column, sql.Literal(original), sql.Literal(f"{original}-")
        )
    if kind == "timestamp with time zone" and original == "sent":
        # One a second, up to now.
        return sql.SQL("{0} - m.n * interval '1 second'").format(column)
    if name in ("next_attempt_at", "send_after"):
        return sql.SQL("{0} + interval '1 day' + m.n * interval '1 second'").format(column)
    return column
