"""Is this still the database that it was? After a restore or a failover it may have forgotten what was sent.

What the store last knew of its server is a row; :func:`difference` compares it, and what a process remembers, with the
server that is there. What only another witness can tell is :func:`unsent`'s: Temporal names runs, the store says which
of them it does not know as sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row

from sendonce.store import alarms
from sendonce.store.records import Startable

OTHER_SYSTEM = "other_system"
OTHER_DATABASE = "other_database"
OTHER_TIMELINE = "other_timeline"
WENT_BACK = "went_back"
COMPLETED_RUNS = "completed_runs"

REASONS = {
    OTHER_SYSTEM: "the store is in another PostgreSQL cluster: a dump was loaded, a replica took over, or an upgrade",
    OTHER_DATABASE: "the store is in another database of the cluster: a dump was loaded, or a copy was made",
    OTHER_TIMELINE: "the server is on another timeline: a standby was promoted, or a backup was restored",
    WENT_BACK: "the server's log position went back: an older copy of its files was put back",
    COMPLETED_RUNS: "Temporal knows mails as sent that the store does not: it was restored, or has lost commits",
}
"""Why nothing is started, in words."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The server as it is now. None: this role, or this service, may not ask; that part is not compared."""

    system_id: str | None
    timeline: int | None
    database_oid: int | None
    position: int | None
    """Octets of the log that were flushed."""
    started_at: datetime
    asked: float = field(default=0.0, compare=False)
    """When it was asked, by this process's monotonic clock: answers may arrive in another order."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the store last knew."""

    system_id: str | None
    timeline: int | None
    database_oid: int | None
    epoch: int
    """Counts how often somebody let it go on: what a process remembered before does not count any more."""
    halted_at: datetime | None
    halted_why: str | None
    seen_at: datetime | None


_IDENTITY = 'SELECT system_id, timeline, database_oid, "position", started_at FROM sendonce.server_identity()'
_KNOWN = "SELECT system_id, timeline, database_oid, epoch, halted_at, halted_why, seen_at FROM sendonce.continuity"


async def identity(conn: AsyncConnection[Any]) -> Identity:
    """The server behind this connection."""
    asked = time.monotonic()
    async with conn.cursor(row_factory=class_row(Identity)) as cur:
        found = await (await cur.execute(_IDENTITY)).fetchone()
    assert found is not None
    return replace(found, asked=asked)


async def known(conn: AsyncConnection[Any]) -> Known:
    """What the store last knew."""
    async with conn.cursor(row_factory=class_row(Known)) as cur:
        found = await (await cur.execute(_KNOWN)).fetchone()
    assert found is not None
    return found


def difference(before: Known | Identity | None, now: Identity) -> str:
    """A key of :data:`REASONS`; ``""``: the same as far as it can be told."""
    if before is None:
        return ""
    for part, why in (
        ("system_id", OTHER_SYSTEM),
        ("database_oid", OTHER_DATABASE),
        ("timeline", OTHER_TIMELINE),
    ):
        old, new = getattr(before, part), getattr(now, part)
        if old is not None and new is not None and old != new:
            return why
    if isinstance(before, Identity) and None not in (before.position, now.position):
        assert before.position is not None
        assert now.position is not None
        return WENT_BACK if now.position < before.position else ""
    return ""


async def adopt(conn: AsyncConnection[Any], now: Identity) -> None:
    """From here on this server is the known one."""
    await conn.execute(
        "UPDATE sendonce.continuity SET system_id = %s, timeline = %s, database_oid = %s",
        [now.system_id, now.timeline, now.database_oid],
    )


async def seen(conn: AsyncConnection[Any], every: float) -> None:
    """A process that sends is here; kept once in ``every`` seconds. What a restored store knows ends there."""
    await conn.execute(
        "UPDATE sendonce.continuity SET seen_at = sendonce.clock() WHERE halted_at IS NULL"
        " AND coalesce(seen_at < sendonce.clock() - %s * interval '1 second', true)",
        [every],
    )


async def halt(conn: AsyncConnection[Any], why: str, *, epoch: int | None = None) -> bool:
    """Nothing is started or begun from here on, with one alarm; False when that was said before.

    ``epoch``: what the caller has seen is from then; False, too, when somebody has let it go on since.
    """
    async with conn.transaction():
        cursor = await conn.execute(
            "UPDATE sendonce.continuity SET halted_at = sendonce.clock(), halted_why = %s"
            " WHERE halted_at IS NULL AND epoch = coalesce(%s::integer, epoch) RETURNING halted_at",
            [why, epoch],
        )
        row = await cursor.fetchone()
        if row is not None:
            await alarms.raise_alarm(conn, "halted", {"now": row[0], "id": None, "account": None}, why)
    return row is not None


async def go_on(conn: AsyncConnection[Any], actor: str, why: str) -> None:
    """Somebody says that this store may send: its server is the known one, and the alarm is closed."""
    async with conn.transaction():
        await conn.execute(
            "UPDATE sendonce.continuity SET halted_at = NULL, halted_why = NULL, epoch = epoch + 1, allowed_by = %s,"
            " allowed_at = sendonce.clock()",
            [actor],
        )
        await adopt(conn, await identity(conn))
        await conn.execute(
            "INSERT INTO sendonce.alarm (kind, detail, closes) SELECT 'halted', %s, a.id FROM sendonce.alarm a"
            " WHERE a.kind = 'halted' AND a.closes IS NULL"
            " AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id)",
            [f"{why} by {actor}"],
        )


async def renew_installation(conn: AsyncConnection[Any], actor: str, because: str) -> tuple[UUID, int]:
    """A copy becomes an installation of its own; its new id, and how many open mails were put on hold.

    Another id makes other provider keys; another secret makes proofs of its own for bounces. What is open in the copy
    belongs to the original, and nobody sends it from here.
    """
    async with conn.transaction():
        cursor = await conn.execute(
            "UPDATE sendonce.installation SET id = gen_random_uuid(), created_at = clock_timestamp(), secrets ="
            " ARRAY[sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))] RETURNING id"
        )
        row = await cursor.fetchone()
        assert row is not None
        held = await conn.execute(
            "WITH held AS (UPDATE sendonce.email SET held_why = 'copied'"
            "   WHERE stage NOT IN ('sent', 'failed', 'dead', 'expired', 'cancelled') RETURNING id, stage)"
            " INSERT INTO sendonce.transition (email_id, from_stage, to_stage, cause, actor, because)"
            " SELECT id, stage, stage, 'held: copied', %s, %s FROM held",
            [actor, because],
        )
        await go_on(conn, actor, "a new installation")
    return UUID(str(row[0])), held.rowcount


async def answers_since(conn: AsyncConnection[Any]) -> datetime:
    """From when on every completed run must be known: this installation began, or somebody let it go on."""
    query = "SELECT greatest(i.created_at, k.allowed_at) FROM sendonce.installation i, sendonce.continuity k"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


@dataclass(frozen=True, slots=True)
class Unsent:
    """A mail that the store does not know as sent."""

    account: str
    key: str
    email_id: UUID | None
    """None: the store does not know the key."""
    stage: str | None = None
    lane: str = "default"
    attempts: int = 0
    recipients: int = 0
    attempt_ids: Sequence[str] = ()
    """Those that the store knows of."""


_UNSENT = """
SELECT a.account, a.key, k.email_id, e.stage, coalesce(e.lane, 'default') AS lane, coalesce(e.attempts, 0) AS attempts,
    (SELECT count(*) FROM sendonce.recipient r WHERE r.email_id = e.id)::integer AS recipients,
    ARRAY(SELECT t.id::text FROM sendonce.attempt t WHERE t.email_id = e.id) AS attempt_ids
FROM unnest(%s::text[], %s::text[]) AS a (account, key)
    LEFT JOIN sendonce.email_key k ON k.account = a.account AND k.key = a.key
    LEFT JOIN sendonce.email e ON e.id = k.email_id
-- What retention has removed was final.
WHERE k.email_id IS NULL OR e.stage <> 'sent'
"""


async def unsent(conn: AsyncConnection[Any], mails: Sequence[tuple[str, str]]) -> list[Unsent]:
    """Which of these, by account and key, the store does not know as sent."""
    async with conn.cursor(row_factory=class_row(Unsent)) as cur:
        await cur.execute(_UNSENT, [[account for account, _ in mails], [key for _, key in mails]])
        return await cur.fetchall()


_FORGOTTEN = """
WITH c AS MATERIALIZED (SELECT sendonce.clock() AS now),
r AS MATERIALIZED (
    SELECT e.*, c.now FROM sendonce.email e, c
    WHERE e.id = %(id)s AND e.stage IN ('pending', 'claimed') FOR UPDATE OF e
),
attempt AS (
    INSERT INTO sendonce.attempt
        (id, email_id, number, generation, account, mode, worker, claimed_at, begun_at, offered)
    SELECT %(attempt)s, id, claims + 1, generation, account, 'send', %(actor)s, %(at)s, %(at)s, open_ordinals FROM r
),
generation AS (
    INSERT INTO sendonce.generation
        (email_id, generation, slot, digest, envelope, provider_key, identity, account, first_begun_at)
    SELECT id, generation, 'forgotten', '', open_ordinals, %(provider_key)s, %(identity)s, account, %(at)s FROM r
    ON CONFLICT DO NOTHING
)
UPDATE sendonce.email e SET stage = 'transmitting', rest_stage = 'pending', claims = r.claims + 1,
    lease_id = %(attempt)s, lease_until = r.now, lease_worker = %(actor)s, begun_at = %(at)s, answer_by = r.now,
    replay_until = NULL, generation_open = true, started_at = coalesce(r.started_at, r.now)
FROM r WHERE e.id = r.id
RETURNING r.open_ordinals
"""


async def recall_offer(
    conn: AsyncConnection[Any],
    email_id: UUID,
    attempt_id: UUID,
    *,
    at: datetime,
    provider_key: str,
    identity: str,
    actor: str,
) -> tuple[int, ...]:
    """Write down an offer that another witness knows of and the store has forgotten; whom it went to.

    Like a begin of back then: the caller records that it was not answered, in the same transaction. It is never
    replayed, because what exactly was offered is lost; its provider may be asked about it. Empty: nothing to write, the
    mail is not ``pending`` or ``claimed``.
    """
    params = {
        "id": email_id,
        "attempt": attempt_id,
        "at": at,
        "provider_key": provider_key,
        "identity": identity,
        "actor": actor,
    }
    row = await (await conn.execute(_FORGOTTEN, params)).fetchone()
    return tuple(row[0]) if row else ()


async def installation_id(conn: AsyncConnection[Any]) -> UUID:
    """Who we are towards providers."""
    row = await (await conn.execute("SELECT id FROM sendonce.installation")).fetchone()
    assert row is not None
    return UUID(str(row[0]))


async def unwitnessed(conn: AsyncConnection[Any], after: UUID, until: datetime, limit: int) -> list[Startable]:
    """Mails in the order of ids after ``after``, due by now, that were there ``until`` and never offered as far as the
    store knows.
    """
    async with conn.cursor(row_factory=class_row(Startable)) as cur:
        await cur.execute(
            "SELECT e.id AS email_id, e.key, e.account, e.lane FROM sendonce.email e"
            " WHERE e.stage IN ('pending', 'claimed') AND e.begun_at IS NULL AND e.id > %s AND e.created_at <= %s"
            " AND coalesce(e.send_after, e.created_at) <= sendonce.clock() ORDER BY e.id LIMIT %s",
            [after, until, limit],
        )
        return await cur.fetchall()


async def facts(conn: AsyncConnection[Any]) -> dict[str, Any]:
    """What ``doctor`` shows about durability: settings, standbys, and whether the store is halted.

    ``standbys`` is None when this role may not see them; each is its name, state and sync_state
    (``pg_stat_replication``).
    """
    async with conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(
            "SELECT current_setting('synchronous_commit') AS synchronous_commit,"
            " current_setting('synchronous_standby_names') AS synchronous_standby_names,"
            " current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,"
            " current_setting('archive_mode') AS archive_mode, pg_is_in_recovery() AS in_recovery,"
            " i.system_id, i.timeline, k.halted_at, k.halted_why, k.allowed_at, k.allowed_by,"
            # Others' rows are shown without their state to a role outside pg_monitor.
            " pg_has_role('pg_read_all_stats', 'USAGE') AS sees_standbys"
            " FROM sendonce.server_identity() i, sendonce.continuity k"
        )
        found: dict[str, Any] = dict(await cur.fetchone() or {})
        await cur.execute("SELECT application_name, state, sync_state FROM pg_stat_replication ORDER BY 1")
        standbys = await cur.fetchall()
    found["standbys"] = standbys if found.pop("sees_standbys") else None
    return found
