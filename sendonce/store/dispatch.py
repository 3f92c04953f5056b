"""What a starter asks besides which rows to start now (:mod:`~sendonce.store.turns`): which workflows have vanished.

What is returned is stamped under SKIP LOCKED. The stamp is only a lease of the start: the claim is the proof that a
workflow exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from sendonce.store import holds, turns
from sendonce.store.records import Startable


async def unstamp(conn: AsyncConnection[Any], email_ids: Sequence[UUID]) -> None:
    """The start did not happen: the rows wait for a starter again. Rows that a workflow has asked for stay stamped.

    Nor does it count as a restart that nobody answered: after a long outage of Temporal nobody waits for an hour.
    """
    await conn.execute(
        "WITH mine AS (SELECT id FROM sendonce.email WHERE id = ANY(%s) AND (seen_at IS NULL OR starts > 0)"
        # One that somebody else holds locked keeps its stamp, and is overdue in a minute.
        "   FOR UPDATE SKIP LOCKED)"
        " UPDATE sendonce.email e SET started_at = CASE WHEN e.seen_at IS NOT NULL THEN e.started_at END,"
        "   starts = greatest(e.starts - 1, 0) FROM mine WHERE e.id = mine.id",
        [list(email_ids)],
    )


# Neither started nor seen for a minute; twice as long after each restart that nobody answered.
_QUIET = """
    e.held_why IS NULL AND greatest(e.started_at, e.seen_at, e.next_attempt_at)
        <= (SELECT now FROM c) - %(after)s * 2 ^ least(e.starts, 6) * interval '1 second'
"""

_OVERDUE = f"""
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
{turns.PAUSED},
due AS MATERIALIZED (
    (SELECT e.id, e.next_attempt_at AS since FROM sendonce.email e
     WHERE e.lane = %(lane)s AND e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL
        -- Asked once and not for each row: while the lane is on hold, none is read.
        AND NOT {holds.named("%(lane)s", "lanes")}
        AND e.next_attempt_at <= (SELECT now FROM c) AND {_QUIET}
        AND e.account NOT IN (SELECT name FROM paused WHERE NOT probe_due AND from_domain = '')
        AND NOT {turns.DOMAIN_PAUSED} AND NOT ({holds.HELD})
     ORDER BY e.next_attempt_at, e.id LIMIT %(limit)s)
    UNION ALL
    (SELECT e.id, e.lease_until FROM sendonce.email e
     WHERE e.lane = %(lane)s AND e.stage = 'claimed' AND e.lease_until <= (SELECT now FROM c) AND {_QUIET}
     LIMIT %(limit)s)
),
vanished AS MATERIALIZED (
    SELECT e.id FROM sendonce.email e
    WHERE e.id = ANY(ARRAY(SELECT id FROM due ORDER BY since, id LIMIT %(limit)s)) AND {_QUIET}
    ORDER BY e.id FOR UPDATE OF e SKIP LOCKED
)
UPDATE sendonce.email e SET started_at = c.now, starts = e.starts + 1 FROM vanished v, c WHERE e.id = v.id
RETURNING e.id AS email_id, e.key, e.account, e.lane, coalesce(e.template, '') AS template
"""


def settings(digests: Mapping[str, str], fallbacks: Mapping[str, str]) -> dict[str, Any]:
    """What the queries are told of the accounts: their digests, and which fallback each has."""
    return {
        "accounts": list(digests),
        "digests": list(digests.values()),
        "fallbacks": [fallbacks.get(name) for name in digests],
    }


async def overdue(
    conn: AsyncConnection[Any],
    lane: str,
    *,
    limit: int,
    digests: Mapping[str, str],
    fallbacks: Mapping[str, str],
    after_seconds: float = 60.0,
) -> list[Startable]:
    """Stamp and return rows that are due while their workflow was neither started nor seen for ``after_seconds``.

    A backlog that was never started does not qualify, and neither does what is held, paused or on hold.
    """
    params = {
        "lane": lane,
        "limit": limit,
        "after": after_seconds,
        **settings(digests, fallbacks),
    }
    async with conn.cursor(row_factory=class_row(Startable)) as cur:
        return await (await cur.execute(_OVERDUE, params)).fetchall()
