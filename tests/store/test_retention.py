"""What goes with time, and what does not: content, mails, keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sendonce.errors import ConfigurationError
from sendonce.events import Event, EventKind
from sendonce.outcome import Accepted, Deferred, Outcome, Refused, Reply, Unanswered
from sendonce.policy import LanePolicy
from sendonce.retention import Retention
from sendonce.stages import Proof, Stage
from sendonce.store import retention
from sendonce.store.events import Terms
from sendonce.store.records import BeginRefused, Begun, Claimed, Finished, NoSuchRow
from sendonce.store.retention import Done

if TYPE_CHECKING:
    from uuid import UUID

    from tests.store.conftest import Bench

RULES = Retention(content_days=7, record_days=30)
DAY = 86400.0
OK = Accepted(Reply(250, "2.0.0", "queued for ann@example.org"), "Q1")
NO = Refused(Reply(550, "5.1.1", "no such user ann@example.org"))


async def upkeep(bench: Bench, rules: Retention = RULES, **lanes: LanePolicy) -> Done:
    over, done = await bench.store.upkeep(rules, {"default": bench.lane, **lanes}, actor="w1", leave=lambda: False)
    assert over
    return done


async def sent(bench: Bench, key: str = "k1", outcome: Outcome = OK, **fields: Any) -> UUID:
    """A mail that is final, with everything that can hang on one."""
    email_id = await bench.enqueue(key, **fields)
    claimed = await bench.claim(key)
    await bench.store.pin(email_id, "mime", body=b"bytes", method="", url="", headers=(), digest=b"digest")
    assert isinstance(await bench.begin(claimed), Begun)
    await bench.settle(claimed, outcome)
    return email_id


async def content(bench: Bench, key: str = "k1") -> tuple[bool, int, int]:
    """Is the content there, and how many attachments and pinned renderings are?"""
    (row,) = await bench.rows(
        "SELECT content <> '{}' AS there, (SELECT count(*) FROM sendonce.attachment a WHERE a.email_id = t.email_id)"
        " AS files, (SELECT count(*) FROM sendonce.pinned p WHERE p.email_id = t.email_id) AS pins"
        " FROM sendonce.email_content t WHERE email_id = %s",
        [bench.ids[key]],
    )
    return row["there"], row["files"], row["pins"]


async def hanging(bench: Bench, email_id: UUID) -> dict[str, int]:
    """In which tables something of the mail is left."""
    tables = await bench.rows(
        "SELECT table_name AS name FROM information_schema.columns WHERE table_schema = 'sendonce'"
        " AND column_name = 'email_id' AND table_name <> 'email_key'"
    )
    assert len(tables) >= 11
    left = {}
    for table in tables:
        (row,) = await bench.rows(f"SELECT count(*) AS n FROM sendonce.{table['name']} WHERE email_id = %s", [email_id])
        if row["n"]:
            left[table["name"]] = row["n"]
    return left


async def alive(bench: Bench, key: str = "k1") -> bool:
    return bool(await bench.rows("SELECT FROM sendonce.email WHERE id = %s", [bench.ids[key]]))


async def deliver_alarms(bench: Bench) -> None:
    """And a day later they are old news."""
    await bench.store.take_alarms([], quiet_seconds=0)
    await bench.run("UPDATE sendonce.alarm_state SET taken_at = taken_at - interval '1 day'")


async def with_attachment(bench: Bench, key: str) -> None:
    (row,) = await bench.rows(
        "SELECT * FROM sendonce.enqueue(%s, %s)",
        [
            Jsonb({"key": key, "sender": "s@example.com", "to": ["ann@example.org"], "text": "t"}),
            Jsonb([{"filename": "a.txt", "content": "QQ=="}]),
        ],
    )
    bench.ids[key] = row["email_id"]


async def test_first_the_content_goes_and_then_all_but_the_key(bench: Bench) -> None:
    await with_attachment(bench, "k1")
    claimed = await bench.claim()
    await bench.store.pin(claimed.email_id, "mime", body=b"b", method="", url="", headers=(), digest=b"digest")
    await bench.begin(claimed)
    await bench.settle(claimed, OK)
    event = Event("test", "e1", EventKind.DELIVERED, email_id=str(claimed.email_id), recipient="ann@example.org")
    await bench.store.record_events("default", [event], Terms({}, "w1"))

    await bench.advance(7 * DAY - 60)
    assert await upkeep(bench) == Done()
    assert await content(bench) == (True, 1, 1)
    await bench.advance(120)
    assert await upkeep(bench) == Done(contents=1)
    assert await content(bench) == (False, 0, 0)
    # Everything else is there.
    assert (await bench.email())["stage"] == "sent"
    left = await hanging(bench, claimed.email_id)
    assert {"recipient", "attempt", "transition", "event", "email_content", "generation"} <= left.keys()

    await bench.advance(23 * DAY - 240)
    assert await upkeep(bench) == Done()
    await bench.advance(240)
    assert await upkeep(bench) == Done(mails=1)
    assert await hanging(bench, claimed.email_id) == {}
    assert not await alive(bench)
    assert await bench.rows("SELECT key FROM sendonce.email_key") == [{"key": "k1"}]
    assert await upkeep(bench) == Done()


async def test_an_emptied_key_goes_on_refusing(bench: Bench) -> None:
    email_id = await sent(bench)
    await bench.advance(31 * DAY)
    await upkeep(bench)
    message = {"key": "k1", "sender": "Shop <shop@example.com>", "to": ["ann@example.org"], "text": "Thank you."}
    same, other = message | {"subject": "Your order"}, message | {"subject": "Another order"}
    assert (await bench.rows("SELECT * FROM sendonce.enqueue(%s)", [Jsonb(same)]))[0] == {
        "status": "exists",
        "email_id": email_id,
        "stage": None,
    }
    assert (await bench.rows("SELECT * FROM sendonce.enqueue(%s)", [Jsonb(other)]))[0]["status"] == "conflict"
    assert await bench.rows("SELECT FROM sendonce.email") == []
    assert await bench.ask() == NoSuchRow()


@pytest.mark.parametrize("outcome", [OK, NO, Deferred(Reply(451)), Unanswered()])
async def test_nothing_that_is_not_final_is_touched(bench: Bench, outcome: Outcome) -> None:
    """However old it is: waiting, held by a process, being offered, unknown."""
    await bench.enqueue("scheduled", send_after="2999-01-01T00:00:00Z")
    await sent(bench, "k1", outcome)
    await bench.enqueue("claimed")
    await bench.claim("claimed")
    await bench.enqueue("transmitting")
    await bench.begin(await bench.claim("transmitting"))
    before = {key: await hanging(bench, email_id) for key, email_id in bench.ids.items()}
    await bench.advance(3650 * DAY)
    done = await upkeep(bench, replace(RULES, content_days=0, record_days=1, forget_keys_days=1))
    final = outcome in (OK, NO)
    assert done == Done(mails=int(final), contents=int(final), keys=int(final))
    assert {key for key in bench.ids if not await alive(bench, key)} == ({"k1"} if final else set())
    for key, left in before.items():
        if key != "k1" or not final:
            assert await hanging(bench, bench.ids[key]) == left


async def test_what_may_have_been_accepted_is_kept_while_evidence_can_come(bench: Bench) -> None:
    bench.lane = replace(bench.lane, unknown_days=10)
    rules = Retention(content_days=0, record_days=1)
    await sent(bench, "k1", Unanswered())
    await bench.advance(11 * DAY)
    await bench.store.sweep_silent({"default": bench.lane}, actor="w1")
    row = await bench.email()
    assert Stage(row["stage"]).final
    assert row["maybe_accepted"]
    await sent(bench, "k2")
    await bench.advance(9 * DAY)
    assert await upkeep(bench, rules) == Done(contents=1, mails=1)
    assert await content(bench) == (True, 0, 1)
    # It comes in time.
    await bench.store.record_evidence(
        bench.ids["k1"], [Proof(0, True, 1)], source="test", event_id="1", lane=bench.lane, actor="w1"
    )
    assert (await bench.email())["stage"] == "sent"
    assert not (await bench.email())["maybe_accepted"]
    assert await upkeep(bench, rules) == Done(contents=1, mails=1)


async def test_a_lane_and_a_template_may_say_at_once(bench: Bench) -> None:
    rules = Retention(content_days=7, record_days=30, templates={"login_code": 0, "invoice": 30})
    template: dict[str, Any] = {"text": None, "parameters": {"code": "1234"}}
    await sent(bench, "plain")
    await sent(bench, "code", template="login_code", **template)
    await sent(bench, "invoice", template="invoice", **template)
    await sent(bench, "secret", lane="codes")
    await sent(bench, "secret invoice".replace(" ", "-"), lane="codes", template="invoice", **template)
    await sent(bench, "gone", lane="no-longer-configured")
    codes = LanePolicy("codes", content_days=0)
    assert await upkeep(bench, rules, codes=codes) == Done(contents=2)
    assert {key: (await content(bench, key))[0] for key in bench.ids} == {
        "plain": True,
        "code": False,
        "invoice": True,
        "secret": False,
        "secret-invoice": True,
        "gone": True,
    }
    await bench.advance(8 * DAY)
    assert await upkeep(bench, rules, codes=codes) == Done(contents=2)
    assert {key for key in bench.ids if (await content(bench, key))[0]} == {"invoice", "secret-invoice"}


async def test_a_requeue_has_its_content_until_then_and_is_refused_afterwards(bench: Bench) -> None:
    await sent(bench, "k1", NO)
    await sent(bench, "k2", NO)
    await bench.advance(7 * DAY - 60)
    await upkeep(bench)
    assert await bench.store.requeue(bench.ids["k1"], lane=bench.lane, actor="me") is not None
    await bench.advance(DAY)
    assert await upkeep(bench) == Done(contents=1)
    claimed = await bench.claim("k1")
    assert not isinstance(claimed.content, Exception)
    assert claimed.content.text == "Thank you."
    assert await bench.store.requeue(bench.ids["k2"], lane=bench.lane, actor="me", force=True) is None
    assert (await bench.email("k2"))["stage"] == "failed"


async def test_who_comes_late_to_an_emptied_mail_keeps_nothing_there(bench: Bench) -> None:
    """A process that was frozen: another one sent the mail, and its content has been erased since."""
    await bench.enqueue()
    slow = await bench.claim()
    await bench.advance(60)
    assert isinstance(await bench.attempt(OK), Finished)
    await upkeep(bench, replace(RULES, content_days=0))
    pinned = await bench.store.pin(
        slow.email_id, "mime", body=b"ann@example.org", method="", url="", headers=(), digest=b"digest"
    )
    assert pinned.body == b"ann@example.org"
    assert await content(bench) == (False, 0, 0)
    assert await bench.begin(slow) == BeginRefused("moved_on")
    # What it learnt is kept as codes.
    await bench.settle(slow, NO)
    rows = await bench.rows("SELECT answers::text AS answers FROM sendonce.attempt WHERE id = %s", [slow.attempt_id])
    assert "5.1.1" in rows[0]["answers"]
    assert "ann@" not in rows[0]["answers"]


async def test_who_comes_late_to_a_mail_that_is_gone_is_answered(bench: Bench) -> None:
    await bench.enqueue()
    slow = await bench.claim()
    await bench.advance(60)
    await bench.attempt(OK)
    await bench.advance(31 * DAY)
    await upkeep(bench)
    pinned = await bench.store.pin(slow.email_id, "mime", body=b"b", method="", url="", headers=(), digest=b"digest")
    assert pinned.body == b"b"
    assert await bench.begin(slow) == BeginRefused("moved_on")
    assert await bench.settle(slow, NO) == NoSuchRow()
    proof = [Proof(0, True, 1)]
    assert (
        await bench.store.record_evidence(
            slow.email_id, proof, source="test", event_id="1", lane=bench.lane, actor="w1"
        )
        == NoSuchRow()
    )
    assert await bench.store.requeue(slow.email_id, lane=bench.lane, actor="me") == NoSuchRow()
    assert await hanging(bench, slow.email_id) == {}


async def test_a_late_event_is_taken_once_and_waits_for_a_day(bench: Bench) -> None:
    email_id = await sent(bench)
    await bench.advance(31 * DAY)
    await upkeep(bench)
    event = Event(
        "test", "e1", EventKind.BOUNCED, email_id=str(email_id), provider_id="Q1", recipient="ann@example.org"
    )
    terms = Terms({}, "w1")
    assert await bench.store.record_events("default", [event], terms) == 1
    assert await bench.store.record_events("default", [event], terms) == 0
    assert await bench.store.join_parked_events({}, terms) == 0
    await bench.advance(DAY + 60)
    await bench.store.join_parked_events({}, terms)
    assert await bench.rows("SELECT FROM sendonce.event") == []
    assert await bench.rows("SELECT FROM sendonce.suppression") == []


async def test_nobody_is_waited_for(bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Business code holds an event, a process a row: the others go, these go in a later round."""
    monkeypatch.setattr(retention, "LOCK_TIMEOUT_MS", 10)
    for number in range(5):
        email_id = await sent(bench, f"k{number}")
        event = Event("test", f"e{number}", EventKind.DELIVERED, email_id=str(email_id))
        await bench.store.record_events("default", [event], Terms({}, "w1"))
    await bench.advance(31 * DAY)
    async with await psycopg.AsyncConnection.connect(database_url) as holder:
        await holder.execute("SELECT FROM sendonce.event WHERE event_id = 'e1' FOR UPDATE")
        await holder.execute("SELECT FROM sendonce.email WHERE key = 'k3' FOR UPDATE")
        assert await upkeep(bench) == Done(contents=4, mails=3)
        assert [key for key in bench.ids if await alive(bench, key)] == ["k1", "k3"]
    assert await upkeep(bench) == Done(contents=1, mails=2)


async def test_two_at_once_share_the_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    for number in range(24):
        await sent(bench, f"k{number}")
    await bench.advance(31 * DAY)
    done = await asyncio.gather(*(upkeep(bench, replace(RULES, forget_keys_days=30)) for _ in range(3)))
    assert sum(one.mails for one in done) == 24
    assert await bench.rows("SELECT FROM sendonce.email") == []
    # One process at a time walks through the keys; what it passed before the mail was gone, it meets the next time.
    await upkeep(bench, replace(RULES, forget_keys_days=30))
    assert await bench.rows("SELECT FROM sendonce.email_key") == []


async def test_a_round_that_dies_in_the_middle_loses_nothing(
    bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOCK_TIMEOUT_MS", 60_000)
    monkeypatch.setattr(retention, "BATCH", 2)
    for number in range(6):
        await sent(bench, f"k{number}")
    await bench.advance(8 * DAY)
    async with (
        await psycopg.AsyncConnection.connect(database_url) as holder,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as observer,
    ):
        # The second batch gets as far as the content of its last mail.
        await holder.execute("SELECT FROM sendonce.email_content WHERE email_id = %s FOR UPDATE", [bench.ids["k3"]])
        going = asyncio.create_task(upkeep(bench))
        killed = False
        while not killed:
            assert not going.done()
            cursor = await observer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND query LIKE '%email_content%'"
            )
            killed = bool(await cursor.fetchall())
        with pytest.raises(psycopg.OperationalError):
            await going
    whole = {key: await content(bench, key) for key in bench.ids}
    assert [whole[f"k{n}"] for n in range(6)] == [(False, 0, 0)] * 2 + [(True, 0, 1)] * 4
    assert await upkeep(bench) == Done(contents=4)


async def test_a_round_ends_when_its_time_is_over_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 1)
    for number in range(3):
        await sent(bench, f"k{number}")
    await bench.advance(31 * DAY)
    left = iter([False, False, *[True] * 99])
    over, done = await bench.store.upkeep(RULES, {}, actor="w1", leave=lambda: next(left))
    assert (over, done) == (False, Done(contents=1))


async def test_alarms_go_with_their_mail_and_after_they_were_told(bench: Bench) -> None:
    """And those of accounts once they are over."""
    await bench.enqueue(expires_at="2999-01-01T00:00:00Z")
    await bench.store.alarm(bench.ids["k1"], "held", "test")
    await bench.store.account_fault("default", code=535, enhanced="5.7.8")
    await deliver_alarms(bench)
    await bench.store.account_works("default")
    await bench.store.account_fault("other", code=535, enhanced="5.7.8")
    await bench.store.withdraw(bench.ids["k1"], "k1", lane=bench.lane, actor="me")
    await sent(bench, "k2")
    await bench.store.alarm(bench.ids["k2"], "held", "nobody was told yet")
    await bench.advance(31 * DAY)
    done = await upkeep(bench)
    assert done.mails == 2
    kinds = [row["account"] for row in await bench.rows("SELECT account FROM sendonce.alarm ORDER BY id")]
    assert kinds == ["default", "default", "other", "default"]
    await deliver_alarms(bench)
    assert (await upkeep(bench)).alarms == 3
    # That one is still open.
    assert await bench.rows("SELECT account FROM sendonce.alarm") == [{"account": "other"}]


async def test_keys_are_forgotten_only_when_somebody_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEYS", 2)
    for number in range(5):
        await sent(bench, f"k{number}")
    await bench.advance(20 * DAY)
    await sent(bench, "young")
    await bench.enqueue("waiting", send_after="2999-01-01T00:00:00Z")
    await bench.advance(31 * DAY)
    await upkeep(bench)
    assert len(await bench.rows("SELECT FROM sendonce.email_key")) == 7
    assert await upkeep(bench, replace(RULES, forget_keys_days=40)) == Done(keys=5)
    assert await upkeep(bench, replace(RULES, forget_keys_days=40)) == Done()
    left = await bench.rows("SELECT key FROM sendonce.email_key ORDER BY key")
    assert [row["key"] for row in left] == ["waiting", "young"]
    # The consequence: it sends a second mail.
    await bench.enqueue("k1")
    assert isinstance(await bench.ask("k1"), Claimed)


async def test_one_round_walks_so_far_and_the_next_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEYS", 2)
    monkeypatch.setattr(retention, "KEY_STEPS", 1)
    rules = replace(RULES, forget_keys_days=30)
    for number in range(3):
        await sent(bench, f"k{number}")
    await bench.advance(31 * DAY)
    assert [(await upkeep(bench, rules)).keys for _ in range(3)] == [2, 1, 0]


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than record_days"):
        Retention(content_days=31)
    with pytest.raises(ConfigurationError, match=r"templates\.x"):
        Retention(templates={"x": 31})
    with pytest.raises(ConfigurationError, match="less than record_days"):
        Retention(forget_keys_days=29)
    with pytest.raises(ConfigurationError, match="lane 'slow'"):
        Retention().check_lanes({"slow": LanePolicy("slow", content_days=31)})
