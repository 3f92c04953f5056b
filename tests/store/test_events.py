"""What comes back: joined to its mail, applied once, in any order; who is suppressed is not written to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from sendonce.events import Event, EventKind
from sendonce.outcome import Accepted, Refused, Reply, Unanswered
from sendonce.stages import Stage
from sendonce.store import suppressions
from sendonce.store.events import PARKED_SECONDS, Terms
from sendonce.store.records import Begun, Claimed, Finished, Held, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(200), "P1")
SILENCE = Unanswered()
TO = ["ann@example.org", "Bob@example.org"]


def terms(bench: Bench, *, all_or_nothing: bool = True) -> Terms:
    return Terms({"default": bench.lane}, "hooks", all_or_nothing=all_or_nothing)


async def record(bench: Bench, *found: Event, account: str = "default", proven: bool = True, **more: Any) -> int:
    return await bench.store.record_events(account, found, terms(bench, **more), proven=proven)


def event(kind: EventKind = EventKind.DELIVERED, **more: Any) -> Event:
    return Event(**{"source": "webhook:test", "event_id": "e1", "kind": kind, "provider_id": "P1", **more})


async def deliveries(bench: Bench) -> list[str | None]:
    return [r["delivery"] for r in await bench.rows("SELECT delivery FROM sendonce.recipient ORDER BY ordinal")]


async def listed(bench: Bench) -> list[tuple[str, str]]:
    async with bench.pool.connection() as conn:
        return [(one.mailbox, one.reason) for one in await suppressions.entries(conn)]


async def woken(bench: Bench) -> list[str]:
    return [row.key for row in await bench.store.take_wakes()]


async def test_a_delivery_is_joined_by_the_providers_id(bench: Bench) -> None:
    await bench.enqueue(to=TO)
    await bench.attempt(OK)
    assert await record(bench, event(recipient="ANN@example.org")) == 1
    assert await deliveries(bench) == ["delivered", None]
    row = (await bench.rows("SELECT * FROM sendonce.event"))[0]
    assert (row["email_id"], row["ordinal"], row["proven"]) == (bench.ids["k1"], 0, True)
    assert await bench.rows("SELECT 1 FROM sendonce.evidence") == []
    assert await woken(bench) == []


async def test_the_same_event_twice_is_one(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(OK)
    assert await record(bench, event(), event()) == 1
    assert await record(bench, event()) == 0
    assert len(await bench.rows("SELECT 1 FROM sendonce.event")) == 1


@pytest.mark.parametrize("order", list(permutations([EventKind.DELAYED, EventKind.DELIVERED, EventKind.BOUNCED])))
async def test_the_order_of_arrival_does_not_matter(bench: Bench, order: Sequence[EventKind]) -> None:
    await bench.enqueue()
    await bench.attempt(OK)
    for kind in order:
        await record(bench, event(kind, event_id=str(kind)))
    assert await deliveries(bench) == ["bounced"]
    assert await listed(bench) == [("ann@example.org", "bounced")]


async def test_our_own_id_finds_the_mail_before_any_answer_and_proves_its_acceptance(bench: Bench) -> None:
    await bench.enqueue(to=TO)
    await bench.attempt(SILENCE)
    assert (await bench.email())["stage"] == "unknown"
    await record(bench, event(provider_id="", email_id=str(bench.ids["k1"]), recipient=TO[0]))
    row = await bench.email()
    assert (row["stage"], row["partial"]) == ("sent", False)
    assert await deliveries(bench) == ["delivered", None]
    assert await bench.open_alarms() == []
    assert await woken(bench) == ["k1"]


async def test_a_proof_is_for_the_offer_that_it_is_about(bench: Bench) -> None:
    """Ann was served by the first attempt; the second one, to Bob alone, is silent."""
    await bench.enqueue(to=TO)
    await bench.attempt({0: OK, 1: _later()})
    await bench.advance(40)
    await bench.attempt(SILENCE)
    assert await bench.stages() == ["accepted", "unanswered"]
    for number, recipient in enumerate((TO[0], "", "elsewhere@example.org")):
        await record(bench, event(email_id=str(bench.ids["k1"]), recipient=recipient, event_id=f"e{number}"))
    assert await bench.stages() == ["accepted", "unanswered"]
    await record(bench, event(email_id=str(bench.ids["k1"]), recipient=TO[1], event_id="e9"))
    assert (await bench.email())["stage"] == "sent"


async def test_a_bounce_that_names_its_mail_itself_comes_twice(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(OK)
    bounce = event(EventKind.BOUNCED, email_id=str(bench.ids["k1"]), recipient=TO[0])
    assert await record(bench, bounce, account="") == 1
    assert await record(bench, bounce, account="") == 0
    assert await deliveries(bench) == ["bounced"]


async def test_an_event_that_names_nobody_of_several_blames_nobody(bench: Bench) -> None:
    await bench.enqueue(to=TO)
    await bench.attempt(OK)
    await record(bench, event(EventKind.BOUNCED))
    assert await listed(bench) == []


async def test_many_events_at_once_and_at_the_same_time(bench: Bench) -> None:
    keys = [f"m{number}" for number in range(6)]
    for key in keys:
        await bench.enqueue(key)
        await bench.attempt(OK, key)
    kinds = [EventKind.ACCEPTED, EventKind.DELIVERED, EventKind.COMPLAINED, EventKind.DELAYED]
    batches = [
        [event(kind, email_id=str(bench.ids[key]), event_id=f"{kind} {key}", recipient=TO[0]) for key in order]
        for kind, order in zip(kinds * 2, [keys, keys[::-1]] * 4, strict=True)
    ]
    await asyncio.gather(*(record(bench, *batch) for batch in batches))
    assert await deliveries(bench) == ["complained"] * 6


async def test_events_are_kept_in_portions(bench: Bench) -> None:
    assert await record(bench, *(event(event_id=f"e{number}") for number in range(250))) == 250


async def test_where_answers_differ_by_recipient_a_proof_is_for_one(bench: Bench) -> None:
    await bench.enqueue(to=TO)
    await bench.attempt(SILENCE)
    await record(bench, event(email_id=str(bench.ids["k1"]), recipient=TO[0]), all_or_nothing=False)
    assert await bench.stages() == ["accepted", "unanswered"]
    assert (await bench.email())["stage"] == "unknown"


async def test_the_message_id_that_we_minted_finds_the_mail(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(SILENCE)
    await record(bench, event(provider_id="", message_id=f"<{bench.ids['k1']}@example.com>"), account="")
    assert (await bench.email())["stage"] == "sent"


async def test_another_accounts_events_are_not_ours(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(SILENCE)
    await record(bench, event(email_id=str(bench.ids["k1"])), account="other")
    assert (await bench.email())["stage"] == "unknown"
    assert await deliveries(bench) == [None]


@pytest.mark.parametrize("nonsense", ["", "not-a-uuid", "'; DROP", "x" * 5000, "\x00"])
async def test_an_id_that_is_none_finds_nothing(bench: Bench, nonsense: str) -> None:
    await record(bench, event(email_id=nonsense, provider_id=nonsense, message_id=nonsense, recipient=nonsense))
    assert [r["email_id"] for r in await bench.rows("SELECT email_id FROM sendonce.event")] == [None]


async def test_an_event_that_comes_first_waits_for_the_providers_id(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    assert isinstance(await bench.begin(claimed), Begun)
    await record(bench, event(EventKind.BOUNCED, recipient=TO[0]))
    join = bench.store.join_parked_events
    assert await join({}, terms(bench)) == 0
    await bench.settle(claimed, OK)
    assert await join({}, terms(bench)) == 1
    assert await deliveries(bench) == ["bounced"]
    assert await listed(bench) == [("ann@example.org", "bounced")]
    assert await join({}, terms(bench)) == 0


async def test_an_event_that_nobody_claims_is_forgotten(bench: Bench) -> None:
    await record(bench, event())
    await bench.advance(PARKED_SECONDS - 5)
    await bench.store.join_parked_events({}, terms(bench))
    assert len(await bench.rows("SELECT 1 FROM sendonce.event")) == 1
    await bench.advance(10)
    await bench.store.join_parked_events({}, terms(bench))
    assert await bench.rows("SELECT 1 FROM sendonce.event") == []


async def test_what_anyone_could_have_written_is_kept_and_does_nothing(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(SILENCE)
    await record(bench, event(EventKind.BOUNCED, email_id=str(bench.ids["k1"])), proven=False)
    assert (await bench.email())["stage"] == "unknown"
    assert (await deliveries(bench), await listed(bench)) == ([None], [])
    assert [r["proven"] for r in await bench.rows("SELECT proven FROM sendonce.event")] == [False]


async def test_an_event_revokes_a_claim_that_has_not_begun(bench: Bench) -> None:
    bench.lane = type(bench.lane)("default", bench.lane.retry, unknown="resend", answer_seconds=1)
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed, answer_seconds=1.0)
    await bench.settle(claimed, SILENCE)
    await bench.advance(40)
    again = await bench.claim()
    assert again.mode == "resend"
    await record(bench, event(email_id=str(bench.ids["k1"])))
    assert not isinstance(await bench.begin(again), Begun)
    assert (await bench.email())["stage"] == "sent"


async def test_events_come_late_for_a_mail_that_has_ended(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Refused(Reply(550)))
    await record(bench, event(email_id=str(bench.ids["k1"])))
    assert (await bench.email())["stage"] == "sent"
    assert await bench.open_alarms() == ["late_evidence"]


async def test_business_code_is_notified(bench: Bench, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN sendonce_events")
        await record(bench, event())
        [heard] = listener.notifies(timeout=5, stop_after=1)
        assert heard.payload == ""


# Suppression


async def suppress(bench: Bench, *mailboxes: str, account: str = "default") -> None:
    async with bench.pool.connection() as conn:
        for mailbox in mailboxes:
            assert await suppressions.add(conn, account, mailbox, "manual", source="test", actor="me")
            assert not await suppressions.add(conn, account, mailbox, "bounced", source="test", actor="me")


async def test_a_mail_to_a_suppressed_address_fails_and_says_why(bench: Bench) -> None:
    await suppress(bench, "ANN@example.org")
    await bench.enqueue()
    answer = await bench.ask()
    assert isinstance(answer, Finished)
    assert (answer.stage, answer.enhanced, answer.attempts) == (Stage.FAILED, "suppressed", 0)
    assert await bench.stages() == ["suppressed"]
    causes = [r["cause"] for r in await bench.rows("SELECT cause FROM sendonce.transition ORDER BY id")]
    assert causes == ["enqueued", "suppressed"]


async def test_the_others_get_the_mail(bench: Bench) -> None:
    await suppress(bench, "bob@example.org")
    await bench.enqueue(to=TO)
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert answer.seconds == 0
    claimed = await bench.claim()
    assert [r.mailbox for r in claimed.recipients] == ["ann@example.org"]
    await bench.begin(claimed)
    await bench.settle(claimed, OK)
    row = await bench.email()
    assert (row["stage"], row["partial"]) == ("sent", True)
    assert await bench.stages() == ["accepted", "suppressed"]


async def test_a_list_is_its_accounts(bench: Bench) -> None:
    await suppress(bench, "ann@example.org", account="other")
    await bench.enqueue()
    assert isinstance(await bench.ask(), Claimed)


async def test_who_comes_onto_the_list_between_attempts_is_not_tried_again(bench: Bench) -> None:
    await bench.enqueue(to=TO)
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.settle(claimed, {0: OK, 1: _later()})
    await suppress(bench, TO[1])
    await bench.advance(40)
    assert isinstance(await bench.ask(), Finished)
    assert (await bench.email())["stage"] == "sent"
    assert await bench.stages() == ["accepted", "suppressed"]


async def test_silence_stays_and_the_one_resend_is_forgone(bench: Bench) -> None:
    bench.lane = type(bench.lane)("default", bench.lane.retry, unknown="resend", answer_seconds=1)
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed, answer_seconds=1.0)
    await bench.settle(claimed, SILENCE)
    await suppress(bench, TO[0])
    await bench.advance(40)
    assert isinstance(await bench.ask(), Held)
    assert (await bench.email())["stage"] == "unknown"
    assert isinstance(await bench.ask(), Held)


async def test_a_replay_repeats_what_was_offered_whoever_is_on_the_list_now(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed, key_window=86400.0)
    await bench.settle(claimed, SILENCE)
    await suppress(bench, TO[0])
    await bench.advance(40)
    assert (await bench.claim()).mode == "replay"


async def test_off_the_list_a_failed_mail_can_be_requeued(bench: Bench) -> None:
    await suppress(bench, TO[0])
    await bench.enqueue()
    await bench.ask()
    email_id = bench.ids["k1"]
    await bench.store.requeue(email_id, lane=bench.lane, actor="me")
    assert isinstance(await bench.ask(), Finished), "it is still on the list"
    async with bench.pool.connection() as conn:
        assert await suppressions.remove(conn, "default", "Ann@example.org")
        assert not await suppressions.remove(conn, "default", TO[0])
    await bench.store.requeue(email_id, lane=bench.lane, actor="me")
    assert isinstance(await bench.ask(), Claimed)


def _later() -> Any:
    from sendonce.outcome import Deferred

    return Deferred(Reply(451))
