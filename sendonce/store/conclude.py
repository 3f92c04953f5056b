"""Where a mail stands, by all that is known of it: :mod:`~sendonce.store.plan` decides, and this writes it.

The one place where a stage is written after an attempt, a proof, a limit or a decision.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from sendonce.outcome import AttemptResult
from sendonce.policy import LanePolicy
from sendonce.stages import Limits, RecipientStage, RecipientView, Stage, email_stage, recipient_view
from sendonce.store import alarms
from sendonce.store.mail import Mail
from sendonce.store.plan import Plan, make_plan
from sendonce.store.records import Busy, Finished, Held, Standing, Wait

LOOK_UP_FIRST = 5.0
"""Seconds from the beginning of an unknown until its provider is asked for the first time."""


async def conclude(
    conn: AsyncConnection[Any],
    mail: Mail,
    *,
    lane: LanePolicy,
    cause: str,
    actor: str,
    attempt_id: UUID | None = None,
    result: AttemptResult | None = None,
    ends_hold: bool = False,
    exhausted: bool = False,
    alarm_delay: float = 0.0,
    reopen: bool = False,
) -> Standing:
    """Say where the mail stands by all facts, and write what changed."""
    row, before = mail.row, mail.stage
    views = {
        r["ordinal"]: recipient_view(
            r["ordinal"],
            mail.facts,
            mail.proofs,
            suppressed=r["stage"] == RecipientStage.SUPPRESSED,
            floor=row["requeue_floor"],
        )
        for r in mail.recipients
    }
    changed = [r for r in mail.recipients if RecipientStage(r["stage"]) is not views[r["ordinal"]].stage]
    gained = any(views[r["ordinal"]].stage is RecipientStage.ACCEPTED for r in changed)
    if before.final and not reopen and not gained:
        return finished(row)
    await _write_recipients(conn, mail, views, changed)
    if before is Stage.TRANSMITTING and not ends_hold:
        # Another attempt is being offered at this moment: its own answer concludes the mail.
        return Busy(5.0, before)
    if before is Stage.CLAIMED and not ends_hold and not changed:
        return Busy(1.0, before)

    plan = make_plan(mail, views, lane, result, exhausted=exhausted)
    if before.final and not reopen:
        verdict = email_stage((v.stage for v in views.values()), Limits(exhausted=True, unknown_closed=True))
        plan.verdict = verdict
    await _write_mail(
        conn, mail, plan, lane=lane, cause=cause, actor=actor, attempt_id=attempt_id, alarm_delay=alarm_delay
    )
    return _standing_of(mail, plan)


async def _write_recipients(
    conn: AsyncConnection[Any], mail: Mail, views: dict[int, RecipientView], changed: list[dict[str, Any]]
) -> None:
    if not changed:
        return
    rows = [
        {
            "id": mail.id,
            "ordinal": r["ordinal"],
            "stage": str(view.stage),
            "code": view.reply.code or None,
            "enhanced": view.reply.enhanced or None,
            "text": view.reply.text or None,
            "provider_id": view.provider_id or None,
            "attempt": view.attempt_id,
            "now": mail.row["now"],
        }
        for r in changed
        for view in [views[r["ordinal"]]]
    ]
    async with conn.pipeline():
        for each in rows:
            await conn.execute(_WRITE_RECIPIENT, each)


_WRITE_RECIPIENT = """
UPDATE sendonce.recipient SET stage = %(stage)s, code = %(code)s, enhanced = %(enhanced)s,
    reply_text = %(text)s, provider_id = %(provider_id)s, attempt_id = %(attempt)s, changed_at = %(now)s
WHERE email_id = %(id)s AND ordinal = %(ordinal)s
"""

_WRITE = """
WITH written AS (
    UPDATE sendonce.email SET
        stage = %(stage)s, rest_stage = CASE WHEN %(stage)s = 'unknown' THEN 'unknown' ELSE 'pending' END,
        partial = %(partial)s, maybe_accepted = %(maybe)s,
        next_attempt_at = %(now)s + %(wait)s::float8 * interval '1 second',
        open_ordinals = %(open)s::integer[], generation = %(generation)s, generation_open = %(stage)s = 'unknown',
        attempts = %(attempts)s, first_attempt_at = %(first)s, pause_base = %(pause_base)s,
        lease_id = NULL, lease_until = NULL, lease_worker = NULL, lease_alone = false,
        replay_until = CASE WHEN %(stage)s = 'unknown' THEN replay_until END,
        unknown_since = CASE WHEN %(stage)s = 'unknown' THEN coalesce(unknown_since, %(now)s) END,
        close_at = CASE WHEN %(stage)s = 'unknown'
            THEN coalesce(close_at, %(now)s + %(unknown_days)s * interval '1 day') END,
        look_up_at = CASE WHEN %(stage)s = 'unknown'
            THEN coalesce(look_up_at, %(now)s + %(look_up_in)s * interval '1 second') END,
        look_ups = CASE WHEN %(stage)s = 'unknown' THEN look_ups ELSE 0 END,
        alarm_at = %(now)s + %(alarm_in)s::float8 * interval '1 second',
        final_at = CASE WHEN %(final)s THEN coalesce(final_at, %(now)s) END,
        held_why = CASE WHEN %(final)s THEN NULL ELSE held_why END, held_since = NULL,
        last_code = %(code)s, last_enhanced = %(enhanced)s
    WHERE id = %(id)s
    RETURNING id, superseded_by
)
INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id, because)
SELECT id, %(now)s, %(before)s::text, %(stage)s, %(cause)s, %(actor)s, %(attempt)s::uuid,
    CASE WHEN %(cause)s = 'superseded' THEN superseded_by END
FROM written
WHERE %(before)s::text <> %(stage)s
"""


async def _write_mail(
    conn: AsyncConnection[Any],
    mail: Mail,
    plan: Plan,
    *,
    lane: LanePolicy,
    cause: str,
    actor: str,
    attempt_id: UUID | None,
    alarm_delay: float,
) -> None:
    row, stage = mail.row, plan.verdict.stage
    silent = stage is Stage.UNKNOWN and plan.wait is None
    params = {
        "id": mail.id,
        "stage": str(stage),
        "before": str(mail.stage),
        "cause": cause,
        "actor": actor,
        "attempt": attempt_id,
        "partial": plan.verdict.partial,
        "maybe": plan.verdict.maybe_accepted,
        "now": row["now"],
        "wait": plan.wait,
        "open": plan.open_ordinals,
        "generation": plan.generation,
        "attempts": plan.attempts,
        "first": row["first_attempt_at"],
        "pause_base": row["pause_base"],
        "unknown_days": lane.unknown_days,
        "look_up_in": LOOK_UP_FIRST,
        "alarm_in": alarm_delay if silent and alarm_delay > 0 else None,
        "final": stage.final,
        "code": plan.code,
        "enhanced": plan.enhanced,
    }
    await conn.execute(_WRITE, params)
    if silent and alarm_delay <= 0:
        await alarms.raise_once(conn, "unknown", row, "offered and unanswered: held")
    if stage is not Stage.UNKNOWN and row["unknown_since"] is not None:
        await alarms.close(conn, "unknown", mail.id, cause)
    if row["held_since"] is not None:
        await alarms.close(conn, "held", mail.id, cause)
    if stage is not mail.stage and stage in (Stage.DEAD, Stage.EXPIRED):
        await alarms.raise_once(conn, str(stage), row, cause)


def _standing_of(mail: Mail, plan: Plan) -> Standing:
    stage, row = plan.verdict.stage, mail.row
    code, enhanced = plan.code or 0, plan.enhanced or ""
    if stage.final:
        return Finished(stage, code, enhanced, plan.verdict.partial, plan.verdict.maybe_accepted, plan.attempts)
    if row["held_why"] is not None or plan.wait is None:
        return Held(86400.0, row["held_why"] or "unanswered", stage, code, enhanced, plan.attempts)
    if stage is Stage.UNKNOWN:
        replay = row["replay_until"] is not None and plan.wait < (row["replay_until"] - row["now"]).total_seconds()
        awaits = "replay" if replay else "resend"
        return Wait(min(plan.wait, 86400.0), "unanswered", stage, code, enhanced, plan.attempts, awaits)
    return Wait(min(plan.wait, 86400.0), "deferred", stage, code, enhanced, plan.attempts)


def finished(row: dict[str, Any]) -> Finished:
    """The answer for a mail that is final."""
    return Finished(
        Stage(row["stage"]),
        row["last_code"] or 0,
        row["last_enhanced"] or "",
        row["partial"],
        row["maybe_accepted"],
        row["attempts"],
    )
