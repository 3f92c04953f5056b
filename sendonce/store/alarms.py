"""Alarms: append-only rows, written in the transaction that caused them, delivered by a loop in every worker.

An alarm is closed by another row that names it. Details hold ids and codes only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row


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


_UNDELIVERED = """
SELECT a.id, a.at, a.kind, a.email_id, a.account, e.key, a.detail, a.closes
FROM sendonce.alarm a LEFT JOIN sendonce.email e ON e.id = a.email_id
WHERE a.delivered_at IS NULL ORDER BY a.id LIMIT %s FOR UPDATE OF a SKIP LOCKED
"""


async def deliver(conn: AsyncConnection[Any], handler: Callable[[Alarm], Awaitable[None]], limit: int) -> int:
    """Hand undelivered alarms to ``handler``, oldest first, each marked in the transaction that locked it.

    A process that dies in between leaves them undelivered: an alarm can be told twice, never not at all. When the
    handler raises, those before it stay marked and the error goes on to the caller.
    """
    done = 0
    while done < limit:
        async with conn.transaction():
            async with conn.cursor(row_factory=class_row(Alarm)) as cur:
                alarm = await (await cur.execute(_UNDELIVERED, [1])).fetchone()
            if alarm is None:
                return done
            await handler(alarm)
            await conn.execute("UPDATE sendonce.alarm SET delivered_at = sendonce.clock() WHERE id = %s", [alarm.id])
        done += 1
    return done
