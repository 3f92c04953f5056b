"""What the store holds at this moment, counted once for all processes: from indexes over open rows, never from mails.

Whoever finds the last count too old counts anew and keeps the result in one row; everybody else reads that row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

COUNTED = 200_000
"""Rows counted of each kind: never started, started and waiting, held by a process. More are shown as so many."""

GROUPS = 1000
"""Combinations of lane, account and stage that are kept, the largest ones."""

STATEMENT_SECONDS = 10
"""A count that takes longer is given up."""

HISTORY_SECONDS, HISTORY_STEP = 600.0, 60.0
"""How far back what was due by account is known, and how finely."""

HISTORY_ACCOUNTS = 100


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Mails of one lane, account and stage that are not final."""

    lane: str
    account: str
    stage: str
    count: int
    due: int
    """Of these, how many could be tried now."""
    oldest_due: float
    """Seconds for which the oldest of those has been due; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One count."""

    age: float
    """Seconds since it was made."""
    outstanding: tuple[Outstanding, ...]
    alarms: dict[str, int]
    """Open ones, by kind."""
    before: dict[str, int] | None
    """What was due by account at the beginning of the time that is remembered; None until it has passed once."""
    fresh: bool
    """It was made by this call: the caller is to judge it."""

    def due_by_account(self) -> dict[str, int]:
        """Mails that could be tried now."""
        due: dict[str, int] = {}
        for one in self.outstanding:
            due[one.account] = due.get(one.account, 0) + one.due
        return due

    def oldest_by_lane(self) -> dict[str, float]:
        """Seconds for which the oldest mail has been due, lane by lane."""
        oldest: dict[str, float] = {}
        for one in self.outstanding:
            oldest[one.lane] = max(oldest.get(one.lane, 0.0), one.oldest_due)
        return oldest


# The orders are those of the indexes that hold these rows and no others.
OUTSTANDING = f"""
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now)
SELECT o.lane, o.account, o.stage, count(*) AS count, count(*) FILTER (WHERE o.due_at <= c.now) AS due,
    greatest(0, extract(epoch FROM max(c.now) - min(o.due_at) FILTER (WHERE o.due_at <= c.now)))::float8 AS oldest_due
FROM c, (
    (SELECT lane, account, 'pending' AS stage, next_attempt_at AS due_at FROM sendonce.email
     WHERE stage = 'pending' AND started_at IS NULL ORDER BY lane, account LIMIT {COUNTED})
    UNION ALL
    (SELECT lane, account, stage, next_attempt_at FROM sendonce.email
     WHERE stage IN ('pending', 'unknown') AND started_at IS NOT NULL ORDER BY lane, next_attempt_at LIMIT {COUNTED})
    UNION ALL
    (SELECT lane, account, stage, NULL FROM sendonce.email
     WHERE stage IN ('claimed', 'transmitting') ORDER BY lane LIMIT {COUNTED})
) o
GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT {GROUPS}
"""

FRUGAL = f"""
SELECT set_config('statement_timeout', '{STATEMENT_SECONDS}s', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true)
"""
"""What leaves scans of indexes over open rows, whatever the statistics say of a table that was filled just now."""

_ALARMS = f"""
SELECT kind, count(*) AS count FROM (SELECT kind FROM sendonce.alarm_state WHERE open LIMIT {COUNTED}) a GROUP BY 1
"""

_STALE = """
SELECT extract(epoch FROM sendonce.clock())::float8 AS now, history FROM sendonce.gauge
WHERE at <= sendonce.clock() - %s * interval '1 second' FOR UPDATE SKIP LOCKED
"""


async def sample(conn: AsyncConnection[Any], *, every_seconds: float) -> Sample:
    """The last count, made anew when it is older than that and nobody else is at it."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        stale = await (await cur.execute(_STALE, [every_seconds])).fetchone()
        if stale is not None:
            await cur.execute(FRUGAL)
            outstanding = await (await cur.execute(OUTSTANDING)).fetchall()
            alarms = await (await cur.execute(_ALARMS)).fetchall()
            for row in outstanding:
                row["oldest_due"] = row["oldest_due"] or 0.0
            kept = {"outstanding": outstanding, "alarms": {row["kind"]: row["count"] for row in alarms}}
            await cur.execute(
                "UPDATE sendonce.gauge SET at = sendonce.clock(), sample = %s, history = %s",
                [Jsonb(kept), Jsonb(_remember(stale["history"], stale["now"], outstanding))],
            )
        await cur.execute(
            "SELECT sample, history, greatest(0, extract(epoch FROM sendonce.clock() - at))::float8 AS age,"
            " extract(epoch FROM sendonce.clock())::float8 AS now FROM sendonce.gauge"
        )
        last = await cur.fetchone()
    assert last is not None
    found, history = last["sample"], last["history"]
    known = bool(history) and last["now"] - history[0][0] >= HISTORY_SECONDS
    return Sample(
        age=last["age"],
        outstanding=tuple(Outstanding(**one) for one in found.get("outstanding", ())),
        alarms=found.get("alarms", {}),
        before=history[0][1] if known else None,
        fresh=stale is not None,
    )


def _remember(history: list[Any], now: float, outstanding: list[dict[str, Any]]) -> list[Any]:
    """The history with a new entry, one for each step; the first one is just as old as is asked for."""
    if history and now - history[-1][0] < HISTORY_STEP:
        return history
    due: dict[str, int] = {}
    for row in outstanding:
        due[row["account"]] = due.get(row["account"], 0) + row["due"]
    largest = dict(sorted(due.items(), key=lambda item: -item[1])[:HISTORY_ACCOUNTS])
    kept = [*history, [now, largest]]
    while len(kept) > 1 and now - kept[1][0] >= HISTORY_SECONDS:
        kept.pop(0)
    return kept
