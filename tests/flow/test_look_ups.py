"""An unanswered mail whose provider can be asked: found is settled, not found proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sendonce.activities.transports.base import Asked, Capability
from sendonce.outcome import Accepted, AttemptResult, Refused, Reply, Unanswered, same_for_all

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Gate, Job, Question
    from tests.flow.conftest import Flow, Relay

Found = dict[int, Accepted | Refused]


async def lost(job: Job, gate: Gate) -> AttemptResult:
    """The answer never comes."""
    ordinals = tuple(r.ordinal for r in job.recipients)
    await gate.begin(ordinals)
    gate.offered()
    return same_for_all(ordinals, Unanswered())


class Records:
    """What the provider knows, as asked for one after the other; the last answer repeats."""

    def __init__(self, *answers: Found | Asked) -> None:
        self.answers = list(answers)
        self.questions: list[Question] = []

    async def look_up(self, question: Question) -> Found:
        answer = self.answers[min(len(self.questions), len(self.answers) - 1)]
        self.questions.append(question)
        if isinstance(answer, Asked):
            raise answer
        return answer


def asking(relay: type[Relay], records: Records) -> Relay:
    """A transport that offers, loses the answer, and can ask."""
    transport = relay(lost)
    transport.capability = Capability(look_up="metadata")
    transport.look_up = records.look_up  # type: ignore[attr-defined]
    return transport


async def test_a_mail_that_the_provider_has_is_sent(flow: Flow, relay: type[Relay]) -> None:
    records = Records({}, Asked("429"), {0: Accepted(Reply(200), "P-7")})
    transport = asking(relay, records)
    await flow.own_clock()
    async with flow.worker(transport):
        key = await flow.enqueue()
        await flow.until_stage(key, "unknown")
        for asked in (1, 2, 3):
            await flow.advance(700)
            await flow.rows_until("SELECT 1 FROM sendonce.email WHERE look_ups >= %s OR stage = 'sent'", [asked])
        await flow.until_stage(key, "sent")
        await flow.handle(key).result()
    assert len(transport.jobs) == 1, "asking offers nothing"
    assert [q.key for q in records.questions] == [key] * 3
    assert {q.provider_key for q in records.questions} == {transport.jobs[0].provider_key}
    recipients = await flow.rows("SELECT stage, provider_id FROM sendonce.recipient")
    assert recipients == [{"stage": "accepted", "provider_id": "P-7"}]
    causes = await flow.rows("SELECT cause FROM sendonce.transition WHERE to_stage = 'sent'")
    assert causes == [{"cause": "look_up"}]


@pytest.mark.slow
async def test_a_mail_that_is_not_found_stays_unknown(
    flow: Flow, relay: type[Relay], caplog: pytest.LogCaptureFixture
) -> None:
    records = Records({}, Asked("no answer for ann@example.org"), {5: Accepted(Reply(200), "somebody else's")})
    await flow.own_clock()
    transport = asking(relay, records)
    async with flow.worker(transport):
        key = await flow.enqueue()
        await flow.until_stage(key, "unknown")
        for asked in (1, 2, 3):
            await flow.advance(700)
            await flow.rows_until("SELECT 1 FROM sendonce.email WHERE look_ups >= %s", [asked])

        async def all_asked() -> bool:
            return len(records.questions) >= 3

        await flow.until(all_asked, "three questions")
    assert (await flow.email(key))["stage"] == "unknown"
    assert len(transport.jobs) == 1
    assert "ann@example.org" not in caplog.text


async def test_another_accounts_records_say_nothing(flow: Flow, relay: type[Relay]) -> None:
    first = relay(lost)
    await flow.own_clock()
    async with flow.worker(first):
        key = await flow.enqueue()
        await flow.until_stage(key, "unknown")
    records = Records({0: Accepted(Reply(200), "P-7")})
    other = asking(relay, records)
    other.identity = "relay:another"
    await flow.advance(700)
    async with flow.worker(other):
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE look_ups >= 1")
    assert records.questions == []
    assert (await flow.email(key))["stage"] == "unknown"
