"""How mails ended: handed to business code each once, waited for, and told to workflows until they know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sendonce import (
    ConfigurationError,
    Final,
    NoSuchEmail,
    OutgoingEmail,
    SignalWorkflow,
    WaitTimeout,
    enqueue,
    take_finals,
    wait,
)
from sendonce.outcome import Accepted, Outcome, Refused, Reply, Unanswered
from sendonce.stages import Proof, Stage

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(250), "Q1")
NO = Refused(Reply(550, "5.1.1"))
TELL = {"workflow_id": "order-1", "signal": "mail_ended"}

Connect = Callable[[], psycopg.Connection[Any]]


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    """Business code's own connections: not in autocommit mode, and never long in waiting."""
    opened: list[psycopg.Connection[Any]] = []

    def one() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(database_url, options="-c lock_timeout=5s -c timezone=Asia/Tokyo"))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close()


async def ended(bench: Bench, key: str = "k1", outcome: Outcome = OK, **fields: Any) -> None:
    await bench.enqueue(key, **{"on_final": "take"} | fields)
    await bench.attempt(outcome, key)


def shown(taken: list[Final]) -> list[tuple[str, str]]:
    return [(one.key, str(one.stage)) for one in taken]


# Taken by business code.


async def test_how_it_ended_is_handed_out_once(bench: Bench, connect: Connect) -> None:
    await ended(bench, outcome=NO)
    connection = connect()
    (final,) = take_finals(connection)
    row = await bench.email()
    assert final == Final(
        account="default",
        key="k1",
        email_id=bench.ids["k1"],
        stage=Stage.FAILED,
        partial=False,
        maybe_accepted=False,
        attempts=1,
        code=550,
        enhanced="5.1.1",
        superseded_by=None,
        at=final.at,
        id=final.id,
    )
    assert abs((final.at - row["final_at"]).total_seconds()) < 5
    connection.rollback()
    assert take_finals(connection) == [final]
    connection.commit()
    assert take_finals(connection) == []


async def test_every_way_to_end_is_told_and_nothing_else(bench: Bench, connect: Connect) -> None:
    await ended(bench, "sent")
    await ended(bench, "failed", NO)
    await ended(bench, "partial", to=["ann@example.org", "bob@example.org"], outcome=OK)
    await bench.enqueue("cancelled", on_final="take")
    await bench.store.withdraw(bench.ids["cancelled"], "cancelled", lane=bench.lane, actor="shop")
    await bench.enqueue("expired", on_final="take", expires_at="2050-01-01T00:00:00Z")
    await bench.run("UPDATE sendonce.email SET expires_at = sendonce.clock() WHERE key = 'expired'")
    await bench.ask("expired")
    await bench.enqueue("dead", on_final="take")
    await bench.store.give_up(bench.ids["dead"], cause="template", lane=bench.lane, actor="w1")
    await bench.enqueue("old", on_final="take", topic="t")
    await bench.enqueue("new", topic="t")
    await bench.ask("old")
    await ended(bench, "unasked", on_final=None)
    await ended(bench, "silent", Unanswered())
    taken = take_finals(connect())
    assert shown(taken) == [
        ("sent", "sent"),
        ("failed", "failed"),
        ("partial", "sent"),
        ("cancelled", "cancelled"),
        ("expired", "expired"),
        ("dead", "dead"),
        ("old", "cancelled"),
    ]
    assert taken[-1].superseded_by == "new"


async def test_an_unknown_is_told_when_it_is_closed_and_again_when_it_was_accepted_after_all(
    bench: Bench, connect: Connect
) -> None:
    await ended(bench, outcome=Unanswered())
    connection = connect()
    assert take_finals(connection) == []
    connection.commit()
    await bench.advance(400 * 86400)
    await bench.store.sweep_silent({"default": bench.lane}, actor="w1")
    (closed,) = take_finals(connection)
    assert (closed.stage, closed.maybe_accepted) == (Stage.DEAD, True)
    connection.commit()
    await bench.store.record_evidence(
        bench.ids["k1"], [Proof(0, True, 1)], source="webhook", event_id="e1", lane=bench.lane, actor="hook"
    )
    (proved,) = take_finals(connection)
    assert (proved.stage, proved.maybe_accepted) == (Stage.SENT, False)


async def test_two_at_once_get_different_ones_and_neither_waits(bench: Bench, connect: Connect) -> None:
    for number in range(6):
        await ended(bench, f"k{number}")
    first, second = connect(), connect()
    assert [one.key for one in take_finals(first, limit=2)] == ["k0", "k1"]
    assert [one.key for one in take_finals(second, limit=3)] == ["k2", "k3", "k4"]
    first.rollback()
    second.commit()
    assert [one.key for one in take_finals(second)] == ["k0", "k1", "k5"]


async def test_what_is_for_a_workflow_is_not_taken(bench: Bench, connect: Connect) -> None:
    await ended(bench, on_final=TELL)
    assert take_finals(connect()) == []


@pytest.mark.parametrize("limit", [0, 1001, 2.5, None])
def test_a_limit_that_cannot_be(connect: Connect, limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="take_finals: limit = "):
        take_finals(connect(), limit=limit)


def test_without_a_transaction_nothing_is_taken(database_url: str) -> None:
    with (
        psycopg.connect(database_url, autocommit=True) as connection,
        pytest.raises(ConfigurationError, match="what is taken would not be part of your transaction"),
    ):
        take_finals(connection)


async def test_through_an_async_session(bench: Bench, database_url: str) -> None:
    await ended(bench)
    engine = create_async_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    async with AsyncSession(engine) as session:
        assert shown(await take_finals(session)) == [("k1", "sent")]
    await engine.dispose()


def test_the_rights_that_it_needs(connect: Connect) -> None:
    connection = connect()
    connection.execute("CREATE ROLE ender")
    connection.execute("GRANT USAGE ON SCHEMA sendonce TO ender")
    connection.execute("GRANT EXECUTE ON FUNCTION sendonce.take_finals TO ender")
    connection.execute("SET LOCAL ROLE ender")
    assert take_finals(connection) == []
    connection.rollback()  # the role as well


async def test_many_that_were_taken_are_not_read_over(bench: Bench, connect: Connect) -> None:
    await ended(bench)
    await bench.run(
        "INSERT INTO sendonce.final (email_id, workflow_id, signal, stage, partial, maybe_accepted, attempts, at,"
        " try_at, handed_at)"
        " SELECT %s, '', '', 'sent', false, false, 1, now(), now(), now() FROM generate_series(1, 20000)",
        [bench.ids["k1"]],
    )
    await bench.run("ANALYZE sendonce.final")
    connection = connect()
    connection.execute("SET enable_seqscan = off")
    assert len(take_finals(connection)) == 1
    connection.commit()
    plan = connection.execute(
        "EXPLAIN SELECT id FROM sendonce.final f WHERE f.handed_at IS NULL AND f.workflow_id = '' AND f.id + 0 > 0"
        " ORDER BY f.id + 0 LIMIT 10 FOR UPDATE SKIP LOCKED"
    ).fetchall()
    assert any("ix_final_unhanded" in line for (line,) in plan)


@pytest.mark.parametrize(
    "value",
    [
        "tell",
        7,
        {},
        {"workflow_id": "w"},
        {"workflow_id": "", "signal": "s"},
        {"workflow_id": "w", "signal": "a\nb"},
        {"workflow_id": 1, "signal": "s"},
        {**TELL, "more": 1},
    ],
)
async def test_what_on_final_cannot_be(bench: Bench, value: Any) -> None:
    message = {"key": "k", "sender": "shop@example.com", "to": "ann@example.org", "text": "-", "on_final": value}
    rows = await bench.rows("SELECT status FROM sendonce.enqueue(%s)", [Jsonb(message)])
    assert rows == [{"status": "invalid:on_final"}]
    with pytest.raises(ValueError, match="on_final: must be"):
        OutgoingEmail(**message)


async def test_on_final_survives_the_store(bench: Bench, connect: Connect) -> None:
    mail: dict[str, Any] = {"sender": "shop@example.com", "to": "ann@example.org", "text": "-"}
    asked = SignalWorkflow(workflow_id="order-1", signal="mail_ended")
    with connect() as connection:
        bench.ids["k1"] = enqueue(connection, OutgoingEmail(key="k1", topic="t", on_final=asked, **mail)).id
    claimed = await bench.claim()
    assert isinstance(claimed.content, OutgoingEmail)
    assert (claimed.content.on_final, claimed.content.topic) == (asked, "t")


# Told to workflows.


async def test_a_workflow_is_told_until_it_knows(bench: Bench) -> None:
    await ended(bench, on_final=TELL, outcome=NO)
    (one,) = await bench.store.take_untold()
    assert (one.workflow_id, one.signal, one.key, one.stage) == ("order-1", "mail_ended", "k1", "failed")
    assert await bench.store.take_untold() == []
    # Its process died: it is told again, less and less often.
    for seconds in (5, 10, 20):
        await bench.advance(seconds - 1)
        assert await bench.store.take_untold() == []
        await bench.advance(1)
        assert await bench.store.take_untold() == [one]
    await bench.store.told(one)
    await bench.advance(86400)
    assert await bench.store.take_untold() == []
    assert await bench.open_alarms() == []


async def test_a_workflow_that_is_gone_is_alarmed_once(bench: Bench) -> None:
    await ended(bench, on_final=TELL)
    (one,) = await bench.store.take_untold()
    await bench.store.told(one, gone=True)
    await bench.store.told(one, gone=True)
    assert await bench.open_alarms() == ["nobody_told"]
    await bench.advance(86400)
    assert await bench.store.take_untold() == []


async def test_whoever_watches_is_told_however_the_end_and_the_watch_meet(bench: Bench) -> None:
    await bench.enqueue()
    assert await bench.store.watch("default", "k1", "w1", "s") is Stage.PENDING
    assert await bench.store.watch("default", "k1", "w1", "s") is Stage.PENDING
    assert await bench.store.watch("default", "k1", "w2", "s") is Stage.PENDING
    assert await bench.store.watch("default", "k2", "w1", "s") is None
    assert await bench.store.watch("other", "k1", "w1", "s") is None
    await bench.attempt(OK)
    assert [one.workflow_id for one in await bench.store.take_untold()] == ["w1", "w2"]
    found = await bench.store.watch("default", "k1", "w3", "s")
    assert isinstance(found, Final)
    assert found.stage is Stage.SENT
    assert await bench.store.take_untold() == []


async def test_an_end_that_is_being_committed_is_not_missed(bench: Bench, connect: Connect) -> None:
    await bench.enqueue()
    ending = connect()
    ending.execute("UPDATE sendonce.email SET stage = 'cancelled', final_at = sendonce.clock() WHERE key = 'k1'")
    watching = asyncio.create_task(bench.store.watch("default", "k1", "w1", "s"))
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not await bench.rows(waits):
        assert not watching.done()
    ending.commit()
    found = await watching
    assert isinstance(found, Final)
    assert found.stage is Stage.CANCELLED


# Waited for.


def sqlalchemy_url(database_url: str) -> str:
    return database_url.replace("postgresql://", "postgresql+psycopg://")


async def test_wait_through_whatever_is_not_async(bench: Bench, database_url: str) -> None:
    await ended(bench, outcome=NO)
    engine = create_engine(sqlalchemy_url(database_url), isolation_level="REPEATABLE READ")
    committing = create_engine(sqlalchemy_url(database_url), isolation_level="AUTOCOMMIT")
    scoped = scoped_session(sessionmaker(engine))
    with engine.connect() as connection, Session(engine) as session, Session(connection) as bound:
        for source in (engine, committing, connection, session, bound, scoped):
            final = wait(source, "k1", timeout=0)
            assert (final.stage, final.code, final.id) == (Stage.FAILED, 550, None)
    scoped.remove()
    engine.dispose()
    committing.dispose()
    for autocommit in (True, False):
        with psycopg.connect(database_url, autocommit=autocommit) as plain:
            assert wait(plain, "k1", timeout=0) == final
            # Nothing is open afterwards: it may be waited with again.
            assert wait(plain, "k1", timeout=0) == final


async def test_wait_through_whatever_is_async(bench: Bench, database_url: str) -> None:
    await ended(bench, outcome=NO)
    engine = create_async_engine(sqlalchemy_url(database_url))
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    async with engine.connect() as connection, AsyncSession(engine) as session:
        for source in (engine, connection, session, scoped):
            assert (await wait(source, "k1", timeout=0)).stage is Stage.FAILED
    await scoped.remove()
    await engine.dispose()
    async with await psycopg.AsyncConnection.connect(database_url) as plain:
        assert (await wait(plain, "k1", timeout=0)).stage is Stage.FAILED


async def test_wait_sees_the_end_that_comes_while_it_waits(bench: Bench, database_url: str) -> None:
    await bench.enqueue(topic="t")
    engine = create_async_engine(sqlalchemy_url(database_url))
    async with await psycopg.AsyncConnection.connect(database_url) as plain:
        waiting = [asyncio.ensure_future(wait(source, "k1")) for source in (engine, plain)]
        threaded = asyncio.create_task(asyncio.to_thread(_wait_alone, database_url))
        done, _ = await asyncio.wait([*waiting, threaded], timeout=0.2)
        assert not done
        await bench.enqueue("k2", topic="t")
        await bench.ask("k1")
        finals = [*await asyncio.gather(*waiting), await threaded]
    await engine.dispose()
    assert [(final.stage, final.superseded_by) for final in finals] == [(Stage.CANCELLED, "k2")] * 3


def _wait_alone(database_url: str) -> Final:
    with psycopg.connect(database_url) as connection:
        return wait(connection, "k1")


async def test_wait_holds_nothing_open_between_two_looks(bench: Bench, database_url: str) -> None:
    await bench.enqueue()
    async with await psycopg.AsyncConnection.connect(database_url, application_name="waits") as plain:
        waiting = asyncio.ensure_future(wait(plain, "k1"))
        found: list[Any] = []
        while not found:
            # Between two looks it is idle, and not "idle in transaction".
            found = await bench.rows(
                "SELECT FROM pg_stat_activity WHERE application_name = 'waits' AND state = 'idle'"
                " AND query_start IS NOT NULL"
            )
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_time_that_has_passed_is_typed_and_says_where_it_stands(bench: Bench, database_url: str) -> None:
    await ended(bench, outcome=Unanswered())
    with psycopg.connect(database_url) as connection, pytest.raises(WaitTimeout) as caught:
        wait(connection, "k1", timeout=0.1)
    error = caught.value
    assert (error.account, error.key, error.stage) == ("default", "k1", "unknown")
    assert isinstance(error, TimeoutError)
    assert str(error) == "the mail with key 'k1' in account 'default' is unknown after 0.1 s; it goes on by itself"


async def test_wait_in_the_transaction_that_enqueued_is_refused(database_url: str) -> None:
    mail = OutgoingEmail(key="k1", sender="shop@example.com", to="ann@example.org", text="-")
    engine = create_engine(sqlalchemy_url(database_url))
    with Session(engine) as session, engine.connect() as connection, psycopg.connect(database_url) as plain:
        for source in (session, connection, plain):
            enqueue(source, mail)
            with pytest.raises(ConfigurationError, match="a transaction is open on what was passed: commit it first"):
                wait(source, "k1")
            # Uncommitted is not there, for whoever else asks.
            with pytest.raises(NoSuchEmail):
                wait(engine, "k1")
            source.rollback()
    engine.dispose()


def test_wait_with_what_cannot_be(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for timeout in (-1, float("nan")):
            with pytest.raises(ConfigurationError, match="wait: timeout = "):
                wait(connection, "k1", timeout=timeout)
    with pytest.raises(TypeError, match=r"wait takes a SQLAlchemy Engine.*, not builtins\.str"):
        wait("postgresql://", "k1")  # type: ignore[call-overload]
