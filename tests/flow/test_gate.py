"""Begin at the moment when something else goes wrong: what is certain about the offer afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from sendonce.activities.gate import Offer, StoreGate, Terms
from sendonce.activities.inflight import Flight, Flights, Phase
from sendonce.activities.leases import StoreHealth
from sendonce.activities.poke import SignalPoker
from sendonce.activities.redirect import Guard
from sendonce.activities.transports.base import Fenced, StoreAway
from sendonce.policy import LanePolicy
from sendonce.store import Store, open_pool
from sendonce.store.records import Claimed
from sendonce.workflows.port import Ticket

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay

LANE = LanePolicy("default")


@asynccontextmanager
async def claimed(flow: Flow) -> AsyncIterator[tuple[StoreGate, Flight]]:
    """The gate of a mail that has just been claimed."""
    key = await flow.enqueue()
    pool = open_pool(flow.database_url, name="test")
    async with pool:
        store = Store(pool)
        flight = Flight(Ticket(str(flow.ids[key]), key, "default"), LANE, 20.0)
        claim = await store.claim(flight.email_id, key, lane=LANE, worker="w", lease_seconds=20.0)
        assert isinstance(claim, Claimed)
        flight.claimed(claim.attempt_id, asyncio.get_running_loop().time())
        await store.pin(flight.email_id, "mime", body=b"", method="", url="", headers=(), digest=b"digest")
        yield (
            StoreGate(
                store,
                Flights(SignalPoker()),
                StoreHealth(),
                flight,
                claim,
                Guard().envelope(claim.recipients),
                Terms("mime", b"digest", "key-1", "relay:one", None, 0.0),
                worker="w",
                lease_seconds=20.0,
            ),
            flight,
        )
        flight.settling()


async def test_after_a_failover_that_no_look_has_noticed_yet_nothing_is_begun(flow: Flow, relay: type[Relay]) -> None:
    """As connections through a pooler lead to a promoted standby: the last look was at the old server."""
    async with await psycopg.AsyncConnection.connect(flow.database_url, autocommit=True) as connection:
        await connection.execute(
            "CREATE OR REPLACE FUNCTION sendonce.server_identity() RETURNS TABLE (system_id text, timeline integer,"
            ' database_oid bigint, "position" bigint, started_at timestamptz) LANGUAGE sql'
            " AS $$ SELECT '7', 99, 5::bigint, NULL::bigint, pg_postmaster_start_time() $$"
        )
    async with flow.worker(relay()):
        key = await flow.enqueue()
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'halted'")
        # No look has seen anything.
        assert await flow.rows("SELECT timeline, halted_at FROM sendonce.continuity") == [
            {"timeline": 99, "halted_at": None}
        ]
    assert await flow.rows("SELECT FROM sendonce.attempt WHERE begun_at IS NOT NULL") == []
    email = await flow.email(key)
    assert (email["stage"], email["attempts"]) == ("pending", 0)
    # Not again before this process has looked.
    *_, last = await flow.attempts(key)
    assert (email["next_attempt_at"] - last["ended_at"]).total_seconds() >= 5.0
    # Who has said that a failover loses nothing goes on.
    async with flow.worker(relay(), failover="go_on"):
        await flow.until_stage(await flow.enqueue("k2"), "sent")


@asynccontextmanager
async def locked(flow: Flow) -> AsyncIterator[None]:
    """Somebody else holds the mail's row."""
    async with await psycopg.AsyncConnection.connect(flow.database_url) as connection:
        await connection.execute("SELECT 1 FROM sendonce.email FOR UPDATE")
        yield
        await connection.rollback()


async def test_begin_commits_and_opens_the_gate(flow: Flow) -> None:
    async with claimed(flow) as (gate, flight):
        with pytest.raises(Fenced):
            gate.offered()
        await gate.begin((0,))
        assert (gate.state, flight.phase, gate.ordinals) == (Offer.BEGUN, Phase.TRANSMITTING, (0,))
        gate.offered()
        assert gate.state is Offer.OFFERED
        with pytest.raises(RuntimeError):
            await gate.begin((0,))
    assert (await flow.rows("SELECT stage FROM sendonce.email")) == [{"stage": "transmitting"}]


async def test_a_cancellation_waits_until_it_is_known_whether_the_offer_was_begun(flow: Flow) -> None:
    async with claimed(flow) as (gate, _):
        async with locked(flow):
            task = asyncio.create_task(gate.begin((0,)))
            await flow.rows_until("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
            assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.state is Offer.BEGUN


async def test_a_row_that_stays_locked_is_not_waited_for(flow: Flow) -> None:
    async with claimed(flow) as (gate, _):
        async with locked(flow):
            with pytest.raises(StoreAway):
                await gate.begin((0,))
        assert gate.state is Offer.NOT_BEGUN
    assert (await flow.rows("SELECT stage FROM sendonce.email")) == [{"stage": "claimed"}]


async def test_a_store_that_is_lost_during_begin_leaves_it_uncertain(flow: Flow) -> None:
    async with claimed(flow) as (gate, _):
        async with locked(flow):
            task = asyncio.create_task(gate.begin((0,)))
            blocked = await flow.rows_until("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            await flow.rows("SELECT pg_terminate_backend(%s)", [blocked[0]["pid"]])
            with pytest.raises(StoreAway):
                await task
        assert gate.state is Offer.UNCERTAIN
        with pytest.raises(Fenced):
            gate.offered()


async def test_a_withdrawn_mail_is_fenced(flow: Flow) -> None:
    async with claimed(flow) as (gate, _):
        await flow.rows("UPDATE sendonce.email SET cancel_requested_at = sendonce.clock()")
        with pytest.raises(Fenced):
            await gate.begin((0,))
        assert (gate.state, gate.refused) == (Offer.NOT_BEGUN, "cancelled")


async def test_an_attempt_that_was_told_to_stop_does_not_begin(flow: Flow) -> None:
    async with claimed(flow) as (gate, flight):
        flight.stop("lease_lost")
        with pytest.raises(Fenced):
            await gate.begin((0,))
    assert (await flow.rows("SELECT stage FROM sendonce.email")) == [{"stage": "claimed"}]
