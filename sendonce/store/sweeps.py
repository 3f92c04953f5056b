"""What every worker looks after, whoever's mail it is: silent offers, overdue alarms, unknowns to close.

Each row is its own short transaction under SKIP LOCKED, so that many workers share the work without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.outcome import AttemptResult, Unanswered, same_for_all
from sendonce.policy import DEFAULT_LANES, LanePolicy
from sendonce.store import alarms
from sendonce.store.facts import reconsider, settle
from sendonce.store.records import Startable

LAPSE_ALARM_SECONDS = 20.0
"""An unknown that comes from a lapsed lease is alarmed this much later: its process may only have been slow."""

_SILENT = """
SELECT e.id, e.key, e.account, e.lane, e.lease_id, t.offered
FROM sendonce.email e JOIN sendonce.attempt t ON t.id = e.lease_id
WHERE e.stage = 'transmitting' AND e.lease_until < sendonce.clock()
ORDER BY e.id LIMIT 1 FOR UPDATE OF e SKIP LOCKED
"""

_CLOSING = """
SELECT e.id, e.key, e.account, e.lane FROM sendonce.email e
WHERE e.stage = 'unknown' AND e.close_at <= sendonce.clock()
ORDER BY e.close_at LIMIT 1 FOR UPDATE OF e SKIP LOCKED
"""


def lane_of(lanes: Mapping[str, LanePolicy], name: str) -> LanePolicy:
    """The lane's policy; a lane that is no longer configured is treated like ``default``."""
    return lanes.get(name) or lanes.get("default") or DEFAULT_LANES["default"]


async def silent(
    conn: AsyncConnection[Any], lanes: Mapping[str, LanePolicy], actor: str, limit: int = 200
) -> list[Startable]:
    """Offers whose process stopped renewing become ``unknown``; returns the mails whose workflows want a poke."""
    found: list[Startable] = []
    while len(found) < limit:
        async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
            row = await (await cur.execute(_SILENT)).fetchone()
            if row is None:
                break
            result: AttemptResult = same_for_all(tuple(row["offered"]), Unanswered())
            await settle(
                conn,
                row["id"],
                row["lease_id"],
                result,
                lane=lane_of(lanes, row["lane"]),
                actor=actor,
                cause="silent",
                alarm_delay=LAPSE_ALARM_SECONDS,
            )
        found.append(Startable(row["id"], row["key"], row["account"], row["lane"]))
    return found


async def close_unknowns(
    conn: AsyncConnection[Any], lanes: Mapping[str, LanePolicy], actor: str, limit: int = 200
) -> list[Startable]:
    """Unknowns that nobody settled in ``unknown_days`` are closed, marked ``maybe_accepted``; returned to be poked."""
    found: list[Startable] = []
    while len(found) < limit:
        async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
            row = await (await cur.execute(_CLOSING)).fetchone()
            if row is None:
                break
            lane = lane_of(lanes, row["lane"])
            await reconsider(conn, row["id"], lane=lane, cause="unknown_days", actor=actor)
        found.append(Startable(row["id"], row["key"], row["account"], row["lane"]))
    return found


_ALARMS = """
WITH due AS (
    SELECT id FROM sendonce.email WHERE alarm_at <= sendonce.clock() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE sendonce.email e SET alarm_at = NULL FROM due WHERE e.id = due.id
RETURNING e.id, e.account, e.stage, sendonce.clock() AS now
"""


async def raise_due_alarms(conn: AsyncConnection[Any], limit: int = 200) -> int:
    """Raise the alarms whose time has come; returns how many."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        rows = await (await cur.execute(_ALARMS, [limit])).fetchall()
        for row in rows:
            await alarms.raise_once(conn, "unknown", row, "offered and unanswered")
    return len(rows)


UNSERVED_SECONDS = 300.0
"""A mail that has been due for so long, and that no starter has looked at, is alarmed: does anybody serve its lane?"""

# The lanes that have started mail, each found by one step through the index.
_WAITING = """
waiting (lane) AS (
    (SELECT lane FROM sendonce.email WHERE stage IN ('pending', 'unknown') AND started_at IS NOT NULL
     ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT e.lane FROM sendonce.email e
            WHERE e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL AND e.lane > l.lane
            ORDER BY e.lane LIMIT 1)
    FROM waiting l WHERE l.lane IS NOT NULL
)
"""
_WORKED = """(
    SELECT FROM sendonce.process p
    WHERE p.kind = 'worker' AND l.lane = ANY (p.lanes) AND p.beat_at > sendonce.clock() - interval '60 seconds')"""

_UNSERVED = f"""
WITH RECURSIVE {_WAITING},
lanes (lane) AS (
    (SELECT lane FROM sendonce.email WHERE stage = 'pending' AND started_at IS NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT e.lane FROM sendonce.email e
            WHERE e.stage = 'pending' AND e.started_at IS NULL AND e.lane > l.lane ORDER BY e.lane LIMIT 1)
    FROM lanes l WHERE l.lane IS NOT NULL
)
(SELECT first.id, first.account, l.lane, sendonce.clock() AS now FROM lanes l, LATERAL (
    SELECT e.id, e.account FROM sendonce.email e
    WHERE e.lane = l.lane AND e.stage = 'pending' AND e.started_at IS NULL
        AND e.next_attempt_at <= sendonce.clock() - %(after)s * interval '1 second'
    ORDER BY e.account, e.fairness_key, e.next_attempt_at LIMIT 1
) first
WHERE NOT EXISTS (SELECT FROM sendonce.process p
                  WHERE l.lane = ANY (p.lanes) AND p.beat_at > sendonce.clock() - interval '60 seconds'))
UNION ALL
-- Started, and no worker is there to go on with it.
(SELECT first.id, first.account, l.lane, sendonce.clock() AS now FROM waiting l, LATERAL (
    SELECT e.id, e.account FROM sendonce.email e
    WHERE e.lane = l.lane AND e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL
        AND e.next_attempt_at <= sendonce.clock() - %(after)s * interval '1 second'
    ORDER BY e.next_attempt_at, e.id LIMIT 1
) first
WHERE NOT EXISTS {_WORKED})
"""

_SERVED_AGAIN = """
INSERT INTO sendonce.alarm (kind, email_id, account, detail, closes)
SELECT a.kind, a.email_id, a.account, 'served again', a.id
FROM sendonce.alarm a LEFT JOIN sendonce.email e ON e.id = a.email_id
WHERE a.kind = 'unserved' AND a.closes IS NULL
    AND (e.id IS NULL OR e.stage NOT IN ('pending', 'unknown') OR e.seen_at > a.at)
    AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)
"""


async def unserved(conn: AsyncConnection[Any]) -> int:
    """An alarm for each lane whose mail waits while no living process serves it, until somebody does; returns how
    many such lanes there are.
    """
    async with conn.transaction():
        await conn.execute(_SERVED_AGAIN)
        async with conn.cursor(row_factory=dict_row) as cur:
            rows = await (await cur.execute(_UNSERVED, {"after": UNSERVED_SECONDS})).fetchall()
        for row in rows:
            await alarms.raise_once(conn, "unserved", row, f"nobody serves lane {row['lane']}")
    return len(rows)


_EXPIRED = """
SELECT e.id, e.lane FROM sendonce.email e
WHERE e.stage = 'pending' AND e.started_at IS NULL AND e.expires_at <= sendonce.clock()
ORDER BY e.expires_at LIMIT 1 FOR UPDATE OF e SKIP LOCKED
"""
# Started, and no worker is there to go on with it. In this order, only what has expired is looked at.
_EXPIRED_UNSERVED = f"""
WITH RECURSIVE {_WAITING}
SELECT e.id, e.lane FROM sendonce.email e
WHERE e.stage = 'pending' AND e.started_at IS NOT NULL AND e.expires_at <= sendonce.clock()
    AND e.lane = ANY (ARRAY(SELECT l.lane FROM waiting l WHERE NOT EXISTS {_WORKED}))
ORDER BY e.expires_at LIMIT 1 FOR UPDATE OF e SKIP LOCKED
"""


async def expire_unstarted(
    conn: AsyncConnection[Any], lanes: Mapping[str, LanePolicy], actor: str, limit: int = 200
) -> int:
    """Mails whose deadline passed before anybody started them, or while no worker serves their lane any more."""
    done = 0
    while done < limit:
        async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
            row = await (await cur.execute(_EXPIRED)).fetchone()
            if row is None:
                row = await (await cur.execute(_EXPIRED_UNSERVED)).fetchone()
            if row is None:
                break
            await reconsider(conn, row["id"], lane=lane_of(lanes, row["lane"]), cause="expired", actor=actor)
        done += 1
    return done


async def alarm(conn: AsyncConnection[Any], email_id: UUID, kind: str, detail: str) -> None:
    """Raise an alarm about a mail unless one of that kind is open."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(
            "SELECT id, account, sendonce.clock() AS now FROM sendonce.email WHERE id = %s FOR UPDATE", [email_id]
        )
        row = await cur.fetchone()
        if row is not None:
            await alarms.raise_once(conn, kind, row, detail)


async def hold(conn: AsyncConnection[Any], email_id: UUID, why: str, actor: str) -> None:
    """Nobody tries this mail until an operator decides; with an alarm. Does nothing to a final or held mail."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(
            "UPDATE sendonce.email SET held_why = %s WHERE id = %s AND held_why IS NULL"
            " AND stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled')"
            " RETURNING id, account, stage, sendonce.clock() AS now",
            [why, email_id],
        )
        row = await cur.fetchone()
        if row is not None:
            await conn.execute(
                "INSERT INTO sendonce.transition (email_id, from_stage, to_stage, cause, actor)"
                " VALUES (%s, %s, %s, %s, %s)",
                [email_id, row["stage"], row["stage"], f"held: {why}", actor],
            )
            await alarms.raise_once(conn, "held", row, why)
