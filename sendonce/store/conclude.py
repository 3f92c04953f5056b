"""Where a mail stands, by all that is known of it: load every fact, let :mod:`sendonce.stages` decide, write it.

The one place where a stage is written after an attempt, a proof, a limit or a decision.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.errors import ConfigurationError
from sendonce.outcome import Accepted, AttemptResult, Deferred, NotOffered, Outcome, Refused, outcome_from_json
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.stages import (
    AttemptFacts,
    Limits,
    Proof,
    RecipientStage,
    RecipientView,
    Stage,
    Verdict,
    email_stage,
    next_generation,
    recipient_view,
)
from sendonce.store import alarms
from sendonce.store.records import Busy, Finished, Held, Standing, Wait

UNCOUNTED_DELAY = 5.0
"""Seconds until the next try after an attempt that is not counted."""

LOOK_UP_FIRST = 5.0
"""Seconds from the beginning of an unknown until its provider is asked for the first time."""


@dataclass
class Mail:
    """All that is known of one mail, its row locked."""

    row: dict[str, Any]
    attempts: list[dict[str, Any]]
    facts: list[AttemptFacts]
    recipients: list[dict[str, Any]]
    proofs: list[Proof]

    @property
    def id(self) -> UUID:
        return UUID(str(self.row["id"]))

    @property
    def stage(self) -> Stage:
        return Stage(self.row["stage"])


# An open pause counts up to its last sign of life: workers whose settings are gone for good must not stop the age
# clock.
_LOCK = """
SELECT e.*, c.now,
    coalesce((SELECT sum(a.paused_total + CASE WHEN a.paused_at IS NULL THEN interval '0' ELSE
                greatest(interval '0', least(c.now, coalesce(a.probe_until, a.probe_at) + interval '15 minutes')
                    - a.paused_at) END)
              FROM sendonce.account a WHERE a.name = e.account AND a.from_domain IN ('', e.from_domain)), interval '0')
        AS paused
FROM sendonce.email e, (SELECT sendonce.clock() AS now) c WHERE e.id = %(id)s FOR UPDATE OF e
"""
_ATTEMPTS = "SELECT * FROM sendonce.attempt WHERE email_id = %(id)s ORDER BY number"
_RECIPIENTS = "SELECT ordinal, stage, attempt_id FROM sendonce.recipient WHERE email_id = %(id)s ORDER BY ordinal"
_EVIDENCE = "SELECT ordinal, accepted, generation FROM sendonce.evidence WHERE email_id = %(id)s"


async def load(conn: AsyncConnection[Any], email_id: UUID) -> Mail | None:
    """Lock the row and read every fact. The reads come after the lock, so they see what it protects."""
    params = {"id": email_id}
    async with conn.pipeline():
        cursors = [conn.cursor(row_factory=dict_row) for _ in range(4)]
        for cursor, query in zip(cursors, (_LOCK, _ATTEMPTS, _RECIPIENTS, _EVIDENCE), strict=True):
            await cursor.execute(query, params)
    row = await cursors[0].fetchone()
    if row is None:
        return None
    attempts = await cursors[1].fetchall()
    mail = Mail(
        row,
        attempts,
        [],
        await cursors[2].fetchall(),
        [Proof(p["ordinal"], p["accepted"], p["generation"]) for p in await cursors[3].fetchall()],
    )
    mail.facts = [_facts(a, mail) for a in attempts]
    return mail


def _facts(attempt: dict[str, Any], mail: Mail) -> AttemptFacts:
    in_flight = mail.stage is Stage.TRANSMITTING and mail.row["lease_id"] == attempt["id"]
    answers = {int(ordinal): outcome_from_json(body) for ordinal, body in attempt["answers"].items()}
    return AttemptFacts(
        str(attempt["id"]), attempt["number"], attempt["generation"], tuple(attempt["offered"]), in_flight, answers
    )


def counts(outcome: Outcome) -> bool:
    """Does this outcome use up one of the mail's attempts?"""
    if isinstance(outcome, NotOffered):
        return outcome.counted
    return outcome.kind != "account_fault"


def counted(outcomes: Collection[Outcome]) -> bool:
    """Does an attempt with these outcomes use up one of the mail's attempts?

    Not when it only met the server's limit of recipients and served some of them: each such attempt serves more.
    """
    return any(counts(o) for o in outcomes) and not _goes_on(outcomes)


def _goes_on(outcomes: Collection[Outcome]) -> bool:
    beyond = any(isinstance(o, Deferred) and o.beyond_limit for o in outcomes)
    return beyond and any(isinstance(o, (Accepted, Refused)) for o in outcomes)


def _greylisted(outcomes: Collection[Outcome]) -> bool:
    deferred = [o for o in outcomes if isinstance(o, Deferred)]
    return bool(deferred) and all(o.greylisted for o in deferred)


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

    plan = _plan(mail, views, lane, result, exhausted=exhausted)
    if before.final and not reopen:
        verdict = email_stage((v.stage for v in views.values()), Limits(exhausted=True, unknown_closed=True))
        plan.verdict = verdict
    await _write_mail(
        conn, mail, plan, lane=lane, cause=cause, actor=actor, attempt_id=attempt_id, alarm_delay=alarm_delay
    )
    return _standing_of(mail, plan)


@dataclass
class _Plan:
    verdict: Verdict
    wait: float | None
    """Seconds until the next attempt; None: held, or final."""
    generation: int
    open_ordinals: list[int]
    attempts: int
    code: int | None
    enhanced: str | None


def _plan(
    mail: Mail,
    views: dict[int, RecipientView],
    lane: LanePolicy,
    result: AttemptResult | None,
    *,
    exhausted: bool,
) -> _Plan:
    row, now = mail.row, mail.row["now"]
    retry = _retry(row, lane)
    tried = [a for a in mail.attempts if a["counted"] and a["number"] > row["requeue_floor"]]
    if tried and row["first_attempt_at"] is None:
        row["first_attempt_at"], row["pause_base"] = tried[0]["claimed_at"], row["paused"]
    age = 0.0
    if row["first_attempt_at"] is not None:
        age = max(0.0, (now - row["first_attempt_at"] - (row["paused"] - row["pause_base"])).total_seconds())
    stages = [v.stage for v in views.values()]
    unanswered = RecipientStage.UNANSWERED in stages
    cancelled = row["cancel_requested_at"] is not None
    expired = row["expires_at"] is not None and row["expires_at"] <= now

    wait: float | None
    news = list(result.outcomes.values()) if result is not None else []
    wished = max((getattr(o, "retry_after", None) or 0.0 for o in news), default=0)
    if result is None and row["next_attempt_at"] is not None:
        # Nothing was tried: what was planned stands.
        wait = max(0.0, (row["next_attempt_at"] - now).total_seconds())
    elif _goes_on(news):
        wait = 0.0
    elif not tried:
        wait = UNCOUNTED_DELAY if result is not None else 0.0
    elif result is None or counted(news):
        wait = retry.after(len(tried), age, retry_after=wished)
        if wait is not None and row["retry"] is None and _greylisted(news):
            wait = _greylist_wait(mail, lane, wait, wished, left=retry.max_age - age)
    else:
        wait = max(UNCOUNTED_DELAY, min(wished, retry.cap))
    limits = Limits(
        cancelled=cancelled,
        expired=expired,
        exhausted=exhausted or wait is None,
        unknown_closed=row["close_at"] is not None and row["close_at"] <= now,
    )
    verdict = email_stage(stages, limits)
    generation = next_generation(row["generation"], mail.facts, views)
    if verdict.stage is Stage.UNKNOWN:
        wait = _unknown_wait(row, lane, wait, stopped=cancelled or expired)
    elif verdict.stage.final:
        wait = None
    elif wait is not None and row["expires_at"] is not None:
        # Wake at the deadline at the latest, to say that it has passed.
        wait = min(wait, (row["expires_at"] - now).total_seconds())
    shown = result.first_reply() if result is not None else None
    assert unanswered or verdict.stage is not Stage.UNKNOWN
    return _Plan(
        verdict,
        wait,
        generation,
        [o for o, v in views.items() if v.stage in _OPEN],
        len(tried),
        (shown.code or None) if shown else row["last_code"],
        (shown.enhanced or None) if shown else row["last_enhanced"],
    )


def _greylist_wait(mail: Mail, lane: LanePolicy, wait: float, wished: float, *, left: float) -> float:
    """The lane's own early delays for a server that defers strangers; afterwards, and at its end, its usual ones."""
    times = sum(1 for facts in mail.facts if _greylisted(facts.answers.values()))
    if times > len(lane.greylist_delays):
        return wait
    early = max(lane.greylist_delays[times - 1], wished)
    return early if early <= left else wait


def _retry(row: dict[str, Any], lane: LanePolicy) -> RetryPolicy:
    try:
        return RetryPolicy.from_json(row["retry"]) if row["retry"] else lane.retry
    except ConfigurationError:
        # Written past the typed API. The content is refused for it; concluding must not fail on it.
        return lane.retry


_OPEN = (RecipientStage.OUTSTANDING, RecipientStage.DEFERRED, RecipientStage.UNANSWERED)


def _unknown_wait(row: dict[str, Any], lane: LanePolicy, wait: float | None, *, stopped: bool) -> float | None:
    """Until the replay under the provider's key, or the one resend of the policy; None: held."""
    if stopped or wait is None:
        return None
    now = row["now"]
    if row["replay_until"] is not None:
        left = float((row["replay_until"] - now).total_seconds())
        if wait < left:
            return wait
    if (row["unknown_policy"] or lane.unknown) == "resend" and row["resends"] == 0 and row["answer_by"] is not None:
        # The resend is tried until it is begun, by the retry policy like every try.
        return max(wait, float((row["answer_by"] - now).total_seconds()))
    return None


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
    async with conn.cursor() as cur:
        await cur.executemany(
            "UPDATE sendonce.recipient SET stage = %(stage)s, code = %(code)s, enhanced = %(enhanced)s,"
            " reply_text = %(text)s, provider_id = %(provider_id)s, attempt_id = %(attempt)s, changed_at = %(now)s"
            " WHERE email_id = %(id)s AND ordinal = %(ordinal)s",
            rows,
        )


_WRITE = """
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
"""

_LOG = """
INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""


async def _write_mail(
    conn: AsyncConnection[Any],
    mail: Mail,
    plan: _Plan,
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
    if mail.stage is not stage:
        await conn.execute(_LOG, [mail.id, row["now"], mail.stage, stage, cause, actor, attempt_id])
    if silent and alarm_delay <= 0:
        await alarms.raise_once(conn, "unknown", row, "offered and unanswered: held")
    if stage is not Stage.UNKNOWN and row["unknown_since"] is not None:
        await alarms.close(conn, "unknown", mail.id, cause)
    if row["held_since"] is not None:
        await alarms.close(conn, "held", mail.id, cause)
    if stage is not mail.stage and stage in (Stage.DEAD, Stage.EXPIRED):
        await alarms.raise_once(conn, str(stage), row, cause)


def _standing_of(mail: Mail, plan: _Plan) -> Standing:
    stage, row = plan.verdict.stage, mail.row
    code, enhanced = plan.code or 0, plan.enhanced or ""
    if stage.final:
        return Finished(stage, code, enhanced, plan.verdict.partial, plan.verdict.maybe_accepted, plan.attempts)
    if row["held_why"] is not None or plan.wait is None:
        return Held(86400.0, row["held_why"] or "unanswered", stage, code, enhanced, plan.attempts)
    why = "unanswered" if stage is Stage.UNKNOWN else "deferred"
    return Wait(min(plan.wait, 86400.0), why, stage, code, enhanced, plan.attempts)


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
