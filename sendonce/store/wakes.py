"""Workflows that are to be woken because of what somebody else wrote: an operator, a webhook, a bounce.

Whoever writes needs no Temporal: the wish is a row in the same transaction, and the workers' upkeep fulfils it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.store.records import Startable

_TAKE = """
WITH taken AS (
    DELETE FROM sendonce.wake w WHERE w.email_id IN (
        SELECT email_id FROM sendonce.wake ORDER BY at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    RETURNING w.email_id
)
SELECT e.id, e.key, e.account, e.lane FROM taken t JOIN sendonce.email e ON e.id = t.email_id
WHERE e.started_at IS NOT NULL ORDER BY e.id
"""


# Of an older wish the row is taken over: it may be fulfilled before the caller commits, with nothing to be seen yet.
_ASK = """
INSERT INTO sendonce.wake (email_id) SELECT DISTINCT unnest(%s::uuid[]) ORDER BY 1
ON CONFLICT (email_id) DO UPDATE SET at = excluded.at
"""


async def ask(conn: AsyncConnection[Any], email_ids: Sequence[UUID]) -> None:
    """Have these mails' workflows woken soon after the caller's transaction commits."""
    await conn.execute(_ASK, [list(email_ids)])


async def forget(conn: AsyncConnection[Any], email_id: UUID) -> None:
    """The mail's workflow is awake, and asks the store anyway."""
    await conn.execute("DELETE FROM sendonce.wake WHERE email_id = %s", [email_id])


async def take(conn: AsyncConnection[Any], limit: int = 100) -> list[Startable]:
    """Take so many wishes. One that is lost now costs little: every workflow has a timer of its own."""
    async with conn.cursor(row_factory=dict_row) as cur:
        rows = await (await cur.execute(_TAKE, {"limit": limit})).fetchall()
    return [Startable(row["id"], row["key"], row["account"], row["lane"]) for row in rows]
