"""Which unknowns their provider is to be asked about: often at first, then hourly, until somebody settles them.

Asking is a matter of the worker; what it learns is recorded as the late answer of the attempt that was offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.store.records import EnvelopeRecipient, LookUp

FIRST, FACTOR, CAP = 10.0, 6.0, 3600.0
"""Seconds between the first two look-ups of a mail, how much longer each further pause is, and the longest."""

_DUE = """
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
due AS MATERIALIZED (
    SELECT e.id FROM sendonce.email e
    WHERE e.stage = 'unknown' AND e.account = %(account)s AND e.look_up_at <= (SELECT now FROM c)
        AND EXISTS (
            SELECT FROM sendonce.generation g WHERE g.email_id = e.id AND g.account = ANY (%(askable)s::text[]))
    ORDER BY e.look_up_at, e.id LIMIT %(limit)s FOR UPDATE OF e SKIP LOCKED
),
stamped AS (
    UPDATE sendonce.email e SET look_ups = e.look_ups + 1,
        look_up_at = c.now + least(%(cap)s, %(first)s * %(factor)s ^ least(e.look_ups, 10)) * interval '1 second'
    FROM due, c WHERE e.id = due.id
    RETURNING e.id, e.key, e.account, e.lane
),
-- Begun and not answered for somebody. Under the lock of the row, so that a settle in between is seen next time.
silent AS (
    SELECT a.id, a.email_id, a.generation, a.number FROM sendonce.attempt a JOIN stamped s ON s.id = a.email_id
    WHERE a.begun_at IS NOT NULL AND EXISTS (
        SELECT FROM unnest(a.offered) o
        WHERE coalesce(a.answers -> o::text ->> 'kind', 'unanswered') = 'unanswered')
)
SELECT s.id AS email_id, s.key, s.account, g.account AS via, s.lane, t.message_id, g.generation,
    g.provider_key, g.identity, g.first_begun_at AS begun_at,
    (SELECT array_agg(x.id ORDER BY x.number) FROM silent x
     WHERE x.email_id = s.id AND x.generation = g.generation) AS attempts,
    (SELECT jsonb_agg(jsonb_build_array(p.ordinal, p.mailbox) ORDER BY p.ordinal) FROM sendonce.recipient p
     WHERE p.email_id = s.id AND p.ordinal = ANY (g.envelope)) AS recipients
FROM stamped s
    JOIN sendonce.email_content t ON t.email_id = s.id
    JOIN sendonce.generation g ON g.email_id = s.id AND g.account = ANY (%(askable)s::text[])
        AND g.generation IN (SELECT x.generation FROM silent x WHERE x.email_id = s.id)
ORDER BY s.id, g.generation
"""


async def due(conn: AsyncConnection[Any], account: str, askable: Sequence[str], limit: int) -> list[LookUp]:
    """Stamp at most ``limit`` mails of the account, and return their silent generations, one question each.

    Only what was offered to one of the accounts in ``askable``: that need not be the mail's own, nor its fallback of
    today.
    """
    params = {
        "account": account,
        "askable": list(askable),
        "limit": limit,
        "first": FIRST,
        "factor": FACTOR,
        "cap": CAP,
    }
    async with conn.cursor(row_factory=dict_row) as cur:
        rows = await (await cur.execute(_DUE, params)).fetchall()
    return [
        LookUp(
            **{name: row[name] for name in row if name not in ("attempts", "recipients")},
            attempts=tuple(row["attempts"]),
            recipients=tuple(EnvelopeRecipient(int(o), str(mailbox)) for o, mailbox in row["recipients"]),
        )
        for row in rows
    ]


async def all_due(conn: AsyncConnection[Any]) -> None:
    """Whatever is unknown is asked about at the next round, however often it was."""
    await conn.execute(
        "UPDATE sendonce.email SET look_up_at = sendonce.clock()"
        " WHERE stage = 'unknown' AND look_up_at > sendonce.clock()"
    )
