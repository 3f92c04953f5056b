"""The provider takes the mail and its answer is lost: how many copies there are then, and who decides about more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from sendonce.store import plan
from sendonce.testing import http_misbehaviour, smtp_misbehaviour
from sendonce.testing.smtp_misbehaviour import SmtpRule

if TYPE_CHECKING:
    from sendonce.policy import LanePolicy
    from tests.cases.conftest import Office

LOST = {"silent": smtp_misbehaviour.silent_after_dot, "cut": smtp_misbehaviour.cut_after_dot}
lost = pytest.mark.parametrize("rule", LOST.values(), ids=LOST.keys())

Lost = Callable[..., SmtpRule]
Lane = Callable[..., "LanePolicy"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that cannot be asked is not waited for so long."""
    monkeypatch.setattr(plan, "ASKED_FIRST", 1.0)


@lost
async def test_a_mail_whose_answer_is_lost_is_held_and_not_sent_again(office: Office, lane: Lane, rule: Lost) -> None:
    office.relay.script.add(rule())
    async with office.worker(lane(answer_seconds=1.0)):
        key = await office.enqueue()
        found = await office.until_stage(key, "unknown")
        assert found["next_attempt_at"] is None
        # Three attempts are allowed, and the workflow asks again: nobody has said that it may be sent again.
        for _ in range(3):
            await office.ask(key)
    assert (await office.email(key))["stage"] == "unknown"
    assert office.relay.mailbox.copies() == 1
    assert len(await office.attempts(key)) == 1
    assert await office.alarms() == ["unknown"]


@lost
async def test_by_policy_a_mail_whose_answer_is_lost_is_sent_once_more(office: Office, lane: Lane, rule: Lost) -> None:
    office.relay.script.add(rule())
    async with office.worker(lane(unknown="resend", answer_seconds=1.0)):
        key = await office.enqueue()
        await office.until_row("SELECT 1 FROM sendonce.alarm WHERE kind = 'unknown'")
        await office.ask(key)
    assert (await office.email(key))["stage"] == "unknown"
    first, second = office.relay.mailbox.mails()
    # One Message-ID: who compares them can drop the copy.
    assert first.message_id == second.message_id != ""
    assert first.content == second.content


async def test_the_copy_that_is_answered_settles_the_mail(office: Office, lane: Lane) -> None:
    office.relay.script.add(smtp_misbehaviour.cut_after_dot(times=1))
    async with office.worker(lane(unknown="resend")):
        key = await office.enqueue()
        found = await office.until_stage(key, "sent")
    assert (found["attempts"], office.relay.mailbox.copies()) == (2, 2)
    assert await office.alarms() == []
    # The silence stays on record.
    assert [a["answers"]["0"]["kind"] for a in await office.attempts(key)] == ["unanswered", "accepted"]


async def test_a_line_that_is_lost_before_the_dot_costs_an_attempt_and_no_copy(office: Office) -> None:
    office.relay.script.add(smtp_misbehaviour.cut("data", times=2))
    async with office.worker():
        key = await office.enqueue()
        found = await office.until_stage(key, "sent")
    assert (found["attempts"], office.relay.mailbox.copies()) == (3, 1)


async def test_a_request_without_a_key_is_never_repeated(office: Office) -> None:
    office.gateway.script.add(http_misbehaviour.lose_answer())
    async with office.worker():
        key = await office.enqueue(account="keyless")
        await office.until_stage(key, "unknown")
    assert len(office.gateway.requests) == office.gateway.mailbox.copies() == 1
    assert await office.alarms() == ["unknown"]


async def test_a_request_with_a_key_is_repeated_under_it(office: Office) -> None:
    office.gateway.script.add(http_misbehaviour.lose_answer(times=1))
    async with office.worker():
        key = await office.enqueue(account="gateway")
        await office.until_stage(key, "sent")
    first, second = office.gateway.requests
    assert (first.key, first.body) == (second.key, second.body)
    assert office.gateway.mailbox.copies() == 1


async def test_no_request_goes_out_over_a_connection_that_may_have_died(office: Office) -> None:
    async with office.worker():
        for name in ("first", "second"):
            await office.until_stage(await office.enqueue(name, account="keyless"), "sent")
    assert office.gateway.connections == len(office.gateway.requests) == 2
