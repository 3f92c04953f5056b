"""Slots of rates, exact over any number of processes: one row for each account or destination, compared and swapped.

Nobody holds a lock while it thinks, so a process that stands still in the middle stops nobody. These statements are
never in a transaction that holds a mail's row.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from sendonce.rates import VOID_SECONDS, Pools, reserve

_READ = """
SELECT account, version, state, extract(epoch FROM sendonce.clock())::float8 FROM sendonce.rate
WHERE account = ANY (%s)
"""
_FIRST = "INSERT INTO sendonce.rate (account) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING"

# All of them or none.
_KEEP = """
WITH new AS (
    SELECT * FROM unnest(%(names)s::text[], %(versions)s::bigint[], %(states)s::jsonb[]) n (account, version, state)
),
same AS MATERIALIZED (
    SELECT r.account FROM sendonce.rate r JOIN new n ON n.account = r.account AND n.version = r.version
    ORDER BY r.account FOR UPDATE OF r
)
UPDATE sendonce.rate r SET version = r.version + 1, state = n.state FROM new n
WHERE r.account = n.account AND (SELECT count(*) FROM same) = cardinality(%(names)s::text[])
"""

# A row that somebody else holds locked is passed over: its claim takes a slot of its own.
_MARK = """
WITH given AS (SELECT * FROM unnest(%(ids)s::uuid[], %(delays)s::float8[]) s (id, delay)),
mine AS (
    SELECT id FROM sendonce.email WHERE id = ANY (%(ids)s::uuid[]) AND stage = 'pending' FOR UPDATE SKIP LOCKED
)
UPDATE sendonce.email e SET slot_account = %(account)s,
    slot_until = sendonce.clock() + (given.delay + %(void)s) * interval '1 second'
FROM mine, given WHERE e.id = mine.id AND given.id = mine.id
"""


@dataclass(frozen=True, slots=True)
class Given:
    """Slots, as seconds from now."""

    delays: tuple[float, ...]
    retry_in: float
    """Seconds until there may be more."""
    lacking: str = ""
    """What had the fewest, by name."""


async def take(conn: AsyncConnection[Any], several: Mapping[str, Pools], lane: str, wanted: int) -> Given:
    """Up to ``wanted`` slots that each of these has, by name; at most a second ahead. What only some have stays."""
    tries = 0
    while True:
        rows = await (await conn.execute(_READ, [list(several)])).fetchall()
        if len(rows) < len(several):
            await conn.execute(_FIRST, [sorted(several)])
            continue
        now = rows[0][3]
        found = {name: (version, state) for name, version, state, _ in rows}
        taken = {name: reserve(found[name][1], several[name], lane, wanted, now) for name in several}
        lacking = min(taken, key=lambda name: len(taken[name][0].at))
        count, retry_at = len(taken[lacking][0].at), taken[lacking][0].next_at
        for name, (slots, _) in taken.items():
            if len(slots.at) > count:
                taken[name] = reserve(found[name][1], several[name], lane, count, now)
        delays = tuple(max(times) - now for times in zip(*(slots.at for slots, _ in taken.values()), strict=True))
        answer = Given(delays, retry_at - now, lacking)
        if not count:
            return answer
        params = {
            "names": list(taken),
            "versions": [found[name][0] for name in taken],
            "states": [Jsonb(kept) for _, kept in taken.values()],
        }
        if (await conn.execute(_KEEP, params)).rowcount == len(several):
            return answer
        # Somebody else was faster, so somebody gets on.
        tries += 1
        await asyncio.sleep(random.uniform(0, 0.001 * min(tries, 20)))


async def mark(conn: AsyncConnection[Any], account: str, given: Mapping[UUID, float]) -> None:
    """These mails have slots of the account, so many seconds from now."""
    params = {"account": account, "ids": list(given), "delays": list(given.values()), "void": VOID_SECONDS}
    await conn.execute(_MARK, params)
