"""Provider accounts that are paused, each in a transaction of its own: never while a mail's row is locked.

A pause belongs to (account, digest of the effective settings): a worker that still holds an old password pauses
itself, not the workers that hold the new one. It concerns all mail of the account, or only that from one domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

PROBE_FIRST, PROBE_CAP = 15.0, 900.0
"""Seconds until the first probe of a paused account, doubled by each further fault up to the cap."""

SENDER_PROBE_FIRST = 2.0
"""The same for a From domain: other mail soon shows whether the domain is at fault, or only one mail of it."""

PROBE_LEASE, PROBE_MARGIN = 660.0, 120.0
"""A probe that has told nothing for so many seconds is given up: never before its answer timer and the margin."""

YIELD_SECONDS = 30.0
"""The mail that met the last fault may probe again so much later than others: it may itself be the cause."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a pause concerns."""

    name: str
    digest: str
    domain: str = ""
    """The From domain it is limited to; ``""``: the whole account."""

    @property
    def probe_first(self) -> float:
        return SENDER_PROBE_FIRST if self.domain else PROBE_FIRST

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest, "domain": self.domain}


_FAULT = """
WITH c AS (SELECT sendonce.clock() AS now), was AS (
    SELECT paused_at FROM sendonce.account
    WHERE name = %(name)s AND settings_digest = %(digest)s AND from_domain = %(domain)s
), paused AS (
    INSERT INTO sendonce.account AS a (name, settings_digest, from_domain, paused_at, pause_why, faults, probe_at,
        fault_email)
    SELECT %(name)s, %(digest)s, %(domain)s, now, %(why)s, 1, now + %(first)s * interval '1 second', %(email)s FROM c
    ON CONFLICT (name, settings_digest, from_domain) DO UPDATE SET fault_email = excluded.fault_email,
        paused_at = coalesce(a.paused_at, excluded.paused_at), pause_why = excluded.pause_why, faults = a.faults + 1,
        probe_at = excluded.paused_at + least(%(cap)s, %(first)s * 2 ^ least(a.faults, 16)) * interval '1 second',
        probe_until = NULL, probe_email = NULL
    -- What was in flight when the pause began says nothing new; only the probe does, while it is the probe still.
    WHERE a.paused_at IS NULL OR (%(probe)s AND a.probe_email = %(email)s)
    RETURNING name, paused_at
)
INSERT INTO sendonce.alarm (at, kind, account, detail)
SELECT c.now, 'account_paused', %(name)s, %(why)s || %(mark)s FROM c, paused
WHERE NOT EXISTS (SELECT FROM was WHERE was.paused_at IS NOT NULL)
"""


async def fault(
    conn: AsyncConnection[Any],
    scope: Scope,
    *,
    code: int,
    enhanced: str,
    retry_after: float | None,
    probe: bool = False,
    email_id: UUID | None = None,
) -> None:
    """Pause the scope for the holders of these settings; an alarm when it was not paused yet.

    Of what is paused only the fault of its ``probe`` counts, which is the mail that :func:`take_probe` was for: it puts
    the next one off.
    """
    first = max(scope.probe_first, min(retry_after or 0.0, PROBE_CAP))
    # Code 0: nobody answered, and the word says it all.
    why = f"{code or ''} {enhanced}".strip()
    params = {**scope.params, "why": why, "first": first, "cap": PROBE_CAP, "mark": _mark(scope), "email": email_id}
    params["probe"] = probe
    await conn.execute(_FAULT, params)


_END = """
WITH c AS (SELECT sendonce.clock() AS now), ended AS (
    UPDATE sendonce.account a SET paused_at = NULL, pause_why = NULL, faults = 0, probe_at = NULL, probe_until = NULL,
        probe_email = NULL, fault_email = NULL, worked_at = CASE WHEN %(worked)s THEN c.now ELSE a.worked_at END,
        paused_total = a.paused_total
            + greatest(interval '0', least(c.now, coalesce(a.probe_until, a.probe_at) + interval '15 minutes')
                - a.paused_at)
    FROM c WHERE a.paused_at IS NOT NULL AND {which}
    RETURNING a.name, ' (' || CASE WHEN a.from_domain <> '' THEN 'from ' || a.from_domain || ', ' ELSE '' END
        || 'settings ' || left(a.settings_digest, 12) || ')' AS mark
)
INSERT INTO sendonce.alarm (kind, account, detail, closes)
SELECT 'account_paused', ended.name, %(why)s || ended.mark, a.id
FROM ended JOIN sendonce.alarm a ON a.account = ended.name AND a.kind = 'account_paused' AND a.closes IS NULL
WHERE right(a.detail, length(ended.mark)) = ended.mark
    AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)
"""
_WORKS = _END.format(which="a.name = %(name)s AND a.settings_digest = %(digest)s AND a.from_domain = %(domain)s")
_ENDED = _END.format(which="a.name = %(name)s")
_RETIRED = _END.format(which="a.name = %(name)s AND a.settings_digest = %(digest)s")
_FORGOTTEN = _END.format(which="coalesce(a.probe_until, a.probe_at) < c.now - %(after)s * interval '1 second'")

FORGET_SECONDS = 3600.0
"""A pause that nobody has probed for so long is ended: whoever held those settings is gone, or has nothing to send."""


def _mark(scope: Scope) -> str:
    """What an alarm is about, at the end of its detail: each pause closes its own alarm."""
    domain = f"from {scope.domain}, " if scope.domain else ""
    return f" ({domain}settings {scope.digest[:12]})"


async def forget_pauses(conn: AsyncConnection[Any]) -> None:
    """End the pauses that nobody probes any more; the next mail is the probe."""
    await conn.execute(_FORGOTTEN, {"why": "not probed any more", "after": FORGET_SECONDS, "worked": False})


async def retire(conn: AsyncConnection[Any], name: str, digest: str) -> None:
    """These settings are not in use any more, so nobody would probe their pauses. Who still has them may pause anew."""
    await conn.execute(_RETIRED, {"name": name, "digest": digest, "why": "the settings have changed", "worked": False})


async def works(conn: AsyncConnection[Any], scope: Scope) -> bool:
    """End a pause; True when there was one."""
    cursor = await conn.execute(_WORKS, {**scope.params, "why": "works again", "worked": True})
    return cursor.rowcount > 0


async def end_all(conn: AsyncConnection[Any], name: str, *, why: str) -> int:
    """An operator ends all pauses of the account; how many there were. The next mail tells whether that was right."""
    async with conn.transaction():
        cursor = await conn.execute(
            "SELECT count(*) FROM sendonce.account WHERE name = %s AND paused_at IS NOT NULL", [name]
        )
        row = await cursor.fetchone()
        await conn.execute(_ENDED, {"name": name, "why": why, "worked": False})
    return int(row[0]) if row else 0


_ABANDONED = """
UPDATE sendonce.account a SET probe_until = NULL, probe_email = NULL
WHERE a.probe_until > sendonce.clock()
    AND a.probe_taken_at < sendonce.clock() - %(after)s * interval '1 second'
    AND NOT EXISTS (
        SELECT FROM sendonce.email e WHERE e.id = a.probe_email
            AND (e.stage = 'transmitting' OR (e.stage = 'claimed' AND e.lease_until > sendonce.clock())))
"""

ABANDONED_SECONDS = 15.0
"""A probe that was taken so long ago by a mail that nobody is trying has lost its process."""


async def free_probes(conn: AsyncConnection[Any]) -> None:
    """Let another pass where the process that had the probe is gone."""
    await conn.execute(_ABANDONED, {"after": ABANDONED_SECONDS})


_PROBE = """
UPDATE sendonce.account SET probe_email = %(email)s, probe_taken_at = sendonce.clock(),
    probe_until = sendonce.clock() + %(lease)s * interval '1 second'
WHERE name = %(name)s AND settings_digest = %(digest)s AND from_domain = %(domain)s AND paused_at IS NOT NULL
    AND probe_at + CASE WHEN fault_email = %(email)s THEN %(yields)s ELSE 0 END * interval '1 second'
        <= sendonce.clock()
    AND coalesce(probe_until <= sendonce.clock(), true)
"""


async def take_probe(conn: AsyncConnection[Any], scope: Scope, email_id: UUID, *, answer_seconds: float) -> bool:
    """Lease the one probe of what is paused; True when this mail has it.

    ``answer_seconds``: how long its answer is awaited, which the lease covers.
    """
    # Only where somebody else may be at fault: an account that is paused as a whole is no single mail's doing.
    yields = YIELD_SECONDS if scope.domain else 0.0
    lease = max(PROBE_LEASE, answer_seconds + PROBE_MARGIN)
    params = {**scope.params, "lease": lease, "email": email_id, "yields": yields}
    cursor = await conn.execute(_PROBE, params)
    return cursor.rowcount == 1


_GIVE_BACK = """
UPDATE sendonce.account SET probe_until = NULL, probe_email = NULL,
    probe_at = sendonce.clock() + %(first)s * interval '1 second'
WHERE name = %(name)s AND settings_digest = %(digest)s AND from_domain = %(domain)s AND paused_at IS NOT NULL
    AND probe_email = %(email)s
"""


async def give_probe_back(conn: AsyncConnection[Any], scope: Scope, email_id: UUID) -> None:
    """The probe, this mail, told nothing: another may pass soon. A no-op when another has its place by now."""
    await conn.execute(_GIVE_BACK, {**scope.params, "first": scope.probe_first, "email": email_id})


_CULPRIT = """
SELECT EXISTS (
    SELECT FROM sendonce.attempt t JOIN sendonce.account a
        ON a.name = %(name)s AND a.settings_digest = %(digest)s AND a.from_domain = %(domain)s
    WHERE t.email_id = %(email)s AND t.account = %(name)s AND a.worked_at > t.claimed_at
        AND jsonb_path_exists(t.answers, '$.* ? (@.kind == "account_fault" && @.scope == "sender")')
)
"""


async def is_culprit(conn: AsyncConnection[Any], scope: Scope, email_id: UUID) -> bool:
    """True when this mail met a sender fault before, and others have passed from the same domain since."""
    row = await (await conn.execute(_CULPRIT, {**scope.params, "email": email_id})).fetchone()
    return row is not None and bool(row[0])
