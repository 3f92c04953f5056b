"""A worker with two accounts: while the first is paused, the second sends what the first certainly has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sendonce.activities.transports.base import Capability, Gate, Job
from sendonce.errors import InvalidEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Refused, Reply, Unanswered, same_for_all
from sendonce.workflows.port import Wake
from tests.flow.conftest import ACCEPTED, answer, offer

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Mail, Question, Recipient, Rendering
    from tests.flow.conftest import Flow, Relay

REVOKED = answer(AccountFault(Reply(401, "", "key revoked"), retry_after=600.0))


def accounts(first: Relay, second: Relay) -> dict[str, Any]:
    second.identity = "relay:two"
    second.settings_digest = "settings-2"
    return {"transports": {"default": first, "second": second}, "fallbacks": {"default": "second"}}


async def test_a_fault_of_the_account_sends_its_mail_by_the_other(flow: Flow, relay: type[Relay]) -> None:
    first, second = relay(REVOKED), relay()
    await flow.own_clock()
    async with flow.worker(first, **accounts(first, second)):
        key = await flow.enqueue("met-the-fault")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        later = await flow.enqueue("later")
        await flow.until_stage(later, "sent")
        await flow.advance(10)
        await flow.handle(key).signal("wake", Wake())
        await flow.until_stage(key, "sent")
    assert (len(first.jobs), len(second.jobs)) == (1, 2)
    assert await flow.rows("SELECT account FROM sendonce.attempt ORDER BY claimed_at") == [
        {"account": "default"},
        {"account": "second"},
        {"account": "second"},
    ]
    assert {job.provider_key for job in first.jobs}.isdisjoint(job.provider_key for job in second.jobs)


async def test_silence_then_a_fault_then_no_failover(flow: Flow, relay: type[Relay]) -> None:
    """Timeout, then 401: the other account never sees the mail."""

    async def silent(job: Job, gate: Gate) -> AttemptResult:
        await offer(job, gate)
        return same_for_all(tuple(r.ordinal for r in job.recipients), Unanswered())

    first, second = relay(silent, REVOKED, key_window=86400.0), relay()
    async with flow.worker(first, **accounts(first, second)):
        key = await flow.enqueue("silent")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        other = await flow.enqueue("other")
        await flow.until_stage(other, "sent")
        await flow.handle(key).signal("wake", Wake())
        await flow.until_event(key, "workflow_execution_signaled")
        assert (await flow.email(key))["stage"] == "unknown"
    assert len(first.jobs) == 2
    assert len({job.provider_key for job in first.jobs}) == 1
    assert len(second.jobs) == 1


async def test_what_the_fallback_cannot_carry_waits(flow: Flow, relay: type[Relay]) -> None:
    class Picky(relay):  # type: ignore[misc,valid-type]
        def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
            raise InvalidEmail("attachments", "not here")

    first, second = relay(REVOKED, answer(ACCEPTED)), Picky()
    await flow.own_clock()
    async with flow.worker(first, **accounts(first, second)):
        await flow.enqueue("met-the-fault")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        key = await flow.enqueue("later")
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'fallback_cannot'")
        assert (await flow.email(key))["stage"] == "pending"
        await flow.advance(700)
        await flow.handle(key).signal("wake", Wake())
        await flow.until_stage(key, "sent")
    assert len(first.jobs) == 2


async def test_what_went_by_a_former_fallback_is_asked_about(flow: Flow, relay: type[Relay]) -> None:
    """The mail's own account cannot be asked, and the settings name no fallback any more."""

    async def look_up(question: Question) -> dict[int, Accepted | Refused]:
        return {recipient.ordinal: ACCEPTED for recipient in question.recipients}

    first, second = relay(REVOKED), relay(answer(Unanswered()))
    await flow.own_clock()
    async with flow.worker(first, **accounts(first, second)):
        await flow.enqueue("met-the-fault")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        key = await flow.enqueue("silent")
        await flow.until_stage(key, "unknown")
    second.capability = Capability(look_up="reference")
    second.look_up = look_up  # type: ignore[attr-defined]
    await flow.advance(60)
    async with flow.worker(first, **accounts(first, second) | {"fallbacks": {}}):
        await flow.until_stage(key, "sent")
    assert len(second.jobs) == 1


async def test_the_probe_goes_by_the_paused_account_and_ends_its_pause(flow: Flow, relay: type[Relay]) -> None:
    leased: list[dict[str, Any]] = []

    async def probing(job: Job, gate: Gate) -> AttemptResult:
        leased.extend(
            await flow.rows("SELECT probe_until > sendonce.clock() + interval '660 s' AS covers FROM sendonce.account")
        )
        return await answer(ACCEPTED)(job, gate)

    first, second = relay(REVOKED, probing, answer(ACCEPTED)), relay()
    await flow.own_clock()
    async with flow.worker(first, **accounts(first, second)):
        await flow.enqueue("met-the-fault")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        await flow.advance(700)
        probe = await flow.enqueue("probe")
        await flow.until_stage(probe, "sent")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NULL")
        after = await flow.enqueue("after")
        await flow.until_stage(after, "sent")
    rows = await flow.rows(
        "SELECT a.account FROM sendonce.attempt a JOIN sendonce.email e ON e.id = a.email_id WHERE e.key = %s", [after]
    )
    assert rows == [{"account": "default"}]
    assert leased == [{"covers": True}], "the answer timer of 10 minutes, and more"
