"""Provider accounts that are paused, each in a transaction of its own: never while a mail's row is locked.

A pause belongs to (account, digest of the effective settings): a worker that still holds an old password pauses
itself, not the workers that hold the new one.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

PROBE_FIRST, PROBE_CAP = 15.0, 900.0
"""Seconds until the first probe of a paused account, doubled by each further fault up to the cap."""

PROBE_LEASE = 660.0
"""A probe that has told nothing for this many seconds is given up: the answer timer, and a minute."""

_FAULT = """
WITH c AS (SELECT sendonce.clock() AS now), was AS (
    SELECT paused_at FROM sendonce.account WHERE name = %(name)s AND settings_digest = %(digest)s
), paused AS (
    INSERT INTO sendonce.account AS a (name, settings_digest, paused_at, pause_why, faults, probe_at)
    SELECT %(name)s, %(digest)s, now, %(why)s, 1, now + %(first)s * interval '1 second' FROM c
    ON CONFLICT (name, settings_digest) DO UPDATE SET
        paused_at = coalesce(a.paused_at, excluded.paused_at), pause_why = excluded.pause_why, faults = a.faults + 1,
        probe_at = excluded.paused_at + least(%(cap)s, %(first)s * 2 ^ least(a.faults, 16)) * interval '1 second',
        probe_until = NULL
    -- What was in flight when the pause began says nothing new; only a probe does.
    WHERE a.paused_at IS NULL OR %(probe)s
    RETURNING name, paused_at
)
INSERT INTO sendonce.alarm (at, kind, account, detail)
SELECT c.now, 'account_paused', %(name)s, %(why)s || %(mark)s FROM c, paused
WHERE NOT EXISTS (SELECT FROM was WHERE was.paused_at IS NOT NULL)
"""


async def fault(
    conn: AsyncConnection[Any],
    name: str,
    digest: str,
    *,
    code: int,
    enhanced: str,
    retry_after: float | None,
    probe: bool = False,
) -> None:
    """Pause the account for the holders of these settings; an alarm when it was not paused yet.

    Of a paused account only the fault of its ``probe`` counts, and puts the next one off.
    """
    first = max(PROBE_FIRST, min(retry_after or 0.0, PROBE_CAP))
    why = f"{code} {enhanced}".strip()
    params = {"name": name, "digest": digest, "why": why, "first": first, "cap": PROBE_CAP, "mark": _mark(digest)}
    params["probe"] = probe
    await conn.execute(_FAULT, params)


_END = """
WITH c AS (SELECT sendonce.clock() AS now), ended AS (
    UPDATE sendonce.account a SET paused_at = NULL, pause_why = NULL, faults = 0, probe_at = NULL, probe_until = NULL,
        paused_total = a.paused_total
            + greatest(interval '0', least(c.now, coalesce(a.probe_until, a.probe_at) + interval '15 minutes') - a.paused_at)
    FROM c WHERE a.paused_at IS NOT NULL AND {which}
    RETURNING a.name, ' (settings ' || left(a.settings_digest, 12) || ')' AS mark
)
INSERT INTO sendonce.alarm (kind, account, detail, closes)
SELECT 'account_paused', ended.name, %(why)s || ended.mark, a.id
FROM ended JOIN sendonce.alarm a ON a.account = ended.name AND a.kind = 'account_paused' AND a.closes IS NULL
WHERE right(a.detail, length(ended.mark)) = ended.mark
    AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)
"""
_WORKS = _END.format(which="a.name = %(name)s AND a.settings_digest = %(digest)s")
_FORGOTTEN = _END.format(which="coalesce(a.probe_until, a.probe_at) < c.now - %(after)s * interval '1 second'")

FORGET_SECONDS = 3600.0
"""A pause that nobody has probed for so long is ended: whoever held those settings is gone, or has nothing to send."""


def _mark(digest: str) -> str:
    """Which settings an alarm is about, at the end of its detail: each pause closes its own alarm."""
    return f" (settings {digest[:12]})"


async def forget_pauses(conn: AsyncConnection[Any]) -> None:
    """End the pauses that nobody probes any more; the next mail is the probe."""
    await conn.execute(_FORGOTTEN, {"why": "not probed any more", "after": FORGET_SECONDS})


async def works(conn: AsyncConnection[Any], name: str, digest: str) -> bool:
    """End a pause; True when there was one."""
    cursor = await conn.execute(_WORKS, {"name": name, "digest": digest, "why": "works again"})
    return cursor.rowcount > 0


_PROBE = """
UPDATE sendonce.account SET probe_until = sendonce.clock() + %(lease)s * interval '1 second'
WHERE name = %(name)s AND settings_digest = %(digest)s AND paused_at IS NOT NULL
    AND probe_at <= sendonce.clock() AND coalesce(probe_until <= sendonce.clock(), true)
"""


async def take_probe(conn: AsyncConnection[Any], name: str, digest: str) -> bool:
    """Lease the paused account's one probe; True when this caller has it."""
    cursor = await conn.execute(_PROBE, {"name": name, "digest": digest, "lease": PROBE_LEASE})
    return cursor.rowcount == 1


_GIVE_BACK = """
UPDATE sendonce.account SET probe_until = NULL, probe_at = sendonce.clock() + %(first)s * interval '1 second'
WHERE name = %(name)s AND settings_digest = %(digest)s AND paused_at IS NOT NULL
"""


async def give_probe_back(conn: AsyncConnection[Any], name: str, digest: str) -> None:
    """The probe told nothing: another may pass soon."""
    await conn.execute(_GIVE_BACK, {"name": name, "digest": digest, "first": PROBE_FIRST})
