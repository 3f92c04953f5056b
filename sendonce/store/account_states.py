"""How the accounts stand, for people: their pauses under whichever settings, and their holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from sendonce.store import holds


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of an account, for the workers that hold these settings."""

    from_domain: str
    """Only mail from it is concerned; ``""``: all."""
    settings: str
    """The beginning of the digest of those settings."""
    since: datetime
    why: str
    next_probe: datetime | None


@dataclass(frozen=True, slots=True)
class AccountState:
    """One account."""

    account: str
    pauses: list[Pause] = field(default_factory=list)
    hold: holds.Hold | None = None

    @property
    def state(self) -> str:
        """``on_hold``, ``paused`` or ``works``."""
        return "on_hold" if self.hold else "paused" if self.pauses else "works"


# The names, each found by one step through the index of the keys.
_NAMES = """
WITH RECURSIVE names (account) AS (
    (SELECT account FROM sendonce.email_key ORDER BY account LIMIT 1)
    UNION ALL
    SELECT (SELECT k.account FROM sendonce.email_key k WHERE k.account > n.account ORDER BY k.account LIMIT 1)
    FROM names n WHERE n.account IS NOT NULL
)
SELECT account FROM names WHERE account IS NOT NULL
UNION SELECT name FROM sendonce.account
UNION SELECT name FROM sendonce.hold WHERE scope = 'account' AND ended_at IS NULL
ORDER BY 1
"""


async def read(conn: AsyncConnection[Any]) -> list[AccountState]:
    """All accounts that ever had mail, a pause or a hold, by name."""
    names = [row[0] for row in await (await conn.execute(_NAMES)).fetchall()]
    held = {hold.name: hold for hold in await holds.standing(conn) if hold.scope == "account"}
    pauses: dict[str, list[Pause]] = {}
    async with conn.cursor(row_factory=dict_row) as cur:
        await cur.execute(
            "SELECT name, from_domain, left(settings_digest, 12) AS settings, paused_at,"
            " coalesce(pause_why, '') AS why, probe_at FROM sendonce.account WHERE paused_at IS NOT NULL"
            " ORDER BY paused_at"
        )
        for row in await cur.fetchall():
            pauses.setdefault(row["name"], []).append(
                Pause(row["from_domain"], row["settings"], row["paused_at"], row["why"], row["probe_at"])
            )
    return [AccountState(name, pauses.get(name, []), held.get(name)) for name in names]
