"""The caller's own connection: statements run in its transaction, through SQLAlchemy or psycopg, sync or async.

Neither is imported here: whoever passes a connection has imported what it needs. Nothing is committed or rolled back.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from sendonce.errors import ConfigurationError, StoreNotReady

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SyncConnection = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
    AnyAsyncConnection = AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]

_NOT_READY = {"42883", "3F000"}  # undefined_function, invalid_schema_name


class Statement(NamedTuple):
    """SQL whose parameters are written ``{name}``; without parameters it is executed as it stands."""

    text: str
    parameters: dict[str, Any] | None = None
    """None: it returns no rows. (In a psycopg pipeline only who fetches learns whether there are any.)"""


Row = Sequence[Any]
T = TypeVar("T")
Steps = Generator[Statement, Sequence[Row], T]
"""Statements to execute one after the other, each answered with its rows, and what comes of them."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is called, as errors name it."""

    name: str
    what: str
    """What would not be part of the transaction in autocommit mode."""


def run(connection: Any, steps: Steps[T], call: Call) -> T | Awaitable[T]:
    """Execute these steps; for an async connection, await the result.

    Raises TypeError for what is no connection, :class:`~sendonce.errors.ConfigurationError` in autocommit mode outside
    a transaction, :class:`~sendonce.errors.StoreNotReady` when the schema is missing. What the driver raises comes
    through.
    """
    if _is(connection, "sqlalchemy.orm", "scoped_session") or _is(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        connection = connection()
    if _is(connection, "psycopg", "Connection"):
        return _psycopg(connection, steps, call)
    if _is(connection, "psycopg", "AsyncConnection"):
        return _psycopg_async(connection, steps, call)
    if _is(connection, "sqlalchemy.orm", "Session") or _is(connection, "sqlalchemy.engine", "Connection"):
        return _sqlalchemy(connection, steps, call)
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "AsyncConnection"):
        return cast("Awaitable[T]", connection.run_sync(_sqlalchemy, steps, call))
    raise TypeError(
        f"{call.name} takes a SQLAlchemy Session, Connection, AsyncSession or AsyncConnection, or a psycopg Connection "
        f"or AsyncConnection, not {type(connection).__module__}.{type(connection).__qualname__}"
    )


def _is(connection: object, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(connection, tuple(getattr(loaded, name) for name in names))


def _psycopg(connection: psycopg.Connection[Any], steps: Steps[T], call: Call) -> T:
    import psycopg
    from psycopg.rows import tuple_row

    _refuse_psycopg_autocommit(connection, call)
    # A cursor of our own making: the connection's factories may give other placeholders and other rows.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:

        def execute(statement: Statement) -> Sequence[Row]:
            cursor.execute(_for_psycopg(statement), statement.parameters)
            return cursor.fetchall() if statement.parameters else []

        return _drive(steps, execute)


async def _psycopg_async(connection: psycopg.AsyncConnection[Any], steps: Steps[T], call: Call) -> T:
    import psycopg
    from psycopg.rows import tuple_row

    _refuse_psycopg_autocommit(connection, call)
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        rows: Sequence[Row] = []
        try:
            statement = next(steps)
            while True:
                with _store_errors():
                    await cursor.execute(_for_psycopg(statement), statement.parameters)
                    rows = await cursor.fetchall() if statement.parameters else []
                statement = steps.send(rows)
        except StopIteration as done:
            return cast("T", done.value)


def _refuse_psycopg_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], call: Call) -> None:
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise _autocommit(call)


def _autocommit(call: Call) -> ConfigurationError:
    return ConfigurationError(
        f"the connection is in autocommit mode, so that {call.what} would not be part of your transaction: "
        "open one (psycopg: 'with connection.transaction():'), or use a connection without autocommit"
    )


def _for_psycopg(statement: Statement) -> bytes:
    if statement.parameters is None:
        return statement.text.encode()
    return statement.text.format(**{name: f"%({name})s" for name in statement.parameters}).encode()


def _sqlalchemy(connection: Session | Connection, steps: Steps[T], call: Call) -> T:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

    plain = connection.connection() if isinstance(connection, Session) else connection
    if getattr(plain.connection.dbapi_connection, "autocommit", False):
        raise _autocommit(call)

    def execute(statement: Statement) -> Sequence[Row]:
        if statement.parameters is None:
            plain.exec_driver_sql(statement.text, execution_options={"no_parameters": True})
            return []
        named = statement.text.format(**{name: f":{name}" for name in statement.parameters})
        return plain.execute(text(named), statement.parameters).all()

    return _drive(steps, execute)


def _drive(steps: Steps[T], execute: Callable[[Statement], Sequence[Row]]) -> T:
    try:
        statement = next(steps)
        while True:
            with _store_errors():
                rows = execute(statement)
            statement = steps.send(rows)
    except StopIteration as done:
        return cast("T", done.value)


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's
        if (getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)) in _NOT_READY:
            raise StoreNotReady("the schema 'sendonce' is missing in this database: run 'sendonce migrate'") from error
        raise
