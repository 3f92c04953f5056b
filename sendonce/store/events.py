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
from sendonce.store.digests import ERASED_RECIPIENT, KNOWN_CODE
from sendonce.store.facts import record_evidence
from sendonce.store.sweeps import lane_of

CHANNEL = "sendonce_events"
"""NOTIFY channel, without payload: there may be events to be taken (:func:`sendonce.take_events`)."""

PARKED_SECONDS = 86400.0
"""How long an event that names no known mail waits for one."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# The unique index decides. What is there already is looked for first: the insertion alone would wait for business code
# that is just taking that event, however long it does.
_KEEP = """
INSERT INTO sendonce.event (account, source, event_id, kind, proven, happened_at, claimed_id, provider_id, message_id,
    recipient, code, enhanced, reply_text)
SELECT %(account)s, %(source)s, %(event_id)s, %(kind)s, %(proven)s, %(at)s::timestamptz, %(claimed)s, %(provider_id)s,
    %(message_id)s, %(recipient)s, %(code)s::integer, %(enhanced)s, %(text)s
WHERE NOT EXISTS (SELECT FROM sendonce.event WHERE account = %(account)s AND source = %(source)s
    AND event_id = %(event_id)s AND recipient IN (%(recipient)s, sendonce.mailbox_digest(%(recipient)s)))
ON CONFLICT DO NOTHING RETURNING *, sendonce.mailbox_digest(recipient) AS digest
"""

# A provider's id is one of the account that gave it: another one may have the same. That account is the one of the
# attempt that was accepted; where none was, as with evidence, it is the mail's own.
_GAVE = "coalesce((SELECT t.account FROM sendonce.attempt t WHERE t.id = r.attempt_id), e.account)"

# By our own id, where the mail is of this account or went by it, else by the provider's.
_FIND = f"""
SELECT e.id FROM sendonce.email e
WHERE e.id = %(claimed)s::uuid AND (%(account)s IN ('', e.account) OR EXISTS (
    SELECT FROM sendonce.generation g WHERE g.email_id = e.id AND g.account = %(account)s))
UNION ALL
SELECT r.email_id FROM sendonce.recipient r JOIN sendonce.email e ON e.id = r.email_id
WHERE r.provider_id = nullif(%(provider_id)s, '') AND {_GAVE} = %(account)s
LIMIT 1
"""

_PARKED = f"""
SELECT ev.*, r.email_id AS found, sendonce.mailbox_digest(ev.recipient) AS digest FROM sendonce.event ev
    JOIN sendonce.recipient r ON r.provider_id = ev.provider_id
    JOIN sendonce.email e ON e.id = r.email_id AND {_GAVE} = ev.account
WHERE ev.email_id IS NULL AND ev.provider_id <> '' AND ev.proven
    AND ev.received_at > sendonce.clock() - %(seconds)s * interval '1 second'
ORDER BY ev.id LIMIT %(limit)s FOR UPDATE OF ev SKIP LOCKED
"""

_LOCK = "SELECT id, account, lane, generation, content_erased_at FROM sendonce.email WHERE id = %(id)s FOR UPDATE"
_RECIPIENTS = """
SELECT ordinal, mailbox, stage, delivery FROM sendonce.recipient WHERE email_id = %(id)s ORDER BY ordinal
"""

# The text of a reply quotes addresses: a mail that has been emptied takes none any more. An erased address stays so.
_JOINED = f"""
UPDATE sendonce.event ev SET email_id = %(email)s, ordinal = %(ordinal)s,
    recipient = CASE WHEN %(erased)s THEN {ERASED_RECIPIENT} ELSE recipient END,
    reply_text = CASE WHEN NOT %(emptied)s THEN reply_text END,
    enhanced = CASE WHEN NOT %(emptied)s OR enhanced ~ {KNOWN_CODE} THEN enhanced END
WHERE id = %(id)s
"""

# What has come for a mail that is gone, about a person who was erased, is not kept until a day has passed.
_FORGET = """
DELETE FROM sendonce.event ev WHERE ev.id = ANY (%(ids)s) AND ev.email_id IS NULL AND ev.recipient <> ''
    AND EXISTS (SELECT FROM sendonce.erasure x WHERE x.digest = sendonce.mailbox_digest(ev.recipient))
    AND NOT EXISTS (SELECT FROM sendonce.recipient r WHERE lower(r.mailbox) = lower(ev.recipient))
"""

PORTION = 100
"""Events of one transaction: short enough for a provider's patience, and for whoever waits for its locks."""

JOIN_SECONDS = 900.0
"""How old the events are that every round looks for a mail for. There may be very many that belong to other senders."""


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
    """Keep these events and apply them; returns how many were new. ``account`` ``""``: the mail's own.

    In portions, each all or none: what is kept already is skipped when the same events come again.
    """
    new = 0
    for start in range(0, len(events), PORTION):
        new += await _portion(conn, account, events[start : start + PORTION], terms, proven=proven)
    return new


async def _portion(
    conn: AsyncConnection[Any], account: str, events: Sequence[Event], terms: Terms, *, proven: bool
) -> int:
    new = 0
    found: list[tuple[UUID, dict[str, Any]]] = []
    kept: list[int] = []
    # In one order everywhere: two deliveries of the same events wait for each other, they do not deadlock.
    rows = sorted((_params(account, event, proven=proven) for event in events), key=_order)
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        for params in rows:
            row = await (await cur.execute(_KEEP, params)).fetchone()
            if row is None:
                continue
            new += 1
            kept.append(row["id"])
            find = {"claimed": _own_id(row), "account": account, "provider_id": row["provider_id"]}
            mail = await (await cur.execute(_FIND, find)).fetchone()
            if mail is not None:
                found.append((mail["id"], row))
        await _join(conn, found, {}, terms)
        if new:
            await cur.execute(_FORGET, {"ids": kept})
            await _notify(conn)
    return new


async def _notify(conn: AsyncConnection[Any]) -> None:
    await conn.execute("SELECT pg_notify(%s, '') FROM sendonce.installation WHERE notify", [CHANNEL])


def _order(params: dict[str, Any]) -> tuple[str, str, str]:
    return params["source"], params["event_id"], params["recipient"]


async def join_parked(
    conn: AsyncConnection[Any], terms: Mapping[str, Terms], default: Terms, *, within: float = JOIN_SECONDS
) -> int:
    """Join events of the last ``within`` seconds that came before their mail had its provider id; returns how many.

    ``terms`` by account. Events that are too old are forgotten.
    """
    async with conn.transaction():
        async with conn.cursor(row_factory=dict_row) as cur:
            rows = await (await cur.execute(_PARKED, {"seconds": within, "limit": PORTION})).fetchall()
        await _join(conn, [(row["found"], row) for row in rows], terms, default)
        if rows:
            # Business code was told of them when they came, and could not take them yet.
            await _notify(conn)
    await conn.execute(
        "DELETE FROM sendonce.event WHERE id IN (SELECT id FROM sendonce.event WHERE email_id IS NULL"
        " AND received_at < sendonce.clock() - %s * interval '1 second' LIMIT 1000)",
        [PARKED_SECONDS],
    )
    return len(rows)


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


async def _join(
    conn: AsyncConnection[Any],
    found: Sequence[tuple[UUID, dict[str, Any]]],
    terms: Mapping[str, Terms],
    default: Terms,
) -> None:
    """Apply events to their mails: mails in the order of their ids, then the suppressions, in theirs."""
    listed: dict[tuple[str, str], tuple[dict[str, Any], UUID, str]] = {}
    for email_id, row in sorted(found, key=lambda one: (str(one[0]), one[1]["id"])):
        # The lock comes first, so that what is read after it is what it protects.
        async with conn.cursor(row_factory=dict_row) as cur:
            mail = await (await cur.execute(_LOCK, {"id": email_id})).fetchone()
            if mail is None:
                continue
            everybody = await (await cur.execute(_RECIPIENTS, {"id": email_id})).fetchall()
        mailbox = row["recipient"].lower()
        meant = [r for r in everybody if not mailbox or r["mailbox"].lower() in (mailbox, row["digest"])]
        erased = any(r["mailbox"] == row["digest"] for r in meant)
        await conn.execute(
            _JOINED,
            {
                "id": row["id"],
                "email": email_id,
                "ordinal": meant[0]["ordinal"] if len(meant) == 1 else None,
                "erased": erased,
                "emptied": mail["content_erased_at"] is not None,
            },
        )
        if not row["proven"]:
            continue
        its = terms.get(row["account"] or mail["account"], default)
        await _prove(conn, row, mail, meant, everybody, its)
        kind = EventKind(row["kind"])
        for recipient in meant:
            before = recipient["delivery"]
            if before is None or EventKind(before).rank < kind.rank:
                await conn.execute(
                    "UPDATE sendonce.recipient SET delivery = %s, delivery_at = coalesce(%s, sendonce.clock())"
                    " WHERE email_id = %s AND ordinal = %s",
                    [str(kind), row["happened_at"], email_id, recipient["ordinal"]],
                )
            # An event that names nobody of several blames nobody.
            if kind.suppresses and (mailbox or len(meant) == 1):
                listed.setdefault((mail["account"], recipient["mailbox"].lower()), (row, email_id, its.actor))
    for (account, mailbox), (row, email_id, actor) in sorted(listed.items(), key=lambda one: one[0]):
        await suppressions.add(
            conn,
            account,
            mailbox,
            "bounced" if row["kind"] == EventKind.BOUNCED else "complained",
            source=row["source"],
            actor=actor,
            email_id=email_id,
        )


async def _prove(
    conn: AsyncConnection[Any],
    row: dict[str, Any],
    mail: dict[str, Any],
    meant: list[dict[str, Any]],
    everybody: list[dict[str, Any]],
    terms: Terms,
) -> None:
    """The provider has it: that is the answer for whoever of those meant has none yet.

    Where an offer is taken for everybody or nobody, it is also the answer for those who were offered in the same
    attempt. An event names the mail, not the attempt: it says nothing of another one when a recipient it is about has
    an answer of its own.
    """
    open_ = {r["ordinal"] for r in meant if r["stage"] != RecipientStage.ACCEPTED}
    if not open_ or (not row["recipient"] and len(open_) < len(meant)):
        # Or it names nobody, and may be about those who have been served.
        return
    cursor = await conn.execute(
        "SELECT offered FROM sendonce.attempt WHERE email_id = %s AND begun_at IS NOT NULL"
        " AND account = coalesce(nullif(%s, ''), account)",
        [mail["id"], row["account"]],
    )
    offers = [set(offered) for (offered,) in await cursor.fetchall()]
    open_ &= set().union(*offers)
    if terms.all_or_nothing:
        silent = {r["ordinal"] for r in everybody if r["stage"] == RecipientStage.UNANSWERED}
        # Only an offer that everybody meant shares: with several, nobody knows which one this is about.
        shared = [offered for offered in offers if open_ & silent & offered]
        if len(shared) == 1 or (shared and all(offered == shared[0] for offered in shared)):
            open_ |= shared[0] & silent
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
