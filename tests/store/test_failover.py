"""While an account is paused its fallback takes over what it certainly has not accepted, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sendonce.events import Event, EventKind
from sendonce.outcome import Accepted, AccountFault, Deferred, Reply, Unanswered
from sendonce.policy import DEFAULT_LANES
from sendonce.store import Store
from sendonce.store.events import Terms
from sendonce.store.records import Claimed, Held, Paused, Wait
from tests.store.conftest import LANE, Bench

OK = Accepted(Reply(250, "2.0.0", "queued"), "Q1")
DIGESTS = {"default": "settings-1", "second": "settings-2"}


@pytest.fixture
def two(bench: Bench) -> Bench:
    """The bench with a second account that stands in for the default one."""
    bench.store = Store(bench.pool, DIGESTS, {"default": "second"})
    return bench


async def pause(bench: Bench, account: str = "default", **more: Any) -> None:
    await bench.store.account_fault(account, code=401, enhanced="", **more)


async def starts(bench: Bench, ceiling: int = 10) -> int:
    return len(await bench.store.unstarted("default", limit=100, ceiling=ceiling))


async def test_the_own_account_is_preferred(two: Bench) -> None:
    await two.enqueue()
    assert (await two.claim()).account == "default"


async def test_a_paused_account_gives_way(two: Bench) -> None:
    await two.enqueue()
    await pause(two)
    claimed = await two.claim()
    assert (claimed.owner, claimed.account, claimed.mode) == ("default", "second", "send")
    await two.begin(claimed, identity="smtp:two")
    await two.settle(claimed, OK)
    rows = await two.rows("SELECT t.account AS attempt, g.account FROM sendonce.attempt t, sendonce.generation g")
    assert rows == [{"attempt": "second", "account": "second"}]
    assert (await two.email())["stage"] == "sent"


async def test_without_a_fallback_it_waits(bench: Bench) -> None:
    await bench.enqueue()
    await pause(bench)
    answer = await bench.ask()
    assert isinstance(answer, Paused)
    assert not answer.can_divert


async def test_a_mail_that_its_account_refused_as_its_own_fault_goes_by_the_other(two: Bench) -> None:
    await two.enqueue()
    await two.attempt(AccountFault(Reply(401, "", "revoked"), retry_after=900.0))
    await pause(two, retry_after=900.0)
    await two.advance(6)
    claimed = await two.claim()
    assert (claimed.account, claimed.generation, claimed.pins) == ("second", 2, None), "the first one has answered"


async def test_a_deferred_mail_changes_the_account_and_back(two: Bench) -> None:
    await two.enqueue()
    await two.attempt(Deferred(Reply(451, "4.7.1")))
    await pause(two, retry_after=600.0)
    await two.advance(31)
    claimed = await two.claim()
    assert claimed.account == "second"
    await two.begin(claimed, identity="smtp:two")
    await two.settle(claimed, Deferred(Reply(451, "4.7.1")))
    await two.store.account_works("default")
    await two.advance(61)
    assert (await two.claim()).account == "default"


@pytest.mark.parametrize("key_window", [None, 3600.0], ids=["without keys", "with keys"])
async def test_what_is_unanswered_never_changes_the_account(two: Bench, key_window: float | None) -> None:
    await two.enqueue()
    await two.attempt(Unanswered(), key_window=key_window)
    await pause(two)
    await two.advance(14)
    answer = await two.ask()
    assert isinstance(answer, Held if key_window is None else Wait), answer
    if key_window is not None:
        # Its replay is due and the account is paused still.
        await two.run("UPDATE sendonce.email SET next_attempt_at = sendonce.clock()")
        answer = await two.ask()
        assert isinstance(answer, Paused)
        assert (answer.account, answer.can_divert) == ("default", False)


async def test_the_one_resend_of_the_policy_may(two: Bench) -> None:
    two.lane = replace(LANE, unknown="resend", answer_seconds=10.0)
    await two.enqueue()
    claimed = await two.claim()
    await two.begin(claimed, answer_seconds=10.0)
    await two.settle(claimed, Unanswered())
    await two.advance(700)
    await pause(two)
    again = await two.claim()
    assert (again.mode, again.account, again.generation) == ("resend", "second", 2)
    # Given back before it was begun: the silence stays where it was.
    await two.store.release(again.email_id, again.attempt_id, why="test", actor="w1")
    rows = await two.rows("SELECT generation, account FROM sendonce.generation")
    assert rows == [{"generation": 1, "account": "default"}]


async def test_a_replay_goes_by_the_account_of_the_offer(two: Bench) -> None:
    await two.enqueue()
    await pause(two)
    claimed = await two.claim()
    await two.begin(claimed, identity="smtp:two", key_window=86400.0)
    await two.settle(claimed, Unanswered())
    await two.store.account_works("default")
    await two.advance(31)
    again = await two.claim()
    assert (again.mode, again.account) == ("replay", "second"), "the own account works again and knows nothing of it"
    assert again.pins is not None
    assert again.pins.identity == "smtp:two"


async def test_the_probe_comes_first(two: Bench) -> None:
    await two.enqueue("a")
    await two.enqueue("b")
    await pause(two)
    await two.advance(16)
    answer = await two.ask("a")
    assert isinstance(answer, Paused)
    assert (answer.account, answer.probe_due, answer.can_divert) == ("default", True, True)
    assert await two.store.take_probe("default", two.ids["a"])
    assert (await two.claim("b")).account == "second", "the probe is taken: nobody else waits for it"
    assert (await two.claim("a", probe="")).account == "default"


async def test_who_may_not_probe_need_not_wait(two: Bench) -> None:
    await two.enqueue()
    await pause(two)
    await two.advance(16)
    assert isinstance(await two.ask(), Paused)
    assert (await two.claim(divert=True)).account == "second"


async def test_both_paused_wait_for_the_first_probe(two: Bench) -> None:
    await two.enqueue("a")
    await two.enqueue("b")
    await pause(two, retry_after=600.0)
    await pause(two, "second", retry_after=30.0)
    answer = await two.ask("a")
    assert isinstance(answer, Paused)
    assert not answer.probe_due
    assert 25 < answer.seconds <= 30
    assert await starts(two) == 0
    await two.advance(31)
    assert await starts(two) == 1, "the probe of the fallback"
    answer = await two.ask("a")
    assert isinstance(answer, Paused)
    assert (answer.account, answer.probe_due) == ("second", True)
    assert await two.store.take_probe("second", two.ids["a"])
    assert (await two.claim("a", probe="", probe_of="second")).account == "second"
    assert isinstance(await two.ask("b"), Paused)
    assert isinstance(await two.ask("b", divert=True), Paused)


async def test_a_domain_that_one_account_may_not_send_from_goes_by_the_other(two: Bench) -> None:
    await two.enqueue("a")
    await two.enqueue("b", sender="Other <shop@other.example>")
    await pause(two, domain="example.com", email_id=two.ids["b"])
    assert (await two.claim("a")).account == "second"
    assert (await two.claim("b")).account == "default"


async def test_the_fallbacks_own_domain_pause_counts(two: Bench) -> None:
    await two.enqueue()
    await pause(two, retry_after=600.0)
    await pause(two, "second", domain="example.com", email_id=two.ids["k1"], retry_after=60.0)
    answer = await two.ask()
    assert isinstance(answer, Paused)
    assert not answer.probe_due


async def test_starters_start_what_the_fallback_can_take(two: Bench) -> None:
    for n in range(4):
        await two.enqueue(f"k{n}")
    await pause(two)
    assert await starts(two) == 4


async def test_the_overdue_rule_sees_what_the_fallback_can_take(two: Bench) -> None:
    await two.enqueue()
    assert await starts(two) == 1
    await pause(two)
    await two.advance(61)
    found = await two.store.overdue("default", limit=10)
    assert [row.key for row in found] == ["k1"]


async def test_look_ups_ask_the_account_of_the_offer(two: Bench) -> None:
    await two.enqueue()
    await pause(two)
    claimed = await two.claim()
    await two.begin(claimed, identity="smtp:two")
    await two.settle(claimed, Unanswered())
    await two.advance(3600)
    assert await two.store.due_look_ups("default", ["default", "third"], 10) == []
    # Whether or not it is the fallback still.
    two.store = Store(two.pool, DIGESTS)
    (question,) = await two.store.due_look_ups("default", ["second"], 10)
    assert (question.account, question.via, question.identity) == ("default", "second", "smtp:two")


async def test_events_of_the_account_of_the_offer_are_joined(two: Bench) -> None:
    email_id = await two.enqueue()
    await two.enqueue("other")
    await pause(two)
    claimed = await two.claim()
    await two.begin(claimed, identity="smtp:two")
    await two.settle(claimed, Unanswered())
    terms = Terms(DEFAULT_LANES, "test")
    strange = Event(
        source="resend", event_id="1", kind=EventKind.DELIVERED, email_id=str(two.ids["other"]), recipient=""
    )
    own = Event(source="resend", event_id="2", kind=EventKind.DELIVERED, email_id=str(email_id), recipient="")
    await two.store.record_events("second", [strange, own], terms)
    rows = await two.rows("SELECT event_id, email_id FROM sendonce.event ORDER BY event_id")
    assert [row["email_id"] for row in rows] == [None, email_id], "the other mail never went by that account"
    assert (await two.email())["stage"] == "sent"


@pytest.mark.parametrize("account", ["default", "second"])
@pytest.mark.parametrize("first", ["answer", "event"])
async def test_a_providers_id_is_one_of_the_account_that_gave_it(two: Bench, account: str, first: str) -> None:
    """The account that the mail did not go by may have given the same id to a mail of its own."""
    await two.enqueue()
    await pause(two)
    claimed = await two.claim()
    await two.begin(claimed, identity="smtp:two")
    terms = Terms(DEFAULT_LANES, "test")
    bounce = Event(source="resend", event_id="1", kind=EventKind.BOUNCED, provider_id="17")
    if first == "answer":
        await two.settle(claimed, Accepted(Reply(200), "17"))
    await two.store.record_events(account, [bounce], terms)
    if first == "event":
        await two.settle(claimed, Accepted(Reply(200), "17"))
        await two.store.join_parked_events({}, terms)
    its = account == "second"
    assert await two.rows("SELECT delivery FROM sendonce.recipient") == [{"delivery": "bounced" if its else None}]
    assert len(await two.rows("SELECT FROM sendonce.suppression")) == its


async def test_an_event_of_one_account_proves_nothing_about_another_offer(two: Bench) -> None:
    two.lane = replace(LANE, unknown="resend", answer_seconds=10.0)
    email_id = await two.enqueue(to=["ann@example.org", "bob@example.org"])
    claimed = await two.claim()
    await two.begin(claimed, answer_seconds=10.0, offered=[0, 1])
    await two.settle(claimed, Unanswered())
    await two.advance(700)
    await pause(two)
    again = await two.claim()
    await two.begin(again, identity="smtp:two", offered=[0])
    terms = Terms(DEFAULT_LANES, "test", all_or_nothing=True)
    event = Event(
        source="resend", event_id="1", kind=EventKind.DELIVERED, email_id=str(email_id), recipient="ann@example.org"
    )
    await two.store.record_events("second", [event], terms)
    assert await two.stages() == ["accepted", "unanswered"], "bob was offered by the other account only"


async def test_a_culprit_is_found_by_the_account_it_met(two: Bench) -> None:
    await two.enqueue("a")
    await two.attempt(AccountFault(Reply(550, "5.7.1"), scope="sender"), key="a")
    await pause(two, "second", domain="example.com")
    await two.store.account_works("second", domain="example.com")
    assert not await two.store.is_culprit("second", two.ids["a"], domain="example.com")


async def test_claimed_says_whose_mail_it_is(two: Bench) -> None:
    await two.enqueue("a", account="second")
    claimed = await two.ask("a")
    assert isinstance(claimed, Claimed)
    assert (claimed.owner, claimed.account) == ("second", "second")
