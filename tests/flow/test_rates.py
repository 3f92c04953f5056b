"""An account with a rate: never faster, over several workers, and a code before the mail that waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.client import Client

from sendonce.activities.failures import client_options
from sendonce.outcome import AttemptResult, Deferred, Reply, same_for_all
from sendonce.policy import DEFAULT_LANES
from sendonce.rates import DomainLimit, Rate
from sendonce.stages import Stage
from sendonce.starter import start_now
from sendonce.store.intake import Enqueued
from sendonce.workflows.port import Wake
from tests.flow.conftest import ACCEPTED, LANE, answer, offer

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Gate, Job
    from tests.flow.conftest import Flow, Relay

CRITICAL = DEFAULT_LANES["critical"]
RATE = (Rate.parse("20/s"),)


async def claimed_at(flow: Flow, lane: str = "default") -> list[float]:
    """When the attempts were claimed, by the store's clock."""
    rows = await flow.rows(
        "SELECT extract(epoch FROM a.claimed_at)::float8 AS at FROM sendonce.attempt a"
        " JOIN sendonce.email e ON e.id = a.email_id WHERE e.lane = %s ORDER BY a.claimed_at",
        [lane],
    )
    return [row["at"] for row in rows]


async def test_two_workers_together_keep_to_the_rate(flow: Flow, relay: type[Relay]) -> None:
    keys = [await flow.enqueue(f"{n}") for n in range(40)]
    one, two = relay(), relay()
    terms: dict[str, Any] = {"rates": {"default": RATE}, "lanes": {"default": LANE, "critical": CRITICAL}}
    # Two workers of one queue cannot share a client.
    another = await Client.connect(flow.target, **client_options())
    async with flow.worker(one, **terms), flow.worker(two, **terms, client=another):
        await asyncio.gather(*(flow.until_stage(key, "sent") for key in keys))
    at = await claimed_at(flow)
    # Sixteen a second for this lane: the first comes at once, so forty need 39 of the pauses between them. A claim may
    # come a little after its slot, and never before.
    assert at[-1] - at[0] > 39 / 16 - 0.25
    assert len(one.jobs) + len(two.jobs) == 40
    state = await flow.rows("SELECT state FROM sendonce.rate")
    assert state, "nobody asked for a slot"


async def test_a_code_does_not_wait_behind_bulk_mail_that_has_all_the_common_slots(
    flow: Flow, relay: type[Relay]
) -> None:
    rates = {"default": (Rate.parse("5/min burst 5"),)}
    async with flow.worker(relay(), rates=rates, lanes={"critical": CRITICAL, "bulk": DEFAULT_LANES["bulk"]}):
        bulk = [await flow.enqueue(f"bulk-{n}", lane="bulk") for n in range(6)]
        await asyncio.gather(*(flow.until_stage(key, "sent") for key in bulk[:4]))
        code = await flow.enqueue("code", lane="critical")
        await flow.until_stage(code, "sent")
        waiting = [await flow.email(key) for key in bulk[4:]]
    assert [(row["stage"], row["started_at"]) for row in waiting] == [("pending", None)] * 2, "it waits in the store"


async def test_a_retry_waits_for_a_slot_too_and_is_due_when_there_is_one(flow: Flow, relay: type[Relay]) -> None:
    greylisted = answer(Deferred(Reply(451, "4.7.1")))
    await flow.own_clock()
    async with flow.worker(relay(greylisted, answer(ACCEPTED)), rates={"default": (Rate.parse("1/min"),)}):
        key = await flow.enqueue()
        await flow.rows_until(
            "SELECT 1 FROM sendonce.email WHERE stage = 'pending' AND next_attempt_at > sendonce.clock()"
            " + interval '40 seconds'"
        )
        assert (await flow.email(key))["attempts"] == 1
        await flow.advance(70)
        await flow.handle(key).signal("wake", Wake())
        await flow.until_stage(key, "sent")
    first, second = await claimed_at(flow)
    assert second - first >= 60


async def test_without_rates_nobody_asks_for_slots(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay()):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
    assert await flow.rows("SELECT * FROM sendonce.rate") == []


async def test_a_slow_destination_waits_and_others_go_on(flow: Flow, relay: type[Relay]) -> None:
    domains = {"default": {"slow.example": DomainLimit((Rate.parse("3/min burst 3"),))}}
    async with flow.worker(relay(), domains=domains):
        slow = [await flow.enqueue(f"slow-{n}", to=[f"r{n}@slow.example"]) for n in range(30)]
        quick = [await flow.enqueue(f"quick-{n}", to=[f"r{n}@quick.example"]) for n in range(5)]
        await asyncio.gather(*(flow.until_stage(key, "sent") for key in (*slow[:3], *quick)))
        rows = [await flow.email(key) for key in slow[3:]]
    assert {(row["stage"], row["started_at"]) for row in rows} == {("pending", None)}, "it waits in the store"


async def test_only_so_many_at_once_to_one_destination(flow: Flow, relay: type[Relay]) -> None:
    go = asyncio.Event()

    async def stall(job: Job, gate: Gate) -> AttemptResult:
        await offer(job, gate)
        await go.wait()
        return same_for_all(tuple(r.ordinal for r in job.recipients), ACCEPTED)

    transport = relay(stall)
    domains = {"default": {"slow.example": DomainLimit(at_once=2)}}
    async with flow.worker(transport, domains=domains):
        slow = [await flow.enqueue(f"slow-{n}", to=[f"r{n}@slow.example"]) for n in range(6)]
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE stage = 'transmitting' HAVING count(*) = 2")
        # One that was started past the starter is given back, and asks again.
        past = Enqueued(flow.ids[slow[5]], slow[5], "default", "default", True, Stage.PENDING)
        assert await start_now(flow.client, past, task_queue_prefix=flow.prefix)
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'destination_full'")
        quick = await flow.enqueue("quick", to=["bob@quick.example"])
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE stage = 'transmitting' AND key = %s", [quick])
        go.set()
        await asyncio.gather(*(flow.until_stage(key, "sent") for key in (*slow, quick)))
        given_back = await flow.rows(
            "SELECT DISTINCT e.key FROM sendonce.attempt a JOIN sendonce.email e ON e.id = a.email_id"
            " WHERE a.ended_why = 'destination_full'"
        )
    assert transport.most_at_once == 3
    assert given_back == [{"key": slow[5]}], "the starter starts no more than there are places"


async def test_scheduled_mail_uses_one_slot_each(flow: Flow, relay: type[Relay]) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    async with flow.worker(relay(), rates={"default": (Rate.parse("10/day"),)}):
        keys = [await flow.enqueue(f"{n}", send_after=soon) for n in range(10)]
        await asyncio.gather(*(flow.until_stage(key, "sent") for key in keys))


async def test_many_tenants_with_mail_for_later_stand_in_nobodys_way(flow: Flow, relay: type[Relay]) -> None:
    later = [
        await flow.enqueue(f"later-{n}", fairness_key=f"a{n:02}", send_after="2099-01-01T00:00:00Z") for n in range(60)
    ]
    async with flow.worker(relay()):
        now = await flow.enqueue("now", fairness_key="zed")
        await flow.until_stage(now, "sent")
        assert (await flow.email(later[0]))["started_at"] is None
