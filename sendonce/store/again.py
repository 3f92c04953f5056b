"""Sending a mail again, as a new one under a new key: through the intake, so that all that it checks is checked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from sendonce.message import OutgoingEmail
from sendonce.store.intake import Enqueued, enqueue


async def send_again(conn: AsyncConnection[Any], old: UUID, email: OutgoingEmail, *, actor: str) -> Enqueued:
    """Enqueue ``email`` and link it to the mail that it repeats, in one transaction; the same again changes nothing."""
    async with conn.transaction():
        done = await enqueue(conn, email)
        if done.created:
            await conn.execute(
                "INSERT INTO sendonce.sent_again (email_id, of_email, actor) VALUES (%s, %s, %s)",
                [done.id, old, actor],
            )
            await conn.execute(
                "INSERT INTO sendonce.transition (email_id, from_stage, to_stage, cause, actor)"
                " SELECT e.id, e.stage, e.stage, %s, %s FROM sendonce.email e WHERE e.id = %s",
                [f"sent_again:{email.key}", actor, old],
            )
        return done
