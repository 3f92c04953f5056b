"""Permissions: claim, begin, renew, release. Fenced by the lease's id, and refused when the row has moved on.

These statements are on the path of every mail. Each locks the row first and decides on the locked version; what it
needs to decide stands on that row, because everything else in a statement is read from the older snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sendonce.errors import InvalidEmail
from sendonce.message import OutgoingEmail
from sendonce.policy import LanePolicy
from sendonce.stages import Stage
from sendonce.store.records import (
    BeginRefused,
    Begun,
    Busy,
    Claimed,
    EnvelopeRecipient,
    Finished,
    Held,
    NoSuchRow,
    Paused,
    Pinned,
    Pins,
    Standing,
    Wait,
)

LOCK_TIMEOUT_MS = 1500
"""Begin waits no longer than this for the row; then the line is dropped and the claim given back."""

NO_STAGE_HOLDS_LONGER = 86400.0
"""Standing answers never ask a workflow to sleep longer than this; it simply asks again."""

# What the claim statement decides, in this order. eff is the stage without its holder.
_VERDICT = """
    CASE
        WHEN r.stage IN ('sent', 'failed', 'dead', 'expired', 'cancelled') THEN 'finished'
        WHEN r.stage = 'transmitting' OR (r.stage = 'claimed' AND NOT r.lapsed) THEN 'busy'
        WHEN r.lapse_counts AND r.lease_alone THEN 'poison'
        WHEN r.eff = 'pending' AND (r.cancel_requested_at IS NOT NULL OR r.expires_at <= r.now) THEN 'limit'
        WHEN r.eff = 'unknown' AND r.close_at <= r.now THEN 'limit'
        WHEN r.held_why IS NOT NULL OR r.next_attempt_at IS NULL THEN 'held'
        WHEN r.eff = 'unknown' AND (r.cancel_requested_at IS NOT NULL OR r.expires_at <= r.now) THEN 'limit'
        WHEN r.next_attempt_at > r.now THEN 'wait'
        WHEN r.eff = 'unknown' AND NOT r.replayable AND NOT r.resendable THEN 'limit'
        WHEN a.paused_at IS NOT NULL AND NOT %(probe)s THEN 'paused'
        WHEN r.lapses_now >= 2 AND NOT %(alone)s
            AND r.now < coalesce(r.lease_until, r.claimed_at) + interval '5 minutes' THEN 'alone'
        ELSE 'claim'
    END
"""

_ROW = """
c AS MATERIALIZED (SELECT sendonce.clock() AS now),
l AS MATERIALIZED (
    SELECT e.*, c.now FROM sendonce.email e, c WHERE e.id = %(id)s AND e.key = %(key)s FOR UPDATE OF e
),
m AS MATERIALIZED (
    SELECT l.*,
        CASE WHEN l.stage = 'claimed' THEN l.rest_stage ELSE l.stage END AS eff,
        l.stage = 'claimed' AND l.lease_until <= l.now AS lapsed,
        -- A lapse blames the mail only when the store was up: neither restarted nor out of the asker's reach since.
        l.stage = 'claimed' AND l.lease_until <= l.now AND pg_postmaster_start_time() < l.claimed_at
            AND (%(outage_ago)s::float8 IS NULL OR l.lease_until > l.now - %(outage_ago)s * interval '1 second')
            AS lapse_counts,
        coalesce(l.replay_until > l.now, false) AS replayable,
        coalesce(l.unknown_policy, %(unknown_policy)s) = 'resend' AND l.resends = 0
            AND l.answer_by <= l.now AS resendable
    FROM l
),
r AS MATERIALIZED (SELECT m.*, m.lapses + m.lapse_counts::integer AS lapses_now FROM m)
"""

_CLAIM = f"""
WITH {_ROW},
v AS MATERIALIZED (
    SELECT r.*, {_VERDICT} AS verdict, a.probe_at,
        coalesce(a.probe_at <= r.now AND coalesce(a.probe_until <= r.now, true), false) AS probe_due,
        CASE WHEN r.eff <> 'unknown' THEN 'send' WHEN r.replayable THEN 'replay' ELSE 'resend' END AS mode
    FROM r LEFT JOIN sendonce.account a ON a.name = r.account AND a.settings_digest = %(digests)s::jsonb ->> r.account
),
claimed AS (
    UPDATE sendonce.email e SET
        stage = 'claimed', rest_stage = v.eff, lease_id = %(lease)s, lease_worker = %(worker)s,
        lease_until = v.now + %(lease_seconds)s * interval '1 second', lease_alone = %(alone)s AND v.lapses_now >= 2,
        claimed_at = v.now,
        claims = v.claims + 1, lapses = v.lapses_now, starts = 0,
        seen_at = v.now, started_at = coalesce(v.started_at, v.now)
    FROM v WHERE e.id = v.id AND v.verdict = 'claim'
    RETURNING e.id, v.stage AS was, v.mode, e.claims, v.generation, v.now
),
seen AS (
    UPDATE sendonce.email e SET seen_at = v.now, started_at = coalesce(v.started_at, v.now), starts = 0
    FROM v WHERE e.id = v.id AND v.verdict NOT IN ('claim', 'finished')
),
lapsed AS (
    UPDATE sendonce.attempt t SET ended_at = v.now, ended_why = 'lapsed'
    FROM v WHERE v.verdict = 'claim' AND v.lapsed AND t.id = v.lease_id AND t.ended_at IS NULL
),
attempt AS (
    INSERT INTO sendonce.attempt (id, email_id, number, generation, mode, worker, claimed_at)
    SELECT %(lease)s, id, claims, generation + (mode = 'resend')::integer, mode, %(worker)s, now FROM claimed
),
logged AS (
    INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
    SELECT id, now, was, 'claimed', mode, %(worker)s, %(lease)s FROM claimed
)
SELECT v.verdict, v.mode, v.stage, v.eff, v.account, v.lane, v.key, v.attempts, v.claims + 1 AS number, v.generation,
    v.generation_open, v.created_at, v.partial, v.maybe_accepted, v.last_code, v.last_enhanced, v.held_why,
    v.probe_due, v.open_ordinals,
    extract(epoch FROM v.next_attempt_at - v.now)::float8 AS next_in,
    extract(epoch FROM v.close_at - v.now)::float8 AS close_in,
    extract(epoch FROM v.lease_until - v.now)::float8 AS lease_left,
    extract(epoch FROM v.answer_by - v.now)::float8 AS answer_left,
    extract(epoch FROM v.probe_at - v.now)::float8 AS probe_in,
    t.content, t.message_id, i.id AS installation,
    CASE WHEN t.email_id IS NOT NULL THEN (
        SELECT jsonb_agg(jsonb_build_array(p.ordinal, p.mailbox) ORDER BY p.ordinal)
        FROM sendonce.recipient p WHERE p.email_id = v.id) END AS recipients,
    CASE WHEN t.email_id IS NOT NULL AND v.generation_open AND v.mode <> 'resend' THEN (
        SELECT jsonb_build_array(g.slot, encode(g.digest, 'hex'), g.envelope, g.provider_key, g.identity)
        FROM sendonce.generation g WHERE g.email_id = v.id AND g.generation = v.generation) END AS pins,
    t.email_id IS NOT NULL AND EXISTS (SELECT FROM sendonce.attachment f WHERE f.email_id = v.id) AS attachments
FROM v
    CROSS JOIN sendonce.installation i
    LEFT JOIN sendonce.email_content t ON t.email_id = v.id AND v.verdict = 'claim'
"""

LIMIT_VERDICTS = ("limit", "poison")


async def claim(
    conn: AsyncConnection[Any],
    email_id: UUID,
    key: str,
    *,
    lane: LanePolicy,
    digests: Mapping[str, str],
    worker: str,
    lease_seconds: float,
    alone: bool,
    probe: bool,
    outage_ago: float | None,
) -> Claimed | Standing | Paused | str:
    """One statement: lease the row to a new attempt, or say why not.

    A ``str`` is a verdict of :data:`LIMIT_VERDICTS`: a limit has been reached, and the facts module must conclude it.
    """
    lease = uuid4()
    params = {
        "id": email_id,
        "key": key,
        "lease": lease,
        "worker": worker,
        "lease_seconds": lease_seconds,
        "alone": alone,
        "probe": probe,
        "outage_ago": outage_ago,
        "unknown_policy": lane.unknown,
        "digests": Jsonb(dict(digests)),
    }
    async with conn.cursor(row_factory=dict_row) as cur:
        row = await (await cur.execute(_CLAIM, params)).fetchone()
        if row is None:
            return NoSuchRow()
        if row["verdict"] in LIMIT_VERDICTS:
            return str(row["verdict"])
        if row["verdict"] != "claim":
            return _standing(row)
        files = []
        if row["attachments"]:
            await cur.execute(_ATTACHMENTS, {"id": email_id})
            files = await cur.fetchall()
    return _claimed(row, lease, email_id, files)


_ATTACHMENTS = """
SELECT filename, content_type, content_id, inline, content FROM sendonce.attachment
WHERE email_id = %(id)s ORDER BY ordinal
"""


def _claimed(row: dict[str, Any], lease: UUID, email_id: UUID, files: list[dict[str, Any]]) -> Claimed:
    mailboxes = {int(ordinal): str(mailbox) for ordinal, mailbox in row["recipients"] or []}
    resend = row["mode"] == "resend"
    pins = None
    if row["pins"] is not None:
        slot, digest, envelope, provider_key, identity = row["pins"]
        pins = Pins(slot, bytes.fromhex(digest), tuple(envelope), provider_key, identity)
    chosen = pins.envelope if pins else tuple(sorted(row["open_ordinals"]))
    content: OutgoingEmail | InvalidEmail
    try:
        content = OutgoingEmail.from_json(row["content"], files)
    except InvalidEmail as error:
        content = error
    return Claimed(
        email_id=email_id,
        key=row["key"],
        account=row["account"],
        lane=row["lane"],
        attempt_id=lease,
        number=row["number"],
        attempts=row["attempts"],
        mode=row["mode"],
        generation=row["generation"] + (1 if resend else 0),
        pins=pins,
        recipients=tuple(EnvelopeRecipient(o, mailboxes[o]) for o in chosen),
        content=content,
        message_id=row["message_id"],
        created_at=row["created_at"],
        installation=row["installation"],
    )


def _standing(row: dict[str, Any]) -> Standing | Paused:
    stage = Stage(row["stage"])
    said = {"code": row["last_code"] or 0, "enhanced": row["last_enhanced"] or "", "attempts": row["attempts"]}
    match row["verdict"]:
        case "finished":
            return Finished(stage, partial=row["partial"], maybe_accepted=row["maybe_accepted"], **said)
        case "busy":
            if stage is Stage.TRANSMITTING:
                return Busy(max(1.0, row["answer_left"] or 0.0) + 5.0, stage)
            return Busy(max(0.0, row["lease_left"] or 0.0) + 1.0, stage)
        case "paused":
            return Paused(_sleep(row["probe_in"], 60.0), bool(row["probe_due"]))
        case "alone":
            return Wait(5.0, "alone", Stage(row["eff"]), **said)
        case "held":
            why = row["held_why"] or ("unanswered" if row["eff"] == "unknown" else "held")
            return Held(_sleep(row["close_in"]), why, Stage(row["eff"]), **said)
        case _:
            why = "deferred" if row["attempts"] else "not_due"
            if row["eff"] == "unknown":
                why = "unanswered"
            return Wait(_sleep(row["next_in"], 0.0), why, Stage(row["eff"]), **said)


def _sleep(seconds: float | None, default: float = NO_STAGE_HOLDS_LONGER) -> float:
    return max(0.0, min(default if seconds is None else seconds, NO_STAGE_HOLDS_LONGER))


_STANDING = f"""
WITH {_ROW},
seen AS (
    UPDATE sendonce.email e SET seen_at = r.now, started_at = coalesce(r.started_at, r.now), starts = 0
    FROM r WHERE e.id = r.id AND r.stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled')
)
SELECT r.stage, r.eff, r.attempts, r.partial, r.maybe_accepted, r.last_code, r.last_enhanced, r.held_why,
    CASE
        WHEN r.stage IN ('sent', 'failed', 'dead', 'expired', 'cancelled') THEN 'finished'
        WHEN r.stage = 'transmitting' OR (r.stage = 'claimed' AND NOT r.lapsed) THEN 'busy'
        WHEN r.held_why IS NOT NULL OR r.next_attempt_at IS NULL THEN 'held'
        ELSE 'wait'
    END AS verdict,
    extract(epoch FROM r.next_attempt_at - r.now)::float8 AS next_in,
    extract(epoch FROM r.close_at - r.now)::float8 AS close_in,
    extract(epoch FROM r.lease_until - r.now)::float8 AS lease_left,
    extract(epoch FROM r.answer_by - r.now)::float8 AS answer_left
FROM r
"""


async def standing(conn: AsyncConnection[Any], email_id: UUID, key: str) -> Standing:
    """Where the mail stands now; stamps that its workflow was seen."""
    params = {"id": email_id, "key": key, "outage_ago": None, "unknown_policy": "hold"}
    async with conn.cursor(row_factory=dict_row) as cur:
        row = await (await cur.execute(_STANDING, params)).fetchone()
    if row is None:
        return NoSuchRow()
    answer = _standing(row)
    assert not isinstance(answer, Paused)
    return answer


_PIN = """
WITH new AS (
    INSERT INTO sendonce.pinned (email_id, slot, method, url, headers, body, digest)
    VALUES (%(id)s, %(slot)s, %(method)s, %(url)s, %(headers)s, %(body)s, %(digest)s)
    ON CONFLICT DO NOTHING RETURNING email_id
)
SELECT count(*) FROM new
"""

_PINNED = "SELECT body, method, url, headers, digest FROM sendonce.pinned WHERE email_id = %(id)s AND slot = %(slot)s"


async def pin(
    conn: AsyncConnection[Any],
    email_id: UUID,
    slot: str,
    *,
    body: bytes,
    method: str,
    url: str,
    headers: tuple[tuple[str, str], ...],
    digest: bytes,
) -> Pinned:
    """Keep the rendering, insert-once, and return what is kept: everyone sends what this returns."""
    ours = Pinned(body, method, url, headers, digest)
    params = {
        "id": email_id,
        "slot": slot,
        "body": body,
        "method": method,
        "url": url,
        "headers": Jsonb([list(h) for h in headers]),
        "digest": digest,
    }
    inserted = await (await conn.execute(_PIN, params)).fetchone()
    if inserted == (1,):
        return ours
    stored = await pinned(conn, email_id, slot)
    assert stored is not None  # a conflict says that it is there, and pins are never deleted while the mail is open
    return stored


async def pinned(conn: AsyncConnection[Any], email_id: UUID, slot: str) -> Pinned | None:
    """The kept rendering, or None when nothing was pinned under that slot."""
    async with conn.cursor(row_factory=dict_row) as cur:
        row = await (await cur.execute(_PINNED, {"id": email_id, "slot": slot})).fetchone()
    if row is None:
        return None
    headers = tuple((str(name), str(value)) for name, value in row["headers"])
    return Pinned(row["body"], row["method"], row["url"], headers, row["digest"])


_BEGIN = """
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
r AS MATERIALIZED (SELECT e.*, c.now FROM sendonce.email e, c WHERE e.id = %(id)s FOR UPDATE OF e),
g AS MATERIALIZED (
    SELECT g.* FROM sendonce.generation g, r WHERE g.email_id = r.id AND g.generation = %(generation)s
),
v AS MATERIALIZED (
    SELECT r.*, CASE
        WHEN r.stage <> 'claimed' OR r.lease_id IS DISTINCT FROM %(attempt)s THEN 'moved_on'
        WHEN r.lease_until <= r.now THEN 'lapsed'
        WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN r.expires_at <= r.now THEN 'expired'
        WHEN r.generation = %(generation)s AND r.generation_open AND NOT EXISTS (
            SELECT FROM g WHERE g.digest = %(digest)s AND g.identity = %(identity)s AND g.slot = %(slot)s
                AND g.provider_key = %(provider_key)s AND g.envelope = %(offered)s::integer[]) THEN 'pins_differ'
        WHEN r.generation = %(generation)s AND r.generation_open AND coalesce(
            (SELECT g.first_begun_at FROM g) + (%(key_window)s::float8 - %(window_margin)s) * interval '1 second'
            <= r.now, true) THEN 'window_over'
        ELSE 'ok' END AS verdict
    FROM r
),
opened AS (
    INSERT INTO sendonce.generation
        (email_id, generation, slot, digest, envelope, provider_key, identity, first_begun_at)
    SELECT id, %(generation)s, %(slot)s, %(digest)s, %(offered)s::integer[], %(provider_key)s, %(identity)s, now
    FROM v WHERE verdict = 'ok' AND NOT (generation = %(generation)s AND generation_open)
),
shut AS (
    -- The account's window is shorter than it was when the mail was offered, or gone: no replay is planned any more.
    UPDATE sendonce.email e SET replay_until = NULL FROM v WHERE e.id = v.id AND v.verdict = 'window_over'
),
begun AS (
    UPDATE sendonce.email e SET
        stage = 'transmitting', begun_at = v.now, answer_by = v.now + %(answer_seconds)s * interval '1 second',
        lease_until = v.now + %(lease_seconds)s * interval '1 second',
        resends = v.resends + (v.generation <> %(generation)s)::integer,
        generation = %(generation)s, generation_open = true,
        replay_until = coalesce((SELECT g.first_begun_at FROM g), v.now)
            + (%(key_window)s::float8 - %(window_margin)s) * interval '1 second'
    FROM v WHERE e.id = v.id AND v.verdict = 'ok'
    RETURNING e.id, v.now
),
attempt AS (
    UPDATE sendonce.attempt t SET begun_at = begun.now, offered = %(offered)s::integer[]
    FROM begun WHERE t.id = %(attempt)s
),
logged AS (
    INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
    SELECT id, now, 'claimed', 'transmitting', 'begin', %(worker)s, %(attempt)s FROM begun
)
SELECT verdict FROM v
"""


async def begin(
    conn: AsyncConnection[Any],
    email_id: UUID,
    attempt_id: UUID,
    *,
    worker: str,
    generation: int,
    slot: str,
    digest: bytes,
    offered: Sequence[int],
    provider_key: str,
    identity: str,
    key_window: float | None,
    window_margin: float,
    answer_seconds: float,
    lease_seconds: float,
) -> Begun | BeginRefused:
    """Commit that the mail is about to be offered. One statement; flushed to disk whatever the session says.

    Raises :class:`psycopg.errors.LockNotAvailable` after :data:`LOCK_TIMEOUT_MS`: not begun then.
    """
    params = {
        "id": email_id,
        "attempt": attempt_id,
        "worker": worker,
        "generation": generation,
        "slot": slot,
        "digest": digest,
        "offered": sorted(offered),
        "provider_key": provider_key,
        "identity": identity,
        "key_window": key_window,
        "window_margin": window_margin,
        "answer_seconds": answer_seconds,
        "lease_seconds": lease_seconds,
    }
    # One round trip: the pipeline sends begin, settings, statement and commit together.
    async with conn.pipeline(), conn.transaction():
        await conn.execute(
            "SELECT set_config('lock_timeout', %s, true), set_config('synchronous_commit', 'on', true)",
            [str(LOCK_TIMEOUT_MS)],
        )
        cursor = await conn.execute(_BEGIN, params)
    row = await cursor.fetchone()
    verdict = row[0] if row else "moved_on"
    return Begun(answer_seconds) if verdict == "ok" else BeginRefused(verdict)


# A row that somebody else holds locked is passed over, not waited for: one mail must not cost the others their leases.
_RENEW = """
WITH mine AS (
    SELECT id FROM sendonce.email
    WHERE stage IN ('claimed', 'transmitting') AND lease_id = ANY(%(leases)s) ORDER BY id FOR UPDATE SKIP LOCKED
), renewed AS (
    UPDATE sendonce.email e SET lease_until = sendonce.clock() + %(lease_seconds)s * interval '1 second'
    FROM mine WHERE e.id = mine.id RETURNING e.lease_id
)
SELECT e.lease_id, e.lease_id IN (SELECT lease_id FROM renewed) FROM sendonce.email e
WHERE e.stage IN ('claimed', 'transmitting') AND e.lease_id = ANY(%(leases)s)
"""


async def renew(conn: AsyncConnection[Any], leases: Sequence[UUID], lease_seconds: float) -> dict[UUID, bool]:
    """Renew all leases of a process in one statement.

    Returns those that still stand: True when renewed, False when another transaction holds the row at this moment.
    A lease that is missing is lost.
    """
    cursor = await conn.execute(_RENEW, {"leases": list(leases), "lease_seconds": lease_seconds})
    return {row[0]: row[1] for row in await cursor.fetchall()}


_RELEASE = """
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
r AS MATERIALIZED (
    SELECT e.id, e.rest_stage, e.next_attempt_at, c.now FROM sendonce.email e, c
    WHERE e.id = %(id)s AND e.stage = 'claimed' AND e.lease_id = %(attempt)s FOR UPDATE OF e
),
freed AS (
    UPDATE sendonce.email e SET stage = r.rest_stage, lease_id = NULL, lease_until = NULL, lease_worker = NULL,
        lease_alone = false, next_attempt_at = CASE WHEN r.next_attempt_at IS NULL THEN NULL
            ELSE greatest(r.next_attempt_at, r.now + %(delay)s * interval '1 second') END
    FROM r WHERE e.id = r.id RETURNING e.id, e.stage, r.now
),
attempt AS (
    UPDATE sendonce.attempt t SET ended_at = freed.now, ended_why = %(why)s FROM freed WHERE t.id = %(attempt)s
)
INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
SELECT id, now, 'claimed', stage, %(why)s, %(actor)s, %(attempt)s FROM freed
"""


async def release(
    conn: AsyncConnection[Any], email_id: UUID, attempt_id: UUID, *, why: str, delay: float, actor: str
) -> None:
    """Give an unbegun claim back, uncounted. Does nothing when the row has moved on."""
    params = {"id": email_id, "attempt": attempt_id, "why": why, "delay": delay, "actor": actor}
    await conn.execute(_RELEASE, params)


_TOUCH = """
UPDATE sendonce.email SET seen_at = sendonce.clock(), started_at = coalesce(started_at, sendonce.clock()), starts = 0
WHERE id = %(id)s AND stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled')
"""


async def touch(conn: AsyncConnection[Any], email_id: UUID) -> None:
    """Stamp that the mail's workflow was seen."""
    await conn.execute(_TOUCH, {"id": email_id})
