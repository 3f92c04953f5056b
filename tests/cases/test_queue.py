"""Slow answers, refusals among neighbours, used-up quotas, and sizes: what holds up or harms nobody else."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from sendonce.activities.failures import client_options
from sendonce.outcome import TEXT_LIMIT
from sendonce.store import accounts, routes
from sendonce.testing import http_misbehaviour, smtp_misbehaviour
from sendonce.workflows import EmailDelivery
from sendonce.workflows.port import DeliverySteps

if TYPE_CHECKING:
    from sendonce.policy import LanePolicy
    from tests.cases.conftest import Office

PAYLOAD_LIMIT = 2_000_000
"""Octets that Temporal takes as one payload."""


async def test_an_answer_that_takes_longer_than_the_lease_is_awaited(
    office: Office, lane: Callable[..., LanePolicy]
) -> None:
    release = asyncio.Event()
    office.relay.script.add(smtp_misbehaviour.late_reply(release))
    slow = lane(answer_seconds=60.0)
    another = await Client.connect(office.target, **client_options())
    times: dict[str, Any] = {"lease_seconds": 2.0, "renew_seconds": 0.5, "hand_off_seconds": 0.2}
    async with office.worker(slow, **times), office.worker(slow, client=another, **times):
        key = await office.enqueue()
        begun = await office.until_stage(key, "transmitting")
        # Longer than a lease, and long enough for both workers to have looked for silent offers again.
        await office.until_row(
            "SELECT 1 FROM sendonce.email WHERE lease_until > begun_at + interval '2 s' + interval '3 s'"
        )
        assert (await office.email(key))["lease_id"] == begun["lease_id"]
        release.set()
        await office.until_stage(key, "sent")
    assert office.relay.mailbox.copies() == len(await office.attempts(key)) == 1
    assert await office.rows("SELECT 1 FROM sendonce.transition WHERE to_stage = 'unknown'") == []


async def test_a_refused_mail_takes_no_neighbour_with_it(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    # The mail that met the fault leaves the next probe to others for so long.
    for module in (accounts, routes):
        monkeypatch.setattr(module, "YIELD_SECONDS", 10.0)
    refusal = smtp_misbehaviour.refuse_sender(554, "5.7.1 sender not verified")
    refusal.when = lambda sender: sender == "unverified@example.com"
    office.relay.script.add(refusal)
    senders = {"one": "shop@example.com", "two": "unverified@example.com", "three": "shop@example.com"}
    keys = [await office.enqueue(name, sender=s, to=[f"{name}@example.org"]) for name, s in senders.items()]
    for cycle in range(3):
        async with office.worker():
            # The domain pauses until another mail's probe has shown whose fault it is.
            await office.until_row("SELECT 1 FROM sendonce.account WHERE from_domain = 'example.com'")
            await office.until_stage(await office.enqueue(f"cycle-{cycle}"), "sent")
            stages = [(await office.until_stage(key, "sent", "failed"))["stage"] for key in keys]
            assert stages == ["sent", "failed", "sent"]
    assert [office.relay.mailbox.copies(f"{name}@example.org") for name in senders] == [1, 0, 1]
    assert [(await office.email(key))["attempts"] for key in keys] == [1, 1, 1]


async def test_a_mail_beyond_the_quota_waits_with_a_time_and_is_sent(office: Office) -> None:
    office.gateway.script.add(http_misbehaviour.answer(429, "daily_quota_exceeded", retry_after="3600", times=1))
    await own_clock(office)
    async with office.worker():
        key = await office.enqueue(account="gateway")
        await office.until_row("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL AND probe_at IS NOT NULL")
        waiting = await office.until_stage(key, "pending")
        assert waiting["next_attempt_at"] is not None
        assert await office.alarms() == ["account_paused"]
        await office.rows("UPDATE public.test_clock SET off = interval '2 hours'")
        await office.handle(key, "gateway").signal("wake", {})
        found = await office.until_stage(key, "sent")
    # The account's fault has cost the mail no attempt.
    assert (found["attempts"], office.gateway.mailbox.copies()) == (1, 1)


async def test_a_mail_whose_quota_does_not_come_back_ends_at_its_deadline_with_an_alarm(office: Office) -> None:
    office.gateway.script.add(http_misbehaviour.answer(429, "daily_quota_exceeded", retry_after="3600"))
    await own_clock(office)
    deadline = datetime.now(UTC) + timedelta(hours=3)
    async with office.worker():
        key = await office.enqueue(account="gateway", expires_at=deadline.isoformat())
        await office.until_row("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        await office.until_stage(key, "pending")
        await office.rows("UPDATE public.test_clock SET off = interval '4 hours'")
        await office.handle(key, "gateway").signal("wake", {})
        await office.until_stage(key, "expired")
    assert {"account_paused", "expired"} <= set(await office.alarms())
    assert office.gateway.mailbox.copies() == 0


async def own_clock(office: Office) -> None:
    """The test moves the store's clock."""
    await office.rows("CREATE TABLE public.test_clock AS SELECT interval '0' AS off")
    await office.rows(
        "CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE"
        " AS $$ SELECT clock_timestamp() + off FROM public.test_clock $$"
    )


async def test_large_attachments_never_pass_through_temporal(office: Office) -> None:
    files = [{"filename": f"{n}.bin", "content": base64.b64encode(os.urandom(1024 * 1024)).decode()} for n in range(3)]
    async with office.worker():
        key = await office.enqueue(files=files)
        await office.until_stage(key, "sent")
        await office.handle(key).result()
    (mail,) = office.relay.mailbox.mails()
    assert len(mail.content) > 2 * PAYLOAD_LIMIT
    assert len((await office.handle(key).fetch_history()).to_json()) < 20_000


async def test_a_huge_error_page_is_a_refusal_like_any_other(office: Office) -> None:
    page = b"<html>" + b"x" * 2_500_000
    office.gateway.script.add(http_misbehaviour.answer(422, body=page))
    async with office.worker():
        key = await office.enqueue(account="gateway")
        found = await office.until_stage(key, "failed")
    assert (found["last_code"], found["attempts"]) == (422, 1)
    (recipient,) = await office.rows("SELECT reply_text FROM sendonce.recipient")
    assert 0 < len(recipient["reply_text"]) <= TEXT_LIMIT
    assert len((await office.handle(key, "gateway").fetch_history()).to_json()) < 20_000


async def test_the_workflow_loads_in_temporals_own_sandbox(office: Office) -> None:
    steps = DeliverySteps()
    # No passthrough: the sandbox imports the module anew, and refuses what may not be in a workflow.
    async with Worker(
        office.client,
        task_queue=f"sandbox-{uuid4().hex}",
        workflows=[EmailDelivery],
        activities=[steps.attempt, steps.withdraw],
    ):
        pass
