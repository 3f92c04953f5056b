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
    from tests.flow.conftest import Flow

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
