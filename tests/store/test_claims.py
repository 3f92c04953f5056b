"""Permissions: who may hold a mail, and when a begin is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sendonce.errors import InvalidEmail
from sendonce.outcome import Accepted, AccountFault, Deferred, NotOffered, Outcome, Refused, Reply, Unanswered
from sendonce.policy import RetryPolicy
from sendonce.stages import Stage
from sendonce.store import Store, open_pool, reading, story
from sendonce.store.claims import PROBE_LEFT_SECONDS
from sendonce.store.records import BeginRefused, Begun, Busy, Claimed, Finished, Held, NoSuchRow, Paused, Pinned, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250, "2.0.0", "queued"), "Q1")
NOBODY = uuid4()


async def test_a_mail_goes_from_pending_to_sent_and_every_step_is_logged(bench: Bench) -> None:
    email_id = await bench.enqueue()
    claimed = await bench.claim()
    assert (claimed.mode, claimed.number, claimed.generation, claimed.attempts) == ("send", 1, 1, 0)
    assert [r.mailbox for r in claimed.recipients] == ["ann@example.org"]
    assert await bench.begin(claimed) == Begun(600.0)
    assert await bench.settle(claimed, OK) == Finished(Stage.SENT, 250, "2.0.0", attempts=1)
    log = await bench.rows(
        "SELECT from_stage, to_stage, cause, attempt_id FROM sendonce.transition WHERE email_id = %s ORDER BY id",
        [email_id],
    )
    assert [(t["from_stage"], t["to_stage"]) for t in log] == [
        (None, "pending"),
        ("pending", "claimed"),
        ("claimed", "transmitting"),
        ("transmitting", "sent"),
    ]
    assert [t["attempt_id"] for t in log[1:]] == [claimed.attempt_id] * 3
    recipient = (await bench.rows("SELECT * FROM sendonce.recipient"))[0]
    assert (recipient["stage"], recipient["code"], recipient["provider_id"]) == ("accepted", 250, "Q1")
    assert isinstance(await bench.ask(), Finished)


async def test_one_holder_at_a_time_whoever_asks_together(bench: Bench) -> None:
    await bench.enqueue()
    answers = await asyncio.gather(*(bench.ask(worker=f"w{n}") for n in range(8)))
    assert sorted(type(a).__name__ for a in answers) == ["Busy"] * 7 + ["Claimed"]


async def test_an_unknown_id_or_another_key_is_no_row(bench: Bench) -> None:
    await bench.enqueue()
    assert isinstance(await bench.store.claim(uuid4(), "k1", lane=bench.lane, worker="w", lease_seconds=20), NoSuchRow)
    assert isinstance(
        await bench.store.claim(bench.ids["k1"], "k2", lane=bench.lane, worker="w", lease_seconds=20), NoSuchRow
    )


async def test_a_mail_is_not_claimed_before_its_time(bench: Bench) -> None:
    await bench.enqueue(send_after="2999-01-01T00:00:00Z")
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert answer.why == "not_due"
    assert answer.seconds == 86400.0  # asks again daily at the least


async def test_a_lapsed_claim_goes_to_another_and_the_first_cannot_begin(bench: Bench) -> None:
    await bench.enqueue()
    first = await bench.claim(lease_seconds=20)
    await bench.advance(21)
    assert await bench.begin(first) == BeginRefused("lapsed")
    second = await bench.claim(worker="w2")
    assert await bench.begin(first) == BeginRefused("moved_on")
    assert await bench.begin(second) == Begun(600.0)
    assert (await bench.email())["lapses"] == 1


async def test_renewal_keeps_a_claim_and_an_offer_and_says_what_is_lost(bench: Bench) -> None:
    await bench.enqueue("k1")
    await bench.enqueue("k2")
    await bench.enqueue("k3")
    one, two, three = [await bench.claim(k) for k in ("k1", "k2", "k3")]
    await bench.begin(two)
    await bench.advance(15)
    await bench.store.release(three.email_id, three.attempt_id, why="shutdown", actor="w1")
    kept = await bench.store.renew([one.attempt_id, two.attempt_id, three.attempt_id], 20)
    assert kept == {one.attempt_id: True, two.attempt_id: True}
    await bench.advance(15)
    assert await bench.begin(one) == Begun(600.0)
    assert await bench.store.sweep_silent({}, actor="w2") == []


async def test_a_locked_row_does_not_cost_the_others_their_leases(bench: Bench) -> None:
    await bench.enqueue("k1")
    await bench.enqueue("k2")
    one, two = await bench.claim("k1"), await bench.claim("k2")
    async with bench.pool.connection() as conn, conn.transaction():
        await conn.execute("SELECT FROM sendonce.email WHERE id = %s FOR UPDATE", [one.email_id])
        kept = await bench.store.renew([one.attempt_id, two.attempt_id], 20)
    assert kept == {one.attempt_id: False, two.attempt_id: True}


async def test_release_gives_the_claim_back_uncounted_and_only_by_its_holder(bench: Bench) -> None:
    await bench.enqueue()
    first = await bench.claim()
    await bench.store.release(first.email_id, first.attempt_id, why="shutdown", actor="w1", delay=3)
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert 2 < answer.seconds <= 3
    await bench.advance(4)
    second = await bench.claim()
    await bench.store.release(first.email_id, first.attempt_id, why="late", actor="w1")
    assert (await bench.email())["lease_id"] == second.attempt_id
    assert (await bench.email())["attempts"] == 0


async def test_begin_is_refused_after_expiry_and_after_a_cancel(bench: Bench) -> None:
    await bench.enqueue("k1", expires_at="2999-01-01T00:00:00Z")
    claimed = await bench.claim()
    await bench.run("UPDATE sendonce.email SET expires_at = sendonce.clock() + interval '1 second'")
    await bench.advance(2)
    assert await bench.begin(claimed) == BeginRefused("expired")
    await bench.store.release(claimed.email_id, claimed.attempt_id, why="expired", actor="w1")
    assert await bench.ask() == Finished(Stage.EXPIRED)
    assert await bench.open_alarms() == ["expired"]

    await bench.enqueue("k2")
    claimed = await bench.claim("k2")
    assert await bench.store.withdraw(bench.ids["k2"], "k2", lane=bench.lane, actor="ops") == Finished(Stage.CANCELLED)
    assert await bench.begin(claimed) == BeginRefused("moved_on")


async def test_a_mail_that_was_offered_cannot_be_withdrawn_but_is_not_tried_again(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.begin(claimed)
    assert isinstance(await bench.store.withdraw(bench.ids["k1"], "k1", lane=bench.lane, actor="ops"), Busy)
    assert await bench.settle(claimed, Deferred(Reply(451))) == Finished(Stage.CANCELLED, 451, attempts=1)

    await bench.enqueue("k2")
    claimed = await bench.claim("k2")
    await bench.begin(claimed)
    await bench.store.withdraw(bench.ids["k2"], "k2", lane=bench.lane, actor="ops")
    assert await bench.settle(claimed, OK) == Finished(Stage.SENT, 250, "2.0.0", attempts=1)


async def test_begin_waits_a_short_while_for_the_row_and_then_gives_up(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    await bench.pin(claimed)
    async with bench.pool.connection() as conn, conn.transaction():
        await conn.execute("SELECT FROM sendonce.email WHERE id = %s FOR UPDATE", [claimed.email_id])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await bench.begin(claimed)
    assert (await bench.email())["stage"] == "claimed"
    assert await bench.begin(claimed) == Begun(600.0)


@pytest.mark.parametrize("session", ["on", "off"])
async def test_a_claim_waits_for_no_disk_and_begin_does_whatever_the_session_says(
    bench: Bench, database_url: str, session: str
) -> None:
    await bench.run(
        "CREATE TABLE public.seen (stage text, v text);"
        "CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.seen VALUES (NEW.stage, current_setting('synchronous_commit')); RETURN NEW; END $$;"
        "CREATE TRIGGER spy AFTER UPDATE ON sendonce.email FOR EACH ROW EXECUTE FUNCTION public.spy();"
    )
    await bench.enqueue()
    await bench.run(f'ALTER DATABASE "{conninfo_to_dict(database_url)["dbname"]}" SET synchronous_commit = {session}')
    pool = open_pool(database_url, name="test", max_size=1)
    await pool.open()
    try:
        bench.store = Store(pool, {"default": "settings-1"})
        claimed = await bench.claim()
        await bench.begin(claimed)
        await bench.settle(claimed, {0: OK})
        async with pool.connection() as conn:
            left = await (await conn.execute("SHOW synchronous_commit")).fetchone()
    finally:
        await pool.close()
    seen = {row["stage"]: row["v"] for row in await bench.rows("SELECT stage, v FROM public.seen")}
    assert seen == {"claimed": "off", "transmitting": "on", "sent": session}
    assert left == (session,)


async def test_the_retry_goes_to_the_deferred_one_only_under_a_fresh_generation(bench: Bench) -> None:
    await bench.enqueue(to=["a@example.org", "b@example.org", "c@example.org"])
    claimed = await bench.claim()
    await bench.begin(claimed, offered=[0])
    outcome: dict[int, Outcome] = {0: OK, 1: Refused(Reply(550, "5.1.1")), 2: Deferred(Reply(451, "4.7.1"))}
    answer = await bench.settle(claimed, outcome)
    assert answer == Wait(30.0, "deferred", Stage.PENDING, 550, "5.1.1", 1)
    assert await bench.stages() == ["accepted", "refused", "deferred"]
    await bench.advance(31)
    again = await bench.claim()
    assert [r.mailbox for r in again.recipients] == ["c@example.org"]
    assert (again.generation, again.pins) == (2, None)
    await bench.begin(again)
    assert await bench.settle(again, {2: OK}) == Finished(Stage.SENT, 250, "2.0.0", partial=True, attempts=2)


async def test_everyone_refused_is_failed_without_an_alarm(bench: Bench) -> None:
    await bench.enqueue(to=["a@example.org", "b@example.org"])
    assert await bench.attempt(Refused(Reply(550, "5.1.1"))) == Finished(Stage.FAILED, 550, "5.1.1", attempts=1)
    assert await bench.open_alarms() == []


async def test_attempts_run_out_into_the_dead_letters_with_an_alarm(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(delays=(1,), jitter=0, max_attempts=3))
    await bench.enqueue()
    for _ in range(2):
        assert isinstance(await bench.attempt(Deferred(Reply(451))), Wait)
        await bench.advance(2)
    assert await bench.attempt(Deferred(Reply(451, "4.3.0"))) == Finished(Stage.DEAD, 451, "4.3.0", attempts=3)
    assert await bench.open_alarms() == ["dead"]


async def test_age_runs_from_the_first_attempt_and_ends_in_the_dead_letters(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(base=60, factor=1, jitter=0, max_age=100))
    await bench.enqueue()
    await bench.advance(5000)  # a long wait for its first try is not the mail's fault
    assert isinstance(await bench.attempt(Deferred(Reply(451))), Wait)
    await bench.advance(61)
    assert await bench.attempt(Deferred(Reply(451))) == Finished(Stage.DEAD, 451, attempts=2)


async def test_a_mail_wakes_at_its_deadline_to_say_so(bench: Bench) -> None:
    await bench.enqueue()
    await bench.run("UPDATE sendonce.email SET expires_at = sendonce.clock() + interval '10 seconds'")
    answer = await bench.attempt(Deferred(Reply(451)))
    assert isinstance(answer, Wait)
    assert 9 < answer.seconds <= 10
    await bench.advance(10)
    assert await bench.ask() == Finished(Stage.EXPIRED, 451, attempts=1)


async def test_retry_after_lengthens_the_wait_and_nothing_else(bench: Bench) -> None:
    await bench.enqueue("k1")
    await bench.enqueue("k2")
    longer = await bench.attempt(Deferred(Reply(429), retry_after=500), "k1")
    shorter = await bench.attempt(Deferred(Reply(429), retry_after=1), "k2")
    assert isinstance(longer, Wait)
    assert isinstance(shorter, Wait)
    assert (longer.seconds, shorter.seconds) == (500.0, 30.0)


async def test_a_wish_to_wait_beyond_the_mails_deadline_ends_there(bench: Bench) -> None:
    await bench.enqueue()
    await bench.run("UPDATE sendonce.email SET expires_at = sendonce.clock() + interval '100 seconds'")
    answer = await bench.attempt(Deferred(Reply(429), retry_after=9_999_999_999.0))
    assert isinstance(answer, Wait)
    assert 99 < answer.seconds <= 100


async def test_the_message_brings_its_own_retry_policy(bench: Bench) -> None:
    await bench.enqueue(retry={"delays": [7], "jitter": 0, "max_attempts": 2})
    answer = await bench.attempt(Deferred(Reply(451)))
    assert isinstance(answer, Wait)
    assert answer.seconds == 7.0


async def test_what_is_not_the_mails_fault_is_not_counted(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    answer = await bench.settle(claimed, AccountFault(Reply(535, "5.7.8")))
    assert isinstance(answer, Wait)
    assert answer.attempts == 0
    await bench.advance(60)
    claimed = await bench.claim()
    await bench.settle(claimed, NotOffered(Reply(), counted=False))
    assert (await bench.email())["attempts"] == 0
    await bench.advance(60)
    claimed = await bench.claim()
    await bench.settle(claimed, NotOffered(Reply(), counted=True))
    assert (await bench.email())["attempts"] == 1


async def test_begun_but_certainly_not_offered_is_sent_again(bench: Bench) -> None:
    await bench.enqueue()
    answer = await bench.attempt(NotOffered(Reply(552), counted=True))
    assert isinstance(answer, Wait)
    assert await bench.stages() == ["outstanding"]
    await bench.advance(31)
    assert (await bench.claim()).mode == "send"


async def test_a_poison_mail_dies_after_two_lapses_and_one_alone(bench: Bench) -> None:
    await bench.enqueue()
    for _ in range(2):
        await bench.claim()
        await bench.advance(21)
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert answer.why == "alone"
    await bench.claim(alone=True)
    await bench.advance(21)
    assert await bench.ask() == Finished(Stage.DEAD)
    assert await bench.open_alarms() == ["dead"]


async def test_a_first_lapse_alone_in_an_idle_process_is_only_a_lapse(bench: Bench) -> None:
    await bench.enqueue()
    await bench.claim(alone=True)
    await bench.advance(21)
    assert isinstance(await bench.ask(alone=True), Claimed)


async def test_a_suspect_that_never_finds_a_process_to_itself_is_tried_among_others(bench: Bench) -> None:
    await bench.enqueue()
    for _ in range(2):
        await bench.claim()
        await bench.advance(21)
    await bench.advance(300)
    await bench.claim()
    await bench.advance(21)
    assert (await bench.email())["stage"] == "claimed"
    answer = await bench.ask()
    assert isinstance(answer, Wait)
    assert answer.why == "alone"


async def test_lapses_while_the_store_was_away_blame_nobody(bench: Bench) -> None:
    await bench.enqueue()
    for _ in range(4):
        await bench.claim(outage_ago=0.0)
        await bench.advance(21)
    assert (await bench.email())["lapses"] == 0
    await bench.claim(outage_ago=60.0)
    assert (await bench.email())["lapses"] == 1


async def test_a_paused_account_lets_one_probe_pass(bench: Bench) -> None:
    for key in ("k1", "k2"):
        await bench.enqueue(key)
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    assert await bench.open_alarms() == ["account_paused"]
    answer = await bench.ask()
    assert isinstance(answer, Paused)
    assert not answer.probe_due
    assert not await bench.store.take_probe("default", NOBODY)
    await bench.advance(answer.seconds + 1)
    answer = await bench.ask()
    assert isinstance(answer, Paused)
    assert answer.probe_due
    assert await bench.store.take_probe("default", NOBODY)
    assert not await bench.store.take_probe("default", NOBODY)
    probe = await bench.claim(probe="")
    assert isinstance(await bench.ask("k2"), Paused)
    await bench.begin(probe)
    await bench.settle(probe, OK)
    assert await bench.store.account_works("default")
    assert not await bench.store.account_works("default")
    assert await bench.open_alarms() == []
    assert isinstance(await bench.ask("k2"), Claimed)


async def test_a_pause_concerns_only_those_who_hold_the_same_settings(bench: Bench) -> None:
    await bench.enqueue()
    await bench.store.account_fault("default", code=535, enhanced="")
    assert isinstance(await bench.ask(), Paused)
    other = Store(bench.pool, {"default": "settings-2"})
    claimed = await other.claim(bench.ids["k1"], "k1", lane=bench.lane, worker="w2", lease_seconds=20)
    assert isinstance(claimed, Claimed)


@pytest.mark.parametrize("begun", [False, True], ids=["claimed", "begun"])
async def test_a_probe_whose_process_died_lets_another_pass(bench: Bench, begun: bool) -> None:
    await bench.enqueue("probe")
    await bench.enqueue("next")
    await bench.store.account_fault("default", code=401, enhanced="")
    await bench.advance(16)
    assert await bench.store.take_probe("default", bench.ids["probe"], answer_seconds=600.0)
    claimed = await bench.claim("probe", probe="")
    if begun:
        await bench.begin(claimed)
    await bench.advance(16)
    await bench.store.raise_due_alarms()
    answer = await bench.ask("next")
    assert isinstance(answer, Paused)
    assert not answer.probe_due, "it is under way"
    await bench.advance(10)  # its lease has lapsed
    await bench.store.sweep_silent({"default": bench.lane}, actor="w2")
    await bench.store.raise_due_alarms()
    answer = await bench.ask("next")
    assert isinstance(answer, Paused)
    assert answer.probe_due
    assert await bench.store.take_probe("default", bench.ids["next"], answer_seconds=600.0)


@pytest.mark.parametrize(
    "setting",
    ["intervalstyle = 'iso_8601'", "datestyle = 'SQL, DMY'", "default_transaction_isolation = 'serializable'"],
)
async def test_what_the_database_sets_for_sessions_makes_no_difference(
    bench: Bench, database_url: str, setting: str
) -> None:
    await bench.enqueue()
    name = conninfo_to_dict(database_url)["dbname"]
    await bench.run(f'ALTER DATABASE "{name}" SET {setting}')
    pool = open_pool(database_url, name="test", max_size=2)
    await pool.open()
    try:
        bench.store = Store(pool, {"default": "settings-1"})
        assert isinstance(await bench.attempt(Accepted(Reply(250))), Finished)
        with reading.reading(database_url) as connection:
            assert isinstance(story.story(connection, "default", "k1"), story.Story)
    finally:
        await pool.close()


async def test_a_paused_mail_asks_again_at_its_deadline(bench: Bench) -> None:
    now = (await bench.rows("SELECT sendonce.clock() AS now"))[0]["now"]
    await bench.enqueue(expires_at=(now + timedelta(seconds=40)).isoformat())
    await bench.store.account_fault("default", code=429, enhanced="", retry_after=900.0)
    answer = await bench.ask()
    assert isinstance(answer, Paused)
    assert 30 < answer.seconds <= 40
    await bench.advance(41)
    assert isinstance(await bench.ask(), Finished)


async def test_only_the_probe_of_a_paused_account_puts_the_next_one_off(bench: Bench) -> None:
    for _ in range(20):
        await bench.store.account_fault("default", code=454, enhanced="4.7.0")
    await bench.advance(16)
    assert await bench.store.take_probe("default", NOBODY)
    await bench.store.account_fault("default", code=454, enhanced="4.7.0")
    assert not await bench.store.take_probe("default", NOBODY), "a straggler took the probe's lease away"
    await bench.store.account_fault("default", code=454, enhanced="4.7.0", probe=True, email_id=NOBODY)
    await bench.advance(16)
    assert not await bench.store.take_probe("default", NOBODY)
    await bench.advance(15)
    assert await bench.store.take_probe("default", NOBODY)
    await bench.store.give_probe_back("default", NOBODY)
    await bench.advance(16)
    assert await bench.store.take_probe("default", NOBODY)


async def test_a_probe_that_overran_its_lease_speaks_for_itself_only(bench: Bench) -> None:
    await bench.store.account_fault("default", code=454, enhanced="4.7.0")
    late, other = uuid4(), uuid4()
    await bench.advance(16)
    assert await bench.store.take_probe("default", late)
    await bench.advance(659)
    assert not await bench.store.take_probe("default", other)
    await bench.advance(2)
    assert await bench.store.take_probe("default", other)
    await bench.store.give_probe_back("default", late)
    await bench.store.account_fault("default", code=454, enhanced="4.7.0", probe=True, email_id=late)
    await bench.advance(60)
    assert not await bench.store.take_probe("default", NOBODY), "the other one has it still"
    assert await bench.rows("SELECT faults FROM sendonce.account") == [{"faults": 1}]
    await bench.store.give_probe_back("default", other)
    await bench.advance(16)
    assert await bench.store.take_probe("default", NOBODY)
    assert await bench.store.account_works("default"), "that it works is true whoever found out"
    assert await bench.rows("SELECT probe_email FROM sendonce.account") == [{"probe_email": None}]


async def test_the_probe_of_a_patient_lane_is_not_given_up_before_its_answer_timer(bench: Bench) -> None:
    await bench.store.account_fault("default", code=454, enhanced="4.7.0")
    await bench.advance(16)
    assert await bench.store.take_probe("default", uuid4(), answer_seconds=3600.0)
    await bench.advance(3700)
    assert not await bench.store.take_probe("default", NOBODY)
    await bench.advance(21)
    assert await bench.store.take_probe("default", NOBODY)


async def test_mails_wait_in_peace_while_a_probe_is_under_way(bench: Bench) -> None:
    await bench.enqueue()
    await bench.store.account_fault("default", code=454, enhanced="4.7.0")
    await bench.advance(16)
    assert await bench.store.take_probe("default", NOBODY)
    for passed, seconds in ((0, 5), (12, 12), (60, 30), (568, 20), (17, 5)):
        await bench.advance(passed)
        answer = await bench.ask()
        assert isinstance(answer, Paused)
        assert not answer.probe_due
        assert answer.seconds == pytest.approx(seconds, abs=1)
    await bench.advance(4)
    answer = await bench.ask()
    assert isinstance(answer, Paused)
    assert answer.probe_due
    assert answer.seconds == PROBE_LEFT_SECONDS, "if it does not get the probe"


async def test_a_pause_of_settings_that_are_gone_neither_stops_the_age_clock_nor_stays(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(base=600, factor=1, jitter=0, max_attempts=100, max_age=7200))
    gone = Store(bench.pool, {"default": "old-password"})
    await gone.account_fault("default", code=535, enhanced="5.7.8")
    await bench.enqueue()
    answer = await bench.attempt(Deferred(Reply(451)))
    tries = 1
    while isinstance(answer, Wait):
        await bench.advance(601)
        await bench.store.raise_due_alarms()
        answer = await bench.attempt(Deferred(Reply(451)))
        tries += 1
    assert answer == Finished(Stage.DEAD, 451, attempts=tries)
    assert 12 <= tries <= 14
    assert await bench.open_alarms() == ["dead"]


async def test_each_pause_closes_its_own_alarm(bench: Bench) -> None:
    other = Store(bench.pool, {"default": "settings-2"})
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    await other.account_fault("default", code=535, enhanced="5.7.8")
    assert await bench.open_alarms() == ["account_paused", "account_paused"]
    await bench.store.account_works("default")
    assert await bench.open_alarms() == ["account_paused"]
    await other.account_works("default")
    assert await bench.open_alarms() == []


async def test_the_age_clock_stands_while_the_account_is_paused(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=RetryPolicy(base=60, factor=1, jitter=0, max_age=100))
    await bench.enqueue()
    await bench.attempt(Deferred(Reply(451)))
    await bench.store.account_fault("default", code=401, enhanced="")
    for _ in range(6):
        await bench.advance(901)
        assert await bench.store.take_probe("default", NOBODY)
        await bench.store.account_fault("default", code=401, enhanced="", probe=True, email_id=NOBODY)
    await bench.store.account_works("default")
    claimed = await bench.claim()
    await bench.begin(claimed)
    answer = await bench.settle(claimed, Deferred(Reply(451)))
    assert isinstance(answer, Wait), answer


async def test_a_held_mail_is_not_tried_and_has_an_alarm(bench: Bench) -> None:
    await bench.enqueue()
    await bench.store.hold(bench.ids["k1"], "start_refused", actor="starter")
    await bench.store.hold(bench.ids["k1"], "start_refused", actor="starter")
    answer = await bench.ask()
    assert isinstance(answer, Held)
    assert answer.why == "start_refused"
    assert await bench.open_alarms() == ["held"]


async def test_a_retry_policy_that_does_not_hold_keeps_no_mail_from_its_end(bench: Bench) -> None:
    await bench.enqueue()
    # Intake refuses it; a row may have been written past it.
    await bench.run("UPDATE sendonce.email SET retry = '{\"tries\": 3}'")
    await bench.run('UPDATE sendonce.email_content SET content = content || \'{"retry": {"tries": 3}}\'')
    claimed = await bench.claim()
    assert isinstance(claimed.content, InvalidEmail)
    assert claimed.content.field == "retry"
    answer = await bench.settle(claimed, Refused(Reply(enhanced="invalid:retry")))
    assert answer == Finished(Stage.FAILED, 0, "invalid:retry", attempts=1)


async def test_a_row_that_does_not_hold_is_claimed_with_the_reason(bench: Bench) -> None:
    await bench.enqueue()
    await bench.run('UPDATE sendonce.email_content SET content = content || \'{"subject": "a\\nb"}\'')
    claimed = await bench.claim()
    assert isinstance(claimed.content, InvalidEmail)
    assert claimed.content.field == "subject"


async def test_the_rendering_is_pinned_once_and_everyone_gets_the_first(bench: Bench) -> None:
    email_id = await bench.enqueue()
    pins = await asyncio.gather(
        *(
            bench.store.pin(
                email_id, "mime", body=b"v%d" % n, method="", url="", headers=(("A", "b"),), digest=b"d%d" % n
            )
            for n in range(4)
        )
    )
    assert len({p.body for p in pins}) == 1
    stored = await bench.store.pinned(email_id, "mime")
    assert stored == pins[0]
    assert await bench.store.pinned(email_id, "request:1") is None


async def test_unanswered_is_held_with_an_alarm_and_never_tried_again(bench: Bench) -> None:
    await bench.enqueue()
    answer = await bench.attempt(Unanswered())
    assert isinstance(answer, Held)
    assert answer.stage is Stage.UNKNOWN
    assert await bench.open_alarms() == ["unknown"]
    await bench.advance(86400)
    assert isinstance(await bench.ask(), Held)


_BEGIN: dict[str, Any] = {
    "worker": "w1",
    "generation": 1,
    "slot": "mime",
    "digest": b"digest",
    "offered": [0],
    "provider_key": "pk-1",
    "identity": "smtp:one",
    "key_window": 3600.0,
    "window_margin": 0.0,
    "answer_seconds": 600.0,
    "lease_seconds": 20.0,
}


@pytest.mark.parametrize("timeline", [None, 1])
async def test_begin_pins_what_is_not_pinned_yet(bench: Bench, timeline: int | None) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    ours = Pinned(b"bytes", "POST", "https://api.example.com", (("Accept", "*/*"),), b"digest")
    begun = await bench.store.begin(claimed.email_id, claimed.attempt_id, **_BEGIN, timeline=timeline, keep=ours)
    assert isinstance(begun, Begun)
    assert await bench.store.pinned(claimed.email_id, "mime") == ours


async def test_begin_keeps_what_is_pinned_and_nothing_where_it_is_refused(bench: Bench) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    ours, other = (Pinned(body, "", "", (), b"digest") for body in (b"ours", b"other"))
    await bench.advance(21)
    refused = await bench.store.begin(claimed.email_id, claimed.attempt_id, **_BEGIN, keep=ours)
    assert refused == BeginRefused("lapsed")
    assert await bench.store.pinned(claimed.email_id, "mime") is None
    again = await bench.claim()
    await bench.store.pin(again.email_id, "mime", body=other.body, method="", url="", headers=(), digest=other.digest)
    refused = await bench.store.begin(again.email_id, again.attempt_id, **_BEGIN, keep=ours)
    assert refused == BeginRefused("pinned_before")
    assert await bench.store.pinned(again.email_id, "mime") == other
    assert (await bench.email())["stage"] == "claimed"


async def test_what_a_crash_has_unpinned_is_not_begun(bench: Bench) -> None:
    """Pins do not wait for the disk: the claim may stand on it, and the bytes may not."""
    await bench.enqueue()
    claimed = await bench.claim()
    pin: dict[str, Any] = {"body": b"", "method": "", "url": "", "headers": (), "digest": b"digest"}
    await bench.store.pin(claimed.email_id, "mime", **pin)
    await bench.run("DELETE FROM sendonce.pinned")
    refused = await bench.store.begin(claimed.email_id, claimed.attempt_id, **_BEGIN)
    assert refused == BeginRefused("pin_lost")
    await bench.store.pin(claimed.email_id, "mime", **pin)
    assert isinstance(await bench.store.begin(claimed.email_id, claimed.attempt_id, **_BEGIN), Begun)
