"""Facts: what was answered, proved or decided. Never refused, idempotent, and applied by one monotone function.

:func:`settle` takes an attempt's own answers, :func:`record_evidence` every other proof, :func:`reconsider` a limit or
a decision. All end in :func:`~sendonce.store.conclude.conclude`, which reads *all* facts of the mail and lets
:mod:`sendonce.stages` say where it stands: the order in which facts arrive cannot matter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sendonce.outcome import DEFINITE, AttemptResult, Outcome, Unanswered, outcome_to_json
from sendonce.policy import LanePolicy
from sendonce.stages import AttemptFacts, Proof, RecipientStage, Stage
from sendonce.store import accepted, alarms
from sendonce.store.conclude import conclude
from sendonce.store.mail import Mail, load
from sendonce.store.plan import counted, too_old_in
from sendonce.store.records import NoSuchRow, Standing

ALARM_AFTER_LOOK_UPS = 30.0
"""Seconds until an unknown is alarmed whose provider can be asked: by then it was asked twice."""


async def settle(
    conn: AsyncConnection[Any],
    email_id: UUID,
    attempt_id: UUID,
    result: AttemptResult,
    *,
    lane: LanePolicy,
    actor: str,
    cause: str = "answered",
    alarm_delay: float = 0.0,
    askable: Collection[str] = (),
) -> Standing:
    """Append what an attempt found out, whoever holds the row now, and move the mail accordingly.

    ``alarm_delay``: seconds until an unknown is alarmed. ``askable``: accounts whose provider can be asked first.
    """
    finished = await accepted.settle(conn, email_id, attempt_id, result, actor=actor, cause=cause)
    if finished is not None:
        return finished
    # Two round trips: what is read, then what is written.
    async with conn.pipeline(), conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return NoSuchRow()
        index = next((i for i, a in enumerate(mail.attempts) if a["id"] == attempt_id), None)
        if index is None:
            if all(outcome.kind == "not_offered" for outcome in result.outcomes.values()):
                # A claim that a crash took back, and that was never begun.
                return await conclude(conn, mail, lane=lane, cause=cause, actor=actor)
            index = await _remember(conn, mail, attempt_id, result, actor)
        attempt, facts = mail.attempts[index], mail.facts[index]
        holds = mail.row["lease_id"] == attempt_id
        if attempt["account"] in askable:
            alarm_delay = max(alarm_delay, ALARM_AFTER_LOOK_UPS)
        if mail.row["content_erased_at"] is not None:
            # The texts of replies quote addresses: what comes late for an emptied mail is kept as codes.
            result = result.without_texts()
        answers, contradicts = _merge(facts, result.outcomes)
        news = answers != facts.answers
        if contradicts:
            await alarms.raise_once(conn, "contradiction", mail.row, f"attempt {facts.number} was answered twice")
        if news or holds:
            mail.facts[index] = replace(facts, in_flight=False, answers=answers)
            attempt["counted"] = attempt["counted"] or counted(answers.values())
            await conn.execute(
                _ANSWERED,
                {
                    "answers": Jsonb({str(o): outcome_to_json(outcome) for o, outcome in answers.items()}),
                    "counted": attempt["counted"],
                    "now": mail.row["now"],
                    "why": cause,
                    "id": attempt_id,
                },
            )
        latest = attempt["number"] == mail.attempts[-1]["number"]
        return await conclude(
            conn,
            mail,
            lane=lane,
            cause=cause,
            actor=actor,
            attempt_id=attempt_id,
            result=AttemptResult(answers) if latest and news else None,
            ends_hold=holds,
            alarm_delay=alarm_delay,
        )


_REMEMBER = """
WITH kept AS (
    INSERT INTO sendonce.attempt
        (id, email_id, number, generation, account, mode, worker, claimed_at, begun_at, offered)
    SELECT %(attempt)s, e.id, e.claims + 1, e.generation, e.account, 'send', %(actor)s, %(now)s,
        CASE WHEN %(offered)s::integer[] <> '{}' THEN %(now)s END, %(offered)s::integer[]
    FROM sendonce.email e WHERE e.id = %(id)s
    RETURNING *
), counted AS (
    UPDATE sendonce.email e SET claims = e.claims + 1, begun_at = coalesce(e.begun_at, kept.begun_at),
        started_at = coalesce(e.started_at, %(now)s)
    FROM kept WHERE e.id = kept.email_id
)
SELECT * FROM kept
"""


async def _remember(conn: AsyncConnection[Any], mail: Mail, attempt_id: UUID, result: AttemptResult, actor: str) -> int:
    """Write down an attempt that the store has forgotten, such as one that a failover lost; its place in the list.

    Its answer is in hand, and a proof is never refused. Its generation and account are the mail's: which ones they were
    is lost, and no replay follows from it.
    """
    offered = sorted(o for o, outcome in result.outcomes.items() if outcome.kind in ("accepted", "unanswered"))
    params = {"attempt": attempt_id, "id": mail.id, "actor": actor, "now": mail.row["now"], "offered": offered}
    async with conn.cursor(row_factory=dict_row) as cur:
        attempt = await (await cur.execute(_REMEMBER, params)).fetchone()
    assert attempt is not None
    mail.row["claims"] += 1
    mail.attempts.append(attempt)
    mail.facts.append(AttemptFacts(str(attempt_id), attempt["number"], attempt["generation"], tuple(offered)))
    return len(mail.attempts) - 1


_ANSWERED = """
UPDATE sendonce.attempt SET answers = %(answers)s, counted = %(counted)s, ended_at = coalesce(ended_at, %(now)s),
    ended_why = CASE WHEN coalesce(ended_why, 'silent') = 'silent' THEN %(why)s ELSE ended_why END
WHERE id = %(id)s
"""


def _merge(facts: AttemptFacts, news: dict[int, Outcome]) -> tuple[dict[int, Outcome], bool]:
    """The attempt's answers with the news added: a definite one replaces silence, acceptance replaces anything.

    Offered recipients that the news do not name are unanswered. Also says whether a definite answer was contradicted.
    """
    answers = dict(facts.answers)
    contradicts = False
    for ordinal, outcome in news.items():
        known = answers.get(ordinal)
        if known is None or known.kind not in DEFINITE:
            answers[ordinal] = outcome
        elif outcome.kind in DEFINITE and outcome.kind != known.kind:
            contradicts = True
            if outcome.kind == "accepted":
                answers[ordinal] = outcome
    for ordinal in facts.offered:
        answers.setdefault(ordinal, Unanswered())
    return answers, contradicts


async def record_evidence(
    conn: AsyncConnection[Any],
    email_id: UUID,
    proofs: Sequence[Proof],
    *,
    source: str,
    event_id: str,
    lane: LanePolicy,
    actor: str,
) -> Standing:
    """Record proofs from outside: a look-up, a webhook, a DSN, an operator, the workflow engine.

    The same event twice is one. Works whatever the mail's stage; after a final stage only acceptance moves it, and
    an alarm says that evidence came late. Proof of acceptance for one recipient of an offer that is accepted or
    refused as a whole settles everyone who was offered in it: pass a proof for each.
    """
    async with conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return NoSuchRow()
        new = False
        for proof in proofs:
            cursor = await conn.execute(
                "INSERT INTO sendonce.evidence"
                " (email_id, ordinal, accepted, generation, source, event_id, actor, after_final)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                [
                    email_id,
                    proof.ordinal,
                    proof.accepted,
                    proof.generation,
                    source,
                    event_id,
                    actor,
                    mail.stage.final,
                ],
            )
            if cursor.rowcount:
                new = True
                mail.proofs.append(proof)
        if new and mail.stage.final and mail.stage is not Stage.SENT:
            await alarms.raise_alarm(conn, "late_evidence", mail.row, f"source {source}")
        return await conclude(conn, mail, lane=lane, cause=f"evidence:{source}", actor=actor)


async def record_completed_run(conn: AsyncConnection[Any], email_id: UUID, *, lane: LanePolicy, actor: str) -> Standing:
    """The workflow engine's completed run proves that everyone not refused was accepted: record that as evidence.

    Of whom the store knows it already, nothing is recorded.
    """
    cursor = await conn.execute(
        "SELECT r.ordinal, e.generation FROM sendonce.recipient r JOIN sendonce.email e ON e.id = r.email_id"
        " WHERE r.email_id = %s AND r.stage NOT IN ('refused', 'suppressed', 'accepted') ORDER BY r.ordinal",
        [email_id],
    )
    proofs = [Proof(ordinal, True, generation) for ordinal, generation in await cursor.fetchall()]
    return await record_evidence(
        conn, email_id, proofs, source="temporal", event_id="completed", lane=lane, actor=actor
    )


async def reconsider(
    conn: AsyncConnection[Any],
    email_id: UUID,
    *,
    lane: LanePolicy,
    cause: str,
    actor: str,
    cancel: bool = False,
    poison: bool = False,
    given_up: bool = False,
) -> Standing:
    """Conclude again after a limit was reached or a decision was made; ``cancel`` records the request to withdraw."""
    async with conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return NoSuchRow()
        if cancel and not mail.stage.final and mail.row["cancel_requested_at"] is None:
            mail.row["cancel_requested_at"] = mail.row["now"]
            await conn.execute(
                "UPDATE sendonce.email SET cancel_requested_at = %s WHERE id = %s", [mail.row["now"], email_id]
            )
        lapsed = mail.stage is Stage.CLAIMED and mail.row["lease_until"] <= mail.row["now"]
        return await conclude(
            conn,
            mail,
            lane=lane,
            cause=cause,
            actor=actor,
            # A claim has offered nothing: cancelling revokes it, and its begin will be refused.
            ends_hold=lapsed or (cancel and mail.stage is Stage.CLAIMED),
            exhausted=given_up or (poison and lapsed),
        )


async def put_off(
    conn: AsyncConnection[Any], email_id: UUID, seconds: float, *, lane: LanePolicy, actor: str
) -> Standing:
    """A mail that is due cannot be tried for so many seconds; one that is too old by then is given up.

    Returns where it stands: it waits until then, or until its deadline.
    """
    async with conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return NoSuchRow()
        row = mail.row
        due = row["next_attempt_at"] is not None and row["next_attempt_at"] <= row["now"]
        too_old = False
        if mail.stage in (Stage.PENDING, Stage.UNKNOWN) and due:
            row["next_attempt_at"] = row["now"] + timedelta(seconds=seconds)
            too_old = too_old_in(row, lane, seconds)
        return await conclude(conn, mail, lane=lane, cause="rate", actor=actor, exhausted=too_old)


async def requeue(
    conn: AsyncConnection[Any], email_id: UUID, *, lane: LanePolicy, actor: str, force: bool = False
) -> Standing | None:
    """An operator's decision: try a ``dead`` or ``failed`` mail again, refusals forgotten, accepted ones not.

    None when it may not be: another stage, content that is erased, or evidence after the end (or ``maybe_accepted``)
    without ``force``.
    """
    async with conn.transaction():
        mail = await load(conn, email_id)
        if mail is None:
            return NoSuchRow()
        if mail.stage not in (Stage.DEAD, Stage.FAILED) or mail.row["content_erased_at"] is not None:
            return None
        cursor = await conn.execute(
            "SELECT EXISTS (SELECT FROM sendonce.evidence WHERE email_id = %s AND after_final)", [email_id]
        )
        row = await cursor.fetchone()
        doubtful = mail.row["maybe_accepted"] or (row is not None and row[0])
        if doubtful and not force:
            return None
        if mail.row["maybe_accepted"]:
            # The operator decides over the silence; it stays recorded on its attempt, and as this decision.
            for recipient in mail.recipients:
                proof = Proof(recipient["ordinal"], False, mail.row["generation"])
                mail.proofs.append(proof)
                await conn.execute(
                    "INSERT INTO sendonce.evidence (email_id, ordinal, accepted, generation, source, event_id, actor)"
                    " VALUES (%s, %s, false, %s, 'operator', %s, %s) ON CONFLICT DO NOTHING",
                    [email_id, proof.ordinal, proof.generation, f"requeue:{mail.row['claims']}", actor],
                )
        # Whoever was on the suppression list is looked up again by the next claim.
        for recipient in mail.recipients:
            if recipient["stage"] == RecipientStage.SUPPRESSED:
                recipient["stage"] = str(RecipientStage.OUTSTANDING)
        await conn.execute(
            "UPDATE sendonce.recipient SET stage = 'outstanding' WHERE email_id = %s AND stage = 'suppressed'",
            [email_id],
        )
        fresh = {
            "requeue_floor": mail.row["claims"],
            "attempts": 0,
            "lapses": 0,
            "first_attempt_at": None,
            "held_since": None,
            "close_at": None,
            "unknown_since": None,
            "final_at": None,
            "maybe_accepted": False,
        }
        mail.row |= fresh
        await conn.execute(
            "UPDATE sendonce.email SET requeue_floor = %(requeue_floor)s, attempts = 0, lapses = 0,"
            " first_attempt_at = NULL, held_since = NULL, close_at = NULL, unknown_since = NULL, final_at = NULL,"
            " resends = 0, maybe_accepted = false, started_at = NULL, seen_at = NULL,"
            # What an operator allowed once is not its policy.
            " unknown_policy = (SELECT t.content ->> 'unknown' FROM sendonce.email_content t WHERE t.email_id = id)"
            " WHERE id = %(id)s",
            {**fresh, "id": email_id},
        )
        await alarms.close(conn, str(mail.stage), mail.id, "requeued")
        return await conclude(conn, mail, lane=lane, cause="requeued", actor=actor, reopen=True)
