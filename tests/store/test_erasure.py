"""A person is erased: out of every table, while mail is in flight too, and nobody else is touched."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sendonce.events import Event, EventKind
from sendonce.outcome import Accepted, AttemptResult, Deferred, Refused, Reply, Unanswered
from sendonce.retention import Retention
from sendonce.store import erasure, suppressions, texts
from sendonce.store.erasure import Erased
from sendonce.store.events import Terms
from sendonce.store.naming import Person
from sendonce.store.records import BeginRefused, Begun, Claimed, Finished

if TYPE_CHECKING:
    from tests.store.conftest import Bench

Where = Callable[[str], set[str]]

ANN = "ann.lee@example.org"
OK = Accepted(Reply(250, "2.0.0", f"queued for <{ANN}>"), "Q1")
TERMS = Terms({}, "w1")


async def erase(bench: Bench, address: str = ANN, *, withdraw: bool = True, dry: bool = False) -> Erased:
    person = Person.of(address)
    async with bench.pool.connection() as conn:
        found = await erasure.search(conn, person)
        if dry:
            return await erasure.dry_run(conn, person, found, withdraw=withdraw)
        return await erasure.erase(
            conn,
            person,
            found,
            lanes={"default": bench.lane},
            actor="me",
            because="ticket 7",
            withdraw=withdraw,
        )


async def upkeep(bench: Bench) -> int:
    rules = Retention(content_days=30, record_days=30)
    _, done = await bench.store.upkeep(rules, {"default": bench.lane}, actor="w1", leave=lambda: False)
    return done.erased


async def offered(bench: Bench, key: str, **pin: Any) -> Claimed:
    claimed = await bench.claim(key)
    pins = {"body": b"", "method": "", "url": "", "headers": (), "digest": b"digest"} | pin
    await bench.store.pin(claimed.email_id, "mime", **pins)
    assert isinstance(await bench.begin(claimed), Begun)
    return claimed


async def rows_of(bench: Bench, *keys: str) -> list[Any]:
    """Everything about these mails."""
    tables = await bench.rows(
        "SELECT table_name AS name FROM information_schema.columns WHERE table_schema = 'sendonce'"
        " AND column_name = 'email_id' AND table_name <> 'erasure_mail'"
    )
    ids = [bench.ids[key] for key in keys]
    found = await bench.rows("SELECT t::text FROM sendonce.email t WHERE id = ANY (%s) ORDER BY 1", [ids])
    for table in sorted(row["name"] for row in tables):
        query = f"SELECT t::text FROM sendonce.{table} t WHERE email_id = ANY (%s) ORDER BY 1"
        found += await bench.rows(query, [ids])
    return found


def mime(text: str, encoding: str) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "s@example.com", "staff@example.com", "s"
    message.set_content("é" + text, cte=encoding)
    return message.as_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


async def everywhere(bench: Bench) -> None:
    """Mail of Ann's and of others, final, with her address wherever it can stand."""
    ann = f"Ann Lee <{ANN}>"
    await bench.enqueue("sole", to=[ann], subject=f"To {ANN}", requested_by=ANN, headers={"X-For": ANN})
    claimed = await offered(
        bench,
        "sole",
        body=f"To: {ANN}".encode(),
        url=f"https://api.example/?to={ANN}",
        headers=(("X-To", ANN),),
    )
    await bench.settle(claimed, OK)
    await bench.enqueue("shouted", to=["ANN.LEE@Example.ORG", "bob@example.org"])
    claimed = await offered(bench, "shouted", body=mime(ANN, "base64"))
    refused = Refused(Reply(550, f"no {ANN}", f"<{ANN}>... unknown"))
    await bench.settle(claimed, {0: refused, 1: OK})
    await bench.enqueue("blind", to=["bob@example.org"], bcc=[ANN], template="t", parameters={"who": [ANN]}, text=None)
    await bench.settle(await offered(bench, "blind", body=mime(ANN, "quoted-printable")), OK)
    # Others' mail that names her.
    await bench.enqueue("about", to=["staff@example.com"], reply_to=[ann], text=f"{ANN} has ordered.")
    await bench.settle(await offered(bench, "about"), Accepted(Reply(250, "", "ok"), f"<{ANN}>"))
    files = [
        {"filename": "a.bin", "content": base64.b64encode(mime(ANN, "base64")).decode()},
        {"filename": f"{ANN}.txt", "content": "QQ=="},
    ]
    message = {"key": "files", "sender": "s@example.com", "to": ["staff@example.com"], "text": "t"}
    (row,) = await bench.rows("SELECT * FROM sendonce.enqueue(%s, %s)", [Jsonb(message), Jsonb(files)])
    bench.ids["files"] = row["email_id"]
    await bench.settle(await offered(bench, "files"), OK)
    await bench.enqueue("staff", to=["staff@example.com"])
    await bench.settle(await offered(bench, "staff"), Refused(Reply(550, "", f"{ANN} is over quota")))
    # What came back.
    reply = Reply(550, "5.1.1", f"<{ANN}> unknown")
    for key in ("sole", "shouted", "blind", "staff"):
        event = Event(
            "test",
            f"{key}-bounced",
            EventKind.BOUNCED,
            email_id=str(bench.ids[key]),
            message_id=f"<{ANN}>",
            recipient="Ann.Lee@example.org",
            reply=reply,
        )
        await bench.store.record_events("default", [event], TERMS)
    parked = Event("test", f"parked:{ANN}", EventKind.BOUNCED, provider_id="nobody's", recipient=ANN, reply=reply)
    await bench.store.record_events("default", [parked], TERMS)
    # What operators wrote.
    async with bench.pool.connection() as conn:
        await suppressions.add(conn, "other", ANN, "manual", source="operator", actor=ANN, note=f"{ANN} asked")
    await bench.store.alarm(bench.ids["staff"], "held", f"operator wrote {ANN}")
    await bench.run("UPDATE sendonce.transition SET because = %s, actor = %s WHERE to_stage = 'sent'", [ANN, ANN])
    await bench.run(
        "INSERT INTO sendonce.evidence (email_id, ordinal, accepted, generation, source, event_id, actor)"
        " VALUES (%s, 0, true, 1, 'operator', %s, %s)",
        [bench.ids["staff"], ANN, ANN],
    )
    await bench.run(
        "INSERT INTO sendonce.acknowledgement (alarm_id, actor, note) SELECT id, %s, %s FROM sendonce.alarm"
        " ORDER BY id LIMIT 1",
        [ANN, f"{ANN} has called"],
    )
    await bench.run(
        "INSERT INTO sendonce.hold (scope, name, actor, why, ended_at, ended_by)"
        " VALUES ('lane', 'nobodys', %s, %s, sendonce.clock(), %s)",
        [ANN, f"{ANN} asked", ANN],
    )
    await bench.run(
        "INSERT INTO sendonce.sent_again (email_id, of_email, actor) VALUES (%s, %s, %s)",
        [bench.ids["staff"], bench.ids["sole"], ANN],
    )
    await bench.run("INSERT INTO sendonce.reveal (actor, command) VALUES (%s, 'show')", [ANN])
    # A provider's words that came as a code, and were told with the end.
    await bench.run(
        "INSERT INTO sendonce.final (email_id, workflow_id, signal, stage, partial, maybe_accepted, attempts, enhanced,"
        " at, try_at, handed_at) VALUES (%s, '', '', 'failed', false, false, 1, %s, sendonce.clock(),"
        " sendonce.clock(), sendonce.clock())",
        [bench.ids["staff"], f"no {ANN}"],
    )
    # Addresses that begin or end as hers does.
    await bench.enqueue("longer", to=[f"jo{ANN}", f"jo-{ANN}", f"{ANN}.uk"], text=f"jo{ANN} and {ANN}.uk")
    await bench.settle(await offered(bench, "longer"), Accepted(Reply(250)))
    await bench.enqueue("bob", to=["bob@example.org"])
    await bench.settle(await offered(bench, "bob"), OK)
    await bench.run("UPDATE sendonce.attempt SET answers = '{}' WHERE email_id = %s", [bench.ids["bob"]])
    await bench.run("UPDATE sendonce.recipient SET reply_text = NULL WHERE email_id = %s", [bench.ids["bob"]])


async def test_the_whole_database_holds_nothing_of_the_person(bench: Bench, standing_in: Where) -> None:
    await everywhere(bench)
    before = standing_in(ANN)
    assert len(before) >= 24, sorted(before)
    others = await rows_of(bench, "bob")
    told = await rows_of(bench, "longer")
    assert asdict(await erase(bench, dry=True)) == {
        "mails": 3,
        "contents": 2,
        "withdrawn": 0,
        "waiting": 0,
        "events": 1,
        "suppressions": 2,
        "texts": 0,
    }
    assert standing_in(ANN) == before

    done = await erase(bench, " Ann.LEE@EXAMPLE.org".strip())
    assert (done.mails, done.contents, done.waiting, done.events, done.suppressions) == (3, 2, 0, 1, 2)
    assert done.texts >= 5

    # Only those whose addresses contain hers.
    longer = await bench.rows("SELECT count(*) AS n FROM sendonce.recipient WHERE lower(mailbox) LIKE %s", [f"%{ANN}%"])
    assert longer == [{"n": 3}]
    assert await rows_of(bench, "longer") == told
    assert await rows_of(bench, "bob") == others
    await bench.run("DELETE FROM sendonce.email WHERE id = %s", [bench.ids["longer"]])
    assert standing_in(ANN) == set()
    # Bob's part of mail that was to both of them.
    shared = await bench.rows(
        "SELECT e.key, r.ordinal, r.mailbox, r.stage, r.code, r.provider_id, e.to_domains"
        " FROM sendonce.recipient r JOIN sendonce.email e ON e.id = r.email_id"
        " WHERE e.key IN ('shouted', 'blind') AND r.mailbox NOT LIKE 'erased:%%' ORDER BY 1 DESC"
    )
    assert [list(row.values()) for row in shared] == [
        ["shouted", 1, "bob@example.org", "accepted", 250, "Q1", ["example.org"]],
        ["blind", 0, "bob@example.org", "accepted", 250, "Q1", ["example.org"]],
    ]
    kept = await bench.rows("SELECT digest, actor, because, finished_at - asked_at AS took, done FROM sendonce.erasure")
    assert (kept[0]["actor"], kept[0]["because"], kept[0]["done"]) == ("me", "ticket 7", asdict(done))
    assert kept[0]["took"] is not None

    # Once more: there is nothing to do.
    again = await erase(bench)
    assert again == Erased()


async def test_an_internationalised_domain_is_one_address_in_both_spellings(bench: Bench, standing_in: Where) -> None:
    await bench.enqueue(to=["müller@xn--bcher-kva.example"], text="Für müller@Bücher.example und MÜLLER@bücher.example")
    await bench.attempt(OK)
    assert (await erase(bench, "MÜLLER@BÜCHER.example")).mails == 1
    assert standing_in("müller@") | standing_in("MÜLLER@") | standing_in("bücher.example") == set()


def test_the_digest_is_an_hmac_with_the_installations_keys(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        row = conn.execute(
            "SELECT mailbox_keys, sendonce.mailbox_digest('Ann@Example.org'),"
            " sendonce.mailbox_digest('ann@example.org')"
            " FROM sendonce.installation"
        ).fetchone()
    assert row is not None
    (inner, outer), digest, same = row
    assert (len(inner), len(outer)) == (64, 64)  # blocks of SHA-256
    assert inner != outer
    expected = hashlib.sha256(outer + hashlib.sha256(inner + b"ann@example.org").digest()).hexdigest()
    assert digest == same == f"erased:{expected}"


async def test_the_suppression_goes_on_without_the_address(bench: Bench, standing_in: Where) -> None:
    async with bench.pool.connection() as conn:
        await suppressions.add(conn, "default", ANN, "complained", source="webhook:x", actor="w1", note="n")
    await erase(bench)
    await bench.enqueue("k1", to=["ann.LEE@example.org"])
    assert isinstance(await bench.ask("k1"), Finished)
    assert await bench.stages("k1") == ["suppressed"]
    await bench.enqueue("k2", to=["bob@example.org"])
    assert isinstance(await bench.ask("k2"), Claimed)
    await erase(bench)
    async with bench.pool.connection() as conn:
        # It does not come back in clear by way of another bounce.
        assert not await suppressions.add(conn, "default", ANN, "bounced", source="webhook:x", actor="w1")
        assert standing_in(ANN) == set()
        (entry,) = await suppressions.entries(conn, mailbox=ANN.upper())
        assert (entry.reason, entry.note) == ("complained", None)
        assert await suppressions.remove(conn, "default", ANN)
        assert not await suppressions.remove(conn, "default", ANN)
    await bench.enqueue("k3", to=[ANN])
    assert isinstance(await bench.ask("k3"), Claimed)


async def test_both_spellings_on_the_list_become_one(bench: Bench) -> None:
    async with bench.pool.connection() as conn:
        await suppressions.add(conn, "default", ANN, "manual", source="operator", actor="me")
    await erase(bench)
    # As an older process would write it.
    await bench.run(
        "INSERT INTO sendonce.suppression (account, mailbox, reason, source, actor)"
        " VALUES ('default', %s, 'bounced', 'x', 'w')",
        [ANN],
    )
    await erase(bench)
    rows = await bench.rows("SELECT mailbox, reason FROM sendonce.suppression")
    assert [row["mailbox"][:7] for row in rows] == ["erased:"]


async def in_flight(bench: Bench) -> dict[str, Claimed]:
    """One mail in each state, to Ann alone (s) and to her and Bob (b)."""
    held = {}
    for to, name in (([ANN], "s"), ([ANN, "bob@example.org"], "b")):
        await bench.enqueue(f"{name}-pending", to=to)
        await bench.enqueue(f"{name}-later", to=to, send_after="2999-01-01T00:00:00Z")
        await bench.enqueue(f"{name}-deferred", to=to)
        await bench.attempt(Deferred(Reply(451)), f"{name}-deferred")
        await bench.enqueue(f"{name}-claimed", to=to)
        held[f"{name}-claimed"] = await bench.claim(f"{name}-claimed")
        await bench.enqueue(f"{name}-unknown", to=to)
        await bench.attempt(Unanswered(), f"{name}-unknown")
        await bench.enqueue(f"{name}-transmitting", to=to)
        held[f"{name}-transmitting"] = await offered(bench, f"{name}-transmitting", body=ANN.encode())
    return held


async def test_mail_in_flight_is_withdrawn_or_waited_for(bench: Bench, standing_in: Where) -> None:
    held = await in_flight(bench)
    expected = await erase(bench, dry=True)
    done = await erase(bench)
    stages = {key: (await bench.email(key))["stage"] for key in bench.ids}
    assert stages == {
        "s-pending": "cancelled",
        "s-later": "cancelled",
        "s-deferred": "cancelled",
        "s-claimed": "cancelled",
        "s-unknown": "unknown",
        "s-transmitting": "transmitting",
        "b-pending": "pending",
        "b-later": "pending",
        "b-deferred": "pending",
        "b-claimed": "pending",
        "b-unknown": "unknown",
        "b-transmitting": "transmitting",
    }
    assert (done.withdrawn, done.mails, done.waiting) == (8, 4, 8)
    assert (expected.waiting, expected.withdrawn) == (12, 8)
    assert (await bench.rows("SELECT finished_at FROM sendonce.erasure"))[0]["finished_at"] is None
    # Those that are over are empty, and what was claimed can no longer begin.
    assert await bench.begin(held["s-claimed"]) == BeginRefused("moved_on")
    assert await bench.begin(held["b-claimed"]) == BeginRefused("moved_on")
    # The others get theirs, once.
    for key in ("b-pending", "b-claimed"):
        claimed = await bench.claim(key)
        assert [r.mailbox for r in claimed.recipients] == ["bob@example.org"]
        await bench.begin(claimed)
        await bench.settle(claimed, OK)
    # Being offered: seen through. Deferred for both, it is tried again for Bob alone.
    await bench.settle(held["s-transmitting"], Deferred(Reply(451, "", ANN)))
    assert (await bench.email("s-transmitting"))["stage"] in ("cancelled", "pending")
    await bench.settle(held["b-transmitting"], Deferred(Reply(451, "", ANN)))
    await upkeep(bench)
    assert (await bench.email("s-transmitting"))["stage"] == "cancelled"
    assert await bench.stages("b-transmitting") == ["suppressed", "deferred"]
    await bench.advance(3600)
    for key in ("b-deferred", "b-transmitting"):
        claimed = await bench.claim(key)
        assert [r.mailbox for r in claimed.recipients] == ["bob@example.org"]
        await bench.begin(claimed)
        await bench.settle(claimed, OK)
    await upkeep(bench)
    # Only those are left that nobody knows the end of.
    assert {key for key, email_id in bench.ids.items() if await waiting(bench, email_id)} == {
        "s-unknown",
        "b-unknown",
        "b-later",
    }
    await bench.store.withdraw(bench.ids["b-later"], "b-later", lane=bench.lane, actor="me")
    await bench.advance(8 * 86400)
    await bench.store.sweep_silent({"default": bench.lane}, actor="w1")
    await upkeep(bench)
    assert standing_in(ANN) == set()
    assert (await bench.rows("SELECT finished_at FROM sendonce.erasure"))[0]["finished_at"] is not None
    assert (await bench.email("b-pending"))["stage"] == "sent"


async def test_a_look_finishes_what_has_ended_and_passes_over_what_is_waited_for(bench: Bench) -> None:
    """Of three that were being offered one ends, one is deferred, and one goes on."""
    claims = {}
    for key in ("ends", "deferred", "goes-on"):
        await bench.enqueue(key, to=[ANN])
        claims[key] = await offered(bench, key)
    assert (await erase(bench)).waiting == 3

    async def look() -> int:
        lanes = {"default": bench.lane}
        return await bench.store.finish_erasures(lanes, actor="w1", leave=lambda: False)

    assert await look() == 0
    await bench.settle(claims["ends"], Accepted(Reply(250, "", ANN)))
    await bench.settle(claims["deferred"], Deferred(Reply(451, "", ANN)))
    # Withdrawn, and emptied at once.
    assert await look() == 2
    assert (await bench.email("deferred"))["stage"] == "cancelled"
    assert [await waiting(bench, bench.ids[key]) for key in claims] == [False, False, True]
    finished = "SELECT FROM sendonce.erasure WHERE finished_at IS NOT NULL"
    assert await bench.rows(finished) == []
    await bench.settle(claims["goes-on"], Accepted(Reply(250, "", ANN)))
    assert await look() == 1
    assert len(await bench.rows(finished)) == 1


async def waiting(bench: Bench, email_id: UUID) -> bool:
    return bool(await bench.rows("SELECT FROM sendonce.erasure_mail WHERE email_id = %s", [email_id]))


async def test_what_is_pending_may_still_be_sent(bench: Bench, standing_in: Where) -> None:
    await bench.enqueue("goodbye", to=[ANN], text=f"Goodbye, {ANN}")
    done = await erase(bench, withdraw=False)
    assert (done.withdrawn, done.waiting, done.mails) == (0, 1, 0)
    assert await upkeep(bench) == 0
    claimed = await bench.claim("goodbye")
    assert [r.mailbox for r in claimed.recipients] == [ANN]
    await bench.begin(claimed)
    await bench.settle(claimed, OK)
    assert await upkeep(bench) == 1
    assert standing_in(ANN) == set()
    assert (await bench.email("goodbye"))["stage"] == "sent"


async def test_a_mail_to_others_that_names_the_person_reaches_them_first(bench: Bench, standing_in: Where) -> None:
    await bench.enqueue("about", to=["staff@example.com"], text=f"{ANN} has ordered.")
    assert (await erase(bench)).waiting == 1
    claimed = await bench.claim("about")
    assert not isinstance(claimed.content, Exception)
    assert claimed.content.text == f"{ANN} has ordered."
    await bench.begin(claimed)
    await bench.settle(claimed, OK)
    assert await upkeep(bench) == 1
    assert standing_in(ANN) == set()
    assert (await bench.rows("SELECT mailbox FROM sendonce.recipient")) == [{"mailbox": "staff@example.com"}]


async def test_what_comes_afterwards_brings_nothing_back(bench: Bench, standing_in: Where) -> None:
    await bench.enqueue("k1", to=[ANN, "bob@example.org"])
    await bench.attempt(OK, "k1")
    first = Event("test", "e1", EventKind.DELAYED, email_id=str(bench.ids["k1"]), recipient=ANN)
    await bench.store.record_events("default", [first], TERMS)
    await erase(bench)
    reply = Reply(550, f"no {ANN}", f"<{ANN}> complained")
    late = replace(first, event_id="e2", kind=EventKind.COMPLAINED, recipient=ANN.upper(), reply=reply)
    stranger = Event("test", "e3", EventKind.BOUNCED, provider_id="gone", recipient=ANN, reply=reply)
    assert await bench.store.record_events("default", [first], TERMS) == 0
    assert await bench.store.record_events("default", [late, stranger], TERMS) == 2
    assert await bench.store.record_events("default", [late], TERMS) == 0
    assert standing_in(ANN) == set()
    events = await bench.rows("SELECT event_id, ordinal, email_id FROM sendonce.event ORDER BY id")
    assert [(e["event_id"], e["ordinal"]) for e in events] == [("e1", 0), ("e2", 0)]
    # It does what it is there for: business code hears of it, and the person is left alone.
    taken = await bench.rows("SELECT kind, ordinal, mailbox FROM sendonce.take_events()")
    assert [list(event.values()) for event in taken] == [["delayed", 0, None], ["complained", 0, None]]
    await bench.enqueue("k2", to=[ANN])
    assert isinstance(await bench.ask("k2"), Finished)
    assert await bench.stages("k2") == ["suppressed"]


async def test_the_same_event_in_two_spellings_does_not_stop_anything(bench: Bench, standing_in: Where) -> None:
    await bench.enqueue("k1", to=[ANN, ANN.replace("ann", "Ann")])
    await bench.attempt(OK, "k1")
    both = [
        Event("test", "e1", EventKind.DELIVERED, email_id=str(bench.ids["k1"]), recipient=spelling)
        for spelling in (ANN, ANN.upper())
    ]
    await bench.store.record_events("default", both, TERMS)
    await erase(bench)
    assert standing_in(ANN) == set()
    again = [replace(event, event_id="e2") for event in both]
    await bench.store.record_events("default", again, TERMS)
    assert standing_in(ANN) == set()


async def test_a_late_answer_to_an_erased_mail_is_kept_as_codes(bench: Bench, standing_in: Where) -> None:
    await bench.enqueue("k1", to=[ANN])
    slow = await bench.claim("k1")
    await bench.advance(60)
    await bench.attempt(OK, "k1")
    await erase(bench)
    await bench.store.pin(slow.email_id, "mime", body=ANN.encode(), method="", url="", headers=(), digest=b"digest")
    result = AttemptResult({0: Refused(Reply(550, f"no {ANN}", f"<{ANN}> unknown"))})
    await bench.store.settle(slow.email_id, slow.attempt_id, result, lane=bench.lane, actor="w1")
    assert standing_in(ANN) == set()


async def test_a_command_that_dies_is_finished_by_the_upkeep(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, standing_in: Where
) -> None:
    await bench.enqueue("k1", to=[ANN])
    await bench.attempt(OK, "k1")
    await bench.enqueue("k2", to=[ANN])

    async def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(erasure, "pending", dies)
    with pytest.raises(KeyboardInterrupt):
        await erase(bench)
    monkeypatch.undo()
    await upkeep(bench)
    assert (await bench.email("k2"))["stage"] == "cancelled"
    assert standing_in(ANN) == set()
    # But that nobody has searched the logs is not called finished.
    assert (await bench.rows("SELECT finished_at FROM sendonce.erasure"))[0]["finished_at"] is None
    await erase(bench)
    assert (await bench.rows("SELECT finished_at FROM sendonce.erasure ORDER BY id"))[1]["finished_at"] is not None


async def test_two_at_once_do_not_fight(bench: Bench, standing_in: Where) -> None:
    for number in range(8):
        await bench.enqueue(f"k{number}", to=[ANN, "bob@example.org"])
        await bench.attempt(OK, f"k{number}")
    done = await asyncio.gather(erase(bench), erase(bench), upkeep(bench))
    assert done[2] >= 0
    assert standing_in(ANN) == set()
    rows = await bench.rows("SELECT count(*) AS n FROM sendonce.recipient WHERE mailbox = 'bob@example.org'")
    assert rows == [{"n": 8}]


async def test_every_portion_of_a_table_is_walked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, standing_in: Where
) -> None:
    monkeypatch.setattr(texts, "PORTION", 2)
    await everywhere(bench)
    await erase(bench)
    await bench.run("DELETE FROM sendonce.email WHERE id = %s", [bench.ids["longer"]])
    assert standing_in(ANN) == set()


async def test_a_new_mail_after_the_erasure_is_new(bench: Bench) -> None:
    await erase(bench)
    await bench.enqueue("k1", to=[ANN])
    assert isinstance(await bench.attempt(OK, "k1"), Finished)
    rows = await bench.rows("SELECT mailbox FROM sendonce.recipient")
    assert rows == [{"mailbox": ANN}]
