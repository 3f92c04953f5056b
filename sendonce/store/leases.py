"""What keeps a claim, and what gives it back. Each statement is fenced by the lease's id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from sendonce.store import holds

# A row that somebody else holds locked is passed over, not waited for: one mail must not cost the others their leases.
_RENEW = """
WITH mine AS (
    SELECT id FROM sendonce.email
    WHERE stage IN ('claimed', 'transmitting') AND lease_id = ANY(%(leases)s) ORDER BY id FOR UPDATE SKIP LOCKED
), renewed AS (
    UPDATE sendonce.email e SET lease_until = sendonce.clock() + %(lease_seconds)s * interval '1 second'
    FROM mine WHERE e.id = mine.id RETURNING e.lease_id
)
SELECT e.lease_id, e.lease_id IN (SELECT lease_id FROM renewed) FROM sendonce.email e
WHERE e.stage IN ('claimed', 'transmitting') AND e.lease_id = ANY(%(leases)s)
"""


async def renew(conn: AsyncConnection[Any], leases: Sequence[UUID], lease_seconds: float) -> dict[UUID, bool]:
    """Renew all leases of a process in one statement.

    Returns those that still stand: True when renewed, False when another transaction holds the row at this moment.
    A lease that is missing is lost.
    """
    cursor = await conn.execute(_RENEW, {"leases": list(leases), "lease_seconds": lease_seconds})
    return {row[0]: row[1] for row in await cursor.fetchall()}


_RELEASE = f"""
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
r AS MATERIALIZED (
    SELECT e.id, e.rest_stage, e.next_attempt_at, c.now FROM sendonce.email e, c
    WHERE e.id = %(id)s AND e.stage = 'claimed' AND e.lease_id = %(attempt)s FOR UPDATE OF e
),
freed AS (
    UPDATE sendonce.email e SET stage = r.rest_stage, lease_id = NULL, lease_until = NULL, lease_worker = NULL,
        lease_alone = false, held_since = CASE WHEN %(held)s THEN coalesce(e.held_since, r.now) ELSE e.held_since END,
        next_attempt_at = CASE WHEN r.next_attempt_at IS NULL THEN NULL
            ELSE greatest(r.next_attempt_at, r.now + %(delay)s * interval '1 second') END
    FROM r WHERE e.id = r.id
    RETURNING e.id, e.stage, e.held_since, r.now, e.lane, e.template, e.fairness_key, e.account
),
attempt AS (
    UPDATE sendonce.attempt t SET ended_at = freed.now, ended_why = %(why)s FROM freed WHERE t.id = %(attempt)s
),
logged AS (
    INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
    SELECT id, now, 'claimed', stage, %(why)s, %(actor)s, %(attempt)s FROM freed
)
SELECT extract(epoch FROM now - held_since - CASE WHEN held_since < now
    THEN {holds.held_back("freed", "freed.held_since", "freed.now")} ELSE interval '0' END)::float8 FROM freed
"""


async def release(
    conn: AsyncConnection[Any],
    email_id: UUID,
    attempt_id: UUID,
    *,
    why: str,
    delay: float,
    actor: str,
    held: bool = False,
) -> float:
    """Give an unbegun claim back, uncounted. Does nothing when the row has moved on.

    ``held``: a fault of ours keeps the mail waiting. Returns for how many seconds it has been so, 0 when not at all.
    """
    params = {"id": email_id, "attempt": attempt_id, "why": why, "delay": delay, "actor": actor, "held": held}
    row = await (await conn.execute(_RELEASE, params)).fetchone()
    return float(row[0]) if row is not None and row[0] is not None else 0.0


# A row that somebody else holds locked is passed over: who it is knows of the mail, and nobody here waits for that.
_TOUCH = """
WITH mine AS (
    SELECT id FROM sendonce.email
    WHERE id = %(id)s AND stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled') FOR UPDATE SKIP LOCKED
)
UPDATE sendonce.email e
SET seen_at = sendonce.clock(), started_at = coalesce(e.started_at, sendonce.clock()), starts = 0
FROM mine WHERE e.id = mine.id
"""


async def touch(conn: AsyncConnection[Any], email_id: UUID) -> None:
    """Stamp that the mail's workflow was seen, unless somebody holds its row locked."""
    await conn.execute(_TOUCH, {"id": email_id})
