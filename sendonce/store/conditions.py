"""What is wrong at this moment and is about no single mail: one alarm while it lasts, ended when it is over.

The row in ``alarm_condition`` is what keeps several processes, and the same one at its next look, from raising the same
alarm again, also after an operator has acknowledged it.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from sendonce.store import alarms

LOOP_DEAD = "loop_dead"
OVERDUE = "overdue"
BACKLOG = "backlog"
GAP = "gap"
OLD_TRANSACTION = "old_transaction"


_RAISE = """
WITH raised AS (
    INSERT INTO sendonce.alarm (kind, account, detail) VALUES (%(kind)s, %(account)s, %(detail)s) RETURNING id
)
UPDATE sendonce.alarm_condition SET alarm_id = raised.id FROM raised WHERE kind = %(kind)s AND about = %(about)s
"""


async def begin(conn: AsyncConnection[Any], kind: str, about: str, detail: str, account: str | None = None) -> bool:
    """Raise an alarm of this kind, unless there is one about the same already; True when it was raised.

    ``about`` and ``detail`` hold names and numbers only.
    """
    async with conn.transaction():
        fresh = await conn.execute(
            "INSERT INTO sendonce.alarm_condition (kind, about) VALUES (%s, %s) ON CONFLICT DO NOTHING", [kind, about]
        )
        if not fresh.rowcount:
            return False
        await conn.execute(_RAISE, {"kind": kind, "about": about, "account": account, "detail": detail})
    return True


async def end(conn: AsyncConnection[Any], kind: str, about: str, why: str) -> bool:
    """It is over: end the alarm that :func:`begin` raised; True when there was one."""
    async with conn.transaction():
        ended = await conn.execute(
            "DELETE FROM sendonce.alarm_condition WHERE kind = %s AND about = %s RETURNING alarm_id", [kind, about]
        )
        row = await ended.fetchone()
        if row is not None:
            await alarms.close_one(conn, row[0], why)
    return row is not None


async def lasting(conn: AsyncConnection[Any], kind: str) -> set[str]:
    """What conditions of this kind are about at this moment."""
    rows = await (await conn.execute("SELECT about FROM sendonce.alarm_condition WHERE kind = %s", [kind])).fetchall()
    return {row[0] for row in rows}
