"""What an operator decides about an unknown: it was sent, it was not, or it is sent once more, whatever the risk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from sendonce.policy import LanePolicy
from sendonce.stages import Proof, RecipientStage, Stage
from sendonce.store import suppressions, topics, wakes
from sendonce.store.facts import record_evidence
from sendonce.store.mail import load
from sendonce.store.sweeps import lane_of

Decision = Literal["sent", "not-sent", "resend"]

REFUSALS = {
    "missing": "there is no such mail",
    "not_unknown": "it is not unknown: there is nothing to decide",
    "suppressed": "a recipient is on the suppression list: take the address off it first",
    "superseded": "a newer mail of its topic takes its place: it may be called sent or not sent, but not be sent again",
    "stopped": "it was cancelled or has expired: it may be called sent or not sent, but not be sent again",
}
"""Why a decision was not taken, in words."""


async def decide(
    conn: AsyncConnection[Any],
    email_id: UUID,
    decision: Decision,
    *,
    lanes: Mapping[str, LanePolicy],
    actor: str,
    because: str,
) -> str:
    """Carry the decision out and log it; ``""``, or a key of :data:`REFUSALS`.

    ``sent`` and ``not-sent`` are recorded as evidence; after ``not-sent`` the mail is tried again under a new provider
    key, within its limits. ``resend`` opens a new generation over the silence, once: the silence stays recorded, and
    the mail stays unknown until somebody answers.
    """
    async with conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return "missing"
        row = mail.row
        if mail.stage is not Stage.UNKNOWN:
            return "not_unknown"
        stopped = row["cancel_requested_at"] is not None or (
            row["expires_at"] is not None and row["expires_at"] <= row["now"]
        )
        if decision == "resend" and stopped:
            return "stopped"
        if decision == "resend" and await topics.superseded(conn, email_id):
            return "superseded"
        if decision == "resend" and await suppressions.any_listed(conn, row):
            return "suppressed"
        await conn.execute(
            "INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, because)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [email_id, row["now"], row["stage"], row["stage"], f"operator:{decision}", actor, because],
        )
        if decision == "resend":
            await conn.execute(
                "UPDATE sendonce.email SET unknown_policy = 'resend', resends = 0, held_why = NULL,"
                " answer_by = least(answer_by, %(now)s), next_attempt_at = %(now)s WHERE id = %(id)s",
                {"now": row["now"], "id": email_id},
            )
        else:
            # Nobody could try it meanwhile: its age stood still.
            await conn.execute(
                "UPDATE sendonce.email SET pause_base = pause_base - (%s - coalesce(unknown_since, %s)) WHERE id = %s",
                [row["now"], row["now"], email_id],
            )
            proofs = [
                Proof(recipient["ordinal"], decision == "sent", row["generation"])
                for recipient in mail.recipients
                if recipient["stage"] == RecipientStage.UNANSWERED
            ]
            await record_evidence(
                conn,
                email_id,
                proofs,
                source="operator",
                event_id=f"{decision}:{row['claims']}",
                lane=lane_of(lanes, row["lane"]),
                actor=actor,
            )
        await wakes.ask(conn, [email_id])
    return ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """An unknown, as one sees it before deciding over many."""

    id: UUID
    key: str
    account: str
    unknown_since: datetime
    look_ups: int
    """How often its provider was asked about it."""


async def undecided(
    conn: AsyncConnection[Any], account: str, *, older_than: float = 0.0, limit: int = 100_000
) -> list[Undecided]:
    """The account's unknowns, the oldest first; ``older_than``: those that have been so for so many seconds."""
    async with conn.cursor(row_factory=class_row(Undecided)) as cur:
        await cur.execute(
            "SELECT id, key, account, unknown_since, look_ups FROM sendonce.email"
            " WHERE stage = 'unknown' AND account = %s AND unknown_since <= sendonce.clock() - %s * interval '1 second'"
            " ORDER BY unknown_since, id LIMIT %s",
            [account, older_than, limit],
        )
        return await cur.fetchall()


async def stage_of(conn: AsyncConnection[Any], email_id: UUID) -> str:
    """Where the mail stands now; ``""`` when it is gone."""
    row = await (await conn.execute("SELECT stage FROM sendonce.email WHERE id = %s", [email_id])).fetchone()
    return str(row[0]) if row else ""
