"""How mails ended, for workflows that wait for it: who is to be told, and that they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row

from sendonce.final import Final
from sendonce.stages import FINAL, Stage
from sendonce.store import alarms
from sendonce.store.finals import OF_MAIL, final_of


@dataclass(frozen=True, slots=True)
class Untold:
    """What a workflow is to be told."""

    id: int
    email_id: UUID
    workflow_id: str
    signal: str
    account: str
    key: str
    stage: str
    partial: bool
    maybe_accepted: bool
    attempts: int
    code: int | None
    enhanced: str | None
    superseded_by: str | None


# The next try is planned before this one is made: nothing is locked while the workflow is told.
_DUE = """
WITH due AS (
    SELECT id FROM sendonce.final WHERE handed_at IS NULL AND workflow_id <> '' AND try_at <= sendonce.clock()
    ORDER BY try_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE sendonce.final f SET tries = f.tries + 1,
    try_at = sendonce.clock() + least(300, 5 * 2 ^ least(f.tries, 10)) * interval '1 second'
FROM due, sendonce.email e WHERE f.id = due.id AND e.id = f.email_id
RETURNING f.id, f.email_id, f.workflow_id, f.signal, e.account, e.key, f.stage, f.partial, f.maybe_accepted, f.attempts,
    f.code, f.enhanced, f.superseded_by
"""


async def take_untold(conn: AsyncConnection[Any], limit: int = 100) -> list[Untold]:
    """What workflows are to be told now. Each is tried again after 5 s, later every 5 minutes, until :func:`told`."""
    async with conn.cursor(row_factory=class_row(Untold)) as cur:
        return sorted(await (await cur.execute(_DUE, {"limit": limit})).fetchall(), key=lambda one: one.id)


async def told(conn: AsyncConnection[Any], one: Untold, *, gone: bool = False) -> None:
    """The workflow was told; ``gone``: there is no such workflow any more, which is alarmed once for the mail."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(
            "UPDATE sendonce.final SET handed_at = sendonce.clock() WHERE id = %s AND handed_at IS NULL", [one.id]
        )
        if gone and cur.rowcount:
            await cur.execute(
                "SELECT id, account, sendonce.clock() AS now FROM sendonce.email WHERE id = %s FOR UPDATE",
                [one.email_id],
            )
            row = await cur.fetchone()
            if row is not None:
                await alarms.raise_once(conn, "nobody_told", row, f"stage {one.stage}: the workflow to be told is gone")


_LOCK = """
SELECT FROM sendonce.email
WHERE id = (SELECT email_id FROM sendonce.email_key WHERE account = %(account)s AND key = %(key)s) FOR UPDATE
"""
_STANDING = OF_MAIL.format(account="%(account)s", key="%(key)s")


async def watch(
    conn: AsyncConnection[Any], account: str, key: str, workflow_id: str, signal: str
) -> Final | Stage | None:
    """How the mail ended; or its stage, and that workflow is told when it ends. None: there is no such mail."""
    async with conn.transaction():
        params = {"account": account, "key": key}
        await conn.execute(_LOCK, params)
        row = await (await conn.execute(_STANDING, params)).fetchone()
        if row is None:
            return None
        final = final_of(row)
        if final.stage in FINAL:
            return final
        # The row is locked: it cannot end in between.
        cursor = await conn.execute(
            "INSERT INTO sendonce.final_watch (email_id, workflow_id, signal) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            [final.email_id, workflow_id, signal],
        )
        if cursor.rowcount:
            await conn.execute(
                "UPDATE sendonce.email SET watched = true WHERE id = %s AND NOT watched", [final.email_id]
            )
        return final.stage
