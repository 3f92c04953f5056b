"""Telling alarms: taken into notices, one for each sink, kind and account, and told by whoever leases the notice.

An alarm is part of its notices in the statement that takes it, so none is lost; a process that dies after a message and
before :func:`told` leaves the notice to be told again. No transaction is open while a message is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from sendonce.store.alarms import Alarm

EXAMPLES = 10
"""So many alarms are named in a message; the others are counted."""

TAKEN_AT_ONCE = 1000
"""Alarms taken by one statement."""


@dataclass(frozen=True, slots=True)
class Audience:
    """A sink, as far as the store must know it."""

    name: str
    ends: bool = False
    """It is told of ends of alarms too."""
    kinds: tuple[str, ...] = ()
    """Only these kinds; empty: all."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to one sink."""

    sink: str
    kind: str
    account: str
    """``""``: of no account."""
    ended: bool
    """It is about ends of alarms."""
    waiting: int
    """Alarms that it is about."""
    first_at: datetime
    last_at: datetime
    told: int
    """Messages before it, since it was last quiet."""
    failures: int
    """Tries of it that failed."""
    lease: UUID
    examples: tuple[Alarm, ...]
    """The first of the alarms, at most :data:`EXAMPLES`."""


_TAKE = f"""
WITH c AS (SELECT sendonce.clock() AS now), new AS (
    SELECT s.alarm_id FROM sendonce.alarm_state s WHERE s.taken_at IS NULL
    ORDER BY s.alarm_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE sendonce.alarm_state s SET taken_at = c.now FROM new, c WHERE s.alarm_id = new.alarm_id RETURNING s.alarm_id
), found AS (
    SELECT a.kind, coalesce(a.account, '') AS account, a.closes IS NOT NULL AS ended, count(*) AS n,
        (array_agg(a.id ORDER BY a.id))[1:{EXAMPLES}] AS examples, min(a.at) AS first_at, max(a.at) AS last_at
    FROM taken JOIN sendonce.alarm a ON a.id = taken.alarm_id GROUP BY 1, 2, 3
), noted AS (
    INSERT INTO sendonce.alarm_notice AS n (sink, kind, account, ended, waiting, examples, first_at, last_at, due_at)
    SELECT sink.name, f.kind, f.account, f.ended, f.n, f.examples, f.first_at, f.last_at, c.now
    FROM c, found f, jsonb_to_recordset(%(sinks)s) AS sink (name text, ends boolean, kinds jsonb)
    WHERE (sink.ends OR NOT f.ended) AND (sink.kinds = '[]' OR sink.kinds ? f.kind)
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (sink, kind, account, ended) DO UPDATE SET
        waiting = n.waiting + excluded.waiting,
        examples = (n.examples || excluded.examples)[1:{EXAMPLES}],
        first_at = CASE WHEN n.waiting = 0 THEN excluded.first_at ELSE n.first_at END,
        last_at = greatest(n.last_at, excluded.last_at),
        -- After a time without such alarms the first one is told at once again.
        told = CASE WHEN n.last_at < excluded.due_at - %(quiet)s * interval '1 second' THEN 0 ELSE n.told END,
        due_at = CASE WHEN n.waiting = 0 AND n.last_at < excluded.due_at - %(quiet)s * interval '1 second'
            THEN excluded.due_at ELSE n.due_at END
)
SELECT count(*) FROM taken
"""


async def take(conn: AsyncConnection[Any], audiences: Sequence[Audience], *, quiet_seconds: float) -> int:
    """Take new alarms into the notices of these sinks; returns how many were taken.

    ``quiet_seconds`` after the last alarm of a notice the next one is told at once again.
    """
    sinks = [{"name": one.name, "ends": one.ends, "kinds": list(one.kinds)} for one in audiences]
    params = {"limit": TAKEN_AT_ONCE, "sinks": Jsonb(sinks), "quiet": quiet_seconds}
    row = await (await conn.execute(_TAKE, params)).fetchone()
    assert row is not None
    return int(row[0])


_LEASE = """
WITH c AS (SELECT sendonce.clock() AS now), due AS (
    SELECT n.sink, n.kind, n.account, n.ended FROM sendonce.alarm_notice n, c
    WHERE n.sink = %(sink)s AND n.waiting > 0 AND n.due_at <= c.now AND coalesce(n.lease_until <= c.now, true)
    ORDER BY n.due_at LIMIT 1 FOR UPDATE OF n SKIP LOCKED
)
UPDATE sendonce.alarm_notice n SET lease = %(lease)s, lease_until = c.now + %(seconds)s * interval '1 second'
FROM due, c WHERE (n.sink, n.kind, n.account, n.ended) = (due.sink, due.kind, due.account, due.ended)
RETURNING n.sink, n.kind, n.account, n.ended, n.waiting, n.first_at, n.last_at, n.told, n.failures, n.lease, n.examples
"""

_EXAMPLES = """
SELECT a.id, a.at, a.kind, a.email_id, a.account, e.key, a.detail, a.closes
FROM sendonce.alarm a LEFT JOIN sendonce.email e ON e.id = a.email_id WHERE a.id = ANY (%s) ORDER BY a.id
"""


async def lease(conn: AsyncConnection[Any], sink: str, seconds: float) -> Notice | None:
    """The message of this sink that is due first, nobody else's for so many seconds; None when there is none."""
    async with conn.cursor(row_factory=dict_row) as cur:
        params = {"sink": sink, "lease": uuid4(), "seconds": seconds}
        row = await (await cur.execute(_LEASE, params)).fetchone()
    if row is None:
        return None
    async with conn.cursor(row_factory=class_row(Alarm)) as examples:
        await examples.execute(_EXAMPLES, [row.pop("examples")])
        return Notice(**row, examples=tuple(await examples.fetchall()))


_TOLD = """
UPDATE sendonce.alarm_notice n SET waiting = greatest(0, n.waiting - %(n)s), told = n.told + 1, failures = 0,
    examples = ARRAY(SELECT x FROM unnest(n.examples) AS x WHERE x <> ALL (%(ids)s::bigint[]) ORDER BY x),
    first_at = least(n.last_at, sendonce.clock()), lease = NULL, lease_until = NULL,
    due_at = sendonce.clock() + %(wait)s * interval '1 second'
WHERE n.lease = %(lease)s
"""


async def told(conn: AsyncConnection[Any], notice: Notice, *, wait_seconds: float) -> None:
    """The message has arrived; the next one about this is due in so many seconds, if there is something to say."""
    ids = [one.id for one in notice.examples]
    await conn.execute(_TOLD, {"n": notice.waiting, "ids": ids, "lease": notice.lease, "wait": wait_seconds})


async def failed(conn: AsyncConnection[Any], notice: Notice, *, wait_seconds: float) -> None:
    """The message could not be delivered; the next try is due in so many seconds."""
    await conn.execute(
        "UPDATE sendonce.alarm_notice SET failures = failures + 1, lease = NULL, lease_until = NULL,"
        " due_at = sendonce.clock() + %s * interval '1 second' WHERE lease = %s",
        [wait_seconds, notice.lease],
    )
