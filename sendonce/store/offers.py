"""The offer: the rendering that everyone sends, and begin, which commits that it is about to be offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import Jsonb

from sendonce.store import holds, topics
from sendonce.store.pool import DURABLY, LAZILY
from sendonce.store.records import BeginRefused, Begun, Pinned
from sendonce.store.statement import Statement

LOCK_TIMEOUT_MS = 1500
"""Begin waits no longer than this for the row; then the line is dropped and the claim given back."""

_PIN = f"""
WITH new AS (
    INSERT INTO sendonce.pinned (email_id, slot, method, url, headers, body, digest)
    SELECT e.id, %(slot)s, %(method)s, %(url)s, %(headers)s, %(body)s::bytea, %(digest)s::bytea
    -- The lock that the foreign key takes anyway. A mail that was over and emptied meanwhile keeps nothing any more.
    FROM sendonce.email e WHERE e.id = %(id)s AND e.content_erased_at IS NULL FOR KEY SHARE OF e
    ON CONFLICT DO NOTHING RETURNING email_id
)
SELECT count(*), {LAZILY} FROM new
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
    """Keep the rendering, insert-once, and return what is kept: everyone sends what this returns.

    A mail that is over and has been emptied keeps nothing: its begin will be refused.
    """
    ours = Pinned(body, method, url, headers, digest)
    params = {"id": email_id, "slot": slot, **_as_params(ours)}
    inserted = await (await conn.execute(_PIN, params)).fetchone()
    if inserted is not None and inserted[0] == 1:
        return ours
    # A conflict says that it is there: pins are never deleted while the mail is open.
    return await pinned(conn, email_id, slot) or ours


def _as_params(pinned: Pinned) -> dict[str, Any]:
    return {
        "body": pinned.body,
        "method": pinned.method,
        "url": pinned.url,
        "headers": Jsonb([list(h) for h in pinned.headers]),
        "digest": pinned.digest,
    }


async def pinned(conn: AsyncConnection[Any], email_id: UUID, slot: str) -> Pinned | None:
    """The kept rendering, or None when nothing was pinned under that slot."""
    async with conn.cursor(row_factory=dict_row) as cur:
        row = await (await cur.execute(_PINNED, {"id": email_id, "slot": slot})).fetchone()
    if row is None:
        return None
    headers = tuple((str(name), str(value)) for name, value in row["headers"])
    return Pinned(row["body"], row["method"], row["url"], headers, row["digest"])


_ON_HOLD = holds.on_hold("r", "(SELECT t.account FROM sendonce.attempt t WHERE t.id = %(attempt)s)")

# The same as in server_identity().
_PROMOTED = """
        WHEN ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::integer <> %(timeline)s::integer
            THEN 'halted'"""

# Pins do not wait for the disk: a crash may have taken this one back and left the claim.
_KEPT = """
        WHEN NOT EXISTS (SELECT FROM sendonce.pinned p
            WHERE p.email_id = r.id AND p.slot = %(slot)s AND p.digest = %(digest)s) THEN 'pin_lost'"""

# A conflict is somebody else's rendering, which whoever claims the mail next finds.
_KEEP = """
kept AS (
    INSERT INTO sendonce.pinned (email_id, slot, method, url, headers, body, digest)
    SELECT id, %(slot)s, %(method)s, %(url)s, %(headers)s, %(body)s::bytea, %(digest)s::bytea
    FROM v WHERE verdict = 'ok'
    ON CONFLICT DO NOTHING RETURNING email_id
),"""
_OK, _OK_AND_KEPT = "verdict = 'ok'", "verdict = 'ok' AND EXISTS (SELECT FROM kept)"
_VERDICT = "SELECT verdict FROM v\n"
_VERDICT_AND_KEPT = """\
SELECT CASE WHEN verdict = 'ok' AND NOT EXISTS (SELECT FROM kept) THEN 'pinned_before' ELSE verdict END FROM v
"""

# The settings hold for the statement's own transaction, and are made before the row is locked.
_BEGIN = f"""
WITH c AS MATERIALIZED (
    SELECT sendonce.clock() AS now, {DURABLY}, set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', true)
),
r AS MATERIALIZED (SELECT e.*, c.now FROM sendonce.email e, c WHERE e.id = %(id)s FOR UPDATE OF e),
g AS MATERIALIZED (
    SELECT g.* FROM sendonce.generation g, r WHERE g.email_id = r.id AND g.generation = %(generation)s
),
v AS MATERIALIZED (
    SELECT r.*, CASE{_PROMOTED}
        WHEN r.stage <> 'claimed' OR r.lease_id IS DISTINCT FROM %(attempt)s THEN 'moved_on'
        WHEN r.lease_until <= r.now THEN 'lapsed'
        WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN r.expires_at <= r.now THEN 'expired'
        WHEN {topics.SUPERSEDED} THEN 'superseded'
        WHEN {_ON_HOLD} THEN '{holds.ON_HOLD}'
        WHEN r.generation = %(generation)s AND r.generation_open AND NOT EXISTS (
            SELECT FROM g WHERE g.digest = %(digest)s AND g.identity = %(identity)s AND g.slot = %(slot)s
                AND g.provider_key = %(provider_key)s AND g.envelope = %(offered)s::integer[]) THEN 'pins_differ'
        WHEN r.generation = %(generation)s AND r.generation_open AND coalesce(
            (SELECT g.first_begun_at FROM g) + (%(key_window)s::float8 - %(window_margin)s) * interval '1 second'
            <= r.now, true) THEN 'window_over'{_KEPT}
        ELSE 'ok' END AS verdict
    FROM r
),
opened AS (
    INSERT INTO sendonce.generation
        (email_id, generation, slot, digest, envelope, provider_key, identity, account, first_begun_at)
    SELECT id, %(generation)s, %(slot)s, %(digest)s, %(offered)s::integer[], %(provider_key)s, %(identity)s,
        (SELECT t.account FROM sendonce.attempt t WHERE t.id = %(attempt)s), now
    FROM v WHERE {_OK} AND NOT (generation = %(generation)s AND generation_open)
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
    FROM v WHERE e.id = v.id AND {_OK}
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
{_VERDICT}"""

_BEGIN_AND_KEEP = (
    _BEGIN.replace(_KEPT, "")
    .replace(_OK, _OK_AND_KEPT)
    .replace("\nopened AS (", f"{_KEEP}\nopened AS (")
    .replace(_VERDICT, _VERDICT_AND_KEPT)
)


def _anywhere(begin: str) -> str:
    """Without a look at the timeline: a service may refuse those functions. Then merely to name them is an error."""
    return begin.replace(_PROMOTED, "")


_STATEMENTS = {
    (True, False): Statement(_BEGIN),
    (True, True): Statement(_BEGIN_AND_KEEP),
    (False, False): Statement(_anywhere(_BEGIN)),
    (False, True): Statement(_anywhere(_BEGIN_AND_KEEP)),
}
"""By whether the timeline is looked at, and whether the rendering is kept in the same breath."""


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
    timeline: int | None = None,
    keep: Pinned | None = None,
) -> Begun | BeginRefused:
    """Commit that the mail is about to be offered. One statement; flushed to disk whatever the session says.

    ``keep``: a rendering that is not pinned yet, and is pinned by this; ``pinned_before`` if one is there already.
    None: what is in that slot must be there, or it is refused: ``pin_lost``.

    ``timeline``: of the server's log, when the process looked last. On another one, after a failover that a pooler has
    hidden, nothing is begun: ``halted``. None: it is not looked at.

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
        "timeline": timeline,
    }
    if keep is not None:
        params |= _as_params(keep)
    statement = _STATEMENTS[timeline is not None, keep is not None]
    row = await (await statement.execute(conn, params, tuple_row)).fetchone()
    verdict = row[0] if row else "moved_on"
    return Begun(answer_seconds) if verdict == "ok" else BeginRefused(verdict)
