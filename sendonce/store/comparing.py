"""What a comparison with Temporal reads, page by page: mails that should have a workflow, and mails by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

QUIET_SECONDS = 30.0
"""A mail whose workflow was started or seen in that time is left alone: the start may be under way."""

OPEN_STAGES = ("pending", "claimed", "transmitting", "unknown")


@dataclass(frozen=True, slots=True)
class OpenMail:
    """A mail that has not ended, and that was started."""

    id: UUID
    key: str
    account: str
    lane: str
    created_at: datetime


_OPEN = """
SELECT e.id, e.key, e.account, e.lane, e.created_at FROM sendonce.email e
WHERE e.stage = %(stage)s AND e.started_at IS NOT NULL
    AND greatest(e.started_at, e.seen_at) <= sendonce.clock() - %(quiet)s * interval '1 second'
    AND (%(after)s::timestamptz IS NULL OR (e.created_at, e.id) > (%(after)s::timestamptz, %(after_id)s::uuid))
ORDER BY e.created_at, e.id LIMIT %(limit)s
"""


async def open_mails(
    conn: AsyncConnection[Any], stage: str, *, after: OpenMail | None = None, limit: int = 100
) -> list[OpenMail]:
    """The next page of this stage, the oldest first, by the index on stages."""
    params = {
        "stage": stage,
        "quiet": QUIET_SECONDS,
        "after": after and after.created_at,
        "after_id": after and after.id,
        "limit": limit,
    }
    async with conn.cursor(row_factory=class_row(OpenMail)) as cur:
        return await (await cur.execute(_OPEN, params)).fetchall()


async def is_open(conn: AsyncConnection[Any], email_id: UUID) -> bool:
    """Has the mail not ended, and was its workflow not seen just now?"""
    cursor = await conn.execute(
        "SELECT FROM sendonce.email e WHERE e.id = %s AND e.stage = ANY (%s)"
        " AND greatest(e.started_at, e.seen_at) <= sendonce.clock() - %s * interval '1 second'",
        [email_id, list(OPEN_STAGES), QUIET_SECONDS],
    )
    return await cursor.fetchone() is not None


async def stages(conn: AsyncConnection[Any], names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
    """By account and key, the mail's stage; None when retention has emptied it. What was never accepted is left out."""
    cursor = await conn.execute(
        "SELECT k.account, k.key, e.stage FROM unnest(%s::text[], %s::text[]) AS n (account, key)"
        " JOIN sendonce.email_key k ON k.account = n.account AND k.key = n.key"
        " LEFT JOIN sendonce.email e ON e.id = k.email_id",
        [[account for account, _ in names], [key for _, key in names]],
    )
    return {(account, key): stage for account, key, stage in await cursor.fetchall()}
