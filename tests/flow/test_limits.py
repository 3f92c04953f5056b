"""What keeps mails, accounts and environments apart: places, pauses, redirects, a mail that takes processes down."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from sendonce.activities.failures import client_options
from sendonce.activities.inflight import Flight, Flights
from sendonce.activities.poke import SignalPoker
from sendonce.activities.transports.base import Gate, Job, Mail, Rendering
from sendonce.errors import InvalidEmail
from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    Deferred,
    NotOffered,
    Outcome,
    Refused,
    Reply,
    same_for_all,
)
from sendonce.policy import DEFAULT_LANES, LanePolicy
from sendonce.starter import start_delivery
from sendonce.store import Store
from sendonce.store.pool import STEADY
from sendonce.templates import Templates
from sendonce.workflows.port import AttemptAnswer, Sleep, Ticket, Wake
from tests.flow.conftest import until

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay, Step

ACCEPTED = Accepted(Reply(250, "2.0.0"), "Q1")


def answer(outcome: Outcome, *, offer: bool = True) -> Step:
    async def step(job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        if offer:
            await gate.begin(ordinals)
            gate.offered()
        return same_for_all(ordinals, outcome)

    return step


class Stall:
    """Answers nobody until the test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        await self.go.wait()
        return same_for_all(ordinals, ACCEPTED)


async def test_a_stalled_account_keeps_its_places_and_nobody_elses(flow: Flow, relay: type[Relay]) -> None:
    stall = Stall()
    quick, stuck = relay(), relay(stall)
    lanes = {"default": LanePolicy("default", places=2)}
    async with flow.worker(quick, stuck, lanes=lanes, hand_off_seconds=0.2):
        slow = [await flow.enqueue(f"slow{n}", account="other") for n in range(5)]
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE stage = 'transmitting' OFFSET 1")
        fast = [await flow.enqueue(f"fast{n}") for n in range(5)]
        for key in fast:
            await flow.until_stage(key, "sent", seconds=10)
        assert stuck.at_once == 2
        stall.go.set()
        for key in slow:
            await flow.until_stage(key, "sent")
    assert stuck.most_at_once == 2


async def test_a_mail_that_finds_no_place_is_not_claimed_and_asks_again(flow: Flow, relay: type[Relay]) -> None:
    stall = Stall()
    lanes = {"default": LanePolicy("default", places=1)}
    async with flow.worker(relay(stall), lanes=lanes, hand_off_seconds=0.2, with_starter=False):
        keys = [await flow.enqueue(f"{n}") for n in range(2)]
        for key in keys:
            await start_delivery(flow.client, Ticket(str(flow.ids[key]), key, "default"), prefix=flow.prefix)
            await flow.until_event(key, "timer_started")
        waiting = await flow.email(keys[1])
        assert (waiting["stage"], waiting["claims"]) == ("pending", 0)
        assert waiting["seen_at"] is not None
        stall.go.set()
        await flow.until_stage(keys[0], "sent")
        await flow.handle(keys[1]).signal("wake", Wake())
        await flow.until_stage(keys[1], "sent")


async def test_an_account_at_fault_pauses_until_its_probe_works(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(answer(AccountFault(Reply(535, "5.7.8", "bad credentials")), offer=False), answer(ACCEPTED))
    await flow.own_clock()
    async with flow.worker(transport):
        first = await flow.enqueue("first")
        paused = await flow.rows_until("SELECT pause_why FROM sendonce.account WHERE paused_at IS NOT NULL")
        assert paused == [{"pause_why": "535 5.7.8"}]
        second = await flow.enqueue("second")
        # Past the pause of the uncounted attempt, before the probe: the workflow asks, and is told to wait.
        await flow.advance(10)
        await flow.until_event(first, "timer_started")
        await flow.handle(first).signal("wake", Wake())
        assert (await flow.email(second))["started_at"] is None
        await flow.advance(10)
        await flow.handle(first).signal("wake", Wake())
        assert (await flow.until_stage(first, "sent"))["attempts"] == 1
        await flow.until_stage(second, "sent")
    assert len(transport.jobs) == 3
    assert "account_paused" in await flow.alarms()
    assert await flow.rows("SELECT 1 AS ended FROM sendonce.alarm WHERE closes IS NOT NULL") == [{"ended": 1}]


async def broken(job: Job, gate: Gate) -> AttemptResult:
    raise KeyError("host")


AWAY, FAULT = "57P01", "XX000"
JUDGED = "UPDATE ON sendonce.account FOR EACH ROW WHEN (OLD.probe_email IS NOT NULL AND NEW.probe_email IS NULL)"


@pytest.mark.parametrize(
    ("step", "at", "error"),
    [
        (answer(ACCEPTED), "INSERT ON sendonce.attempt FOR EACH ROW", AWAY),
        (answer(ACCEPTED), "UPDATE ON sendonce.attempt FOR EACH ROW WHEN (NEW.answers <> '{}')", FAULT),
        (answer(ACCEPTED), JUDGED, AWAY),
        (broken, JUDGED, AWAY),
    ],
    ids=["claim", "outcome", "judgement", "giving back"],
)
async def test_a_probe_that_came_to_nothing_gives_way_to_another(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch, step: Step, at: str, error: str
) -> None:
    """Whatever the store does not take, once."""
    monkeypatch.setattr("sendonce.activities.attempt.SETTLE_TRIES", 1)
    monkeypatch.setattr("sendonce.activities.account_watch.GIVE_BACK_PAUSES", (0.2,))
    at_fault = answer(AccountFault(Reply(535, "5.7.8", "bad credentials")), offer=False)
    transport = relay(at_fault, step, answer(ACCEPTED))
    await flow.own_clock()
    async with flow.worker(transport):
        probe = await flow.enqueue("probe")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
        # A sequence counts what was rolled back, too.
        await flow.rows("CREATE SEQUENCE public.hiccups")
        await flow.rows(
            "CREATE FUNCTION public.hiccup() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF nextval('public.hiccups') = 1 THEN RAISE 'hiccup' USING ERRCODE = '{error}'; END IF;"
            " RETURN NEW; END $$"
        )
        await flow.rows(f"CREATE TRIGGER hiccup BEFORE {at} EXECUTE FUNCTION public.hiccup()")
        await flow.advance(20)
        await flow.handle(probe).signal("wake", Wake())
        await flow.rows_until(
            "SELECT 1 FROM sendonce.account WHERE probe_email IS NULL AND probe_until IS NULL"
            " AND probe_at > sendonce.clock()"
        )
        assert await flow.rows("SELECT last_value FROM public.hiccups WHERE is_called") != []
        await flow.advance(20)
        other = await flow.enqueue("other")
        await flow.until_stage(other, "sent")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NULL")


async def test_an_outage_pauses_the_account_after_several_mails(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(answer(NotOffered(Reply(0, "connect")), offer=False))
    async with flow.worker(transport, breaker_mails=3):
        keys = [await flow.enqueue(f"{n}", retry={"delays": [600]}) for n in range(3)]
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE pause_why = 'outage'")
    assert [len(await flow.attempts(key)) for key in keys] == [1, 1, 1]


async def test_one_mail_alone_does_not_pause_its_account(flow: Flow, relay: type[Relay]) -> None:
    down = answer(NotOffered(Reply(0, "connect")), offer=False)
    async with flow.worker(relay(down, down, down, down, answer(ACCEPTED)), breaker_mails=3):
        key = await flow.enqueue()
        assert (await flow.until_stage(key, "sent"))["attempts"] == 5
    assert await flow.rows("SELECT * FROM sendonce.account") == []


async def test_an_unknown_account_alarms_and_waits(flow: Flow, relay: type[Relay]) -> None:
    async with flow.worker(relay()):
        key = await flow.enqueue(account="elsewhere")
        found = await flow.rows_until("SELECT name, pause_why FROM sendonce.account")
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'not_configured'")
    assert found == [{"name": "elsewhere", "pause_why": "not_configured"}]
    assert (await flow.email(key))["attempts"] == 0


async def test_a_worker_that_lacks_the_account_does_not_keep_its_mail_from_others(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.activities.transmission.NOT_CONFIGURED_DELAY", 0.5)
    monkeypatch.setattr("sendonce.activities.attempt.ELSEWHERE_SLEEP", (0.5, 1.0))
    # Two workers of one queue cannot share a client.
    other, another = relay(), await Client.connect(flow.target, **client_options())
    async with flow.worker(relay()):
        keys = [await flow.enqueue(f"{n}", account="other") for n in range(4)]
        for key in keys:
            await flow.rows_until("SELECT 1 FROM sendonce.email WHERE key = %s AND seen_at IS NOT NULL", [key])
        async with flow.worker(relay(), other, with_starter=False, client=another):
            for key in keys:
                await flow.until_stage(key, "sent")
    assert len(other.jobs) == 4


async def test_a_worker_with_an_old_folder_of_templates_does_not_keep_mail_from_others(
    flow: Flow, relay: type[Relay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.activities.transmission.TEMPLATE_BASE", 0.5)
    monkeypatch.setattr("sendonce.activities.transmission.TEMPLATE_CAP", 1.0)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "new" / "welcome").mkdir()
    (tmp_path / "new" / "welcome" / "subject.txt").write_text("Welcome")
    (tmp_path / "new" / "welcome" / "body.txt").write_text("Hello")
    transport, another = relay(), await Client.connect(flow.target, **client_options())
    async with flow.worker(relay(), templates=Templates(tmp_path / "old")):
        keys = [await flow.enqueue(f"{n}", text=None, subject="", template="welcome") for n in range(4)]
        for key in keys:
            await flow.rows_until("SELECT 1 FROM sendonce.email WHERE key = %s AND claims > 0", [key])
        async with flow.worker(transport, templates=Templates(tmp_path / "new"), client=another):
            for key in keys:
                await flow.until_stage(key, "sent")
    assert len(transport.jobs) == 4


async def test_a_mail_with_a_template_waits_with_an_alarm(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport):
        key = await flow.enqueue(text=None, subject="", template="order_confirmation", parameters={"order": 4711})
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'template'")
        row = await flow.until_stage(key, "pending")
    assert (row["attempts"], transport.jobs) == (0, [])
    assert await flow.alarms() == ["held"]


async def test_a_redirect_reaches_nobody_else(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport, redirect_all_to="qa@test.example", allowed_domains=("staff.example",)):
        key = await flow.enqueue(to=["ann@example.org", "bob@staff.example"], bcc=["eve@example.net"])
        await flow.until_stage(key, "sent")
    assert [[r.mailbox for r in job.recipients] for job in transport.jobs] == [["qa@test.example", "bob@staff.example"]]
    stages = await flow.rows("SELECT stage FROM sendonce.recipient ORDER BY ordinal")
    assert [r["stage"] for r in stages] == ["accepted"] * 3


async def test_a_redirected_request_names_nobody_else(flow: Flow, relay: type[Relay]) -> None:
    class Gateway(relay):  # type: ignore[misc,valid-type]
        def slot(self, generation: int) -> str:
            return f"request:{generation}"

        def render(self, mail: Mail, *_: object) -> Rendering:
            return Rendering(" ".join(address.email for address in mail.content.to).encode())

    transport = Gateway()
    async with flow.worker(transport, redirect_all_to="qa@test.example"):
        key = await flow.enqueue()
        await flow.until_stage(key, "sent")
    assert [job.rendering.body for job in transport.jobs] == [b"qa@test.example"]


async def test_a_request_pinned_before_the_redirect_is_not_sent(flow: Flow, relay: type[Relay]) -> None:
    class Gateway(relay):  # type: ignore[misc,valid-type]
        def slot(self, generation: int) -> str:
            return f"request:{generation}"

        def render(self, mail: Mail, *_: object) -> Rendering:
            return Rendering(" ".join(address.email for address in mail.content.to).encode())

    first = Gateway(answer(NotOffered(Reply(0, "connect")), offer=False))
    await flow.own_clock()
    async with flow.worker(first):
        key = await flow.enqueue(retry={"delays": [600]})
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE attempts = 1")
    second = Gateway()
    await flow.advance(700)
    async with flow.worker(second, redirect_all_to="qa@test.example"):
        await flow.handle(key).signal("wake", Wake())
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'pinned_unguarded'")
    assert (len(first.jobs), second.jobs) == (1, [])
    assert (await flow.email(key))["stage"] == "pending"


@pytest.mark.parametrize(
    "error", [psycopg.errors.LockNotAvailable(), asyncio.CancelledError()], ids=["locked", "stopped"]
)
async def test_an_answer_in_hand_is_worth_more_than_the_pin(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Nothing was offered, so the rendering is kept for the next attempt, if that can be."""

    async def pin(*_: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(Store, "pin", pin)
    async with flow.worker(relay(answer(Refused(Reply(550, "5.1.1")), offer=False))):
        key = await flow.enqueue()
        assert (await flow.until_stage(key, "failed"))["last_code"] == 550


async def test_a_begin_that_the_server_refuses_was_not_begun(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(*_: object, **options: object) -> None:
        raise psycopg.errors.InsufficientPrivilege

    monkeypatch.setattr(Store, "begin", begin)
    async with flow.worker(relay(answer(Accepted(Reply(250))))):
        await flow.enqueue()
        found = await flow.rows_until(
            "SELECT ended_why, begun_at, counted FROM sendonce.attempt WHERE ended_at IS NOT NULL"
        )
    assert found == [{"ended_why": "fault", "begun_at": None, "counted": False}]


async def test_without_a_redirect_strangers_are_refused_unoffered(flow: Flow, relay: type[Relay]) -> None:
    transport = relay()
    async with flow.worker(transport, allowed_domains=("staff.example",)):
        mixed = await flow.enqueue("mixed", to=["ann@example.org", "bob@staff.example"])
        strangers = await flow.enqueue("strangers")
        assert (await flow.until_stage(mixed, "sent"))["partial"]
        assert (await flow.until_stage(strangers, "failed"))["last_enhanced"] == "not_allowed"
    assert [[r.mailbox for r in job.recipients] for job in transport.jobs] == [["bob@staff.example"]]


async def test_what_can_never_be_rendered_fails_by_its_field(flow: Flow, relay: type[Relay]) -> None:
    class Picky(relay):  # type: ignore[misc,valid-type]
        def render(self, *_: object) -> Rendering:
            raise InvalidEmail("attachments", "this provider takes none")

    async with flow.worker(Picky()):
        key = await flow.enqueue()
        assert (await flow.until_stage(key, "failed"))["last_enhanced"] == "invalid:attachments"


async def test_a_fault_in_rendering_costs_no_attempt(flow: Flow, relay: type[Relay]) -> None:
    class Broken(relay):  # type: ignore[misc,valid-type]
        def render(self, *_: object) -> Rendering:
            raise KeyError("name")

    async with flow.worker(Broken()):
        key = await flow.enqueue()
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'fault' AND NOT counted")
        found = await flow.until_stage(key, "pending")
    assert found["attempts"] == 0
    waits = await flow.rows(
        "SELECT next_attempt_at > sendonce.clock() + interval '5 seconds' AS later FROM sendonce.email"
    )
    assert waits == [{"later": True}]


async def test_what_was_pinned_is_sent_or_nothing(flow: Flow, relay: type[Relay]) -> None:
    transport = relay(answer(NotOffered(Reply(421, "4.3.2"))), answer(ACCEPTED))
    await flow.own_clock()
    async with flow.worker(transport):
        key = await flow.enqueue(retry={"delays": [600]})
        await flow.rows_until("SELECT 1 FROM sendonce.email WHERE attempts = 1")
        await flow.rows("UPDATE sendonce.pinned SET body = body || 'x'::bytea")
        await flow.advance(700)
        await flow.handle(key).signal("wake", Wake())
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'pin_corrupt' AND NOT counted")
    assert len(transport.jobs) == 1
    assert (await flow.email(key))["stage"] == "pending"


async def test_a_process_that_was_stopped_after_begin_offers_nothing(flow: Flow, relay: type[Relay]) -> None:
    async def stopped(job: Job, gate: Gate) -> AttemptResult:
        await gate.begin(tuple(r.ordinal for r in job.recipients))
        # The whole process stands still, longer than its lease allows; others may have called the mail silent.
        time.sleep(1.6)  # noqa: ASYNC251
        gate.offered()
        raise AssertionError("the gate let a late offer pass")

    transport = relay(stopped, answer(ACCEPTED))
    await flow.own_clock()
    async with flow.worker(transport, lease_seconds=2.0, renew_seconds=0.5):
        key = await flow.enqueue()
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_at IS NOT NULL")
        await flow.advance(10)
        await flow.handle(key).signal("wake", Wake())
        assert (await flow.until_stage(key, "sent"))["attempts"] == 1
    assert [a["answers"]["0"]["kind"] for a in await flow.attempts(key)] == ["not_offered", "accepted"]


async def test_a_mail_that_took_down_two_processes_is_tried_alone(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.activities.attempt.QUIET_SECONDS", 0.5)
    stall = Stall()
    quick, stuck = relay(), relay(stall)
    suspect = await flow.enqueue("suspect", send_after="2001-01-01T00:00:00+00:00")
    await flow.rows(
        "UPDATE sendonce.email SET lapses = 2, claimed_at = sendonce.clock(), started_at = sendonce.clock()"
    )
    async with flow.worker(quick, stuck, hand_off_seconds=0.2):
        other = await flow.enqueue("other", account="other")
        await flow.until_stage(other, "transmitting")
        ticket = Ticket(str(flow.ids[suspect]), suspect, "default")
        await start_delivery(flow.client, ticket, prefix=flow.prefix)

        async def asked_twice() -> bool:
            return (await flow.events(suspect)).count("timer_started") > 1

        await flow.until(asked_twice, "two answers to the suspect")
        assert await flow.attempts(suspect) == []
        stall.go.set()
        await flow.until_stage(other, "sent")
        await flow.until_stage(suspect, "sent")


async def test_alarms_are_logged_with_ids_and_codes(
    flow: Flow, relay: type[Relay], caplog: pytest.LogCaptureFixture
) -> None:
    transport = relay(answer(AccountFault(Reply(535, "5.7.8", "bad credentials of ann")), offer=False))
    async with flow.worker(transport):
        await flow.enqueue()
        await flow.rows_until("SELECT 1 FROM sendonce.alarm_notice WHERE told > 0")
    alarms = [r.getMessage() for r in caplog.records if r.name == "sendonce.alarms"]
    assert len(alarms) == 1
    assert "kind=account_paused account=default" in alarms[0]
    assert "detail=535 5.7.8" in alarms[0]


async def test_what_has_begun_in_another_lane_takes_none_of_a_lanes_room() -> None:
    flights = Flights(SignalPoker())
    release = asyncio.Event()

    async def waits() -> AttemptAnswer:
        await release.wait()
        return Sleep(1.0, "test")

    for n, lane in enumerate(("default", "default", "bulk")):
        ticket = Ticket(str(uuid4()), f"k{n}", lane)
        flights.start(Flight(ticket, DEFAULT_LANES[lane], 20.0), waits())
    assert [flights.young(lane) for lane in ("default", "bulk", "critical")] == [2, 1, 0]
    release.set()
    await flights.drain(5.0)
    assert flights.young("default") == 0


async def test_a_long_transaction_that_calls_mails_off_stops_no_other_mail(flow: Flow, relay: type[Relay]) -> None:
    """It holds more rows locked than the process has connections; whoever claims them does not wait with one."""
    transport = relay()
    keys = [await flow.enqueue(f"{n}") for n in range(6)]
    async with await psycopg.AsyncConnection.connect(flow.database_url) as business:
        for key in keys:
            await business.execute("SELECT FROM sendonce.cancel(%s)", [key])
        async with flow.worker(transport, pool_size=4):
            for key in keys:
                await start_delivery(flow.client, Ticket(str(flow.ids[key]), key, "default"), prefix=flow.prefix)
            for key in keys:
                await flow.until_details(key, "open transaction")
            other = await flow.enqueue("other")
            await flow.until_stage(other, "sent", seconds=10)
            await business.commit()
            for key in keys:
                await flow.until_closed(key)
    assert {row["stage"] for row in await flow.rows("SELECT stage FROM sendonce.email")} == {"cancelled", "sent"}
    assert len(transport.jobs) == 1


async def test_mails_that_are_being_called_off_stand_before_nobody(flow: Flow, relay: type[Relay]) -> None:
    """More than a starter looks at in one go, the oldest of their lane, locked by a transaction that stays open."""
    keys = [await flow.enqueue(f"{n}") for n in range(45)]
    async with await psycopg.AsyncConnection.connect(flow.database_url) as business:
        for key in keys:
            await business.execute("SELECT FROM sendonce.cancel(%s)", [key])
        async with flow.worker(relay()):
            other = await flow.enqueue("other")
            await flow.until_stage(other, "sent", seconds=10)
            await business.rollback()
            # Nobody forgets them: the next looks find them again.
            await flow.rows_until("SELECT 1 FROM sendonce.email HAVING bool_and(stage = 'sent')")


async def test_a_process_that_ends_does_not_wait_for_a_lock(flow: Flow, relay: type[Relay]) -> None:
    """An update waits for the row that somebody holds locked. It is answered by the next process."""
    transport = relay(answer(Deferred(Reply(451, "4.7.1"))), answer(ACCEPTED))
    somebody = await psycopg.AsyncConnection.connect(flow.database_url)
    async with flow.worker(transport) as running:
        key = await flow.enqueue(retry={"delays": [300]})
        await flow.until_event(key, "timer_started")
        await somebody.execute("SELECT FROM sendonce.email FOR UPDATE")
        asking = asyncio.create_task(flow.update(key, "retry_now"))
        await flow.rows_until("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        running.stop.set()
        async with asyncio.timeout(15):
            await asyncio.wait({running.task})
    await somebody.close()
    async with flow.worker(transport):
        assert (await asking)["stage"] == "pending"
        await flow.until_stage(key, "sent")


async def test_an_account_that_nobody_has_is_asked_for_ever_less(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time by a new run, which is the same to whoever looks at it."""
    monkeypatch.setattr("sendonce.activities.transmission.NOT_CONFIGURED_DELAY", 0.4)
    async with flow.worker(relay()):
        key = await flow.enqueue(account="elsewhere")
        await flow.rows_until("SELECT 1 FROM sendonce.attempt HAVING count(*) >= 1")
        first = await flow.handle(f"{key}@elsewhere").describe()
        attempts = await flow.rows_until("SELECT 1 FROM sendonce.attempt HAVING count(*) >= 4") and (
            await flow.attempts(key)
        )
        last = await flow.handle(f"{key}@elsewhere").describe()
    waits = [(after["claimed_at"] - before["ended_at"]).total_seconds() for before, after in pairwise(attempts[:4])]
    assert waits[0] >= 0.4
    assert waits[1] >= 0.8
    assert waits[2] >= 1.6
    assert first.run_id != last.run_id
    for name in ("SendAccount", "SendLane"):
        assert first.search_attributes[name] == last.search_attributes[name]


async def test_a_withdrawal_and_an_update_that_meet_a_lock_say_so(
    flow: Flow, relay: type[Relay], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is there: nobody says that it is away."""
    monkeypatch.setattr("sendonce.store.pool.STEADY", STEADY.replace("'5000'", "'200'"))
    async with flow.worker(relay(answer(Deferred(Reply(451, "4.7.1"))))):
        key = await flow.enqueue(retry={"delays": [300]})
        await flow.until_event(key, "timer_started")
        async with await psycopg.AsyncConnection.connect(flow.database_url) as somebody:
            await somebody.execute("SELECT FROM sendonce.email FOR UPDATE")
            asking = asyncio.create_task(flow.update(key, "retry_now"))
            await until(lambda: summed(flow, key, "open transaction"), "the update's timer")
            await flow.handle(key).cancel()
            await flow.until_details(key, "open transaction")
        with suppress(WorkflowUpdateFailedError):  # refused when the withdrawal had the row first
            assert (await asking)["stage"] == "pending"
        await flow.until_closed(key)
    assert (await flow.email(key))["stage"] == "cancelled"
    assert "cannot be reached" not in caplog.text


async def summed(flow: Flow, key: str, summary: str) -> bool:
    """Whether a timer of the workflow's has this summary."""
    history = await flow.handle(key).fetch_history()
    return any(summary.encode() in event.user_metadata.summary.data for event in history.events)
