"""Topics: of one account's mails with the same topic only the newest is worth sending.

Claim and begin decide it, by what is committed when they ask. The sweep looks for those that wait for a later time, so
that they end when they lose their place, and not when they would have been due.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, errors
from psycopg.rows import dict_row

from sendonce.policy import LanePolicy
from sendonce.store.facts import reconsider
from sendonce.store.records import Standing, Startable
from sendonce.store.sweeps import lane_of

LOCK_TIMEOUT_MS = 500
"""So long the row of a replaced mail is waited for. Whoever holds it may be calling that mail off, in a transaction
that goes on."""

SUPERSEDED = """(r.has_topic AND r.cancel_requested_at IS NULL AND EXISTS (
    SELECT FROM sendonce.topic mine JOIN sendonce.topic newer
        ON newer.account = mine.account AND newer.topic = mine.topic AND newer.number > mine.number
    WHERE mine.email_id = r.id))"""
"""A condition on the mail ``r``. One without a topic is asked for nothing more."""

_SUPERSEDE = """
UPDATE sendonce.email e SET superseded_by = newest.key FROM (
    SELECT n.key FROM sendonce.topic mine JOIN sendonce.topic newer
        ON newer.account = mine.account AND newer.topic = mine.topic AND newer.number > mine.number
    JOIN sendonce.email n ON n.id = newer.email_id
    WHERE mine.email_id = %(id)s ORDER BY newer.number DESC LIMIT 1
) newest
WHERE e.id = %(id)s AND e.cancel_requested_at IS NULL
    AND e.stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled')
"""


async def superseded(conn: AsyncConnection[Any], email_id: UUID) -> bool:
    """Whether a newer mail of the same topic has taken this one's place."""
    query = f"SELECT {SUPERSEDED} FROM sendonce.email r WHERE r.id = %s"
    row = await (await conn.execute(query.encode(), [email_id])).fetchone()
    return row is not None and bool(row[0])


async def supersede(conn: AsyncConnection[Any], email_id: UUID, *, lane: LanePolicy, actor: str) -> Standing:
    """A newer mail takes this one's place: it is withdrawn like one that is cancelled, and names the newest.

    Nothing is withdrawn when it has ended, was cancelled before, or no newer one is there any more. Raises
    :class:`psycopg.errors.LockNotAvailable` when somebody holds its row locked.
    """
    async with conn.transaction():
        await conn.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode())
        await conn.execute("SELECT FROM sendonce.email WHERE id = %(id)s FOR UPDATE", {"id": email_id})
        # After the lock: it sees what was committed meanwhile.
        done = await conn.execute(_SUPERSEDE, {"id": email_id})
        return await reconsider(conn, email_id, lane=lane, cause="superseded", actor=actor, cancel=bool(done.rowcount))


_NEWS = """
SELECT email_id, account, topic, number FROM sendonce.topic
WHERE NOT looked ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_OLDER = """
SELECT e.id, e.key, e.account, e.lane, e.started_at IS NOT NULL AS started
FROM sendonce.topic older JOIN sendonce.email e ON e.id = older.email_id
WHERE older.account = %(account)s AND older.topic = %(topic)s AND older.number < %(number)s
    AND e.cancel_requested_at IS NULL AND e.stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled')
ORDER BY older.number DESC LIMIT 100
"""
_LOOKED = "UPDATE sendonce.topic SET looked = true WHERE email_id = %(email_id)s"


async def sweep(
    conn: AsyncConnection[Any], lanes: Mapping[str, LanePolicy], actor: str, limit: int = 200
) -> list[Startable]:
    """Withdraw what newer mails have replaced, at most so many mails' predecessors; returns those to be poked."""
    found: list[Startable] = []
    for _ in range(limit):
        async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
            news = await (await cur.execute(_NEWS)).fetchone()
            if news is None:
                break
            older = await (await cur.execute(_OLDER, news)).fetchall()
            await cur.execute(_LOOKED, news)
        # Each in its own transaction: nobody ever waits for one of these mails while another is held. What is left out,
        # by a limit, by a lock or by a process that dies here, is seen when it is claimed.
        for row in older:
            lane = lane_of(lanes, row["lane"])
            try:
                await supersede(conn, row["id"], lane=lane, actor=actor)
            except errors.LockNotAvailable:
                continue
            if row["started"]:
                found.append(Startable(row["id"], row["key"], row["account"], row["lane"]))
    return found
