"""Events handed to business code: in its transaction, each once, none missed, nobody kept waiting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import IsolationLevel

from sendonce import ConfigurationError, EventKind, TakenEvent, take_events
from sendonce.events import Event
from sendonce.outcome import Accepted, Reply
from sendonce.store import events
from sendonce.store.events import Terms
from sendonce.store.records import Begun

if TYPE_CHECKING:
    from tests.store.conftest import Bench

OK = Accepted(Reply(200), "P1")
TO = ["ann@example.org", "Bob@example.org"]

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


def terms(bench: Bench) -> Terms:
    return Terms({"default": bench.lane}, "hooks")


def event(number: int = 1, kind: EventKind = EventKind.DELIVERED, **more: Any) -> Event:
    fields = {"source": "webhook:test", "event_id": f"e{number}", "kind": kind, "provider_id": "P1"}
    return Event(**fields | more)


async def record(bench: Bench, *found: Event, **more: Any) -> None:
    await bench.store.record_events("default", found, terms(bench), **more)


async def sent(bench: Bench, key: str = "k1", **fields: Any) -> None:
    await bench.enqueue(key, **fields)
    await bench.attempt(OK, key)


def ids(taken: list[TakenEvent]) -> list[int]:
    return [one.id for one in taken]


async def test_what_is_handed_out(bench: Bench, connect: Connect) -> None:
    await sent(bench, to=TO)
    at = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)
    reply = Reply(550, "5.1.1", "no such user")
    await record(bench, event(1, EventKind.BOUNCED, at=at, recipient="bob@EXAMPLE.org", reply=reply))
    await record(bench, event(2), event(3, recipient="who@elsewhere.example"))
    named, nobody, stranger = take_events(connect())
    (row, *_) = await bench.rows("SELECT received_at FROM sendonce.event ORDER BY id")
    assert named == TakenEvent(
        id=named.id,
        kind=EventKind.BOUNCED,
        account="default",
        key="k1",
        email_id=bench.ids["k1"],
        ordinal=1,
        mailbox="Bob@example.org",
        provider_id="P1",
        happened_at=at,
        received_at=row["received_at"],
        code=550,
        enhanced="5.1.1",
    )
    assert "example.org" not in repr(named)
    assert (nobody.ordinal, nobody.mailbox, nobody.happened_at, nobody.code) == (None, None, None, None)
    assert (stranger.ordinal, stranger.mailbox) == (None, "who@elsewhere.example")


async def test_each_once_in_their_order(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    kinds = [EventKind.DELIVERED, EventKind.ACCEPTED, EventKind.COMPLAINED, EventKind.ACCEPTED, EventKind.DELIVERED]
    for number, kind in enumerate(kinds):
        await record(bench, event(number, kind))
    connection = connect()
    found = take_events(connection, limit=3) + take_events(connection, limit=3)
    assert [one.kind for one in found] == kinds
    assert ids(found) == sorted(ids(found))
    assert take_events(connection) == []
    connection.commit()
    assert take_events(connect()) == []


async def test_a_rollback_hands_them_out_again(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, event())
    connection = connect()
    first = take_events(connection)
    connection.rollback()
    assert take_events(connection) == first != []
    connection.rollback()
    with connection.transaction(force_rollback=True):
        assert take_events(connection) == first
    assert take_events(connection) == first


async def test_two_at_once_get_different_ones_and_neither_waits(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, *map(event, range(5)))
    one, other = connect(), connect()
    first, second = take_events(one, limit=2), take_events(other, limit=2)
    assert len({*ids(first), *ids(second)}) == 4
    one.rollback()
    other.commit()
    rest = take_events(connect())
    assert ids(rest) == sorted(set(ids(first)) | set(ids(rest)) - set(ids(second)))
    assert len(rest) == 3


async def test_many_at_once_get_everything_once(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    kinds = list(EventKind)
    await record(bench, *(event(number, kinds[number % len(kinds)]) for number in range(60)))

    def drain(connection: psycopg.Connection[Any]) -> list[int]:
        found: list[int] = []
        while taken := take_events(connection, limit=4):
            found += ids(taken)
            connection.commit()
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [one for each in pool.map(drain, [connect() for _ in range(4)]) for one in each]
    assert len(found) == len(set(found)) == 60


async def test_an_event_that_commits_after_later_ones_is_not_missed(
    bench: Bench, connect: Connect, database_url: str
) -> None:
    await sent(bench)
    await sent(bench, "k2")
    async with await psycopg.AsyncConnection.connect(database_url) as slow:
        await slow.execute("SELECT 1")  # in a transaction that goes on
        own = event(1, email_id=str(bench.ids["k2"]), provider_id="")
        await events.record(slow, "default", [own], terms(bench))
        await record(bench, event(2, email_id=str(bench.ids["k1"]), provider_id=""))
        connection = connect()
        later = take_events(connection)
        connection.commit()
        await slow.commit()
    earlier = take_events(connection)
    assert [one.key for one in (*later, *earlier)] == ["k1", "k2"]
    assert earlier[0].id < later[0].id


async def test_the_kinds_that_are_asked_for(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, *(event(number, kind) for number, kind in enumerate(EventKind)))
    connection = connect()
    wanted = take_events(connection, kinds=["complained", EventKind.BOUNCED, "bounced"])
    assert [one.kind for one in wanted] == ["bounced", "complained"]
    assert take_events(connection, kinds=[]) == []
    assert [one.kind for one in take_events(connection, kinds="dropped")] == ["dropped"]
    rest = [one.kind for one in take_events(connection)]
    assert rest == ["accepted", "delayed", "soft_bounced", "delivered"]


async def test_kinds_that_nobody_takes_are_not_read_over(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, event(1))
    await record(bench, event(2, EventKind.BOUNCED))
    connection = connect()
    connection.execute(
        "INSERT INTO sendonce.event (account, source, event_id, kind, proven, email_id, claimed_id, provider_id,"
        " message_id, recipient) SELECT e.account, e.source, 'm' || n, e.kind, true, e.email_id, '', '', '', ''"
        " FROM sendonce.event e, generate_series(1, 5000) n WHERE e.kind = 'delivered'"
    )
    connection.execute("ANALYZE sendonce.event")
    connection.commit()
    await record(bench, event(3, EventKind.BOUNCED))
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'sendonce.event'::regclass"
    ((before,),) = connection.execute(read)
    assert len(take_events(connection, kinds=["bounced", "complained"])) == 2
    ((after,),) = connection.execute(read)
    assert after - before < 50


async def test_only_what_proves_its_author(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, event(), proven=False)
    assert take_events(connect()) == []


async def test_what_came_before_its_mail_was_known_is_handed_out_with_it(
    bench: Bench, connect: Connect, database_url: str
) -> None:
    await bench.enqueue()
    claimed = await bench.claim()
    assert isinstance(await bench.begin(claimed), Begun)
    await record(bench, event())
    connection = connect()
    assert take_events(connection) == []
    connection.rollback()
    await bench.settle(claimed, OK)
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN sendonce_events")
        assert await bench.store.join_parked_events({}, terms(bench)) == 1
        assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    assert [one.key for one in take_events(connection)] == ["k1"]


async def test_who_takes_stands_in_nobodys_way(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, event(1))
    taking = connect()
    assert len(take_events(taking)) == 1
    # The provider repeats itself, and has more to say. (Where that waits, the test never ends.)
    await record(bench, event(1), event(2, EventKind.BOUNCED))
    assert len(take_events(connect())) == 1
    taking.commit()


async def test_an_event_goes_with_its_mail(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, event())
    connection = connect()
    assert len(take_events(connection)) == 1
    connection.commit()
    assert await bench.rows("SELECT FROM sendonce.event WHERE handed_at IS NOT NULL") == [{}]
    await bench.run("DELETE FROM sendonce.email")
    assert await bench.rows("SELECT FROM sendonce.event") == []


async def test_a_snapshot_that_is_too_old_is_a_serialization_failure(bench: Bench, connect: Connect) -> None:
    await sent(bench)
    await record(bench, event())
    old, other = connect(), connect()
    old.isolation_level = IsolationLevel.REPEATABLE_READ
    old.execute("SELECT 1 FROM sendonce.event")
    assert len(take_events(other)) == 1
    assert take_events(old) == []
    other.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        take_events(old)
    old.rollback()
    assert take_events(old) == []


@pytest.mark.parametrize("limit", [0, 1001, -1, 2.5, "10", None])
def test_a_limit_that_cannot_be(connect: Connect, limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 to 1000"):
        take_events(connect(), limit=limit)


@pytest.mark.parametrize("kinds", [["bounce"], "bounced,complained", [""], [None]])
def test_a_kind_that_there_is_not(connect: Connect, kinds: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"no kind of event .* only accepted, delayed"):
        take_events(connect(), kinds=kinds)


def test_without_a_transaction_nothing_is_taken(connect: Connect) -> None:
    connection = connect()
    connection.autocommit = True
    with pytest.raises(ConfigurationError, match="what is taken would not be part of your transaction"):
        take_events(connection)
    with connection.transaction():
        assert take_events(connection) == []


def test_what_is_no_connection(database_url: str) -> None:
    with pytest.raises(TypeError, match=r"^take_events takes a SQLAlchemy Session, .* not builtins\.str$"):
        take_events(database_url)  # type: ignore[call-overload]


# By SQL


def test_the_example_in_sql(connect: Connect) -> None:
    source = (resources.files("sendonce.store") / "migrations/versions/0001_take_events.sql").read_text()
    found = re.search(r"In psql:\n--\n((?:--   .*\n)+)", source)
    assert found
    connect().execute(re.sub("(?m)^--   ", "", found[1]).encode())


def test_sql_knows_the_same_kinds_and_limits(connect: Connect) -> None:
    take = "SELECT count(*) FROM sendonce.take_events(%s::text[], %s)"
    connection = connect()
    assert connection.execute(take, [[str(kind) for kind in EventKind], 1000]).fetchone() == (0,)
    for kinds, most in ((["bounce"], 1), ([None], 1), (None, 0), (None, 1001), (None, None)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"sendonce\.take_events: (kinds|max_events) = "):
            connection.execute(take, [kinds, most])
        connection.rollback()
