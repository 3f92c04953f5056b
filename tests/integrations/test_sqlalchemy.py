"""After the outermost commit, and only then: every way in which a SQLAlchemy transaction can end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from sendonce import ConfigurationError, Enqueued, OutgoingEmail, enqueue, enqueue_many
from sendonce.sqlalchemy import start_after_commit

if TYPE_CHECKING:
    from sendonce.background import Starts
    from tests.integrations.conftest import Witness

Run = Callable[[Callable[[Session], None]], Awaitable[None]]


@pytest.fixture(params=["Session", "AsyncSession"])
def run(request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine) -> Run:
    """Runs what it is given with a session: a plain one, or the one within an AsyncSession."""

    async def run(scenario: Callable[[Session], None]) -> None:
        if request.param == "Session":
            with Session(engine) as session:
                scenario(session)
        else:
            async with AsyncSession(async_engine) as session:
                await session.run_sync(scenario)

    return run


def mail(key: str) -> OutgoingEmail:
    return OutgoingEmail(key=key, sender="shop@example.com", to="ann@example.org", text="Hi.")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


@pytest.fixture
def send(witness: Witness) -> Callable[[Session, str], None]:
    """Enqueue under this key, and have it started after the commit."""

    def send(session: Session, key: str) -> None:
        start_after_commit(session, witness, enqueue(session, mail(key)))

    return send


Send = Callable[[Session, str], None]


async def test_a_commit_starts_what_was_enqueued_in_order(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        with session.begin():
            send(session, "a")
            start_after_commit(session, witness, *enqueue_many(session, [mail("c"), mail("b")]))
            assert witness.take() == []
        assert witness.take() == ["a", "c", "b"]
        session.execute(text("SELECT 1"))
        session.commit()
        assert witness.take() == []

    await run(scenario)


async def test_a_rollback_forgets_and_the_session_goes_on(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        send(session, "gone")
        session.rollback()
        send(session, "kept")
        session.commit()
        assert witness.take() == ["kept"]

    await run(scenario)
    assert witness.committed() == ["kept"]


async def test_an_exception_in_begin_forgets(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        with suppress(ZeroDivisionError), session.begin():
            send(session, "gone")
            raise ZeroDivisionError
        with session.begin():
            send(session, "kept")

    await run(scenario)
    assert witness.take() == ["kept"]


async def test_closing_without_a_commit_forgets(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        send(session, "gone")
        session.close()
        send(session, "kept")
        session.commit()

    await run(scenario)
    assert witness.take() == ["kept"]


async def test_a_released_savepoint_waits_for_the_commit(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        with session.begin():
            with session.begin_nested():
                send(session, "first")
                with session.begin_nested():
                    send(session, "second")
            assert witness.take() == []
            send(session, "third")
            assert witness.take() == []
        assert sorted(witness.take()) == ["first", "second", "third"]

    await run(scenario)


async def test_a_rollback_to_a_savepoint_drops_what_came_since(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        with session.begin():
            send(session, "before")
            with suppress(ZeroDivisionError), session.begin_nested():
                send(session, "within")
                with session.begin_nested():
                    send(session, "released")
                raise ZeroDivisionError
            send(session, "after")
        assert witness.take() == ["before", "after"]

    await run(scenario)
    assert witness.committed() == ["after", "before"]


async def test_a_rollback_drops_what_savepoints_released(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        with session.begin_nested():
            send(session, "released")
        session.rollback()
        session.commit()

    await run(scenario)
    assert witness.take() == []


async def test_a_commit_within_savepoints_ends_them_all(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        send(session, "a")
        session.begin_nested()
        send(session, "b")
        session.begin_nested()
        send(session, "c")
        session.commit()

    await run(scenario)
    assert sorted(witness.take()) == ["a", "b", "c"]


async def test_a_flush_that_fails_in_a_savepoint_drops_its_mail(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        with session.begin():
            with suppress(IntegrityError), session.begin_nested():
                send(session, "gone")
                session.execute(text("INSERT INTO orders VALUES (1, 1), (1, 2)"))
            send(session, "kept")

    await run(scenario)
    assert witness.take() == ["kept"]


async def test_a_commit_that_fails_starts_nothing(run: Run, send: Send, witness: Witness) -> None:
    def scenario(session: Session) -> None:
        session.execute(text("INSERT INTO orders VALUES (1, 7), (2, 7)"))
        send(session, "gone")
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        session.commit()

    await run(scenario)
    assert witness.take() == []
    assert witness.committed() == []


async def test_mail_that_a_flush_enqueues(run: Run, send: Send, witness: Witness) -> None:
    def flushed(session: Session, _: object) -> None:
        send(session, "flushed")
        with session.begin_nested():
            send(session, "flushed.within")

    def scenario(session: Session) -> None:
        event.listen(session, "after_flush", flushed)
        with session.begin(), session.begin_nested():
            session.add(Order(id=1, number=1))
            session.flush()
            assert witness.take() == []
        assert witness.take() == ["flushed", "flushed.within"]

    await run(scenario)


def test_two_sessions_do_not_mix(engine: Engine, send: Send, witness: Witness) -> None:
    with Session(engine) as one, Session(engine) as other:
        send(one, "one")
        send(other, "other")
        one.commit()
        assert witness.take() == ["one"]
        other.rollback()
        one.commit()
    assert witness.take() == []


def test_each_mail_goes_to_the_starter_it_was_given_to(engine: Engine, witness: Witness) -> None:
    second = replace(witness, started=[])
    with Session(engine) as session, session.begin():
        start_after_commit(session, witness, enqueue(session, mail("a")))
        start_after_commit(session, second, enqueue(session, mail("b")))
    assert (witness.take(), second.take()) == (["a"], ["b"])


def test_sessionmaker_and_scoped_session(engine: Engine, witness: Witness) -> None:
    registry = scoped_session(sessionmaker(engine))
    start_after_commit(registry, witness, enqueue(registry, mail("scoped")))
    registry.commit()
    registry.remove()
    with sessionmaker(engine, info={"whose": "theirs"}).begin() as session:
        start_after_commit(session, witness, enqueue(session, mail("made")))
    assert witness.take() == ["scoped", "made"]


async def test_async_sessions_and_their_savepoints(async_engine: AsyncEngine, witness: Witness) -> None:
    sessions = async_sessionmaker(async_engine)
    async with sessions.begin() as session:
        start_after_commit(session, witness, await enqueue(session, mail("a")))
        nested = await session.begin_nested()
        start_after_commit(session, witness, await enqueue(session, mail("b")))
        await nested.rollback()
        async with session.begin_nested():
            start_after_commit(session, witness, await enqueue(session, mail("c")))
        assert witness.take() == []
    assert witness.take() == ["a", "c"]
    scoped = async_scoped_session(sessions, scopefunc=lambda: 1)
    start_after_commit(scoped, witness, await enqueue(scoped, mail("d")))
    await scoped.commit()
    await scoped.remove()
    assert witness.take() == ["d"]


# A session joined into an outer transaction, as test suites do -----------------------------------------------------


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "rollback_only"])
def test_a_joined_session_starts_nothing_as_it_cannot_know(
    engine: Engine, send: Send, witness: Witness, mode: Any
) -> None:
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            send(session, "a")
            session.commit()
            send(session, "b")
            session.commit()
        outer.rollback()
    assert (witness.take(), witness.committed()) == ([], [])


async def test_a_joined_async_session_starts_nothing(async_engine: AsyncEngine, witness: Witness) -> None:
    async with async_engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            start_after_commit(session, witness, await enqueue(session, mail("a")))
            await session.commit()
        await outer.rollback()
    assert witness.take() == []


def test_a_session_on_a_connection_whose_transaction_is_its_own(engine: Engine, send: Send, witness: Witness) -> None:
    with engine.connect() as connection, Session(connection) as session:
        send(session, "a")
        session.commit()
        assert witness.take() == ["a"]


# Misuse and misfortune ---------------------------------------------------------------------------------------------


def test_outside_a_transaction_it_says_so(engine: Engine, witness: Witness) -> None:
    with Session(engine) as session:
        done = enqueue(session, mail("a"))
        session.commit()
        with pytest.raises(ConfigurationError, match="in no transaction"):
            start_after_commit(session, witness, done)


class Breaking:
    """A starter that does not keep its promise."""

    def start(self, *mails: Enqueued) -> None:
        raise OSError("ann@example.org")


@pytest.fixture
def breaking() -> Starts:
    return Breaking()


def test_a_starter_that_raises_does_not_hurt_the_commit(
    engine: Engine, witness: Witness, breaking: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(engine) as session, session.begin():
        start_after_commit(session, breaking, enqueue(session, mail("a")))
        start_after_commit(session, witness, enqueue(session, mail("b")))
    assert witness.take() == ["b"]
    assert [record.getMessage() for record in caplog.records] == ["1 mails not started here, the starter will: OSError"]


def test_without_greenlet_it_works_for_sync_sessions(shop_url: str) -> None:
    """SQLAlchemy brings it no more from 2.1 on; only its asyncio needs it."""
    script = """
import sys

sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from sendonce import OutgoingEmail, enqueue
from sendonce.sqlalchemy import start_after_commit


class Starter:
    def start(self, *mails):
        print(*(mail.key for mail in mails))


sessions = sessionmaker(create_engine(sys.argv[1]))
for session in (sessions(), scoped_session(sessions)):
    mail = OutgoingEmail(key=f"k-{type(session).__name__}", sender="a@example.com", to="b@example.com", text="x")
    start_after_commit(session, Starter(), enqueue(session, mail))
    session.commit()
    session.close()
"""
    url = shop_url.replace("postgresql:", "postgresql+psycopg:")
    ran = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "k-Session\nk-scoped_session\n"), ran.stderr
