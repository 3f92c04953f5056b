"""The common case of :func:`sendonce.store.facts.settle` in one statement: one recipient, one attempt, accepted.

What the general way would write, but for ``pause_base``, which only says how old a mail is that goes on; and nothing
where anything is out of the ordinary: then that way is gone.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from sendonce.outcome import Accepted, AttemptResult, outcome_to_json
from sendonce.stages import Stage
from sendonce.store.records import Finished
from sendonce.store.statement import Statement

# A row that somebody holds locked is left to the general way, which waits. Facts that were committed between this
# statement's snapshot and its lock either changed the row or the recipient, and are seen by that, or say nothing that
# acceptance would not overrule.
_SETTLE = Statement("""
WITH mail AS MATERIALIZED (
    SELECT e.id, t.id AS attempt_id, t.claimed_at, c.now
    FROM (SELECT sendonce.clock() AS now) c, sendonce.email e
        JOIN sendonce.attempt t ON t.id = e.lease_id AND t.email_id = e.id
            AND t.answers = '{}' AND t.offered = ARRAY[%(ordinal)s::integer]
    WHERE e.id = %(id)s AND e.lease_id = %(attempt)s AND e.stage = 'transmitting' AND e.claims = 1
        AND e.requeue_floor = 0 AND e.first_attempt_at IS NULL AND e.content_erased_at IS NULL
        AND e.unknown_since IS NULL AND e.held_since IS NULL
        AND NOT EXISTS (SELECT FROM sendonce.recipient r WHERE r.email_id = e.id AND r.ordinal <> %(ordinal)s)
    FOR UPDATE OF e SKIP LOCKED
),
recipient AS (
    UPDATE sendonce.recipient r SET stage = 'accepted', code = %(code)s, enhanced = %(enhanced)s,
        reply_text = %(text)s, provider_id = %(provider_id)s, attempt_id = mail.attempt_id, changed_at = mail.now
    FROM mail WHERE r.email_id = mail.id AND r.ordinal = %(ordinal)s AND r.stage = 'outstanding'
    RETURNING mail.*
),
attempt AS (
    UPDATE sendonce.attempt t SET answers = %(answers)s, counted = true, ended_at = mail.now, ended_why = %(cause)s
    FROM recipient AS mail WHERE t.id = mail.attempt_id
),
written AS (
    UPDATE sendonce.email e SET stage = 'sent', rest_stage = 'pending', partial = false, maybe_accepted = false,
        next_attempt_at = NULL, open_ordinals = '{}', generation = e.generation + 1, generation_open = false,
        attempts = 1, first_attempt_at = mail.claimed_at,
        lease_id = NULL, lease_until = NULL, lease_worker = NULL, lease_alone = false,
        replay_until = NULL, close_at = NULL, look_up_at = NULL, look_ups = 0, alarm_at = NULL, final_at = mail.now,
        held_why = NULL, last_code = %(code)s, last_enhanced = %(enhanced)s
    FROM recipient AS mail WHERE e.id = mail.id
    RETURNING e.id, mail.now, mail.attempt_id
)
INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor, attempt_id)
SELECT id, now, 'transmitting', 'sent', %(cause)s, %(actor)s, attempt_id FROM written
""")


async def settle(
    conn: AsyncConnection[Any], email_id: UUID, attempt_id: UUID, result: AttemptResult, *, actor: str, cause: str
) -> Finished | None:
    """Settle it, if it is that simple; None: nothing was written, and the general way is to be taken."""
    if len(result.outcomes) != 1:
        return None
    [(ordinal, outcome)] = result.outcomes.items()
    if not isinstance(outcome, Accepted):
        return None
    reply = outcome.reply
    params = {
        "id": email_id,
        "attempt": attempt_id,
        "ordinal": ordinal,
        "code": reply.code or None,
        "enhanced": reply.enhanced or None,
        "text": reply.text or None,
        "provider_id": outcome.provider_id or None,
        "answers": Jsonb({str(ordinal): outcome_to_json(outcome)}),
        "cause": cause,
        "actor": actor,
    }
    if (await _SETTLE.execute(conn, params, tuple_row)).rowcount != 1:
        return None
    return Finished(Stage.SENT, reply.code or 0, reply.enhanced or "", False, False, 1)
