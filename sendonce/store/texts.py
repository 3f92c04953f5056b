"""Where somebody's address can stand outside the content of their mail: what callers, operators and servers wrote.

Every table is walked in the order of its primary key, a portion in each statement, so that none takes long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from psycopg import AsyncConnection, sql

from sendonce.store.digests import KNOWN_CODE
from sendonce.store.naming import Person

PORTION = 5000
"""Rows of one statement."""
LOCK_TIMEOUT_MS = 10_000
"""Somebody may hold a row, such as business code an event."""

ANSWERS = f"""(
    SELECT coalesce(jsonb_object_agg(a.key, a.value - 'text'
        - CASE WHEN coalesce(a.value ->> 'enhanced', '') ~ {KNOWN_CODE} THEN '' ELSE 'enhanced' END
        - CASE WHEN lower(a.value ->> 'provider_id') ~ %(pattern)s THEN 'provider_id' ELSE '' END), '{{}}')
    FROM jsonb_each(t.answers) AS a)"""
"""The answers of an attempt ``t`` in codes."""


@dataclass(frozen=True, slots=True)
class _Table:
    key: tuple[str, ...]
    columns: Mapping[str, LiteralString]
    """What each is set to when it names the person."""


_TABLES: dict[str, _Table] = {
    "email": _Table(("id",), {"held_why": "'erased'", "last_enhanced": "NULL"}),
    "email_content": _Table(("email_id",), {"message_id": "''", "requested_by": "NULL"}),
    "recipient": _Table(("email_id", "ordinal"), {"enhanced": "NULL", "reply_text": "NULL", "provider_id": "NULL"}),
    "attempt": _Table(("id",), {"answers": ANSWERS, "ended_why": "'erased'"}),
    "evidence": _Table(("id",), {"event_id": "'erased:' || t.id", "actor": "'erased'"}),
    "transition": _Table(("id",), {"cause": "'erased'", "actor": "'erased'", "because": "NULL"}),
    "operator_action": _Table(
        ("email_id", "action_id"),
        {"action_id": "'erased:' || gen_random_uuid()", "actor": "'erased'", "answer": "'erased'"},
    ),
    "alarm": _Table(("id",), {"detail": "'erased'"}),
    "acknowledgement": _Table(("alarm_id",), {"actor": "'erased'", "note": "NULL"}),
    "hold": _Table(("id",), {"actor": "'erased'", "why": "'erased'", "ended_by": "'erased'"}),
    "sent_again": _Table(("email_id",), {"actor": "'erased'"}),
    "reveal": _Table(("id",), {"actor": "'erased'"}),
    "final": _Table(("id",), {"enhanced": "NULL"}),
    "event": _Table(
        ("id",),
        {
            "event_id": "'erased:' || t.id",
            "claimed_id": "''",
            "provider_id": "''",
            "message_id": "''",
            # Of whoever is no recipient of that mail: no other event is compared with it.
            "recipient": "sendonce.mailbox_digest(%(mailbox)s) || ':' || t.id",
            "enhanced": "NULL",
            "reply_text": "NULL",
        },
    ),
    "suppression": _Table(("account", "mailbox"), {"actor": "'erased'", "note": "NULL"}),
    "account": _Table(("name", "settings_digest", "from_domain"), {"pause_why": "'erased'"}),
    "erasure": _Table(("id",), {"actor": "'erased'", "because": "NULL"}),
}


_OF_MAIL = (
    "email_content",
    "recipient",
    "attempt",
    "evidence",
    "transition",
    "operator_action",
    "alarm",
    "event",
    "final",
)


async def blank(conn: AsyncConnection[Any], person: Person) -> int:
    """Take the person out of every text; returns in how many rows. ``conn`` is in no transaction.

    Raises :class:`psycopg.errors.LockNotAvailable` when somebody holds a row for :data:`LOCK_TIMEOUT_MS`.
    """
    found = 0
    for name, table in _TABLES.items():
        found += await _walk(conn, name, table, {"pattern": person.pattern, "mailbox": person.mailbox})
    return found


async def blank_mail(conn: AsyncConnection[Any], person: Person, email_id: UUID) -> None:
    """Take the person out of every text about this mail, in the caller's transaction."""
    params = {"pattern": person.pattern, "mailbox": person.mailbox, "email": email_id}
    for name, table in _TABLES.items():
        owner = "id" if name == "email" else "email_id"
        if name == "email" or name in _OF_MAIL:
            await conn.execute(
                sql.SQL("UPDATE sendonce.{name} t SET {changes} WHERE t.{owner} = %(email)s AND ({any})").format(
                    name=sql.Identifier(name),
                    changes=_changes(table),
                    owner=sql.Identifier(owner),
                    any=_any(table),
                ),
                params,
            )


async def _walk(conn: AsyncConnection[Any], name: str, table: _Table, params: dict[str, Any]) -> int:
    found = 0
    after: list[Any] | None = None
    while True:
        query = _statement(name, table, resumed=after is not None)
        where: dict[str, Any] = dict(zip(_positions(table), after or (), strict=False))
        async with conn.transaction():
            await conn.execute("SELECT set_config('lock_timeout', %s, true)", [str(LOCK_TIMEOUT_MS)])
            row = await (await conn.execute(query, {**params, **where})).fetchone()
        if row is None:
            return found
        hits, seen, *after = row
        found += int(hits)
        if seen < PORTION:
            return found


def _positions(table: _Table) -> list[str]:
    return [f"after_{column}" for column in table.key]


def _statement(name: str, table: _Table, *, resumed: bool) -> sql.Composed:
    key = sql.SQL(", ").join(map(sql.Identifier, table.key))
    after = sql.SQL(", ").join(map(sql.Placeholder, _positions(table)))

    return sql.SQL(
        "WITH portion AS MATERIALIZED ("
        " SELECT {key} FROM sendonce.{name} {resumed} ORDER BY {key} LIMIT {rows}),"
        "hit AS (UPDATE sendonce.{name} t SET {changes} FROM portion p WHERE {same} AND ({any}) RETURNING 1)"
        "SELECT (SELECT count(*) FROM hit), (SELECT count(*) FROM portion), {key} FROM portion"
        " ORDER BY {backwards} LIMIT 1"
    ).format(
        key=key,
        # Written out: the planner takes an unknown limit for a tenth of the table, which it would read and sort.
        rows=sql.Literal(PORTION),
        name=sql.Identifier(name),
        resumed=sql.SQL("WHERE ({}) > ({})").format(key, after) if resumed else sql.SQL(""),
        changes=_changes(table),
        same=sql.SQL(" AND ").join(sql.SQL("t.{0} = p.{0}").format(sql.Identifier(column)) for column in table.key),
        any=_any(table),
        backwards=sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(column)) for column in table.key),
    )


def _named(column: str) -> sql.Composed:
    return sql.SQL("lower(t.{}::text) ~ %(pattern)s").format(sql.Identifier(column))


def _any(table: _Table) -> sql.Composed:
    return sql.SQL(" OR ").join(map(_named, table.columns))


def _changes(table: _Table) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{column} = CASE WHEN {named} THEN {value} ELSE t.{column} END").format(
            column=sql.Identifier(column), named=_named(column), value=sql.SQL(value)
        )
        for column, value in table.columns.items()
    )
