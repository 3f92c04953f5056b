"""Transactions that have been open for long: meanwhile no vacuum removes what is done with, and mail is found slower.

Measured by the server's own clock: ``pg_stat_activity`` knows no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row

MOST = 20
"""How many old ones are told apart, the oldest ones."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One that is open: numbers and names, never its statement."""

    pid: int | None
    """Of the session; None: it is prepared, and belongs to no session."""
    began: float
    """Seconds since 1970, by the server's clock. With ``pid`` it tells transactions apart."""
    age: float
    """Seconds for which it has been open."""
    application: str
    """The session's ``application_name``; empty when it has none, or one with an ``@``: somebody's address, maybe."""
    state: str
    """``active``, ``idle in transaction`` …, as ``pg_stat_activity`` says; ``prepared``."""


_OLD = """
SELECT pid, extract(epoch FROM began)::float8 AS began,
    extract(epoch FROM clock_timestamp() - began)::float8 AS age,
    CASE WHEN application LIKE '%%@%%' THEN '' ELSE coalesce(application, '') END AS application,
    coalesce(state, '') AS state
FROM sendonce.open_transactions()
WHERE began <= clock_timestamp() - %s * interval '1 second' ORDER BY began, pid LIMIT %s
"""


async def old(conn: AsyncConnection[Any], seconds: float) -> list[Transaction]:
    """Those of this database that have been open for at least so long, the oldest first, at most :data:`MOST`.

    Prepared ones too. Sessions of roles that the schema's owner may not look at are left out: :func:`hidden`.
    """
    async with conn.cursor(row_factory=class_row(Transaction)) as cur:
        return await (await cur.execute(_OLD, [seconds, MOST])).fetchall()


async def hidden(conn: AsyncConnection[Any]) -> int:
    """How many sessions of this database the schema's owner may not look into: it is neither a member of their role nor
    of ``pg_read_all_stats``.
    """
    row = await (await conn.execute("SELECT count(*) FROM sendonce.open_transactions() WHERE hidden")).fetchone()
    assert row is not None
    return int(row[0])
