"""Alarms: append-only rows, written in the transaction that caused them.

An alarm is closed by another row that names it. Details hold ids and codes only. A trigger hands each row on to
:mod:`~sendonce.store.alarm_delivery`, which tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection


@dataclass(frozen=True, slots=True)
class Alarm:
    """One row. ``closes`` is set on a row that says an earlier alarm is over."""

    id: int
    at: datetime
    kind: str
    email_id: UUID | None
    account: str | None
    key: str | None
    detail: str
    closes: int | None


async def raise_alarm(conn: AsyncConnection[Any], kind: str, row: dict[str, Any], detail: str) -> None:
    """Append an alarm about a mail, inside the caller's transaction."""
    await conn.execute(
        "INSERT INTO sendonce.alarm (at, kind, email_id, account, detail) VALUES (%s, %s, %s, %s, %s)",
        [row["now"], kind, row["id"], row["account"], detail],
    )


async def raise_once(conn: AsyncConnection[Any], kind: str, row: dict[str, Any], detail: str) -> None:
    """Append an alarm about a mail unless one of that kind is open. The caller holds the mail's row lock."""
    await conn.execute(
        "INSERT INTO sendonce.alarm (at, kind, email_id, account, detail)"
        " SELECT %s, %s, %s, %s, %s WHERE NOT EXISTS ("
        "   SELECT FROM sendonce.alarm a WHERE a.email_id = %s AND a.kind = %s AND a.closes IS NULL"
        "   AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id))",
        [row["now"], kind, row["id"], row["account"], detail, row["id"], kind],
    )


async def close(conn: AsyncConnection[Any], kind: str, email_id: UUID, why: str) -> None:
    """Append a closing row for each open alarm of that kind about the mail."""
    await conn.execute(
        "INSERT INTO sendonce.alarm (kind, email_id, account, detail, closes)"
        " SELECT a.kind, a.email_id, a.account, %s, a.id FROM sendonce.alarm a"
        " WHERE a.email_id = %s AND a.kind = %s AND a.closes IS NULL"
        " AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)",
        [why, email_id, kind],
    )


async def close_one(conn: AsyncConnection[Any], alarm_id: int, why: str) -> bool:
    """Append a row that ends this alarm, unless it has ended or is one itself; True when it did. An operator's
    acknowledgement is such a row too.
    """
    done = await conn.execute(
        "INSERT INTO sendonce.alarm (kind, email_id, account, detail, closes)"
        " SELECT a.kind, a.email_id, a.account, %s, a.id FROM sendonce.alarm a"
        " WHERE a.id = %s AND a.closes IS NULL AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)",
        [why, alarm_id],
    )
    return done.rowcount > 0
