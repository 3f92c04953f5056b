"""The kill switch: mail of a lane, a template, a tenant or an account that nobody tries until an operator says so.

A hold is a row. Mail on hold is not started, not claimed and not begun; what has begun is seen through. It keeps its
key and its content, its age stands still, and its deadline holds. While no hold stands, each look costs the visit of
an index that holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from psycopg import AsyncConnection
from psycopg.rows import class_row

from sendonce.store import wakes

Scope = Literal["lane", "template", "tenant", "account"]
"""What a hold is about. ``tenant``: the mail's fairness key; ``account``: the mail's own, or the one it would go by."""

SCOPES: tuple[Scope, ...] = get_args(Scope)

ON_HOLD = "on_hold"
"""Why a mail waits, or why its begin was refused."""

WOKEN = 100
"""How many mails are woken at once when a hold ends. The starter's overdue rule wakes the rest, at its own pace."""

_LOOKED_AT = 10_000


def on_hold(row: str, via: str) -> str:
    """As SQL: does a hold stand that concerns this row of ``email``, or the account it would go by?"""
    return f"sendonce.on_hold({row}.lane, {row}.template, {row}.fairness_key, {row}.account, {via})"


def account_on_hold(account: str) -> str:
    """As SQL: does a hold stand on the account of that name?"""
    return f"sendonce.on_hold('', '', '', {account}, {account})"


def held_back(row: str, since: str, until: str) -> str:
    """As SQL: for how long this row of ``email`` was on hold between the two."""
    return f"sendonce.held_back({row}.lane, {row}.template, {row}.fairness_key, {row}.account, {since}, {until})"


STANDING = """
held AS MATERIALIZED (
    SELECT coalesce(array_agg(name) FILTER (WHERE scope = 'lane'), '{}') AS lanes,
        coalesce(array_agg(name) FILTER (WHERE scope = 'template'), '{}') AS templates,
        coalesce(array_agg(name) FILTER (WHERE scope = 'tenant'), '{}') AS tenants,
        coalesce(array_agg(name) FILTER (WHERE scope = 'account'), '{}') AS accounts
    FROM sendonce.hold WHERE ended_at IS NULL
)
"""
"""For a statement that looks at many rows: the holds, read once."""


def named(what: str, names: str) -> str:
    """As SQL, beside :data:`STANDING`: is this one of the names on hold? ``names``: a column of ``held``."""
    return f"coalesce({what} = ANY ((SELECT {names} FROM held)::text[]), false)"


HELD = " OR ".join(
    named(f"e.{column}", names)
    for column, names in (
        ("lane", "lanes"),
        ("template", "templates"),
        ("fairness_key", "tenants"),
        ("account", "accounts"),
    )
)
"""As SQL, beside :data:`STANDING`: is the row ``e`` of ``email`` on hold?"""


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold that stands."""

    scope: Scope
    name: str
    since: datetime
    actor: str
    why: str

    def concerns(self, *, lane: str, template: str | None, tenant: str, account: str) -> bool:
        """Is a mail with these on hold by it?"""
        return self.name == {"lane": lane, "template": template, "tenant": tenant, "account": account}[self.scope]


async def pause(conn: AsyncConnection[Any], scope: Scope, name: str, *, actor: str, why: str) -> bool:
    """Put it on hold; False when it is already."""
    cursor = await conn.execute(
        "INSERT INTO sendonce.hold (scope, name, actor, why) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (scope, name) WHERE ended_at IS NULL DO NOTHING",
        [scope, name, actor, why],
    )
    return cursor.rowcount == 1


_RESUME = """
UPDATE sendonce.hold SET ended_at = sendonce.clock(), ended_by = %s
WHERE scope = %s AND name = %s AND ended_at IS NULL
"""

# The lanes that have mail whose workflow sleeps, each found by one step through the index; of each what is due longest.
_SLEEPING = f"""
WITH RECURSIVE lanes (lane) AS (
    (SELECT lane FROM sendonce.email WHERE stage IN ('pending', 'unknown') AND started_at IS NOT NULL
     ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT e.lane FROM sendonce.email e
            WHERE e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL AND e.lane > l.lane
            ORDER BY e.lane LIMIT 1)
    FROM lanes l WHERE l.lane IS NOT NULL
)
SELECT due.id FROM lanes l, LATERAL (
    SELECT e.* FROM sendonce.email e
    WHERE e.lane = l.lane AND e.stage IN ('pending', 'unknown') AND e.started_at IS NOT NULL
        AND e.next_attempt_at <= sendonce.clock()
    ORDER BY e.next_attempt_at, e.id LIMIT {_LOOKED_AT}
) due
WHERE due.held_why IS NULL AND due.{{column}} = %s
ORDER BY due.next_attempt_at, due.id LIMIT {WOKEN}
"""
_COLUMN: dict[Scope, str] = {"lane": "lane", "template": "template", "tenant": "fairness_key", "account": "account"}


async def resume(conn: AsyncConnection[Any], scope: Scope, name: str, *, actor: str) -> bool:
    """End the hold; False when there is none.

    What was never started is started at the starter's pace. Of the workflows that sleep the first :data:`WOKEN` are
    woken at once, and the others, which look vanished by then, by the overdue rule.
    """
    async with conn.transaction():
        cursor = await conn.execute(_RESUME, [actor, scope, name])
        if cursor.rowcount == 0:
            return False
        found = await conn.execute(_SLEEPING.format(column=_COLUMN[scope]).encode(), [name])
        await wakes.ask(conn, [row[0] for row in await found.fetchall()])
        await conn.execute("SELECT pg_notify('sendonce', '') FROM sendonce.installation WHERE notify")
    return True


async def standing(conn: AsyncConnection[Any]) -> list[Hold]:
    """The holds that stand, the oldest first."""
    async with conn.cursor(row_factory=class_row(Hold)) as cur:
        await cur.execute("SELECT scope, name, since, actor, why FROM sendonce.hold WHERE ended_at IS NULL ORDER BY id")
        return await cur.fetchall()
