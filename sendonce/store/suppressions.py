"""Addresses that an account must not write to: kept by account, looked up by every claim."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from sendonce.policy import LanePolicy
from sendonce.stages import RecipientStage, Stage
from sendonce.store.conclude import conclude
from sendonce.store.digests import digest_of
from sendonce.store.mail import load
from sendonce.store.records import NoSuchRow, Standing

SUPPRESSED = "suppressed"
"""The enhanced code of a mail that nobody was left to get, and the cause in its log."""

Reason = Literal["bounced", "complained", "manual"]


@dataclass(frozen=True, slots=True)
class Suppression:
    """One entry."""

    account: str
    mailbox: str
    """In lower case throughout: whoever answers to one spelling is left alone under all. Of an erased person:
    the digest of that."""
    reason: str
    source: str
    email_id: UUID | None
    """The mail that it was learnt from."""
    actor: str
    note: str | None
    at: datetime


_LISTED = f"""
SELECT p.ordinal FROM sendonce.recipient p JOIN sendonce.suppression s
    ON s.account = %(account)s AND s.mailbox IN (lower(p.mailbox), {digest_of("p.mailbox")})
WHERE p.email_id = %(id)s AND p.ordinal = ANY (%(open)s)
"""


async def apply(conn: AsyncConnection[Any], email_id: UUID, *, lane: LanePolicy, actor: str) -> Standing:
    """Take who is on the list out of the mail. Nobody left: it has failed.

    An unanswered recipient stays so: what was offered cannot be taken back. The one resend of the policy is forgone.
    """
    async with conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return NoSuchRow()
        row = mail.row
        cursor = await conn.execute(_LISTED, {"account": row["account"], "id": email_id, "open": row["open_ordinals"]})
        listed = {ordinal for (ordinal,) in await cursor.fetchall()}
        lapsed = mail.stage is Stage.CLAIMED and row["lease_until"] <= row["now"]
        if listed and (mail.stage in (Stage.PENDING, Stage.UNKNOWN) or lapsed):
            for recipient in mail.recipients:
                if recipient["ordinal"] in listed and recipient["stage"] != RecipientStage.UNANSWERED:
                    recipient["stage"] = str(RecipientStage.SUPPRESSED)
            row["last_enhanced"], row["resends"] = SUPPRESSED, 1
            await conn.execute(
                "UPDATE sendonce.recipient SET stage = 'suppressed', changed_at = %s"
                " WHERE email_id = %s AND ordinal = ANY (%s) AND stage <> 'unanswered'",
                [row["now"], email_id, list(listed)],
            )
            await conn.execute(
                "UPDATE sendonce.email SET resends = greatest(resends, 1) WHERE id = %s AND stage = 'unknown'",
                [email_id],
            )
        return await conclude(conn, mail, lane=lane, cause=SUPPRESSED, actor=actor, ends_hold=lapsed)


async def any_listed(conn: AsyncConnection[Any], row: dict[str, Any]) -> bool:
    """True when somebody is on the list to whom this mail is still open. ``row``: the mail's."""
    params = {"account": row["account"], "id": row["id"], "open": row["open_ordinals"]}
    return await (await conn.execute(_LISTED, params)).fetchone() is not None


async def add(
    conn: AsyncConnection[Any],
    account: str,
    mailbox: str,
    reason: Reason,
    *,
    source: str,
    actor: str,
    note: str | None = None,
    email_id: UUID | None = None,
) -> bool:
    """Put an address on the account's list; False when it is there already. An entry keeps its first reason."""
    cursor = await conn.execute(
        "INSERT INTO sendonce.suppression (account, mailbox, reason, source, email_id, actor, note)"
        " SELECT %(account)s, lower(%(mailbox)s), %(reason)s, %(source)s, %(email_id)s, %(actor)s, %(note)s"
        # An erased address goes on being suppressed by its digest, and is not to come back by way of a late bounce.
        " WHERE NOT EXISTS (SELECT FROM sendonce.suppression s"
        "   WHERE s.account = %(account)s AND s.mailbox = sendonce.mailbox_digest(%(mailbox)s))"
        " ON CONFLICT DO NOTHING",
        {
            "account": account,
            "mailbox": mailbox,
            "reason": reason,
            "source": source,
            "email_id": email_id,
            "actor": actor,
            "note": note,
        },
    )
    return cursor.rowcount == 1


async def remove(conn: AsyncConnection[Any], account: str, mailbox: str) -> bool:
    """Take an address off the list; False when it was not on it. Mail that failed for it can be requeued."""
    cursor = await conn.execute(
        "DELETE FROM sendonce.suppression"
        " WHERE account = %(account)s AND mailbox IN (lower(%(mailbox)s), sendonce.mailbox_digest(%(mailbox)s))",
        {"account": account, "mailbox": mailbox},
    )
    return cursor.rowcount > 0


async def entries(
    conn: AsyncConnection[Any], *, account: str | None = None, mailbox: str | None = None, limit: int = 100
) -> list[Suppression]:
    """The list, the newest entries first."""
    async with conn.cursor(row_factory=class_row(Suppression)) as cur:
        await cur.execute(
            "SELECT account, mailbox, reason, source, email_id, actor, note, at FROM sendonce.suppression"
            " WHERE account = coalesce(%(account)s::text, account) AND (%(mailbox)s::text IS NULL"
            "   OR mailbox IN (lower(%(mailbox)s), sendonce.mailbox_digest(%(mailbox)s)))"
            " ORDER BY at DESC, mailbox LIMIT %(limit)s",
            {"account": account, "mailbox": mailbox, "limit": limit},
        )
        return await cur.fetchall()
