"""The same behaviour through every kind of connection that business code may call with."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Connection, Engine, NullPool, create_engine, exc, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sendonce import (
    Cancelled,
    CancelOutcome,
    ConfigurationError,
    Enqueued,
    IdempotencyConflict,
    MailStatus,
    OutgoingEmail,
    StoreNotReady,
    TakenEvent,
    cancel,
    enqueue,
    enqueue_many,
    status,
    take_events,
)
from sendonce.events import Event, EventKind
from sendonce.stages import RecipientStage, Stage
from sendonce.store import events

SECRET = "secret@example.org"


def mail(key: str = "order-1", **fields: Any) -> OutgoingEmail:
    return OutgoingEmail(**{"key": key, "sender": "shop@example.com", "to": SECRET, "text": "Hi: 100 % :x"} | fields)


async def settled(value: Any) -> Any:
    """What ``value`` comes to, be it there at once or awaited."""
    return await value if isinstance(value, Awaitable) else value


@dataclass
class Caller:
    """One kind of connection, with what a caller does to it."""

    connection: Any

    async def enqueue(self, email: OutgoingEmail) -> Enqueued:
        done = await settled(enqueue(self.connection, email))
        assert isinstance(done, Enqueued)
        return done

    async def enqueue_many(self, *emails: OutgoingEmail) -> list[Enqueued]:
        done = await settled(enqueue_many(self.connection, emails))
        assert isinstance(done, list)
        return done

    async def take_events(self, **options: Any) -> list[TakenEvent]:
        done = await settled(take_events(self.connection, **options))
        assert isinstance(done, list)
        return done

    async def status(self, key: str) -> MailStatus | None:
        done = await settled(status(self.connection, key))
        assert done is None or isinstance(done, MailStatus)
        return done

    async def cancel(self, key: str, **options: Any) -> Cancelled:
        done = await settled(cancel(self.connection, key, **options))
        assert isinstance(done, Cancelled)
        return done

    async def commit(self) -> None:
        await settled(self.connection.commit())

    async def rollback(self) -> None:
        await settled(self.connection.rollback())


def _sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


async def _open(kind: str, url: str, stack: AsyncExitStack) -> Any:
    if kind == "psycopg":
        return stack.enter_context(psycopg.connect(url))
    if kind == "psycopg dict rows, raw cursors":
        connection = stack.enter_context(psycopg.connect(url, row_factory=dict_row))
        connection.cursor_factory = psycopg.RawCursor
        return connection
    if kind == "psycopg async":
        return await stack.enter_async_context(await psycopg.AsyncConnection.connect(url))
    if "async" in kind:
        engine = create_async_engine(_sqlalchemy(url), poolclass=NullPool)
        stack.push_async_callback(engine.dispose)
        if kind == "async Connection":
            return await stack.enter_async_context(engine.connect())
        if kind == "async Session":
            return await stack.enter_async_context(AsyncSession(engine))
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
        stack.push_async_callback(scoped.remove)
        return scoped
    plain = create_engine(_sqlalchemy(url), poolclass=NullPool)
    stack.callback(plain.dispose)
    if kind == "Connection":
        return stack.enter_context(plain.connect())
    if kind == "Session":
        return stack.enter_context(Session(plain))
    registry = scoped_session(sessionmaker(plain))
    stack.callback(registry.remove)
    return registry


KINDS = ["psycopg", "psycopg dict rows, raw cursors", "psycopg async", "Connection", "Session", "scoped Session"]
KINDS += ["async Connection", "async Session", "async scoped Session"]


@pytest.fixture(params=KINDS)
async def caller(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Caller]:
    async with AsyncExitStack() as stack:
        yield Caller(await _open(request.param, database_url, stack))


@pytest.fixture
def stored(database_url: str) -> Callable[[], list[str]]:
    """The keys that are committed."""

    def keys() -> list[str]:
        with psycopg.connect(database_url) as connection:
            found = connection.execute("SELECT key FROM sendonce.email ORDER BY key").fetchall()
        return [key for (key,) in found]

    return keys


async def test_every_connection(caller: Caller, stored: Callable[[], list[str]]) -> None:
    first = await caller.enqueue(mail())
    assert first.created
    assert stored() == []
    await caller.commit()
    assert stored() == ["order-1"]

    again = await caller.enqueue(mail())
    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(IdempotencyConflict):
        await caller.enqueue(mail(text="Other"))
    # The transaction of the conflict goes on.
    many = await caller.enqueue_many(mail("b"), mail("a"), mail())
    assert [(d.key, d.created) for d in many] == [("b", True), ("a", True), ("order-1", False)]
    with pytest.raises(IdempotencyConflict):
        await caller.enqueue_many(mail("c"), mail(text="Other"))
    assert await caller.enqueue_many() == []
    await caller.commit()
    assert stored() == ["a", "b", "order-1"]

    await caller.enqueue(mail("dropped"))
    await caller.enqueue_many(mail("dropped-2"), mail("dropped-3"))
    await caller.rollback()
    assert stored() == ["a", "b", "order-1"]


async def test_every_connection_takes_events(caller: Caller, database_url: str) -> None:
    enqueued = await caller.enqueue(mail())
    await caller.commit()
    at = datetime(2030, 1, 31, 23, tzinfo=UTC)
    kinds = (EventKind.ACCEPTED, EventKind.BOUNCED)
    found = [Event("test", kind, kind, at=at, email_id=str(enqueued.id)) for kind in kinds]
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await events.record(connection, "default", found, events.Terms({}, "test"))

    first = await caller.take_events(kinds=["bounced"])
    assert [(one.kind, one.email_id, one.happened_at, one.ordinal) for one in first] == [
        (EventKind.BOUNCED, enqueued.id, at, 0)
    ]
    await caller.rollback()
    assert [one.kind for one in await caller.take_events()] == ["accepted", "bounced"]
    await caller.commit()
    assert await caller.take_events() == []


async def test_every_connection_asks_and_calls_off(caller: Caller) -> None:
    """A cancellation is part of the caller's transaction, like the mail."""
    assert await caller.status("order-1") is None
    assert (await caller.cancel("order-1")).outcome == "missing"
    enqueued = await caller.enqueue(mail(send_after=datetime(2030, 1, 31, 23, tzinfo=UTC)))
    await caller.commit()

    called_off = await caller.cancel("order-1", requested_by="shop")
    assert called_off == Cancelled(CancelOutcome.CANCELLED, enqueued.id, Stage.CANCELLED)
    await caller.rollback()
    found = await caller.status("order-1")
    assert found is not None
    assert (found.id, found.stage, found.final_at) == (enqueued.id, "pending", None)
    assert found.next_attempt_at == datetime(2030, 1, 31, 23, tzinfo=UTC)
    assert found.recipients == {RecipientStage.OUTSTANDING: 1}

    await caller.cancel("order-1")
    await caller.commit()
    found = await caller.status("order-1")
    assert found is not None
    assert (found.stage, found.offered, found.next_attempt_at) == ("cancelled", False, None)
    assert (await caller.cancel("order-1")).outcome == "finished"
    with pytest.raises(ConfigurationError, match="requested_by"):
        await caller.cancel("order-1", requested_by="two\nlines")
    await caller.rollback()


async def test_every_connection_without_the_schema(caller: Caller, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA sendonce CASCADE")
    with pytest.raises(StoreNotReady):
        await caller.enqueue(mail())
    await caller.rollback()
    with pytest.raises(StoreNotReady):
        await caller.take_events()
    await caller.rollback()
    with pytest.raises(StoreNotReady):
        await caller.status("order-1")
    await caller.rollback()
    with pytest.raises(StoreNotReady):
        await caller.cancel("order-1")
    await caller.rollback()


async def test_psycopg_async_in_autocommit_mode(database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        with pytest.raises(ConfigurationError):
            await enqueue(connection, mail())
        async with connection.transaction():
            assert (await enqueue(connection, mail())).created


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    engine = create_engine(_sqlalchemy(database_url), poolclass=NullPool)
    yield engine
    engine.dispose()


def test_sqlalchemy_in_autocommit_mode(engine: Engine) -> None:
    for autocommit in (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT"),
        engine.execution_options(isolation_level="AUTOCOMMIT").connect(),
    ):
        with autocommit as connection, pytest.raises(ConfigurationError, match="autocommit"):
            enqueue(connection, mail())


def test_sqlalchemy_business_code(engine: Engine, stored: Callable[[], list[str]]) -> None:
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TABLE public.orders (id integer)"))
        session.execute(text("INSERT INTO public.orders VALUES (4711)"))
        enqueue(session, mail())
        nested = session.begin_nested()
        enqueue(session, mail("dropped"))
        nested.rollback()
    assert stored() == ["order-1"]


def test_a_failing_statement_shows_no_personal_data(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: Connection | Session) -> BaseException:
        with pytest.raises(exc.DBAPIError) as caught:
            enqueue(connection, mail())
        return caught.value

    with engine.connect() as first, Session(engine) as session:
        session.connection(execution_options={"isolation_level": "SERIALIZABLE"}).execute(text("SELECT 1"))
        enqueue(first, mail())
        first.commit()
        logging.getLogger("sqlalchemy.engine").setLevel(logging.INFO)
        try:
            error = fail(session)
        finally:
            logging.getLogger("sqlalchemy.engine").setLevel(logging.NOTSET)
    assert getattr(error, "orig", None).__class__ is psycopg.errors.SerializationFailure
    assert "sendonce.enqueue" in str(error)
    assert "characters>" in str(error)  # what SQLAlchemy shows of the parameters
    assert SECRET not in "".join(traceback.format_exception(error))
    assert SECRET not in repr(error)
    assert SECRET not in caplog.text


async def test_static_types(database_url: str) -> None:
    """What the overloads say; mypy reads this."""
    with psycopg.connect(database_url) as connection:
        one: Enqueued = enqueue(connection, mail())
        many: list[Enqueued] = enqueue_many(connection, [mail()])
        events_: list[TakenEvent] = take_events(connection)
        asked: MailStatus | None = status(connection, "order-2")
        called_off: Cancelled = cancel(connection, "order-2")
    async with create_async_engine(_sqlalchemy(database_url), poolclass=NullPool).connect() as asynchronous:
        assert isinstance(asynchronous, AsyncConnection)
        other: Enqueued = await enqueue(asynchronous, mail())
        others: list[Enqueued] = await enqueue_many(asynchronous, [mail()])
        taken: list[TakenEvent] = await take_events(asynchronous)
        asked_too: MailStatus | None = await status(asynchronous, "order-2")
        called_off_too: Cancelled = await cancel(asynchronous, "order-2")
    assert asked is asked_too is None
    assert called_off == called_off_too
    assert [one.key, many[0].key, other.key, others[0].key] == ["order-1"] * 4
    assert events_ == taken == []
