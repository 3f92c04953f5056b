"""Signs of life of each process and of each of its loops, and what others make of their absence.

Ages are measured by each process's own steady clock and turned into instants of the store's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from sendonce.store import conditions

SILENT_SECONDS = 60.0
"""A process that has said nothing for so long is dead, or out of the store's reach."""

SERVED_SECONDS = 3600.0
"""One that has been silent for so long is not missed any more when others of its kind serve all its lanes: there are
fewer now."""


@dataclass(frozen=True, slots=True)
class Beat:
    """When a loop came round last."""

    age: float
    """Seconds ago."""
    patience: float
    """Seconds after which it is dead."""


_BEAT = """
WITH p AS (
    INSERT INTO sendonce.process (id, kind, lanes, started_at, beat_at)
    VALUES (%(id)s, %(kind)s, %(lanes)s, sendonce.clock(), sendonce.clock())
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, lanes = excluded.lanes
    RETURNING id
), gone AS (
    DELETE FROM sendonce.process_loop l WHERE l.process_id = %(id)s AND l.name <> ALL (%(names)s::text[])
)
INSERT INTO sendonce.process_loop (process_id, name, beat_at, patience)
SELECT %(id)s, one.name, sendonce.clock() - one.age * interval '1 second', one.patience
FROM p, unnest(%(names)s::text[], %(ages)s::float8[], %(patiences)s::float8[]) AS one (name, age, patience)
ON CONFLICT (process_id, name) DO UPDATE SET beat_at = excluded.beat_at, patience = excluded.patience
"""


async def beat(
    conn: AsyncConnection[Any], process_id: str, kind: str, lanes: Sequence[str], loops: Mapping[str, Beat]
) -> None:
    """Say that this process is alive, serves ``lanes``, and when its loops came round; forget who has been silent for
    a day.
    """
    async with conn.transaction():
        await conn.execute("DELETE FROM sendonce.process WHERE beat_at < sendonce.clock() - interval '1 day'")
        await conn.execute(
            _BEAT,
            {
                "id": process_id,
                "kind": kind,
                "lanes": list(lanes),
                "names": list(loops),
                "ages": [one.age for one in loops.values()],
                "patiences": [one.patience for one in loops.values()],
            },
        )


async def leave(conn: AsyncConnection[Any], process_id: str) -> None:
    """This process ends in order: nobody is to miss it."""
    await conn.execute("DELETE FROM sendonce.process WHERE id = %s", [process_id])


# Whoever judges must have been there for a while itself, and the server too: after an outage of the store nobody's last
# sign of life is recent, and after a start of everything at once some have not had the time for one.
_ME = """
WITH me AS (
    SELECT FROM sendonce.process p WHERE p.id = %(me)s
        AND p.started_at < sendonce.clock() - %(silent)s * interval '1 second'
        AND pg_postmaster_start_time() < sendonce.clock() - %(silent)s * interval '1 second'
)
"""

# One that came after the last sign of life takes the place of one that is silent, and of one only: of two that were
# killed, one is missed when one has come. The successor may be silent itself by now; then it is what is missed.
_REPLACED = f"""
{_ME}, pair AS MATERIALIZED (
    SELECT p.id AS gone, s.id AS successor FROM me, sendonce.process p, LATERAL (
        SELECT s.id FROM sendonce.process s
        WHERE s.kind = p.kind AND s.lanes @> p.lanes AND s.started_at > p.beat_at AND s.replaces IS NULL
        ORDER BY s.started_at LIMIT 1 FOR UPDATE OF s SKIP LOCKED
    ) s
    WHERE p.beat_at < sendonce.clock() - %(silent)s * interval '1 second'
    ORDER BY p.beat_at LIMIT 1 FOR UPDATE OF p SKIP LOCKED
), marked AS (
    UPDATE sendonce.process s SET replaces = pair.gone FROM pair WHERE s.id = pair.successor
)
DELETE FROM sendonce.process p USING pair WHERE p.id = pair.gone RETURNING p.id, pair.successor
"""

_SERVED = f"""
{_ME}
DELETE FROM sendonce.process p USING me
WHERE p.beat_at < sendonce.clock() - %(served)s * interval '1 second' AND NOT EXISTS (
    SELECT FROM unnest(p.lanes) lane WHERE NOT EXISTS (
        SELECT FROM sendonce.process s
        WHERE s.kind = p.kind AND lane = ANY (s.lanes)
            AND s.beat_at >= sendonce.clock() - %(silent)s * interval '1 second'))
RETURNING p.id
"""

_DEAD = f"""
{_ME}
SELECT p.id AS about, p.kind || ' ' || p.id || ' is silent' AS detail FROM me, sendonce.process p
WHERE p.beat_at < sendonce.clock() - %(silent)s * interval '1 second'
UNION ALL
SELECT p.id || '/' || l.name, 'loop ' || l.name || ' of ' || p.kind || ' ' || p.id || ' does not come round'
FROM me, sendonce.process p JOIN sendonce.process_loop l ON l.process_id = p.id
WHERE p.beat_at >= sendonce.clock() - %(silent)s * interval '1 second'
    AND l.beat_at < sendonce.clock() - l.patience * interval '1 second'
"""

_ALIVE = """
SELECT c.about FROM sendonce.alarm_condition c
WHERE c.kind = %(kind)s AND NOT EXISTS (
    SELECT FROM sendonce.process p
    WHERE p.id = c.about AND p.beat_at < sendonce.clock() - %(silent)s * interval '1 second')
AND NOT EXISTS (
    SELECT FROM sendonce.process p JOIN sendonce.process_loop l ON l.process_id = p.id
    WHERE p.id || '/' || l.name = c.about AND l.beat_at < sendonce.clock() - l.patience * interval '1 second')
"""


async def judge(conn: AsyncConnection[Any], me: str, *, silent_seconds: float = SILENT_SECONDS) -> int:
    """Raise ``loop_dead`` for processes and loops without a sign of life; returns how many are dead.

    It ends where there is a sign again, and where nobody is missed: the process has left, another one has taken its
    place, others have served all its lanes for :data:`SERVED_SECONDS`, or it has been silent for a day.
    """
    params = {"me": me, "silent": silent_seconds, "served": SERVED_SECONDS, "kind": conditions.LOOP_DEAD}
    while (pair := await (await conn.execute(_REPLACED, params)).fetchone()) is not None:
        await conditions.end(conn, conditions.LOOP_DEAD, pair[0], f"{pair[1]} has taken its place")
    for (gone,) in await (await conn.execute(_SERVED, params)).fetchall():
        await conditions.end(conn, conditions.LOOP_DEAD, gone, "others serve its lanes")
    dead = await (await conn.execute(_DEAD, params)).fetchall()
    for about, detail in dead:
        await conditions.begin(conn, conditions.LOOP_DEAD, about, detail)
    for (about,) in await (await conn.execute(_ALIVE, params)).fetchall():
        await conditions.end(conn, conditions.LOOP_DEAD, about, "alive again, or gone in order")
    return len(dead)
