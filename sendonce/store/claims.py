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
from sendonce.store import holds, routes, topics
from sendonce.store.digests import digest_of
from sendonce.store.pool import LAZILY
from sendonce.store.records import (
    Busy,
    Claimed,
    EnvelopeRecipient,
    Finished,
    Held,
    NoSlot,
    NoSuchRow,
    Paused,
    Pins,
    Standing,
    Wait,
)
from sendonce.store.statement import Statement

NO_STAGE_HOLDS_LONGER = 86400.0
"""Standing answers never ask a workflow to sleep longer than this; it simply asks again."""

LOCK_TIMEOUT_MS = 500
"""A claim waits no longer than this for the row. Whoever calls mails off in a long transaction would else have the
process wait with all of its connections."""

PROBE_LEFT_SECONDS = 5.0
"""When a mail asks again that has left the due probe of its account to others."""

# What the claim statement decides, in this order. eff is the stage without its holder.
_VERDICT = f"""
    CASE
        WHEN r.stage IN ('sent', 'failed', 'dead', 'expired', 'cancelled') THEN 'finished'
        WHEN r.stage = 'transmitting' OR (r.stage = 'claimed' AND NOT r.lapsed) THEN 'busy'
        WHEN r.lapse_counts AND r.lease_alone THEN 'poison'
        WHEN r.eff = 'pending' AND (r.cancel_requested_at IS NOT NULL OR r.expires_at <= r.now) THEN 'limit'
        WHEN r.eff = 'unknown' AND r.close_at <= r.now THEN 'limit'
        WHEN r.eff = 'pending' AND {topics.SUPERSEDED} THEN 'superseded'
        WHEN r.held_why IS NOT NULL OR r.next_attempt_at IS NULL THEN 'held'
        WHEN r.eff = 'unknown' AND (r.cancel_requested_at IS NOT NULL OR r.expires_at <= r.now) THEN 'limit'
        WHEN r.eff = 'unknown' AND {topics.SUPERSEDED} THEN 'superseded'
        WHEN r.next_attempt_at > r.now THEN 'wait'
        WHEN r.eff = 'unknown' AND NOT r.replayable AND NOT r.resendable THEN 'limit'
        WHEN {holds.on_hold("r", "r.account")} THEN 'on_hold'
        WHEN route.shut THEN 'paused'
        WHEN (route.name = ANY (%(paced)s::text[]) OR r.to_domains && {routes.LIMITED.format(account="route.name")})
            AND NOT (coalesce(%(slot)s::text = route.name, false) OR route.probed
            OR coalesce(r.slot_account = route.name AND r.slot_until > r.now, false)) THEN 'rate'
        WHEN r.lapses_now >= 2 AND NOT %(alone)s
            AND r.now < coalesce(r.lease_until, r.claimed_at) + interval '5 minutes' THEN 'alone'
        -- A replay repeats what was offered; whoever would be offered something new is looked up first. What is
        -- committed while this waits for the row is met by the next attempt, like what comes between claim and begin:
        -- to look there too would cost each begin a seventh.
        WHEN NOT (r.eff = 'unknown' AND r.replayable) AND EXISTS (
            SELECT FROM sendonce.recipient p JOIN sendonce.suppression s
                ON s.account = r.account AND s.mailbox IN (lower(p.mailbox), {digest_of("p.mailbox")})
            WHERE p.email_id = r.id AND p.ordinal = ANY (r.open_ordinals)) THEN 'suppressed'
        ELSE 'claim'
    END
"""

# Nobody waits for the disk here. Whatever follows from a claim is begun before it can be seen outside, and begin's own
# flush takes with it what was committed before; a claim that a crash takes back is one that begin refuses.
_ROW = f"""
c AS MATERIALIZED (
    SELECT sendonce.clock() AS now, {LAZILY}, set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', true)
),
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
r AS MATERIALIZED (
    SELECT m.*, m.lapses + m.lapse_counts::integer AS lapses_now,
        CASE WHEN m.eff <> 'unknown' THEN 'send' WHEN m.replayable THEN 'replay' ELSE 'resend' END AS mode
    FROM m
)
"""

_CLAIM = f"""
WITH {_ROW},
{routes.ROUTE},
v AS MATERIALIZED (
    SELECT r.*, {_VERDICT} AS verdict, route.name AS route, route.paused_domain, route.probe_due, route.first_probe_at,
        route.can_divert
    FROM r CROSS JOIN route
),
claimed AS (
    UPDATE sendonce.email e SET
        stage = 'claimed', rest_stage = v.eff, lease_id = %(lease)s, lease_worker = %(worker)s,
        lease_until = v.now + %(lease_seconds)s * interval '1 second', lease_alone = %(alone)s AND v.lapses_now >= 2,
        claimed_at = v.now, slot_account = NULL, slot_until = NULL,
        claims = v.claims + 1, lapses = v.lapses_now, starts = 0,
        seen_at = v.now, started_at = coalesce(v.started_at, v.now)
    FROM v WHERE e.id = v.id AND v.verdict = 'claim'
    RETURNING e.id, v.stage AS was, v.mode, v.route, e.claims, v.generation, v.now
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
    INSERT INTO sendonce.attempt (id, email_id, number, generation, account, mode, worker, claimed_at)
    SELECT %(lease)s, id, claims, generation + (mode = 'resend')::integer, route, mode, %(worker)s, now FROM claimed
),
logged AS (
    INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
    SELECT id, now, was, 'claimed', mode, %(worker)s, %(lease)s FROM claimed
)
SELECT v.verdict, v.mode, v.stage, v.eff, v.account, v.route, v.can_divert, v.lane, v.key, v.attempts,
    v.claims + 1 AS number, v.generation,
    v.generation_open, v.created_at, v.partial, v.maybe_accepted, v.last_code, v.last_enhanced, v.held_why,
    v.probe_due, v.paused_domain, v.from_domain, v.open_ordinals,
    v.to_domains,
    v.replay_until > v.next_attempt_at AS replays, extract(epoch FROM v.next_attempt_at - v.now)::float8 AS next_in,
    extract(epoch FROM v.close_at - v.now)::float8 AS close_in,
    extract(epoch FROM v.lease_until - v.now)::float8 AS lease_left,
    extract(epoch FROM v.answer_by - v.now)::float8 AS answer_left,
    extract(epoch FROM CASE WHEN v.eff = 'pending' THEN v.expires_at ELSE v.close_at END - v.now)::float8 AS ends_in,
    extract(epoch FROM least(v.first_probe_at, CASE WHEN v.eff = 'pending' THEN v.expires_at END) - v.now)::float8
        AS probe_in,
    t.content, t.message_id, t.traceparent, i.id AS installation, i.secrets,
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

_CLAIMING = Statement(_CLAIM)

LIMIT_VERDICTS = ("limit", "poison", "suppressed", "superseded")


async def claim(
    conn: AsyncConnection[Any],
    email_id: UUID,
    key: str,
    *,
    lane: LanePolicy,
    digests: Mapping[str, str],
    paced: Sequence[str],
    limited: Mapping[str, Sequence[str]],
    slot: str | None,
    route: Mapping[str, Any],
    worker: str,
    lease_seconds: float,
    alone: bool,
    outage_ago: float | None,
) -> Claimed | Standing | Paused | NoSlot | str:
    """One statement: lease the row to a new attempt, or say why not.

    A ``str`` is a verdict of :data:`LIMIT_VERDICTS`: a limit has been reached, a recipient is on the suppression
    list, or a newer mail takes its place, and the facts module must conclude it. ``paced`` are the accounts with rates,
    ``limited`` the destination domains that have rates with them, and ``slot`` is the account that the caller has a
    slot of. ``route`` comes from :func:`sendonce.store.routes.params`.

    Raises :class:`psycopg.errors.LockNotAvailable` after :data:`LOCK_TIMEOUT_MS`: nothing was changed then.
    """
    lease = uuid4()
    params = {
        "id": email_id,
        "key": key,
        "lease": lease,
        "worker": worker,
        "lease_seconds": lease_seconds,
        "alone": alone,
        "outage_ago": outage_ago,
        "unknown_policy": lane.unknown,
        "digests": Jsonb(dict(digests)),
        "paced": list(paced),
        "limited": Jsonb({account: list(domains) for account, domains in limited.items()}),
        "slot": slot,
        **route,
    }
    row = await (await _CLAIMING.execute(conn, params, dict_row)).fetchone()
    if row is None:
        return NoSuchRow()
    if row["verdict"] in LIMIT_VERDICTS:
        return str(row["verdict"])
    if row["verdict"] != "claim":
        return _standing(row)
    files = []
    if row["attachments"]:
        async with conn.cursor(row_factory=dict_row) as cur:
            files = await (await cur.execute(_ATTACHMENTS, {"id": email_id})).fetchall()
    return _claimed(row, lease, email_id, files)


_ATTACHMENTS = """
SELECT filename, content_type, content_id, inline, alternative, content FROM sendonce.attachment
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
        owner=row["account"],
        account=row["route"],
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
        secrets=tuple(row["secrets"]),
        from_domain=row["from_domain"],
        to_domains=tuple(row["to_domains"]),
        traceparent=row["traceparent"],
    )


def _standing(row: dict[str, Any]) -> Standing | Paused | NoSlot:
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
            # One that is due may go to another mail.
            wait = _sleep(row["probe_in"], 60.0) or PROBE_LEFT_SECONDS
            return Paused(wait, bool(row["probe_due"]), row["route"], row["paused_domain"], bool(row["can_divert"]))
        case "on_hold":
            # Woken when that ends, see holds.resume; its deadline holds.
            return Wait(_sleep(row["ends_in"]), holds.ON_HOLD, Stage(row["eff"]), **said)
        case "rate":
            return NoSlot(row["route"], tuple(row["to_domains"]))
        case "alone":
            return Wait(5.0, "alone", Stage(row["eff"]), **said)
        case "held":
            why = row["held_why"] or ("unanswered" if row["eff"] == "unknown" else "held")
            return Held(_sleep(row["close_in"]), why, Stage(row["eff"]), **said)
        case _:
            why = "deferred" if row["attempts"] else "not_due"
            if row["eff"] == "unknown":
                return Wait(
                    _sleep(row["next_in"], 0.0),
                    "unanswered",
                    Stage.UNKNOWN,
                    awaits="replay" if row["replays"] else "resend",
                    **said,
                )
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
    r.replay_until > r.next_attempt_at AS replays, extract(epoch FROM r.next_attempt_at - r.now)::float8 AS next_in,
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
    assert not isinstance(answer, (Paused, NoSlot))
    return answer
