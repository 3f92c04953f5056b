"""Topics: the newest mail takes the place of those that were not offered yet, and of nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sendonce import OutgoingEmail, enqueue, enqueue_many
from sendonce.outcome import Accepted, Deferred, Reply, Unanswered
from sendonce.stages import Stage
from sendonce.store import Store, open_pool
from sendonce.store.records import BeginRefused, Begun, Claimed, Finished, Held, Wait

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250), "Q1")
LATER = Deferred(Reply(451))
TOPIC = "password-reset:user-42"


def reset(key: str, **fields: Any) -> OutgoingEmail:
    mail = {"sender": "shop@example.com", "to": "ann@example.org", "text": "Your code", "topic": TOPIC}
    return OutgoingEmail(key=key, **mail | fields)


async def sweep(bench: Bench) -> list[str]:
    return [row.key for row in await bench.store.sweep_silent({"default": bench.lane}, actor="sweeper")]


async def log(bench: Bench, key: str) -> list[tuple[str, str, str | None]]:
    rows = await bench.rows(
        "SELECT to_stage, cause, because FROM sendonce.transition WHERE email_id = %s ORDER BY id", [bench.ids[key]]
    )
    return [(row["to_stage"], row["cause"], row["because"]) for row in rows]


async def test_of_five_in_a_minute_the_last_one_is_sent(bench: Bench) -> None:
    for number in range(1, 6):
        await bench.enqueue(f"r{number}", topic=TOPIC)
    for number in range(1, 5):
        assert await bench.ask(f"r{number}") == Finished(Stage.CANCELLED)
        row = await bench.email(f"r{number}")
        assert (row["superseded_by"], row["maybe_accepted"], row["attempts"]) == ("r5", False, 0)
        assert (await log(bench, f"r{number}"))[-1] == ("cancelled", "superseded", "r5")
    assert await bench.attempt(OK, "r5") == Finished(Stage.SENT, 250, attempts=1)


async def test_a_requeue_gives_way_as_long_as_the_newer_one_is_known(bench: Bench) -> None:
    bench.lane = replace(bench.lane, retry=replace(bench.lane.retry, max_attempts=1))
    await bench.enqueue("older", topic=TOPIC)
    await bench.attempt(LATER, "older")
    await bench.enqueue("newer", topic=TOPIC)
    await bench.attempt(OK, "newer")
    assert (await bench.email("older"))["stage"] == "dead"
    await bench.store.requeue(bench.ids["older"], lane=bench.lane, actor="ops")
    assert await bench.ask("older") == Finished(Stage.CANCELLED, 451, attempts=0)
    # Another one, requeued after retention has removed what was newer.
    await bench.enqueue("third", topic=TOPIC)
    await bench.attempt(LATER, "third")
    await bench.enqueue("fourth", topic=TOPIC)
    await bench.attempt(OK, "fourth")
    await bench.run("DELETE FROM sendonce.email WHERE key = 'fourth'")
    await bench.store.requeue(bench.ids["third"], lane=bench.lane, actor="ops")
    assert isinstance(await bench.ask("third"), Claimed)


async def test_another_topic_account_or_none_is_another_matter(bench: Bench) -> None:
    await bench.enqueue("a", topic=TOPIC)
    await bench.enqueue("b", topic="password-reset:user-4")
    await bench.enqueue("c", topic=TOPIC, account="other")
    await bench.enqueue("d")
    assert await sweep(bench) == []
    for key in "abcd":
        assert isinstance(await bench.ask(key), Claimed), key


async def test_begin_is_refused_once_a_newer_one_is_committed(bench: Bench) -> None:
    await bench.enqueue("old", topic=TOPIC)
    claimed = await bench.claim("old")
    await bench.enqueue("new", topic=TOPIC)
    assert await bench.begin(claimed) == BeginRefused("superseded")
    await bench.store.release(claimed.email_id, claimed.attempt_id, why="superseded", actor="w1")
    assert await bench.ask("old") == Finished(Stage.CANCELLED)


async def test_an_offer_that_was_begun_is_seen_through(bench: Bench) -> None:
    await bench.enqueue("old", topic=TOPIC)
    claimed = await bench.claim("old")
    assert isinstance(await bench.begin(claimed), Begun)
    await bench.enqueue("new", topic=TOPIC)
    await sweep(bench)
    assert await bench.settle(claimed, OK) == Finished(Stage.SENT, 250, attempts=1)


@pytest.mark.parametrize("swept", [True, False], ids=["swept", "claimed"])
async def test_one_that_was_deferred_is_not_tried_again(bench: Bench, swept: bool) -> None:
    await bench.enqueue("old", topic=TOPIC)
    assert isinstance(await bench.attempt(LATER, "old"), Wait)
    await bench.enqueue("new", topic=TOPIC)
    if swept:
        assert await sweep(bench) == ["old"]  # its workflow is to be woken
    else:
        await bench.advance(60)
    answer = await bench.ask("old")
    assert isinstance(answer, Finished)
    assert (answer.stage, answer.code, answer.maybe_accepted) == (Stage.CANCELLED, 451, False)


async def test_whoever_has_it_keeps_it_and_the_rest_get_the_newer_one(bench: Bench) -> None:
    await bench.enqueue("old", topic=TOPIC, to=["ann@example.org", "bob@example.org"])
    await bench.attempt({0: OK, 1: LATER}, "old")
    await bench.enqueue("new", topic=TOPIC)
    await sweep(bench)
    row = await bench.email("old")
    assert (row["stage"], row["partial"]) == ("sent", True)


async def test_an_unknown_stays_unknown_and_nothing_is_sent_over_it(bench: Bench) -> None:
    await bench.enqueue("old", topic=TOPIC, unknown="resend")
    await bench.attempt(Unanswered(), "old", key_window=86400.0)
    assert (await bench.email("old"))["next_attempt_at"] is not None  # a replay was planned
    await bench.enqueue("new", topic=TOPIC)
    await bench.advance(3600)
    assert isinstance(await bench.ask("old"), Held)
    row = await bench.email("old")
    assert (row["stage"], row["superseded_by"], row["next_attempt_at"]) == ("unknown", "new", None)
    # Nobody settles it: it is closed, and says what is not known.
    await bench.advance(400 * 86400)
    await sweep(bench)
    row = await bench.email("old")
    assert (row["stage"], row["maybe_accepted"]) == ("cancelled", True)


async def test_a_newer_one_for_later_counts_at_once_and_the_sweep_need_not_wait(bench: Bench) -> None:
    await bench.enqueue("old", topic=TOPIC, send_after="2050-01-01T00:00:00Z")
    await bench.enqueue("new", topic=TOPIC, send_after="2050-02-01T00:00:00Z")
    assert (await bench.email("old"))["stage"] == "pending"
    assert await sweep(bench) == []  # no workflow yet: there is nobody to wake
    assert (await bench.email("old"))["stage"] == "cancelled"
    assert (await bench.email("new"))["stage"] == "pending"
    assert await bench.rows("SELECT FROM sendonce.topic WHERE NOT looked") == []


async def test_what_becomes_of_the_newer_one_does_not_matter(bench: Bench) -> None:
    await bench.enqueue("old", topic=TOPIC)
    await bench.enqueue("new", topic=TOPIC)
    await bench.store.withdraw(bench.ids["new"], "new", lane=bench.lane, actor="shop")
    assert (await bench.email("new"))["stage"] == "cancelled"
    assert await bench.ask("old") == Finished(Stage.CANCELLED)


async def test_a_newer_one_that_is_rolled_back_replaces_nothing(bench: Bench, database_url: str) -> None:
    await bench.enqueue("old", topic=TOPIC)
    with psycopg.connect(database_url) as connection:
        enqueue(connection, reset("new"))
        # Not committed yet, either.
        assert isinstance(await bench.ask("old"), Claimed)
        connection.rollback()
    await sweep(bench)
    assert (await bench.email("old"))["stage"] == "claimed"


async def test_of_two_transactions_at_once_the_later_call_counts(bench: Bench, database_url: str) -> None:
    with psycopg.connect(database_url) as first, psycopg.connect(database_url) as second:
        bench.ids["r1"] = enqueue(first, reset("r1")).id
        bench.ids["r2"] = enqueue(second, reset("r2")).id
        second.commit()
        await sweep(bench)
        assert await bench.attempt(OK, "r2") == Finished(Stage.SENT, 250, attempts=1)
        first.commit()
    # It was called for earlier, however late it was committed.
    assert await bench.ask("r1") == Finished(Stage.CANCELLED)


async def test_in_one_call_the_order_is_that_of_the_keys(bench: Bench, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        done = enqueue_many(connection, [reset("b"), reset("a")])
    bench.ids.update((one.key, one.id) for one in done)
    assert await bench.ask("a") == Finished(Stage.CANCELLED)
    assert isinstance(await bench.ask("b"), Claimed)


async def test_mails_of_one_topic_never_lock_each_other(bench: Bench) -> None:
    """Enqueued, claimed, begun and swept all at once: nobody deadlocks, and only the newest can be begun."""
    numbers = range(1, 21)
    for number in numbers:
        await bench.enqueue(f"r{number:02}", topic=TOPIC)

    async def one(key: str) -> bool:
        answer = await bench.ask(key)
        return isinstance(answer, Claimed) and isinstance(await bench.begin(answer), Begun)

    keys = [f"r{number:02}" for number in numbers]
    newer = [bench.enqueue(f"s{number}", topic=TOPIC) for number in range(5)]
    await asyncio.gather(*(one(key) for key in keys), sweep(bench), sweep(bench), *newer)
    begun = await bench.rows("SELECT key FROM sendonce.email WHERE stage = 'transmitting'")
    assert {row["key"] for row in begun} <= {"r20"}
    await sweep(bench)
    open_ = await bench.rows("SELECT key FROM sendonce.email WHERE stage IN ('pending', 'claimed')")
    (newest,) = await bench.rows("SELECT email_id FROM sendonce.topic ORDER BY number DESC LIMIT 1")
    (newest_key,) = await bench.rows("SELECT key FROM sendonce.email WHERE id = %s", [newest["email_id"]])
    assert [row["key"] for row in open_] == [newest_key["key"]]


async def test_a_mail_without_a_topic_asks_nothing_of_the_topics(bench: Bench, database_url: str) -> None:
    await bench.enqueue("plain")
    await bench.enqueue("topical", topic=TOPIC)
    pool = open_pool(database_url, name="alone", max_size=1)
    await pool.open()
    alone = replace(bench, pool=pool, store=Store(pool))
    scans = []
    for key in ("plain", "topical"):
        await alone.begin(await alone.claim(key))
        # What this one session did is counted now.
        await alone.rows("SELECT pg_stat_force_next_flush()")
        (row,) = await bench.rows(
            "SELECT seq_scan + coalesce(idx_scan, 0) AS scans FROM pg_stat_all_tables"
            " WHERE relid = 'sendonce.topic'::regclass"
        )
        scans.append(row["scans"])
    await pool.close()
    assert scans[0] == 0 < scans[1]


async def test_the_topic_is_no_part_of_what_a_key_stands_for(bench: Bench) -> None:
    message = {"key": "k", "sender": "shop@example.com", "to": "ann@example.org", "text": "-"}
    statuses = [
        (await bench.rows("SELECT status FROM sendonce.enqueue(%s)", [Jsonb(message | more)]))[0]["status"]
        for more in ({}, {"topic": "t"}, {"topic": "no topic"}, {"topic": 1})
    ]
    assert statuses == ["created", "exists", "invalid:topic", "invalid:topic"]


async def test_the_sweep_passes_over_a_mail_that_somebody_holds_locked(bench: Bench, database_url: str) -> None:
    for key in ("held", "free"):
        await bench.enqueue(key, topic=key, send_after="2090-01-01T00:00:00Z")
        await bench.enqueue(f"newer-{key}", topic=key, send_after="2090-01-01T00:00:00Z")
    async with await psycopg.AsyncConnection.connect(database_url) as business:
        await business.execute("SELECT FROM sendonce.cancel('held')")
        async with asyncio.timeout(5):
            await sweep(bench)
        assert (await bench.email("free"))["superseded_by"] == "newer-free"
        await business.rollback()
    # It is seen when its time has come.
    await bench.run("UPDATE sendonce.email SET next_attempt_at = sendonce.clock() WHERE key = 'held'")
    assert await bench.ask("held") == Finished(Stage.CANCELLED)
