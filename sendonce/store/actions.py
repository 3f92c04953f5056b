"""What somebody asks of one mail through its workflow: try it now, withdraw it, decide about its silence. Each once.

The command line asks the store itself; an action that comes by way of a workflow may arrive twice, and its id tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.policy import LanePolicy
from sendonce.stages import Stage
from sendonce.store import decisions, wakes
from sendonce.store.facts import reconsider
from sendonce.store.sweeps import lane_of

Action = Literal["retry_now", "cancel", "resolve:sent", "resolve:not-sent", "resolve:resend"]
ACTIONS: tuple[str, ...] = get_args(Action)

DONE = "done"
REFUSALS = {
    **decisions.REFUSALS,
    "final": "it is final: there is nothing left to do",
    "under_way": "an attempt is under way: wait for its answer",
    "begun": "too late: it is being offered to its provider, which cannot be cut. The wish is kept: what is not"
    " accepted now is not tried again",
    "unanswered": "too late: it was offered and never answered, so it may have been accepted. The wish is kept: it"
    " is not sent again",
    "unknown": "it is unknown, and whoever tries again may send a second copy: decide with resolve",
    "held": "it is held for a reason that no attempt can clear",
    "scheduled": "its send_after has not come",
    "id_taken": "this action_id was used for another action on this mail",
}
"""Why an action was refused, in words."""


@dataclass(frozen=True, slots=True)
class Acted:
    """What came of an action: :data:`DONE`, or a key of :data:`REFUSALS`; and the mail's stage afterwards."""

    answer: str
    stage: str = ""


async def act(
    conn: AsyncConnection[Any],
    email_id: UUID,
    action: Action,
    *,
    action_id: str,
    lanes: Mapping[str, LanePolicy],
    actor: str,
    because: str,
) -> Acted:
    """Carry the action out, or say why not. The same id again changes nothing and gets the same answer."""
    async with conn.transaction(), conn.cursor(row_factory=dict_row) as cur:
        # The mail first, as everybody locks it; its row then keeps a second one with the same id waiting.
        await cur.execute(
            "SELECT e.*, c.now FROM sendonce.email e, (SELECT sendonce.clock() AS now) c"
            " WHERE e.id = %s FOR UPDATE OF e",
            [email_id],
        )
        row = await cur.fetchone()
        if row is None:
            return Acted("missing")
        await cur.execute(
            "SELECT action, answer, stage FROM sendonce.operator_action WHERE email_id = %s AND action_id = %s",
            [email_id, action_id],
        )
        earlier = await cur.fetchone()
        if earlier is not None:
            same = earlier["action"] == action
            return Acted(earlier["answer"], earlier["stage"]) if same else Acted("id_taken", row["stage"])
        answer = await _carry_out(conn, row, action, lanes=lanes, actor=actor, because=because)
        # The workflow itself is asking. A signal that arrives while it ends would cost the asker the answer.
        await wakes.forget(conn, email_id)
        acted = Acted(answer, await decisions.stage_of(conn, email_id))
        await conn.execute(
            "INSERT INTO sendonce.operator_action (email_id, action_id, action, actor, answer, stage)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            [email_id, action_id, action, actor, acted.answer, acted.stage],
        )
        return acted


async def _carry_out(
    conn: AsyncConnection[Any],
    row: dict[str, Any],
    action: Action,
    *,
    lanes: Mapping[str, LanePolicy],
    actor: str,
    because: str,
) -> str:
    match action:
        case "retry_now":
            return await _retry_now(conn, row, actor=actor, because=because)
        case "cancel":
            return await _cancel(conn, row, lane_of(lanes, row["lane"]), actor=actor, because=because)
        case "resolve:sent":
            refusal = await decisions.decide(conn, row["id"], "sent", lanes=lanes, actor=actor, because=because)
        case "resolve:not-sent":
            refusal = await decisions.decide(conn, row["id"], "not-sent", lanes=lanes, actor=actor, because=because)
        case "resolve:resend":
            refusal = await decisions.decide(conn, row["id"], "resend", lanes=lanes, actor=actor, because=because)
    return refusal or DONE


async def _retry_now(conn: AsyncConnection[Any], row: dict[str, Any], *, actor: str, because: str) -> str:
    """Due now instead of later. Limits, pauses and rates hold all the same, and a silence is not talked over."""
    stage = Stage(row["stage"])
    if stage.final:
        return "final"
    if stage in (Stage.CLAIMED, Stage.TRANSMITTING):
        return "under_way"
    if stage is Stage.UNKNOWN and not (
        row["replay_until"] is not None and row["replay_until"] > row["now"] and row["next_attempt_at"] is not None
    ):
        return "unknown"
    if row["held_why"] is not None or row["next_attempt_at"] is None:
        return "held"
    if row["send_after"] is not None and row["send_after"] > row["now"]:
        return "scheduled"
    await conn.execute(
        "UPDATE sendonce.email SET next_attempt_at = least(next_attempt_at, %s) WHERE id = %s", [row["now"], row["id"]]
    )
    await _log(conn, row, "operator:retry_now", actor, because)
    return DONE


async def _cancel(
    conn: AsyncConnection[Any], row: dict[str, Any], lane: LanePolicy, *, actor: str, because: str
) -> str:
    if Stage(row["stage"]).final:
        return "final"
    await _log(conn, row, "operator:cancel", actor, because)
    await reconsider(conn, row["id"], lane=lane, cause="cancelled", actor=actor, cancel=True)
    match await decisions.stage_of(conn, row["id"]):
        case Stage.TRANSMITTING:
            return "begun"
        case Stage.UNKNOWN:
            return "unanswered"
        case _:
            return DONE


async def _log(conn: AsyncConnection[Any], row: dict[str, Any], cause: str, actor: str, because: str) -> None:
    await conn.execute(
        "INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, because)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)",
        [row["id"], row["now"], row["stage"], row["stage"], cause, actor, because or None],
    )
