"""What a doctor asks the database: versions, clock, durability, notifications, who is alive."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row

NOTICE_SECONDS = 2.0
"""How long a notification is waited for."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of the PostgreSQL server."""

    version: str
    standby: bool
    """It is read-only: a standby."""
    fsync: bool
    synchronous_commit: str
    standbys: str
    """``synchronous_standby_names``."""
    replicas: int
    """Connected now, as far as this role may see them."""
    ahead: float
    """Seconds that its clock is ahead of this host's; half a round trip exact."""
    round_trip: float


async def server(conn: AsyncConnection[Any]) -> ServerFacts:
    """Ask the server about itself."""
    async with conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(
            "SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS standby,"
            " current_setting('fsync') = 'on' AS fsync, current_setting('synchronous_commit') AS synchronous_commit,"
            " current_setting('synchronous_standby_names') AS standbys,"
            " (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming') AS replicas"
        )
        row = await cur.fetchone()
        assert row is not None
        before = time.time()
        await cur.execute("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
        now = await cur.fetchone()
        after = time.time()
    assert now is not None
    return ServerFacts(**row, ahead=now["now"] - (before + after) / 2, round_trip=after - before)


async def notifies(url: str) -> float | None:
    """Seconds that a notification took from one connection to another; None when it did not arrive.

    It does not where a pooler hands out another session for each transaction: mail is found by polling then.
    """
    name = "sendonce_doctor"
    async with (
        await AsyncConnection.connect(url, autocommit=True) as listening,
        await AsyncConnection.connect(url, autocommit=True) as other,
    ):
        await listening.execute(f"LISTEN {name}".encode())
        started = time.monotonic()
        await other.execute("SELECT pg_notify(%s, '')", [name])
        async for _ in listening.notifies(timeout=NOTICE_SECONDS, stop_after=1):
            return time.monotonic() - started
    return None


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store knows of its processes."""

    notify: bool
    """The setting of the installation."""
    workers: dict[str, int]
    """By lane, those alive."""
    starters: int
    waiting: list[str]
    """Lanes that have mail which was never started, or whose workflows sleep."""
    holds: int
    open_alarms: int
    """At most 1000 are counted."""


_LANES = """
WITH RECURSIVE unstarted (lane) AS (
    (SELECT lane FROM sendonce.email WHERE stage = 'pending' AND started_at IS NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT e.lane FROM sendonce.email e
            WHERE e.stage = 'pending' AND e.started_at IS NULL AND e.lane > l.lane ORDER BY e.lane LIMIT 1)
    FROM unstarted l WHERE l.lane IS NOT NULL
), waiting (lane) AS (
    (SELECT lane FROM sendonce.email WHERE stage IN ('pending', 'unknown') AND started_at IS NOT NULL
     ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT e.lane FROM sendonce.email e
            WHERE e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL AND e.lane > l.lane
            ORDER BY e.lane LIMIT 1)
    FROM waiting l WHERE l.lane IS NOT NULL
)
SELECT lane FROM unstarted WHERE lane IS NOT NULL UNION SELECT lane FROM waiting WHERE lane IS NOT NULL ORDER BY 1
"""


async def standing(conn: AsyncConnection[Any]) -> Standing:
    """Ask the store who is alive and what waits."""

    async def rows(query: str) -> list[Any]:
        return await (await conn.execute(query.encode())).fetchall()

    workers = await rows(
        "SELECT lane, count(*) FROM sendonce.process p, unnest(p.lanes) AS lane"
        " WHERE p.kind = 'worker' AND p.beat_at > sendonce.clock() - interval '60 seconds' GROUP BY lane"
    )
    [(starters,)] = await rows(
        "SELECT count(*) FROM sendonce.process WHERE kind = 'starter'"
        " AND beat_at > sendonce.clock() - interval '60 seconds'"
    )
    [(notify,)] = await rows("SELECT notify FROM sendonce.installation")
    [(held,)] = await rows("SELECT count(*) FROM sendonce.hold WHERE ended_at IS NULL")
    [(alarms,)] = await rows(
        "SELECT count(*) FROM (SELECT FROM sendonce.alarm a WHERE a.closes IS NULL"
        " AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id) LIMIT 1000) AS found"
    )
    lanes = [row[0] for row in await rows(_LANES)]
    return Standing(notify, dict(workers), starters, lanes, held, alarms)


def why(error: psycopg.Error) -> str:
    """The driver's words on one line: host, user and database, never the password."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return "; ".join(line for line in lines if line)[:300] or type(error).__name__
