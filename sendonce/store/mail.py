"""One mail with every fact about it, its row locked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.outcome import outcome_from_json
from sendonce.stages import AttemptFacts, Proof, Stage
from sendonce.store import holds


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
_LOCK = f"""
SELECT e.*, c.now,
    coalesce((SELECT sum(a.paused_total + CASE WHEN a.paused_at IS NULL THEN interval '0' ELSE
                greatest(interval '0', least(c.now, coalesce(a.probe_until, a.probe_at) + interval '15 minutes')
                    - a.paused_at) END)
              FROM sendonce.account a WHERE a.name = e.account AND a.from_domain IN ('', e.from_domain)), interval '0')
        + {holds.held_back("e", "e.created_at", "c.now")} AS paused
FROM sendonce.email e, (SELECT sendonce.clock() AS now) c WHERE e.id = %(id)s FOR UPDATE OF e
"""
_ATTEMPTS = "SELECT * FROM sendonce.attempt WHERE email_id = %(id)s ORDER BY number"
_RECIPIENTS = """
SELECT r.ordinal, r.stage, r.attempt_id, (
    SELECT jsonb_agg(jsonb_build_array(v.ordinal, v.accepted, v.generation))
    FROM sendonce.evidence v WHERE v.email_id = r.email_id AND v.ordinal = r.ordinal) AS proofs
FROM sendonce.recipient r WHERE r.email_id = %(id)s ORDER BY r.ordinal
"""


async def load(conn: AsyncConnection[Any], email_id: UUID) -> Mail | None:
    """Lock the row and read every fact. The reads come after the lock, so they see what it protects."""
    params = {"id": email_id}
    async with conn.pipeline():
        cursors = [conn.cursor(row_factory=dict_row) for _ in range(3)]
        for cursor, query in zip(cursors, (_LOCK, _ATTEMPTS, _RECIPIENTS), strict=True):
            await cursor.execute(query, params)
    row = await cursors[0].fetchone()
    if row is None:
        return None
    attempts, recipients = await cursors[1].fetchall(), await cursors[2].fetchall()
    proofs = [Proof(*proof) for recipient in recipients for proof in recipient["proofs"] or []]
    mail = Mail(row, attempts, [], recipients, proofs)
    mail.facts = [_facts(a, mail) for a in attempts]
    return mail


def _facts(attempt: dict[str, Any], mail: Mail) -> AttemptFacts:
    in_flight = mail.stage is Stage.TRANSMITTING and mail.row["lease_id"] == attempt["id"]
    answers = {int(ordinal): outcome_from_json(body) for ordinal, body in attempt["answers"].items()}
    return AttemptFacts(
        str(attempt["id"]), attempt["number"], attempt["generation"], tuple(attempt["offered"]), in_flight, answers
    )
