"""The alarms that nothing has ended yet: one by one, or in groups; and who has taken note of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from sqlalchemy import ColumnElement, Connection, Select, func, select

from sendonce.store import tables as t
from sendonce.store.reading import rows

BATCH = 1000
"""Alarms acknowledged in one transaction."""


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """One alarm. ``closed`` says that a later row ended it."""

    id: int
    at: datetime
    kind: str
    email_id: UUID | None
    key: str | None
    account: str | None
    detail: str
    delivered_at: datetime | None
    closed: bool
    acknowledged_at: datetime | None
    acknowledged_by: str | None


@dataclass(frozen=True, slots=True)
class AlarmGroup:
    """Open alarms of one kind, account and detail."""

    kind: str
    account: str | None
    detail: str
    count: int
    first_at: datetime
    last_at: datetime
    last_id: int
    key: str | None
    """Of the last one's mail."""


@dataclass(frozen=True, slots=True)
class AlarmFilter:
    """Which open alarms."""

    ids: Sequence[int] = ()
    kind: str | None = None
    account: str | None = None
    acknowledged: bool = False
    """Those too that somebody has taken note of."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """As SQL over ``alarm`` joined with ``acknowledgement``."""
        a = t.alarm.c
        found: list[ColumnElement[bool]] = [a.closes.is_(None), ~_closed()]
        if self.ids:
            found.append(a.id.in_(self.ids))
        if self.kind is not None:
            found.append(a.kind == self.kind)
        if self.account is not None:
            found.append(a.account == self.account)
        if not self.acknowledged:
            found.append(t.acknowledgement.c.alarm_id.is_(None))
        return found


def _closed() -> Any:
    closing = t.alarm.alias("closing")
    return select(closing.c.id).where(closing.c.closes == t.alarm.c.id).exists()


def select_alarms() -> Select[Any]:
    """A query for :class:`AlarmRow`."""
    a, seen = t.alarm.c, t.acknowledgement.c
    closed = _closed().label("closed")
    return (
        select(
            a.id, a.at, a.kind, a.email_id, t.email.c.key, a.account, a.detail,
            t.alarm_state.c.taken_at.label("delivered_at"), closed, seen.at, seen.actor,
        )
        .outerjoin_from(t.alarm, t.email, t.email.c.id == a.email_id)
        .outerjoin(t.alarm_state, t.alarm_state.c.alarm_id == a.id)
        .outerjoin(t.acknowledgement, seen.alarm_id == a.id)
        .where(a.closes.is_(None))
    )  # fmt: skip


def open_alarms(connection: Connection, which: AlarmFilter, *, limit: int = 100) -> list[AlarmRow]:
    """One by one, the newest first."""
    query = select_alarms().where(*which.conditions()).order_by(t.alarm.c.id.desc()).limit(limit)
    return rows(connection, query, AlarmRow)


def groups(connection: Connection, which: AlarmFilter, *, limit: int = 100) -> list[AlarmGroup]:
    """In groups, that with the newest alarm first."""
    a = t.alarm.c
    last = func.max(a.id).label("last_id")
    grouped = (
        select(
            a.kind, a.account, a.detail, func.count().label("count"), func.min(a.at).label("first_at"),
            func.max(a.at).label("last_at"), last,
        )
        .outerjoin_from(t.alarm, t.acknowledgement, t.acknowledgement.c.alarm_id == a.id)
        .where(*which.conditions())
        .group_by(a.kind, a.account, a.detail)
        .order_by(last.desc())
        .limit(limit)
        .subquery()
    )  # fmt: skip
    newest = t.alarm.alias("newest")
    query = (
        select(*grouped.c, t.email.c.key)
        .join_from(grouped, newest, newest.c.id == grouped.c.last_id)
        .outerjoin(t.email, t.email.c.id == newest.c.email_id)
        .order_by(grouped.c.last_id.desc())
    )
    return rows(connection, query, AlarmGroup)


_ACKNOWLEDGE = """
INSERT INTO sendonce.acknowledgement (alarm_id, actor, note)
SELECT a.id, %(actor)s, %(note)s FROM sendonce.alarm a
WHERE a.closes IS NULL AND a.id > %(after)s
    AND (%(ids)s::bigint[] IS NULL OR a.id = ANY (%(ids)s::bigint[]))
    AND a.kind = coalesce(%(kind)s::text, a.kind)
    AND (%(account)s::text IS NULL OR a.account = %(account)s::text)
    AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)
    AND NOT EXISTS (SELECT FROM sendonce.acknowledgement k WHERE k.alarm_id = a.id)
ORDER BY a.id LIMIT %(batch)s
ON CONFLICT DO NOTHING RETURNING alarm_id
"""


async def acknowledge(conn: AsyncConnection[Any], which: AlarmFilter, *, actor: str, note: str | None = None) -> int:
    """Note that somebody has seen these open alarms; how many there were that nobody had. They stay open."""
    params: dict[str, Any] = {
        "actor": actor,
        "note": note,
        "ids": list(which.ids) or None,
        "kind": which.kind,
        "account": which.account,
        "batch": BATCH,
        "after": 0,
    }
    done = 0
    while True:
        cursor = await conn.execute(_ACKNOWLEDGE.encode(), params)
        taken = [row[0] for row in await cursor.fetchall()]
        if not taken:
            return done
        done += len(taken)
        params["after"] = max(taken)
