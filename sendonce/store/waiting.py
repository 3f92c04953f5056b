"""Wait until a mail has ended, by looking again and again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, cast, overload

from sendonce.errors import ConfigurationError, NoSuchEmail, WaitTimeout
from sendonce.final import Final
from sendonce.message import DEFAULT_ACCOUNT
from sendonce.stages import FINAL
from sendonce.store.callers import Call, Statement, Steps, run
from sendonce.store.finals import OF_MAIL, final_of

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from sendonce.store.callers import AnyAsyncConnection, SyncConnection

    SyncSource = SyncConnection | Engine
    AsyncSource = AnyAsyncConnection | AsyncEngine

FIRST_LOOK_AGAIN = 0.05
LONGEST_LOOK_AGAIN = 1.0
"""Seconds between two looks: each is half as long again as the one before, up to this."""

_CALL = Call("wait", "what is seen")


@overload
def wait(source: SyncSource, key: str, *, account: str = DEFAULT_ACCOUNT, timeout: float = 60.0) -> Final: ...
@overload
def wait(
    source: AsyncSource, key: str, *, account: str = DEFAULT_ACCOUNT, timeout: float = 60.0
) -> Awaitable[Final]: ...
def wait(source: Any, key: str, *, account: str = DEFAULT_ACCOUNT, timeout: float = 60.0) -> Final | Awaitable[Final]:
    """Wait until the mail has ended, and return how, whatever its stage.

    Call it after the commit, never in the transaction that enqueues: nothing is sent before that commits. ``source`` is
    an ``Engine`` or ``AsyncEngine``, or a connection or session as :func:`sendonce.enqueue` takes it, without an open
    transaction; for an async one, await the result. It looks in short transactions of its own, 0.05 s apart at first
    and 1 s later; nothing is held in between.

    ``timeout``: seconds, 0 or more; 0 looks once.

    Raises :class:`~sendonce.errors.WaitTimeout` when it has not ended by then; the mail goes on.
    :class:`~sendonce.errors.NoSuchEmail` when there is no such mail, or it is not committed, or has been erased;
    :class:`~sendonce.errors.ConfigurationError` when a transaction is open on ``source``.
    """
    if not timeout >= 0:
        raise ConfigurationError(f"wait: timeout = {timeout!r}: write seconds, 0 or more")
    looks = _Looks(account, key, timeout)
    if _is(source, "sqlalchemy.orm", "scoped_session") or _is(source, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        source = source()
    if _is(source, "psycopg", "Connection"):
        return _psycopg(source, looks)
    if _is(source, "psycopg", "AsyncConnection"):
        return _psycopg_async(source, looks)
    if _is(source, "sqlalchemy.engine", "Engine"):
        return _engine(source, looks)
    if _is(source, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        return _async_engine(source, looks)
    if _is(source, "sqlalchemy.orm", "Session") or _is(source, "sqlalchemy.engine", "Connection"):
        _refuse_open(source.in_transaction())
        bind = source.get_bind() if _is(source, "sqlalchemy.orm", "Session") else source
        return _engine(bind.engine, looks)
    if _is(source, "sqlalchemy.ext.asyncio", "AsyncSession", "AsyncConnection"):
        from sqlalchemy.ext.asyncio import AsyncEngine

        _refuse_open(source.in_transaction())
        bind = source.get_bind() if _is(source, "sqlalchemy.ext.asyncio", "AsyncSession") else source.sync_connection
        return _async_engine(AsyncEngine(bind.engine), looks)
    raise TypeError(
        "wait takes a SQLAlchemy Engine, Session, Connection or their async forms, or a psycopg Connection or "
        f"AsyncConnection, not {type(source).__module__}.{type(source).__qualname__}"
    )


def _is(source: object, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(source, tuple(getattr(loaded, name) for name in names))


def _refuse_open(open_: bool) -> None:
    if open_:
        raise ConfigurationError(
            "wait: a transaction is open on what was passed: commit it first. A mail is sent only after the commit "
            "that it was enqueued in, and an older snapshot would never see that it was"
        )


class _Looks:
    """The looks at one mail: what to run, when to stop, how long to pause."""

    def __init__(self, account: str, key: str, timeout: float) -> None:
        self._account, self._key, self._timeout = account, key, timeout
        self._end = time.monotonic() + timeout

    def steps(self) -> Steps[Final | None]:
        """One look; None: not yet."""
        rows = yield Statement(OF_MAIL, {"account": self._account, "key": self._key})
        if not rows:
            raise NoSuchEmail(self._account, self._key)
        found = final_of(rows[0])
        if found.stage in FINAL:
            return found
        if time.monotonic() >= self._end:
            raise WaitTimeout(self._account, self._key, found.stage, self._timeout)
        return None

    def pauses(self) -> Iterator[float]:
        """Seconds before each further look; the last look is at the end of the time."""
        pause = FIRST_LOOK_AGAIN
        while True:
            yield max(0.0, min(pause, self._end - time.monotonic()))
            pause = min(LONGEST_LOOK_AGAIN, pause * 1.5)


def _engine(engine: Engine, looks: _Looks) -> Final:
    for pause in looks.pauses():
        with engine.connect() as connection:
            # Whatever the engine's level is: a look is a transaction of its own.
            found = run(connection.execution_options(isolation_level="READ COMMITTED"), looks.steps(), _CALL)
        if found is not None:
            return cast("Final", found)
        time.sleep(pause)
    raise AssertionError("the pauses never end")


async def _async_engine(engine: AsyncEngine, looks: _Looks) -> Final:
    for pause in looks.pauses():
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="READ COMMITTED")
            found = await cast("Awaitable[Final | None]", run(connection, looks.steps(), _CALL))
        if found is not None:
            return found
        await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")


def _psycopg(connection: psycopg.Connection[Any], looks: _Looks) -> Final:
    for pause in looks.pauses():
        _refuse_open(_in_transaction(connection))
        with connection.transaction():
            found = run(connection, looks.steps(), _CALL)
        if found is not None:
            return cast("Final", found)
        time.sleep(pause)
    raise AssertionError("the pauses never end")


async def _psycopg_async(connection: psycopg.AsyncConnection[Any], looks: _Looks) -> Final:
    for pause in looks.pauses():
        _refuse_open(_in_transaction(connection))
        async with connection.transaction():
            found = await cast("Awaitable[Final | None]", run(connection, looks.steps(), _CALL))
        if found is not None:
            return found
        await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")


def _in_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    from psycopg.pq import TransactionStatus

    return connection.info.transaction_status is not TransactionStatus.IDLE
