"""What goes with time: content, then the whole mail but its key, then, if somebody says so, the key.

Small batches, each a transaction of its own under SKIP LOCKED: nobody waits for them, several processes share the work,
and one that dies in the middle has done what it committed. Only what is final goes; what may have been accepted without
an answer is kept as long as its lane waits for unknowns, because evidence can still come.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, errors
from psycopg.types.json import Jsonb

from sendonce.policy import LanePolicy
from sendonce.retention import Retention
from sendonce.store.sweeps import lane_of

BATCH = 100
"""Mails of one transaction."""
KEYS = 2000
"""Keys that one statement of the walk looks at."""
KEY_STEPS = 50
"""Such statements in one round."""
LOCK_TIMEOUT_MS = 100
"""Somebody may hold a row of a mail, such as business code an event. The mail is left for the next round then."""

Act = Callable[[AsyncConnection[Any], Sequence[UUID]], Awaitable[None]]


@dataclass
class Done:
    """How many went."""

    contents: int = 0
    mails: int = 0
    alarms: int = 0
    keys: int = 0
    erased: int = 0
    """Mails out of which a person was taken who had been erased while they were in flight."""


_KINDS = """
WITH RECURSIVE kinds (lane, template) AS (
    (SELECT lane, template FROM sendonce.email WHERE final_at IS NOT NULL AND content_erased_at IS NULL
     ORDER BY lane, template LIMIT 1)
    UNION ALL
    SELECT next.lane, next.template FROM kinds k, LATERAL (
        SELECT e.lane, e.template FROM sendonce.email e
        WHERE e.final_at IS NOT NULL AND e.content_erased_at IS NULL AND (e.lane, e.template) > (k.lane, k.template)
        ORDER BY e.lane, e.template LIMIT 1) AS next
)
SELECT lane, template FROM kinds
"""

_FULL = """
SELECT id FROM sendonce.email
WHERE lane = %(lane)s AND template = %(template)s AND content_erased_at IS NULL
    AND final_at <= sendonce.clock() - %(days)s * interval '1 day'
    AND (NOT maybe_accepted OR final_at <= sendonce.clock() - %(doubtful)s * interval '1 day')
    AND id <> ALL (%(busy)s)
ORDER BY final_at LIMIT {limit} FOR UPDATE SKIP LOCKED
"""

_OLD = """
SELECT id FROM sendonce.email
WHERE final_at <= sendonce.clock() - %(days)s * interval '1 day'
    AND (NOT maybe_accepted OR final_at <= sendonce.clock()
        - greatest(%(days)s, coalesce((%(unknown)s ->> lane)::float8, %(otherwise)s)) * interval '1 day')
    AND id <> ALL (%(busy)s)
ORDER BY final_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED
"""


async def empty_content(conn: AsyncConnection[Any], ids: Sequence[UUID]) -> None:
    """Erase the content of these mails. The caller's transaction holds their rows locked.

    Statements of their own, after the lock: what somebody pinned while it was waited for is seen, and afterwards
    nobody pins any more.
    """
    if not ids:
        return
    params = {"ids": list(ids)}
    async with conn.pipeline():
        await conn.execute(
            "UPDATE sendonce.email SET content_erased_at = sendonce.clock() WHERE id = ANY (%(ids)s)", params
        )
        await conn.execute("DELETE FROM sendonce.pinned WHERE email_id = ANY (%(ids)s)", params)
        await conn.execute("DELETE FROM sendonce.attachment WHERE email_id = ANY (%(ids)s)", params)
        await conn.execute("UPDATE sendonce.email_content SET content = '{}' WHERE email_id = ANY (%(ids)s)", params)


# Alarms that nobody has been told of yet, or only now, stay: they go by their age, once they have been told.
_UNTOLD = """EXISTS (
    SELECT FROM sendonce.alarm b JOIN sendonce.alarm_state s ON s.alarm_id = b.id
    WHERE (b.id = a.id OR b.closes = a.id)
        AND (s.taken_at IS NULL OR s.taken_at > sendonce.clock() - interval '1 day'))"""
_DROP_ALARMS = f"""
WITH old AS (
    SELECT a.id FROM sendonce.alarm a
    WHERE a.email_id = ANY (%(ids)s) AND a.closes IS NULL AND NOT {_UNTOLD}
)
DELETE FROM sendonce.alarm a USING old WHERE a.id = old.id OR a.closes = old.id
"""


async def _drop(conn: AsyncConnection[Any], ids: Sequence[UUID]) -> None:
    if not ids:
        return
    params = {"ids": list(ids)}
    async with conn.pipeline():
        await conn.execute("DELETE FROM sendonce.wake WHERE email_id = ANY (%(ids)s)", params)
        await conn.execute(_DROP_ALARMS, params)
        # Everything else of a mail goes with its row, by its foreign key.
        await conn.execute("DELETE FROM sendonce.email WHERE id = ANY (%(ids)s)", params)


# Those of accounts once they are over, and whatever is left of mails that are gone.
_OLD_ALARMS = f"""
WITH old AS (
    SELECT a.id FROM sendonce.alarm a
    WHERE a.closes IS NULL AND a.at <= sendonce.clock() - %(days)s * interval '1 day'
        AND NOT EXISTS (SELECT FROM sendonce.email e WHERE e.id = a.email_id)
        AND (a.email_id IS NOT NULL OR EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id))
        AND NOT {_UNTOLD}
    ORDER BY a.id LIMIT {{limit}} FOR UPDATE SKIP LOCKED
)
DELETE FROM sendonce.alarm a USING old WHERE a.id = old.id OR a.closes = old.id
"""

_WALK = """
WITH chunk AS (
    SELECT account, key, email_id, created_at FROM sendonce.email_key
    WHERE (account, key) > (%(account)s, %(key)s) ORDER BY account, key LIMIT {limit}
),
gone AS (
    DELETE FROM sendonce.email_key k USING chunk c
    WHERE k.account = c.account AND k.key = c.key AND k.email_id = c.email_id
        AND c.created_at <= sendonce.clock() - %(days)s * interval '1 day'
        AND NOT EXISTS (SELECT FROM sendonce.email e WHERE e.id = c.email_id)
    RETURNING 1
)
SELECT last.account, last.key, (SELECT count(*) FROM gone), (SELECT count(*) FROM chunk)
FROM chunk AS last ORDER BY last.account DESC, last.key DESC LIMIT 1
"""


def _limited(query: str, rows: int) -> bytes:
    # Written out: the planner takes an unknown limit for a tenth of the table, which it would read and sort.
    return query.replace("{limit}", str(rows)).encode()


class Round:
    """One round; ``leave`` says when its time is over: what is left then is the next round's."""

    def __init__(
        self, rules: Retention, lanes: Mapping[str, LanePolicy], leave: Callable[[], bool] = lambda: False
    ) -> None:
        self._rules = rules
        self._lanes = lanes
        self._leave = leave
        self._busy: list[UUID] = []
        self.done = Done()

    async def run(self, conn: AsyncConnection[Any]) -> bool:
        """Do it; False when time was over before everything was done. ``conn`` is in no transaction."""
        await self._contents(conn)
        await self._mails(conn)
        await self._alarms(conn)
        await self._keys(conn)
        return not self._leave()

    async def _contents(self, conn: AsyncConnection[Any]) -> None:
        async with conn.transaction():
            kinds = await (await conn.execute(_KINDS)).fetchall()
        for name, template in kinds:
            lane = lane_of(self._lanes, name)
            days = self._rules.content_days_of(lane, template)
            which = {"lane": name, "template": template, "days": days, "doubtful": max(days, lane.unknown_days)}
            self.done.contents += await self._all(conn, _FULL, which, empty_content)

    async def _mails(self, conn: AsyncConnection[Any]) -> None:
        which = {
            "days": self._rules.record_days,
            "unknown": Jsonb({name: lane.unknown_days for name, lane in self._lanes.items()}),
            "otherwise": lane_of(self._lanes, "default").unknown_days,
        }
        self.done.mails += await self._all(conn, _OLD, which, _drop)

    async def _all(self, conn: AsyncConnection[Any], query: str, which: Mapping[str, Any], act: Act) -> int:
        """Batch by batch; when somebody holds a row of one of these mails, mail by mail, and not that one."""
        went, size = 0, BATCH
        while not self._leave():
            picked: list[UUID] = []
            try:
                async with conn.transaction():
                    await conn.execute("SELECT set_config('lock_timeout', %s, true)", [str(LOCK_TIMEOUT_MS)])
                    cursor = await conn.execute(_limited(query, size), {**which, "busy": self._busy})
                    picked = [row[0] for row in await cursor.fetchall()]
                    await act(conn, picked)
            except errors.LockNotAvailable:
                if size == 1:
                    self._busy += picked
                size = 1
                continue
            went += len(picked)
            if len(picked) < size:
                break
        return went

    async def _alarms(self, conn: AsyncConnection[Any]) -> None:
        while not self._leave():
            async with conn.transaction():
                cursor = await conn.execute(_limited(_OLD_ALARMS, BATCH), {"days": self._rules.record_days})
            self.done.alarms += cursor.rowcount
            if not cursor.rowcount:
                break

    async def _keys(self, conn: AsyncConnection[Any]) -> None:
        """Walk on through the keys, and forget those that are old and whose mail is gone. One process at a time."""
        if self._rules.forget_keys_days is None:
            return
        for _ in range(KEY_STEPS):
            if self._leave():
                return
            async with conn.transaction():
                cursor = await conn.execute("SELECT account, key FROM sendonce.key_walk FOR UPDATE SKIP LOCKED")
                at = await cursor.fetchone()
                if at is None:
                    return
                params = {"account": at[0], "key": at[1], "days": self._rules.forget_keys_days}
                step = await (await conn.execute(_limited(_WALK, KEYS), params)).fetchone()
                account, key, gone, seen = step or ("", "", 0, 0)
                over = seen < KEYS
                await conn.execute(
                    "UPDATE sendonce.key_walk SET account = %s, key = %s", ["", ""] if over else [account, key]
                )
            self.done.keys += gone
            if over:
                return
