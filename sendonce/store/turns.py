"""Which mails to start now: account by account within their places, and within an account by turns.

One statement finds and stamps them, under SKIP LOCKED, so that several starters side by side never get the same row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sendonce.store import holds
from sendonce.store.pool import LAZILY
from sendonce.store.records import Startable
from sendonce.store.statement import Statement

AHEAD_SECONDS = 60.0
"""A row is started when it is due within this many seconds: its own timer then wakes it on the second."""

ROWS = 80
"""How many mails a statement finds, about, before it chooses among them."""

LOOKED_AT = 2000
"""How many mails of one turn are looked at for one that may be started."""

LOOKED_AT_WITH_HOLDS = 100_000
"""The same while a template is on hold: whoever stops one newsletter wants the other mail to go on."""

KEYS = 40
"""How many turns one statement looks at, those of all accounts together; two of each account at least."""

# What may not be started: paused for these settings, and so is the fallback, until a probe is due. from_domain '': all
# mail of the account.
PAUSED = f"""
{holds.STANDING},
pauses AS MATERIALIZED (
    SELECT a.name, a.from_domain,
        CASE WHEN {holds.named("s.fallback", "accounts")} THEN NULL ELSE s.fallback END AS fallback,
        coalesce(a.probe_at <= c.now AND coalesce(a.probe_until <= c.now, true), false) AS probe_due
    FROM sendonce.account a
        JOIN unnest(%(accounts)s::text[], %(digests)s::text[], %(fallbacks)s::text[]) s (name, digest, fallback)
            ON s.name = a.name AND s.digest = a.settings_digest, c
    WHERE a.paused_at IS NOT NULL
),
paused AS MATERIALIZED (
    SELECT name, from_domain, bool_or(probe_due) AS probe_due FROM (
        SELECT p.name, p.from_domain, p.probe_due OR coalesce(bool_and(f.probe_due), false) AS probe_due
        FROM pauses p LEFT JOIN pauses f ON f.name = p.fallback AND f.from_domain IN ('', p.from_domain)
        WHERE p.fallback IS NULL OR f.name IS NOT NULL
        GROUP BY p.name, p.from_domain, p.probe_due
        UNION ALL
        -- The whole account is paused, and its fallback for a From domain.
        SELECT p.name, f.from_domain, p.probe_due OR f.probe_due
        FROM pauses p JOIN pauses f ON f.name = p.fallback AND f.from_domain <> '' WHERE p.from_domain = ''
    ) p GROUP BY name, from_domain
)
"""
DOMAIN_PAUSED = """EXISTS (
    SELECT FROM paused p
    WHERE p.name = e.account AND p.from_domain = e.from_domain AND p.from_domain <> '' AND NOT p.probe_due)"""

_KEY = """
SELECT e.fairness_key AS key, {wrapped} AS wrapped FROM sendonce.email e
WHERE e.lane = %(lane)s AND e.account = t.account AND e.stage = 'pending' AND e.started_at IS NULL AND {rule}
ORDER BY e.fairness_key LIMIT 1
"""

_UNSTARTED = f"""
WITH RECURSIVE c AS MATERIALIZED (SELECT sendonce.clock() AS now),
-- The accounts that have unstarted rows in the lane, each found by one step through the index.
accounts (account) AS (
    (SELECT e.account FROM sendonce.email e
     WHERE e.lane = %(lane)s AND e.stage = 'pending' AND e.started_at IS NULL
        AND NOT {holds.named("%(lane)s", "lanes")} ORDER BY e.account LIMIT 1)
    UNION ALL
    SELECT (SELECT e.account FROM sendonce.email e
            WHERE e.lane = %(lane)s AND e.stage = 'pending' AND e.started_at IS NULL AND e.account > a.account
            ORDER BY e.account LIMIT 1)
    FROM accounts a WHERE a.account IS NOT NULL
),
{PAUSED},
-- In flight; or started and due, or about to be tried for the first time. Sleepers never count, and neither do those
-- who wait for the end of a pause, nor workflows that have not been seen for a minute.
going AS MATERIALIZED (
    SELECT e.account, e.to_domains FROM sendonce.email e
    WHERE e.lane = %(lane)s AND e.stage IN ('claimed', 'transmitting')
    UNION ALL
    SELECT e.account, e.to_domains FROM sendonce.email e, c
    WHERE e.lane = %(lane)s AND e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL
        AND e.next_attempt_at <= c.now + %(ahead)s * interval '1 second'
        AND (e.next_attempt_at <= c.now OR e.claims = 0)
        AND greatest(e.started_at, e.seen_at) > c.now - interval '60 seconds' AND NOT {DOMAIN_PAUSED}
        AND NOT ({holds.HELD})
),
-- Every worker process that serves the lane brings places of its own.
workers AS MATERIALIZED (
    SELECT greatest(1, count(*)) AS n FROM sendonce.process p, c
    WHERE p.kind = 'worker' AND %(lane)s = ANY (p.lanes) AND p.beat_at > c.now - interval '15 seconds'
),
destinations AS MATERIALIZED (
    SELECT a.key AS account, d.key AS domain, d.value::integer * w.n - (
        SELECT count(*) FROM going g WHERE g.account = a.key AND d.key = ANY (g.to_domains)) AS places
    FROM workers w, jsonb_each(%(at_once)s::jsonb) a, jsonb_each_text(a.value) d
),
room AS MATERIALIZED (
    SELECT a.account,
        least(%(limit)s, (%(caps)s::jsonb ->> a.account)::integer, CASE
            WHEN p.name IS NULL THEN %(ceiling)s * w.n - (SELECT count(*) FROM going g WHERE g.account = a.account)
            WHEN p.probe_due THEN 1 ELSE 0 END) AS places,
        CASE WHEN p.name IS NULL AND own.name IS NOT NULL THEN own.fallback ELSE a.account END AS route,
        ARRAY(SELECT s.from_domain FROM paused s
              WHERE s.name = a.account AND s.from_domain <> '' AND NOT s.probe_due) AS shut,
        ARRAY(SELECT jsonb_array_elements_text(%(domains_full)s::jsonb -> a.account)
              UNION ALL
              SELECT d.domain FROM destinations d WHERE d.account = a.account AND d.places <= 0) AS full_domains,
        -- What is paced is not started before it is due: its slot would be void by then.
        CASE WHEN a.account = ANY (%(paced)s::text[]) THEN 0 ELSE %(ahead)s END AS ahead,
        %(turns)s::jsonb ->> a.account AS pointer
    FROM accounts a CROSS JOIN workers w
        LEFT JOIN paused p ON p.name = a.account AND p.from_domain = ''
        LEFT JOIN pauses own ON own.name = a.account AND own.from_domain = ''
    WHERE a.account IS NOT NULL AND a.account <> ALL (%(full)s::text[])
        AND NOT {holds.named("a.account", "accounts")}
),
-- The more accounts, the less is looked at of each.
open AS MATERIALIZED (
    SELECT r.*, greatest(2, {KEYS} / count(*) OVER ()) AS keys FROM room r WHERE r.places > 0
),
-- Whose turn it is: the keys after the last one, then those from the beginning up to it.
turn (account, key, wrapped, n) AS (
    SELECT r.account, r.pointer, false, 0 FROM open r
    UNION ALL
    SELECT t.account, x.key, x.wrapped, t.n + 1
    FROM turn t JOIN open r ON r.account = t.account, LATERAL (
        SELECT y.key, y.wrapped FROM (
            ({_KEY.format(wrapped="t.wrapped", rule="e.fairness_key > t.key")})
            UNION ALL
            ({_KEY.format(wrapped="true", rule="NOT t.wrapped")})
        ) y
        -- In this order: a key after the last one is no key from the beginning, unless that was the beginning.
        ORDER BY y.wrapped, y.key DESC LIMIT 1
    ) x
    WHERE t.n < r.keys AND NOT (x.wrapped AND x.key > coalesce(r.pointer, x.key))
),
-- Account by account and key by key, so that nobody's backlog is read through, nor in front of another's mail.
found AS MATERIALIZED (
    SELECT t.account, t.key, t.n, x.id, x.to_domains, x.next_attempt_at,
        row_number() OVER (PARTITION BY t.account, t.n ORDER BY x.next_attempt_at, x.id) AS round
    FROM turn t JOIN open r ON r.account = t.account, LATERAL (
        SELECT y.* FROM (
            SELECT e.id, e.to_domains, e.next_attempt_at, e.from_domain, e.held_why, e.template
            FROM sendonce.email e
            WHERE e.lane = %(lane)s AND e.account = t.account AND e.fairness_key = t.key
                AND e.stage = 'pending' AND e.started_at IS NULL
                AND e.next_attempt_at <= (SELECT now FROM c) + r.ahead * interval '1 second'
            ORDER BY e.next_attempt_at, e.id
            LIMIT CASE WHEN (SELECT templates = '{{}}' FROM held) THEN {LOOKED_AT} ELSE {LOOKED_AT_WITH_HOLDS} END
        ) y
        WHERE y.held_why IS NULL AND y.from_domain <> ALL (r.shut) AND NOT y.to_domains && r.full_domains
            AND y.id <> ALL (%(locked)s::uuid[])
            AND NOT {holds.named("y.template", "templates")}
        ORDER BY y.next_attempt_at, y.id LIMIT greatest(1, {ROWS} / (SELECT count(*) FROM turn))
    ) x
    WHERE t.n > 0 AND NOT {holds.named("t.key", "tenants")}
),
chosen AS MATERIALIZED (
    SELECT p.*, row_number() OVER (ORDER BY p.round, p.n, p.next_attempt_at, p.id) AS rank FROM (
        SELECT f.*, row_number() OVER (PARTITION BY f.account ORDER BY f.round, f.n) AS place
        FROM (
            SELECT f.*, d.places AS there,
                row_number() OVER (PARTITION BY f.account, d.domain ORDER BY f.round, f.n) AS place_there
            FROM found f LEFT JOIN LATERAL (
                SELECT d.domain, d.places FROM destinations d
                WHERE d.account = f.account AND d.domain = ANY (f.to_domains) ORDER BY d.places LIMIT 1
            ) d ON true
        ) f
        WHERE f.there IS NULL OR f.place_there <= f.there
    ) p JOIN open r ON r.account = p.account
    WHERE p.place <= r.places
    ORDER BY p.round, p.n, p.next_attempt_at, p.id LIMIT %(limit)s
),
free AS MATERIALIZED (
    SELECT e.id FROM sendonce.email e
    WHERE e.id = ANY (ARRAY(SELECT id FROM chosen)) AND e.stage = 'pending' AND e.started_at IS NULL
    FOR UPDATE OF e SKIP LOCKED
),
stamped AS (
    UPDATE sendonce.email e SET started_at = c.now FROM free, c WHERE e.id = free.id
    RETURNING e.id, e.key, e.lane, e.fairness_key, e.to_domains, e.template
)
SELECT l.account, r.route, l.last_key, l.looked, r.keys, s.id AS email_id, s.key, s.lane, s.fairness_key, s.to_domains,
    s.template, ARRAY(SELECT h.id FROM chosen h WHERE h.id NOT IN (SELECT id FROM free)) AS locked
FROM (SELECT account, max(n) AS looked, (array_agg(key ORDER BY n DESC))[1] AS last_key FROM turn GROUP BY account) l
    JOIN open r ON r.account = l.account
    LEFT JOIN (stamped s JOIN chosen h ON h.id = s.id) ON h.account = l.account
ORDER BY h.rank
"""

_LOOKING = Statement(_UNSTARTED)


IN_ORDER = f"""
SELECT {LAZILY}, set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true), set_config('jit', 'off', true)
"""
"""The planner does not know how soon a limit is reached, and would sort a whole backlog before it reads it in order.
Nobody waits for the disk: a stamp that a crash takes back is made again, and "already started" proves nothing."""


class Turns(list[Startable]):
    """What was found, in the order in which it is to be started."""

    def __init__(self) -> None:
        super().__init__()
        self.last_keys: dict[str, str] = {}
        """By account, the last fairness key that was looked at."""
        self.all_keys = True
        """Every account was looked through; else there may be more behind."""
        self.locked: list[UUID] = []
        """Those whose turn it was, and that somebody else holds locked, or has just started."""


async def unstarted(
    conn: AsyncConnection[Any],
    lane: str,
    *,
    limit: int,
    ceiling: int,
    settings: Mapping[str, Any],
    paced: Sequence[str] = (),
    at_once: Mapping[str, Mapping[str, int]] | None = None,
    accounts_full: Sequence[str] = (),
    caps: Mapping[str, int] | None = None,
    turns: Mapping[str, str] | None = None,
    domains_full: Mapping[str, Sequence[str]] | None = None,
    locked: Sequence[UUID] = (),
) -> Turns:
    """Stamp and return rows that were never started and are due within :data:`AHEAD_SECONDS`.

    Those of an account take turns by their fairness keys, the oldest first of each; ``turns`` says, by account, whose
    was the last. Mail that may not be started, because of a pause, a hold or a full destination, is passed over so long
    as there is other mail among the first :data:`LOOKED_AT` of its key.

    At most ``ceiling`` mails per account of this lane, for each worker process that serves it, are in flight or started
    and due, and at most ``at_once`` of them to a destination; an account in ``accounts_full`` gets none, and one in
    ``caps`` no more than that at this call. A paused account starts one, its probe, when that is due, unless its
    fallback is open. Accounts in ``paced`` start what is due only. Mails in ``locked`` are passed over: those that a
    look of a moment ago named so (:attr:`Turns.locked`) would be in front of the others again.
    """
    params = {
        "lane": lane,
        "limit": min(limit, 1000),
        "ceiling": ceiling,
        "full": list(accounts_full),
        "ahead": AHEAD_SECONDS,
        "paced": list(paced),
        "at_once": Jsonb({account: dict(domains) for account, domains in (at_once or {}).items()}),
        "caps": Jsonb(dict(caps or {})),
        "turns": Jsonb(dict(turns or {})),
        "domains_full": Jsonb({account: list(domains) for account, domains in (domains_full or {}).items()}),
        "locked": list(locked),
        **settings,
    }
    found = Turns()
    async with conn.pipeline(), conn.transaction():
        await conn.execute(IN_ORDER)
        rows = await _LOOKING.execute(conn, params, dict_row)
    for row in await rows.fetchall():
        account, found.locked = row["account"], row["locked"]
        if row["looked"]:
            found.last_keys[account] = row["last_key"]
            found.all_keys = found.all_keys and row["looked"] < row["keys"]
        if row["email_id"] is not None:
            found.append(
                Startable(
                    row["email_id"],
                    row["key"],
                    account,
                    row["lane"],
                    fairness_key=row["fairness_key"],
                    to_domains=row["to_domains"],
                    route=row["route"],
                    template=row["template"] or "",
                )
            )
    return found
