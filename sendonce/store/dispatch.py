"""What a starter asks: which rows to start now, which workflows seem to have vanished.

Both queries stamp what they return, under SKIP LOCKED, so that several starters side by side never get the same row
at the same time. The stamp is only a lease of the start: the claim is the proof that a workflow exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sendonce.store.records import Startable

AHEAD_SECONDS = 60.0
"""A row is started when it is due within this many seconds: its own timer then wakes it on the second."""

# Accounts that may start nothing now: paused for these settings, and so is their fallback, until a probe is due.
_PAUSED = """
pauses AS MATERIALIZED (
    SELECT a.name, a.from_domain, s.fallback,
        coalesce(a.probe_at <= c.now AND coalesce(a.probe_until <= c.now, true), false) AS probe_due
    FROM sendonce.account a
        JOIN unnest(%(accounts)s::text[], %(digests)s::text[], %(fallbacks)s::text[]) s (name, digest, fallback)
            ON s.name = a.name AND s.digest = a.settings_digest, c
    WHERE a.paused_at IS NOT NULL
),
paused AS MATERIALIZED (
    SELECT p.name, p.from_domain, p.probe_due OR coalesce(bool_and(f.probe_due), false) AS probe_due
    FROM pauses p LEFT JOIN pauses f ON f.name = p.fallback AND f.from_domain IN ('', p.from_domain)
    WHERE p.fallback IS NULL OR f.name IS NOT NULL
    GROUP BY p.name, p.from_domain, p.probe_due
)
"""
_DOMAIN_PAUSED = """EXISTS (
    SELECT FROM paused p
    WHERE p.name = e.account AND p.from_domain = e.from_domain AND p.from_domain <> '' AND NOT p.probe_due)"""

# The accounts that have unstarted rows in a lane, each found by one step through the index.
_ACCOUNTS = """
accounts (account) AS (
    (SELECT e.account FROM sendonce.email e
     WHERE e.lane = %(lane)s AND e.stage = 'pending' AND e.started_at IS NULL ORDER BY e.account LIMIT 1)
    UNION ALL
    SELECT (SELECT e.account FROM sendonce.email e
            WHERE e.lane = %(lane)s AND e.stage = 'pending' AND e.started_at IS NULL AND e.account > a.account
            ORDER BY e.account LIMIT 1)
    FROM accounts a WHERE a.account IS NOT NULL
)
"""

_NEXT_TURN = """
    SELECT e.fairness_key FROM sendonce.email e
    WHERE e.lane = %(lane)s AND e.account = {account} AND e.stage = 'pending' AND e.started_at IS NULL
        AND e.fairness_key {rule}
    ORDER BY e.fairness_key LIMIT 1
"""

_UNSTARTED = f"""
WITH RECURSIVE c AS MATERIALIZED (SELECT sendonce.clock() AS now),
{_ACCOUNTS},
{_PAUSED},
-- In flight, or started and due; sleepers never count, and neither do workflows that have not been seen for a minute.
busy AS MATERIALIZED (
    SELECT account, count(*) AS n FROM (
        SELECT e.account FROM sendonce.email e
        WHERE e.lane = %(lane)s AND e.stage IN ('claimed', 'transmitting')
        UNION ALL
        SELECT e.account FROM sendonce.email e, c
        WHERE e.lane = %(lane)s AND e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL
            AND e.next_attempt_at <= c.now AND greatest(e.started_at, e.seen_at) > c.now - interval '60 seconds'
    ) b GROUP BY account
),
-- Every worker process that serves the lane brings places of its own.
workers AS MATERIALIZED (
    SELECT greatest(1, count(*)) AS n FROM sendonce.process p, c
    WHERE p.kind = 'worker' AND %(lane)s = ANY (p.lanes) AND p.beat_at > c.now - interval '15 seconds'
),
room AS MATERIALIZED (
    SELECT a.account, CASE WHEN p.name IS NULL THEN %(ceiling)s * w.n - coalesce(b.n, 0)
            WHEN p.probe_due THEN 1 ELSE 0 END AS places
    FROM accounts a CROSS JOIN workers w
        LEFT JOIN busy b ON b.account = a.account
        LEFT JOIN paused p ON p.name = a.account AND p.from_domain = ''
    WHERE a.account <> ALL (%(full)s::text[])
),
-- Account by account, so that one account's backlog is neither read through nor in front of another's mail; and within
-- an account by turns, each found by one step through the index: those that come after the last one, then those before.
ahead (account, places, fairness_key, n) AS (
    SELECT r.account, least(r.places, %(limit)s), f.fairness_key, 1
    FROM room r, LATERAL ({_NEXT_TURN.format(rule="> (%(turns)s::jsonb ->> r.account)", account="r.account")}) f
    WHERE r.places > 0
    UNION ALL
    SELECT t.account, t.places, f.fairness_key, t.n + 1
    FROM ahead t, LATERAL ({_NEXT_TURN.format(rule="> t.fairness_key", account="t.account")}) f
    WHERE t.n < t.places
),
behind (account, places, fairness_key, n) AS (
    SELECT r.account, least(r.places, %(limit)s), f.fairness_key, 1
    FROM room r, LATERAL ({_NEXT_TURN.format(rule=">= ''", account="r.account")}) f
    WHERE r.places > 0
    UNION ALL
    SELECT t.account, t.places, f.fairness_key, t.n + 1
    FROM behind t, LATERAL ({_NEXT_TURN.format(rule="> t.fairness_key", account="t.account")}) f
    WHERE t.n < t.places AND f.fairness_key <= coalesce(%(turns)s::jsonb ->> t.account, f.fairness_key)
),
turns AS MATERIALIZED (
    SELECT o.*, count(*) OVER (PARTITION BY account) AS others FROM (
        SELECT account, places, fairness_key, n FROM ahead
        UNION ALL
        SELECT account, places, fairness_key, n + 1000000 FROM behind
        WHERE fairness_key <= coalesce(%(turns)s::jsonb ->> account, fairness_key)
    ) o
),
found AS MATERIALIZED (
    SELECT d.*, t.account, t.places, t.n FROM turns t, LATERAL (
        SELECT x.*, row_number() OVER (ORDER BY x.next_attempt_at, x.id) AS round FROM (
            SELECT e.id, e.next_attempt_at FROM sendonce.email e
            WHERE e.lane = %(lane)s AND e.account = t.account AND e.fairness_key = t.fairness_key
                AND e.stage = 'pending' AND e.started_at IS NULL AND e.held_why IS NULL AND NOT {_DOMAIN_PAUSED}
                AND e.next_attempt_at <= (SELECT now FROM c) + %(ahead)s * interval '1 second'
            ORDER BY e.next_attempt_at, e.id
            LIMIT (t.places + t.others - 1) / t.others FOR UPDATE OF e SKIP LOCKED
        ) x
    ) d
),
chosen AS MATERIALIZED (
    SELECT o.id FROM (
        SELECT f.*, row_number() OVER (PARTITION BY f.account ORDER BY f.round, f.n) AS place FROM found f
    ) o
    WHERE o.place <= o.places
    ORDER BY o.round, o.next_attempt_at, o.id LIMIT %(limit)s
)
UPDATE sendonce.email e SET started_at = c.now FROM chosen, c WHERE e.id = chosen.id
RETURNING e.id AS email_id, e.key, e.account, e.lane, e.fairness_key, e.to_domains
"""

LOOKED_AT = 2000
"""How many mails of one turn are looked at for one whose destination is not full."""

_DUE = "AND e.next_attempt_at <= (SELECT now FROM c) + %(ahead)s * interval '1 second'"
_UNSTARTED_ELSEWHERE = _UNSTARTED.replace(
    _DUE,
    f"""AND e.id = ANY (ARRAY(
            SELECT i.id FROM sendonce.email i
            WHERE i.lane = %(lane)s AND i.account = t.account AND i.fairness_key = t.fairness_key
                AND i.stage = 'pending' AND i.started_at IS NULL
                AND i.next_attempt_at <= (SELECT now FROM c) + %(ahead)s * interval '1 second'
            ORDER BY i.next_attempt_at, i.id LIMIT {LOOKED_AT}))
        AND NOT e.to_domains && ARRAY(SELECT jsonb_array_elements_text(%(domains_full)s::jsonb -> t.account))""",
)


async def unstarted(
    conn: AsyncConnection[Any],
    lane: str,
    *,
    limit: int,
    ceiling: int,
    digests: Mapping[str, str],
    fallbacks: Mapping[str, str],
    accounts_full: Sequence[str] = (),
    turns: Mapping[str, str] | None = None,
    domains_full: Mapping[str, Sequence[str]] | None = None,
    ahead_seconds: float = AHEAD_SECONDS,
) -> list[Startable]:
    """Stamp and return rows that were never started and are due within ``ahead_seconds``.

    Those of an account take turns by their fairness keys, the oldest first of each. ``turns`` says, by account, whose
    turn was the last, ``domains_full`` which destinations take no more now: their mail is passed over, so long as there
    is other mail among the first :data:`LOOKED_AT`.

    At most ``ceiling`` mails per account of this lane, for each worker process that serves it, are in flight or started
    and due; an account in ``accounts_full`` gets none. A paused account starts one, its probe, when that is due, unless
    its fallback in ``fallbacks`` is open.
    """
    params = {
        "lane": lane,
        "limit": limit,
        "ceiling": ceiling,
        "full": list(accounts_full),
        "ahead": ahead_seconds,
        "turns": Jsonb(dict(turns or {})),
        "domains_full": Jsonb({account: list(domains) for account, domains in (domains_full or {}).items()}),
        **_settings(digests, fallbacks),
    }
    async with conn.cursor(row_factory=class_row(Startable)) as cur:
        return await (await cur.execute(_UNSTARTED_ELSEWHERE if domains_full else _UNSTARTED, params)).fetchall()


async def unstamp(conn: AsyncConnection[Any], email_ids: Sequence[UUID]) -> None:
    """The start did not happen: the rows wait for a starter again. Rows that a workflow has asked for stay stamped."""
    await conn.execute(
        "WITH mine AS (SELECT id FROM sendonce.email WHERE id = ANY(%s) AND seen_at IS NULL ORDER BY id FOR UPDATE)"
        " UPDATE sendonce.email e SET started_at = NULL FROM mine WHERE e.id = mine.id",
        [list(email_ids)],
    )


# Neither started nor seen for a minute; twice as long after each restart that nobody answered.
_QUIET = """
    e.held_why IS NULL AND greatest(e.started_at, e.seen_at, e.next_attempt_at)
        <= (SELECT now FROM c) - %(after)s * 2 ^ least(e.starts, 6) * interval '1 second'
"""

_OVERDUE = f"""
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
{_PAUSED},
due AS MATERIALIZED (
    (SELECT e.id, e.next_attempt_at AS since FROM sendonce.email e
     WHERE e.lane = %(lane)s AND e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL
        AND e.next_attempt_at <= (SELECT now FROM c) AND {_QUIET}
        AND e.account NOT IN (SELECT name FROM paused WHERE NOT probe_due AND from_domain = '')
        AND NOT {_DOMAIN_PAUSED}
     ORDER BY e.next_attempt_at, e.id LIMIT %(limit)s)
    UNION ALL
    (SELECT e.id, e.lease_until FROM sendonce.email e
     WHERE e.lane = %(lane)s AND e.stage = 'claimed' AND e.lease_until <= (SELECT now FROM c) AND {_QUIET}
     LIMIT %(limit)s)
),
vanished AS MATERIALIZED (
    SELECT e.id FROM sendonce.email e
    WHERE e.id = ANY(ARRAY(SELECT id FROM due ORDER BY since, id LIMIT %(limit)s)) AND {_QUIET}
    ORDER BY e.id FOR UPDATE OF e SKIP LOCKED
)
UPDATE sendonce.email e SET started_at = c.now, starts = e.starts + 1 FROM vanished v, c WHERE e.id = v.id
RETURNING e.id AS email_id, e.key, e.account, e.lane
"""


def _settings(digests: Mapping[str, str], fallbacks: Mapping[str, str]) -> dict[str, Any]:
    return {
        "accounts": list(digests),
        "digests": list(digests.values()),
        "fallbacks": [fallbacks.get(name) for name in digests],
    }


async def overdue(
    conn: AsyncConnection[Any],
    lane: str,
    *,
    limit: int,
    digests: Mapping[str, str],
    fallbacks: Mapping[str, str],
    after_seconds: float = 60.0,
) -> list[Startable]:
    """Stamp and return rows that are due while their workflow was neither started nor seen for ``after_seconds``.

    A backlog that was never started does not qualify, and neither does what is held or paused.
    """
    params = {
        "lane": lane,
        "limit": limit,
        "after": after_seconds,
        **_settings(digests, fallbacks),
    }
    async with conn.cursor(row_factory=class_row(Startable)) as cur:
        return await (await cur.execute(_OVERDUE, params)).fetchall()
