"""Who had personal data shown: a row for each time, written before anything is shown."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection


async def note(
    conn: AsyncConnection[Any],
    command: str,
    *,
    actor: str,
    email_id: UUID | None = None,
    account: str | None = None,
    key: str | None = None,
) -> None:
    """Keep that ``actor`` had ``command`` show personal data, of one mail or of an account."""
    await conn.execute(
        "INSERT INTO sendonce.reveal (actor, command, email_id, account, key) VALUES (%s, %s, %s, %s, %s)",
        [actor, command, email_id, account, key],
    )
