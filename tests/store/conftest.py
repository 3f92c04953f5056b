"""A real store per test, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from sendonce.outcome import AttemptResult, Outcome
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.store import Store, open_pool
from sendonce.store.records import BeginRefused, Begun, ClaimAnswer, Claimed, Pinned, Standing

LANE = LanePolicy("default", RetryPolicy(base=30, factor=2, cap=3600, jitter=0, max_attempts=5, max_age=86400))


@dataclass
class Bench:
    """The store under test, with shorthands: every call goes through the real statements."""

    store: Store
    pool: AsyncConnectionPool
    lane: LanePolicy = LANE
    ids: dict[str, UUID] = field(default_factory=dict)

    async def rows(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        async with self.pool.connection() as conn, conn.cursor(row_factory=dict_row) as cur:
            return await (await cur.execute(query.encode(), params)).fetchall()

    async def run(self, statement: str, params: Any = None) -> None:
        async with self.pool.connection() as conn:
            # Not prepared, so that it may be several.
            await conn.execute(statement.encode(), params, prepare=False)

    async def enqueue(self, key: str = "k1", **fields: Any) -> UUID:
        message: dict[str, Any] = {
            "key": key,
            "sender": "Shop <shop@example.com>",
            "to": ["ann@example.org"],
            "subject": "Your order",
            "text": "Thank you.",
        } | fields
        rows = await self.rows("SELECT * FROM sendonce.enqueue(%s)", [Jsonb(message)])
        assert rows[0]["status"] == "created", rows
        self.ids[key] = rows[0]["email_id"]
        return self.ids[key]

    async def email(self, key: str = "k1") -> dict[str, Any]:
        return (await self.rows("SELECT * FROM sendonce.email WHERE id = %s", [self.ids[key]]))[0]

    async def stages(self, key: str = "k1") -> list[str]:
        rows = await self.rows(
            "SELECT stage FROM sendonce.recipient WHERE email_id = %s ORDER BY ordinal", [self.ids[key]]
        )
        return [r["stage"] for r in rows]

    async def open_alarms(self) -> list[str]:
        rows = await self.rows(
            "SELECT kind FROM sendonce.alarm a WHERE closes IS NULL"
            " AND NOT EXISTS (SELECT FROM sendonce.alarm b WHERE b.closes = a.id) ORDER BY id"
        )
        return [r["kind"] for r in rows]

    async def ask(self, key: str = "k1", **options: Any) -> ClaimAnswer:
        settings: dict[str, Any] = {"lane": self.lane, "worker": "w1", "lease_seconds": 20.0} | options
        return await self.store.claim(self.ids[key], key, **settings)

    async def claim(self, key: str = "k1", **options: Any) -> Claimed:
        answer = await self.ask(key, **options)
        assert isinstance(answer, Claimed), answer
        return answer

    async def pin(self, claimed: Claimed, slot: str = "mime", digest: bytes = b"digest") -> None:
        """What a long rendering is before its begin."""
        if await self.store.pinned(claimed.email_id, slot) is None:
            await self.store.pin(claimed.email_id, slot, body=b"", method="", url="", headers=(), digest=digest)

    async def begin(self, claimed: Claimed, **options: Any) -> Begun | BeginRefused:
        settings: dict[str, Any] = {
            "worker": "w1",
            "generation": claimed.generation,
            "slot": "mime",
            "digest": b"digest",
            "offered": [r.ordinal for r in claimed.recipients],
            "provider_key": f"pk-{claimed.generation}",
            "identity": "smtp:one",
            "key_window": None,
            "window_margin": 0.0,
            "answer_seconds": 600.0,
            "lease_seconds": 20.0,
        } | options
        if await self.store.pinned(claimed.email_id, settings["slot"]) is None:
            settings.setdefault("keep", Pinned(b"", "", "", (), settings["digest"]))
        return await self.store.begin(claimed.email_id, claimed.attempt_id, **settings)

    async def settle(self, claimed: Claimed, outcomes: dict[int, Outcome] | Outcome) -> Standing:
        if not isinstance(outcomes, dict):
            outcomes = {r.ordinal: outcomes for r in claimed.recipients}
        return await self.store.settle(
            claimed.email_id, claimed.attempt_id, AttemptResult(outcomes), lane=self.lane, actor="w1"
        )

    async def attempt(self, outcome: dict[int, Outcome] | Outcome, key: str = "k1", **begin: Any) -> Standing:
        """Claim, begin and settle."""
        claimed = await self.claim(key)
        assert isinstance(await self.begin(claimed, **begin), Begun)
        return await self.settle(claimed, outcome)

    async def advance(self, seconds: float) -> None:
        """Move the store's clock. Renewals do not happen by themselves: leases lapse."""
        await self.run("UPDATE public.test_clock SET off = off + %s * interval '1 second'", [seconds])


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("CREATE TABLE public.test_clock (off interval NOT NULL)")
        conn.execute("INSERT INTO public.test_clock VALUES ('0')")
        conn.execute(
            "CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE"
            " AS $$ SELECT clock_timestamp() + off FROM public.test_clock $$"
        )
    pool = open_pool(database_url, name="test", max_size=8)
    await pool.open()
    try:
        yield Bench(Store(pool, {"default": "settings-1"}), pool)
    finally:
        await pool.close()
