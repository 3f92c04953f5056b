"""Numbers for people, read so that a table of many millions of rows does not mind.

What is outstanding is counted through the partial indexes that hold nothing else, at most :data:`CAP` rows of each.
What was sent is counted over the newest :data:`CAP` mails since an instant, through the index on ``created_at``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row

CAP = 200_000
"""Rows that one of the reads looks at."""

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper ends of the latency chart's bars, in seconds; what took longer is the last one."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Mail that has not ended."""

    stage: str
    lane: str
    account: str
    count: int
    due: int
    """Of these, those whose next try is due."""
    oldest_due: datetime | None


@dataclass(frozen=True, slots=True)
class AccountNumbers:
    """What became of an account's mail, and by which attempt."""

    account: str
    mails: int
    sent: int
    tried: int
    """Mails with at least one counted attempt."""
    first_try: int
    """Sent by the first one."""
    by_attempt: dict[int, int] = field(default_factory=dict)
    """Sent mails by the number of counted attempts it took."""


@dataclass(frozen=True, slots=True)
class LaneLatency:
    """Seconds from when a mail was to be sent until it was accepted."""

    lane: str
    sent: int
    p50: float
    p90: float
    p99: float
    worst: float
    histogram: list[int] = field(default_factory=list)
    """One more than :data:`BUCKETS`."""


@dataclass(frozen=True, slots=True)
class Stats:
    """All of it."""

    since: datetime
    outstanding: list[Outstanding]
    outstanding_complete: bool
    """False: there is more than was counted."""
    ended: dict[str, int]
    """Mails enqueued since, by stage."""
    accounts: list[AccountNumbers]
    latency: list[LaneLatency]
    history_complete: bool
    """False: only the newest of the mails since were looked at."""


# One read for each partial index; a condition that is not the index's own would read the whole table.
_PARTS = (
    "stage = 'pending' AND started_at IS NULL",
    "stage IN ('pending', 'unknown') AND started_at IS NOT NULL",
    "stage IN ('claimed', 'transmitting')",
)
_OUTSTANDING = """
SELECT stage, lane, account, count(*) AS count,
    count(*) FILTER (WHERE next_attempt_at <= sendonce.clock()) AS due,
    min(next_attempt_at) FILTER (WHERE next_attempt_at <= sendonce.clock()) AS oldest_due
FROM (SELECT stage, lane, account, next_attempt_at FROM sendonce.email WHERE {part} LIMIT %(cap)s) AS e
GROUP BY stage, lane, account
"""

_RECENT = """
WITH e AS MATERIALIZED (
    SELECT stage, lane, account, attempts, requeue_floor,
        extract(epoch FROM final_at - greatest(created_at, send_after))::float8 AS took
    FROM sendonce.email WHERE created_at >= %(since)s ORDER BY created_at DESC, id DESC LIMIT %(cap)s
)
"""
_ENDED = _RECENT + "SELECT stage, count(*) AS count FROM e GROUP BY stage ORDER BY 2 DESC, 1"
_ACCOUNTS = (
    _RECENT
    + """
SELECT account, stage = 'sent' AS sent, attempts, requeue_floor > 0 AS requeued, count(*) AS count
FROM e GROUP BY 1, 2, 3, 4 ORDER BY 1, 3
"""
)
_LATENCY = (
    _RECENT
    + """
SELECT lane, count(*) AS sent, percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (ORDER BY took) AS at,
    max(took) AS worst,
    (SELECT array_agg(coalesce(h.n, 0) ORDER BY b.n) FROM generate_series(0, cardinality(%(buckets)s::float8[])) b (n)
     LEFT JOIN (SELECT width_bucket(f.took, %(buckets)s::float8[]) AS n0, count(*) AS n FROM e f
                WHERE f.lane = e.lane AND f.stage = 'sent' GROUP BY 1) h ON h.n0 = b.n) AS histogram
FROM e WHERE stage = 'sent' AND took IS NOT NULL GROUP BY lane ORDER BY lane
"""
)


async def read(conn: AsyncConnection[Any], since: datetime) -> Stats:
    """The numbers, all of one snapshot."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        await cur.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        outstanding: list[Outstanding] = []
        complete = True
        for part in _PARTS:
            await cur.execute(_OUTSTANDING.format(part=part).encode(), {"cap": CAP})
            found = [Outstanding(**row) for row in await cur.fetchall()]
            outstanding += found
            complete = complete and sum(one.count for one in found) < CAP
        params = {"since": since, "cap": CAP, "buckets": list(BUCKETS)}
        await cur.execute(_ENDED, params)
        ended = {row["stage"]: row["count"] for row in await cur.fetchall()}
        await cur.execute(_ACCOUNTS, params)
        accounts = _accounts(await cur.fetchall())
        await cur.execute(_LATENCY, params)
        latency = [
            LaneLatency(row["lane"], row["sent"], p50, p90, p99, row["worst"], row["histogram"])
            for row in await cur.fetchall()
            for p50, p90, p99 in [row["at"]]
        ]
    order = sorted(_merged(outstanding), key=lambda one: (one.stage, one.lane, one.account))
    return Stats(since, order, complete, ended, accounts, latency, sum(ended.values()) < CAP)


def _merged(parts: list[Outstanding]) -> list[Outstanding]:
    """Pending mail comes from two indexes."""
    found: dict[tuple[str, str, str], Outstanding] = {}
    for one in parts:
        name = (one.stage, one.lane, one.account)
        other = found.get(name)
        if other is not None:
            oldest = min((at for at in (one.oldest_due, other.oldest_due) if at is not None), default=None)
            one = Outstanding(*name, one.count + other.count, one.due + other.due, oldest)
        found[name] = one
    return list(found.values())


def _accounts(rows: list[dict[str, Any]]) -> list[AccountNumbers]:
    by_account: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_account.setdefault(row["account"], []).append(row)
    found = []
    for account, some in by_account.items():
        by_attempt: dict[int, int] = {}
        for row in some:
            if row["sent"]:
                by_attempt[row["attempts"]] = by_attempt.get(row["attempts"], 0) + row["count"]

        def total(*names: str, rows: list[dict[str, Any]] = some) -> int:
            return sum(row["count"] for row in rows if all(row[name] for name in names))

        # A mail that was requeued was not sent by its first attempt, whatever its count says now.
        first = sum(row["count"] for row in some if row["sent"] and row["attempts"] == 1 and not row["requeued"])
        found.append(AccountNumbers(account, total(), total("sent"), total("attempts"), first, by_attempt))
    return found
