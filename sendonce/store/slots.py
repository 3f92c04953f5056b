"""Slots of an account's rates, exact over any number of processes: one row for each account, compared and swapped.

Nobody holds a lock while it thinks, so a process that stands still in the middle stops nobody. These statements are
never in a transaction that holds a mail's row.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from sendonce.rates import VOID_SECONDS, Rate, reserve

Pools = Mapping[str, Sequence[Rate]]
"""What :func:`sendonce.rates.shares` makes."""

_READ = """
SELECT version, state, extract(epoch FROM sendonce.clock())::float8 FROM sendonce.rate WHERE account = %s
"""
_FIRST = "INSERT INTO sendonce.rate (account) VALUES (%s) ON CONFLICT DO NOTHING"
_KEEP = "UPDATE sendonce.rate SET version = version + 1, state = %s WHERE account = %s AND version = %s"

_MARK = """
UPDATE sendonce.email e SET slot_account = %(account)s,
    slot_until = sendonce.clock() + (s.delay + %(void)s) * interval '1 second'
FROM unnest(%(ids)s::uuid[], %(delays)s::float8[]) s (id, delay)
WHERE e.id = s.id AND e.stage = 'pending'
"""

_PUT_OFF = """
UPDATE sendonce.email SET next_attempt_at
    = least(sendonce.clock() + %(seconds)s * interval '1 second', CASE WHEN stage = 'pending' THEN expires_at END)
WHERE id = %(id)s AND stage IN ('pending', 'unknown') AND next_attempt_at <= sendonce.clock()
"""


@dataclass(frozen=True, slots=True)
class Given:
    """Slots, as seconds from now."""

    delays: tuple[float, ...]
    retry_in: float
    """Seconds until there may be more."""
    lacking: str = ""
    """What had the fewest."""


async def take_all(conn: AsyncConnection[Any], several: Mapping[str, Pools], lane: str, wanted: int) -> Given:
    """Up to ``wanted`` slots that each of these has, by name; what only some of them had is lost."""
    delays: list[float] = [0.0] * wanted
    retry_in, lacking = 0.0, ""
    for name, pools in several.items():
        given = await take(conn, name, pools, lane, len(delays))
        if len(given.delays) < len(delays):
            retry_in, lacking = given.retry_in, name
        delays = [max(pair) for pair in zip(delays, given.delays, strict=False)]
        if not delays:
            break
    return Given(tuple(delays), retry_in, lacking)


async def take(conn: AsyncConnection[Any], account: str, pools: Pools, lane: str, wanted: int) -> Given:
    """Up to ``wanted`` slots of the account for the lane, at most a second ahead."""
    tries = 0
    while True:
        row = await (await conn.execute(_READ, [account])).fetchone()
        if row is None:
            await conn.execute(_FIRST, [account])
            continue
        version, state, now = row
        slots, kept = reserve(state, pools, lane, wanted, now)
        given = Given(tuple(at - now for at in slots.at), slots.next_at - now)
        if not slots.at:
            return given
        if (await conn.execute(_KEEP, [Jsonb(kept), account, version])).rowcount == 1:
            return given
        # Somebody else was faster, so somebody gets on.
        tries += 1
        await asyncio.sleep(random.uniform(0, 0.001 * min(tries, 20)))


async def mark(conn: AsyncConnection[Any], account: str, given: Mapping[UUID, float]) -> None:
    """These mails have slots of the account, so many seconds from now."""
    params = {"account": account, "ids": list(given), "delays": list(given.values()), "void": VOID_SECONDS}
    await conn.execute(_MARK, params)


async def put_off(conn: AsyncConnection[Any], email_id: UUID, seconds: float) -> None:
    """There is no slot for the mail before: it is due then, or at its deadline, to say that it has passed."""
    await conn.execute(_PUT_OFF, {"id": email_id, "seconds": seconds})
