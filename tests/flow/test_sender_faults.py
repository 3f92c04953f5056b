"""A relay that refuses senders: whose fault it is comes out, and nobody else's mail pays for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sendonce.outcome import Accepted, AccountFault, AttemptResult, Reply, same_for_all
from sendonce.workflows.port import Wake

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Gate, Job
    from tests.flow.conftest import Flow, Relay

NOT_ALLOWED = AccountFault(Reply(550, "5.7.1", "sender not allowed"), scope="sender")


async def refuses_bad_senders(job: Job, gate: Gate) -> AttemptResult:
    """Refuses the envelope sender ``bad@…``; takes everybody else's mail."""
    ordinals = tuple(r.ordinal for r in job.recipients)
    if job.envelope_sender.startswith("bad@"):
        return same_for_all(ordinals, NOT_ALLOWED)
    await gate.begin(ordinals)
    gate.offered()
    return same_for_all(ordinals, Accepted(Reply(250, "2.0.0"), "Q1"))


async def test_a_mail_that_others_prove_to_be_the_cause_fails_with_that_reason(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(refuses_bad_senders)
    await flow.own_clock()
    async with flow.worker(transport):
        bad = await flow.enqueue("bad", sender="bad@example.com")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE from_domain = 'example.com'")
        elsewhere = await flow.enqueue("elsewhere", sender="shop@elsewhere.example")
        await flow.until_stage(elsewhere, "sent")
        good = await flow.enqueue("good", sender="good@example.com")
        assert (await flow.email(good))["stage"] == "pending"
        await flow.advance(20)
        await flow.until_stage(good, "sent")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NULL AND worked_at IS NOT NULL")
        await flow.advance(20)
        await flow.handle(bad).signal("wake", Wake())
        row = await flow.until_stage(bad, "failed")
        assert (row["last_code"], row["last_enhanced"], row["attempts"]) == (550, "5.7.1", 1)
    assert await flow.rows("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL") == []


async def test_while_every_mail_of_the_domain_is_refused_none_is_blamed(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(refuses_bad_senders)
    await flow.own_clock()
    async with flow.worker(transport):
        keys = [await flow.enqueue(f"{n}", sender="bad@example.com") for n in range(2)]
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE from_domain = 'example.com'")
        for faults in (2, 3):
            await flow.advance(3600)
            for key in keys:
                if (await flow.email(key))["seen_at"] is not None:
                    await flow.handle(key).signal("wake", Wake())
            await flow.rows_until("SELECT 1 FROM sendonce.account WHERE faults >= %s", [faults])
        rows = await flow.rows("SELECT stage, attempts FROM sendonce.email")
    assert rows == [{"stage": "pending", "attempts": 0}] * 2
