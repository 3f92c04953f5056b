"""One mail with every fact about it, its row locked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.outcome import outcome_from_json
from sendonce.stages import AttemptFacts, Proof, Stage


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
