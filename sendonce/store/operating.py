"""What an operator does to a mail from the command line: try it now, withdraw it, try it again after its end.

The store is written first, with who and why; the wake in the same transaction has the workflow told afterwards, so
that all of it works while Temporal is down. Each mail is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from sendonce.policy import LanePolicy
from sendonce.stages import Stage
from sendonce.store import actions, alarms, facts, wakes
from sendonce.store.mail import Mail, load
from sendonce.store.sweeps import lane_of

Operation = Literal["retry", "cancel", "requeue"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

REFUSALS = {
    **actions.REFUSALS,
    "held": "it is held until somebody decides: give --force to try it all the same",
    "scheduled": "its send_after has not come: give --force to send it before that",
    "not_dead": "it is neither dead nor failed",
    "doubtful": "it may have been accepted, or evidence came after its end: give --force to risk a second copy",
    "expired": "its deadline has passed",
    "erased": "its content has been erased",
}
"""Why nothing was done, in words."""


async def operate(
    conn: AsyncConnection[Any],
    email_id: UUID,
    operation: Operation,
    *,
    lanes: Mapping[str, LanePolicy],
    actor: str,
    because: str = "",
    force: bool = False,
) -> str:
    """Carry it out and log it; ``""``, or a key of :data:`REFUSALS`.

    ``force``: requeue what may have been accepted; retry what is held, or before its ``send_after``.
    """
    async with conn.transaction():
        if operation == "requeue":
            return await _requeue(conn, email_id, lanes=lanes, actor=actor, because=because, force=force)
        if force and operation == "retry":
            await _unfetter(conn, email_id, actor)
        acted = await actions.act(
            conn,
            email_id,
            "retry_now" if operation == "retry" else "cancel",
            action_id=str(uuid4()),
            lanes=lanes,
            actor=actor,
            because=because,
        )
        # What comes by way of a workflow needs no wake; this does.
        await wakes.ask(conn, [email_id])
        await _tell_starters(conn)
    return "" if acted.answer == actions.DONE else acted.answer


async def _unfetter(conn: AsyncConnection[Any], email_id: UUID, actor: str) -> None:
    """What keeps a pending mail from being tried, besides its next time, does not keep it any more."""
    mail = await load(conn, email_id)
    if mail is None or mail.stage is not Stage.PENDING:
        return
    await conn.execute(
        "UPDATE sendonce.email SET held_why = NULL,"
        " send_after = CASE WHEN send_after > %(now)s THEN %(now)s ELSE send_after END,"
        " next_attempt_at = coalesce(next_attempt_at, %(now)s) WHERE id = %(id)s",
        {"now": mail.row["now"], "id": email_id},
    )
    if mail.row["held_why"] is not None:
        await alarms.close(conn, "held", email_id, f"retry by {actor}")


async def _requeue(
    conn: AsyncConnection[Any],
    email_id: UUID,
    *,
    lanes: Mapping[str, LanePolicy],
    actor: str,
    because: str,
    force: bool,
) -> str:
    mail = await load(conn, email_id)
    if mail is None:
        return "missing"
    refused = await _cannot_requeue(conn, mail, force)
    if refused:
        return refused
    await conn.execute(
        "INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, because)"
        " VALUES (%s, %s, %s, %s, 'operator:requeue', %s, %s)",
        [email_id, mail.row["now"], mail.stage, mail.stage, actor, because or None],
    )
    await facts.requeue(conn, email_id, lane=lane_of(lanes, mail.row["lane"]), actor=actor, force=force)
    await wakes.ask(conn, [email_id])
    await _tell_starters(conn)
    return ""


async def _cannot_requeue(conn: AsyncConnection[Any], mail: Mail, force: bool) -> str:
    row = mail.row
    if mail.stage not in (Stage.DEAD, Stage.FAILED):
        return "not_dead"
    if row["expires_at"] is not None and row["expires_at"] <= row["now"]:
        return "expired"
    cursor = await conn.execute(
        "SELECT EXISTS (SELECT FROM sendonce.email_content WHERE email_id = %(id)s AND content ? 'sender'),"
        " EXISTS (SELECT FROM sendonce.evidence WHERE email_id = %(id)s AND after_final)",
        {"id": mail.id},
    )
    there, late = cast("tuple[bool, bool]", await cursor.fetchone())
    if not there:
        return "erased"
    return "doubtful" if (late or row["maybe_accepted"]) and not force else ""


async def _tell_starters(conn: AsyncConnection[Any]) -> None:
    await conn.execute("SELECT pg_notify('sendonce', '') FROM sendonce.installation WHERE notify")
