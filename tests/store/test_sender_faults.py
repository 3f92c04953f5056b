"""A relay that refuses a sender: its From domain pauses, other mail goes on, and a mail that is the cause fails."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from sendonce.outcome import Accepted, AccountFault, Deferred, Reply
from sendonce.stages import Stage
from sendonce.store.records import Claimed, Paused, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250, "2.0.0", "queued"), "Q1")
NOT_ALLOWED = AccountFault(Reply(550, "5.7.1"), scope="sender")


async def pause(bench: Bench, key: str) -> None:
    """The mail meets the fault, and its domain pauses."""
    claimed = await bench.claim(key)
    await bench.settle(claimed, NOT_ALLOWED)
    await bench.store.account_fault(
        "default", code=550, enhanced="5.7.1", domain=claimed.from_domain, email_id=claimed.email_id
    )


async def test_only_mail_from_the_same_domain_is_paused(bench: Bench) -> None:
    await bench.enqueue("a", sender="shop@Bucher.example")
    await bench.enqueue("b", sender="other@bucher.example")
    await bench.enqueue("c", sender="shop@elsewhere.example")
    await pause(bench, "a")
    assert (await bench.email("a"))["attempts"] == 0
    assert await bench.open_alarms() == ["account_paused"]
    answer = await bench.ask("b")
    assert isinstance(answer, Paused)
    assert (answer.domain, answer.probe_due) == ("bucher.example", False)
    assert isinstance(await bench.ask("c"), Claimed)


async def test_the_starter_leaves_a_paused_domain_alone_and_starts_the_rest(bench: Bench) -> None:
    await bench.enqueue("a", sender="shop@paused.example")
    await pause(bench, "a")
    await bench.enqueue("b", sender="shop@paused.example")
    await bench.enqueue("c", sender="shop@elsewhere.example")
    started = await bench.store.unstarted("default", limit=10, ceiling=10)
    assert [row.key for row in started] == ["c"]
    await bench.advance(100)
    assert await bench.store.overdue("default", limit=10) != []
    started = await bench.store.unstarted("default", limit=10, ceiling=10)
    assert [row.key for row in started] == ["b"]


async def test_the_mail_that_met_the_fault_lets_others_probe_first(bench: Bench) -> None:
    await bench.enqueue("a")
    await bench.enqueue("b")
    await pause(bench, "a")
    await bench.advance(20)
    domain = "example.com"
    assert not await bench.store.take_probe("default", bench.ids["a"], domain=domain)
    assert await bench.store.take_probe("default", bench.ids["b"], domain=domain)
    await bench.store.give_probe_back("default", bench.ids["b"], domain=domain)
    answer = await bench.ask("a")
    assert isinstance(answer, Paused)
    assert not answer.probe_due, "it would be refused the probe, and ask again and again"
    assert 30 < answer.seconds <= 32
    answer = await bench.ask("b")
    assert isinstance(answer, Paused)
    assert answer.seconds <= 2
    await bench.advance(46)
    assert await bench.store.take_probe("default", bench.ids["a"], domain=domain), "with nobody else it probes itself"


async def test_a_mail_is_the_cause_once_others_have_passed_since_its_fault(bench: Bench) -> None:
    await bench.enqueue("a")
    await bench.enqueue("b")
    await pause(bench, "a")
    domain = "example.com"
    assert not await bench.store.is_culprit("default", bench.ids["a"], domain=domain)
    await bench.advance(20)
    assert await bench.store.take_probe("default", bench.ids["b"], domain=domain)
    probe = await bench.claim("b", probe=domain)
    await bench.begin(probe)
    await bench.settle(probe, OK)
    assert await bench.store.account_works("default", domain=domain)
    assert await bench.open_alarms() == []
    assert await bench.store.is_culprit("default", bench.ids["a"], domain=domain)
    assert not await bench.store.is_culprit("default", bench.ids["b"], domain=domain)
    assert not await bench.store.is_culprit("default", uuid4(), domain=domain)


async def test_an_account_wide_fault_never_makes_a_mail_the_cause(bench: Bench) -> None:
    await bench.enqueue("a")
    await bench.settle(await bench.claim("a"), AccountFault(Reply(535, "5.7.8")))
    await bench.store.account_fault("default", code=535, enhanced="5.7.8", email_id=bench.ids["a"])
    await bench.advance(20)
    assert await bench.store.take_probe("default", bench.ids["a"]), "it need not yield"
    await bench.store.account_works("default")
    assert not await bench.store.is_culprit("default", bench.ids["a"], domain="example.com")


async def test_the_accounts_own_probe_passes_a_paused_domain_too(bench: Bench) -> None:
    await bench.enqueue("a")
    await pause(bench, "a")
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    await bench.advance(120)
    answer = await bench.ask("a")
    assert isinstance(answer, Paused)
    assert (answer.domain, answer.probe_due) == ("", True)
    assert await bench.store.take_probe("default", bench.ids["a"])
    assert isinstance(await bench.ask("a", probe=""), Claimed)


async def test_a_paused_domain_stops_the_age_clock_of_its_own_mail_only(bench: Bench) -> None:
    await bench.enqueue("a", retry={"delays": [1], "max_age": 100})
    await bench.enqueue("c", sender="shop@elsewhere.example", retry={"delays": [1], "max_age": 100})
    later = Deferred(Reply(451, "4.7.1"))
    for key in ("a", "c"):
        assert isinstance(await bench.attempt(later, key), Wait)
    await bench.store.account_fault("default", code=550, enhanced="5.7.1", domain="example.com")
    await bench.advance(200)
    assert await bench.store.take_probe("default", uuid4(), domain="example.com")
    await bench.store.account_works("default", domain="example.com")
    assert isinstance(await bench.attempt(later, "a"), Wait)
    await bench.attempt(later, "c")
    assert (await bench.email("c"))["stage"] == Stage.DEAD
