"""By which account a mail goes: its own, or while that one is paused the fallback that the settings name for it.

Another account is another memory of our keys. So what was offered and not answered stays where it was offered: only a
mail of which nothing is unanswered may change, or the one resend of the policy, which accepts a second copy anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from sendonce.store import holds
from sendonce.store.accounts import YIELD_SECONDS

LIMITED = "ARRAY(SELECT jsonb_array_elements_text(%(limited)s::jsonb -> {account}))"
"""The destination domains that the account limits, as an array of texts."""

ROUTE = f"""
-- The accounts that the row r may go by, in the order of preference.
way AS MATERIALIZED (
    SELECT 0 AS n, coalesce((
        SELECT g.account FROM sendonce.generation g
        WHERE r.generation_open AND r.mode <> 'resend' AND g.email_id = r.id AND g.generation = r.generation
        ), r.account) AS name FROM r
    UNION ALL
    SELECT 1, %(fallbacks)s::jsonb ->> r.account FROM r
    WHERE NOT (r.generation_open AND r.mode <> 'resend') AND %(fallbacks)s::jsonb ->> r.account IS NOT NULL
        AND NOT {holds.account_on_hold("%(fallbacks)s::jsonb ->> r.account")}
),
-- Each with the pause that concerns the row; one of the whole account goes before one of the From domain.
ways AS MATERIALIZED (
    SELECT way.n, way.name, coalesce(a.from_domain, d.from_domain, '') AS paused_domain,
        -- When to ask for a probe. One that is under way is answered within seconds as a rule, long before its lease
        -- ends: whoever waits for it asks again soon, and less often the longer it takes.
        CASE WHEN p.until > r.now
            THEN r.now
                + greatest(least(r.now - p.taken_at, p.until - r.now, interval '30 seconds'), interval '5 seconds')
            ELSE p.at END AS probe_at,
        -- The probe of the whole account passes both: what it meets tells which of the two it is.
        (a.name IS NOT NULL AND NOT (p.probes AND %(probe)s::text = ''))
            OR (d.name IS NOT NULL AND NOT p.probes) AS shut,
        NOT (way.n = 0 AND %(divert)s)
            AND coalesce(p.at <= r.now AND coalesce(p.until <= r.now, true), false) AS probe_due,
        p.probes AS probed
    FROM r CROSS JOIN way
        LEFT JOIN sendonce.account a ON a.name = way.name AND a.from_domain = '' AND a.paused_at IS NOT NULL
            AND a.settings_digest = %(digests)s::jsonb ->> way.name
        LEFT JOIN sendonce.account d ON d.name = way.name AND d.from_domain = r.from_domain AND d.from_domain <> ''
            AND d.paused_at IS NOT NULL AND d.settings_digest = %(digests)s::jsonb ->> way.name
        CROSS JOIN LATERAL (
            SELECT %(probe)s::text IS NOT NULL AND way.name = coalesce(%(probe_of)s::text, r.account) AS probes,
                CASE WHEN a.name IS NOT NULL THEN a.probe_until ELSE d.probe_until END AS until,
                CASE WHEN a.name IS NOT NULL THEN a.probe_taken_at ELSE d.probe_taken_at END AS taken_at,
                -- See accounts.take_probe: the mail that met the domain's last fault lets others go first.
                CASE WHEN a.name IS NOT NULL THEN a.probe_at ELSE d.probe_at
                    + CASE WHEN d.fault_email = r.id THEN %(yields)s ELSE 0 END * interval '1 second' END AS at
        ) p
),
-- Its own account if that is open, or wants a probe; else the fallback, if that is open or wants one.
route AS MATERIALIZED (
    SELECT ways.*, (SELECT min(probe_at) FROM ways) AS first_probe_at, (SELECT count(*) > 1 FROM way) AS can_divert
    FROM ways ORDER BY NOT shut AND n = 0 DESC, probe_due AND n = 0 DESC, NOT shut DESC, probe_due DESC, n LIMIT 1
)
"""
"""Of the row ``r``, which has ``mode`` and ``now``: one row ``route``."""


def params(
    fallbacks: Mapping[str, str], *, probe: str | None = None, probe_of: str | None = None, divert: bool = False
) -> dict[str, Any]:
    """What :data:`ROUTE` takes besides ``digests``.

    ``probe`` is the From domain whose pause this claim passes as its probe, ``""`` for the whole account's;
    ``probe_of`` names the account, by default the mail's. ``divert``: leave the probe that is due to another mail.
    """
    return {
        "fallbacks": Jsonb(dict(fallbacks)),
        "probe": probe,
        "probe_of": probe_of,
        "divert": divert,
        "yields": YIELD_SECONDS,
    }
