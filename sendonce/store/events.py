"""What comes back about mails: each event once, joined to its mail now or when the mail gets its provider id.

An authentic event proves that the provider accepted the mail. One that anyone could have written (``proven`` false) is
kept to be looked at, and settles and suppresses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.events import Event, EventKind
from sendonce.outcome import storable
from sendonce.policy import LanePolicy
from sendonce.stages import Proof, RecipientStage
from sendonce.store import suppressions, wakes
from sendonce.store.facts import record_evidence
from sendonce.store.sweeps import lane_of

CHANNEL = "sendonce_events"
"""NOTIFY channel, without payload, for business code that follows ``sendonce.event``."""

PARKED_SECONDS = 86400.0
"""How long an event that names no known mail waits for one."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_KEEP = """
INSERT INTO sendonce.event (account, source, event_id, kind, proven, happened_at, claimed_id, provider_id, message_id,
    recipient, code, enhanced, reply_text)
VALUES (%(account)s, %(source)s, %(event_id)s, %(kind)s, %(proven)s, %(at)s, %(claimed)s, %(provider_id)s,
    %(message_id)s, %(recipient)s, %(code)s, %(enhanced)s, %(text)s)
ON CONFLICT DO NOTHING RETURNING *
"""

# By our own id, else by the provider's. An id from elsewhere is looked for in this account only.
_FIND = """
SELECT e.id FROM sendonce.email e
WHERE e.id = %(claimed)s::uuid AND (%(account)s = '' OR e.account = %(account)s)
UNION ALL
SELECT r.email_id FROM sendonce.recipient r JOIN sendonce.email e ON e.id = r.email_id
WHERE r.provider_id = nullif(%(provider_id)s, '') AND e.account = %(account)s
LIMIT 1
"""

_PARKED = """
SELECT ev.*, r.email_id AS found FROM sendonce.event ev
    JOIN sendonce.recipient r ON r.provider_id = ev.provider_id
    JOIN sendonce.email e ON e.id = r.email_id AND e.account = ev.account
WHERE ev.email_id IS NULL AND ev.provider_id <> '' AND ev.proven
ORDER BY ev.received_at, ev.id LIMIT 1 FOR UPDATE OF ev SKIP LOCKED
"""

_MAIL = """
SELECT e.id, e.account, e.lane, e.generation,
    (SELECT jsonb_agg(jsonb_build_array(p.ordinal, p.mailbox, p.stage, p.delivery) ORDER BY p.ordinal)
     FROM sendonce.recipient p WHERE p.email_id = e.id) AS recipients
FROM sendonce.email e WHERE e.id = %(id)s FOR UPDATE OF e
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """How events of an account are taken."""

    lanes: Mapping[str, LanePolicy]
    actor: str
    """Who records them."""
    all_or_nothing: bool = True
    """Whether the account's provider takes or refuses a mail for everybody at once: then one proof is everybody's."""


async def record(
    conn: AsyncConnection[Any], account: str, events: Sequence[Event], terms: Terms, *, proven: bool = True
) -> int:
    """Keep these events and apply them, all or none; returns how many were new. ``account`` ``""``: the mail's own."""
    new = 0
    async with conn.transaction():
        for event in events:
            async with conn.cursor(row_factory=dict_row) as cur:
                row = await (await cur.execute(_KEEP, _params(account, event, proven=proven))).fetchone()
                if row is None:
                    continue
                new += 1
                find = {"claimed": _own_id(row), "account": account, "provider_id": row["provider_id"]}
                found = await (await cur.execute(_FIND, find)).fetchone()
            if found is not None:
                await _join(conn, row, found["id"], terms)
        if new:
            await conn.execute("SELECT pg_notify(%s, '') FROM sendonce.installation WHERE notify", [CHANNEL])
    return new


async def join_parked(conn: AsyncConnection[Any], terms: Mapping[str, Terms], default: Terms, limit: int = 200) -> int:
    """Join events that came before their mail had its provider id; returns how many. Forgets those that are too old.

    ``terms`` by account.
    """
    joined = 0
    while joined < limit:
        async with conn.transaction():
            async with conn.cursor(row_factory=dict_row) as cur:
                row = await (await cur.execute(_PARKED)).fetchone()
            if row is None:
                break
            await _join(conn, row, row["found"], terms.get(row["account"], default))
        joined += 1
    await conn.execute(
        "DELETE FROM sendonce.event WHERE email_id IS NULL"
        " AND received_at < sendonce.clock() - %s * interval '1 second'",
        [PARKED_SECONDS],
    )
    return joined


def _params(account: str, event: Event, *, proven: bool) -> dict[str, Any]:
    return {
        "account": account,
        "source": storable(event.source)[:50],
        "event_id": storable(event.event_id)[:200],
        "kind": str(event.kind),
        "proven": proven,
        "at": event.at,
        "claimed": storable(event.email_id)[:100],
        "provider_id": storable(event.provider_id)[:500],
        "message_id": storable(event.message_id)[:500],
        "recipient": storable(event.recipient)[:320],
        "code": event.reply.code or None,
        "enhanced": event.reply.enhanced or None,
        "text": event.reply.text or None,
    }


def _own_id(row: dict[str, Any]) -> str | None:
    """The mail's id as it was carried back, or as it stands in a Message-ID that we minted."""
    for text in (row["claimed_id"], row["message_id"].lstrip("<").partition("@")[0]):
        if _UUID.fullmatch(text.lower()):
            return str(text)
    return None


async def _join(conn: AsyncConnection[Any], row: dict[str, Any], email_id: UUID, terms: Terms) -> None:
    async with conn.cursor(row_factory=dict_row) as cur:
        mail = await (await cur.execute(_MAIL, {"id": email_id})).fetchone()
    if mail is None:
        return
    everybody = mail["recipients"] or []
    mailbox = row["recipient"].lower()
    meant = [r for r in everybody if not mailbox or r[1].lower() == mailbox]
    await conn.execute(
        "UPDATE sendonce.event SET email_id = %s, ordinal = %s, account = %s WHERE id = %s",
        [email_id, meant[0][0] if len(meant) == 1 else None, mail["account"], row["id"]],
    )
    if not row["proven"]:
        return
    kind = EventKind(row["kind"])
    await _prove(conn, row, mail, meant, everybody if terms.all_or_nothing else meant, terms)
    for ordinal, address, _, before in meant:
        if before is None or EventKind(before).rank < kind.rank:
            await conn.execute(
                "UPDATE sendonce.recipient SET delivery = %s, delivery_at = coalesce(%s, sendonce.clock())"
                " WHERE email_id = %s AND ordinal = %s",
                [str(kind), row["happened_at"], email_id, ordinal],
            )
        if kind.suppresses:
            await suppressions.add(
                conn,
                mail["account"],
                address,
                "bounced" if kind is EventKind.BOUNCED else "complained",
                source=row["source"],
                actor=terms.actor,
                email_id=email_id,
            )


async def _prove(
    conn: AsyncConnection[Any],
    row: dict[str, Any],
    mail: dict[str, Any],
    meant: list[Any],
    together: list[Any],
    terms: Terms,
) -> None:
    """The provider has it: that is the answer for whoever has none yet."""
    open_ = {ordinal for ordinal, _, stage, _ in meant if stage != RecipientStage.ACCEPTED}
    open_ |= {ordinal for ordinal, _, stage, _ in together if stage == RecipientStage.UNANSWERED}
    if open_:
        cursor = await conn.execute(
            "SELECT DISTINCT unnest(offered) FROM sendonce.attempt WHERE email_id = %s", [mail["id"]]
        )
        open_ &= {ordinal for (ordinal,) in await cursor.fetchall()}
    if not open_:
        return
    await record_evidence(
        conn,
        mail["id"],
        [Proof(ordinal, True, mail["generation"]) for ordinal in sorted(open_)],
        source=row["source"],
        event_id=row["event_id"],
        lane=lane_of(terms.lanes, mail["lane"]),
        actor=terms.actor,
    )
    await wakes.ask(conn, [mail["id"]])
