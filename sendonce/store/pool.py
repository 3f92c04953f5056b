"""The connections that the worker and the starter use, and what every session must be told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from sendonce.store.continuity import Identity, identity
from sendonce.store.pooling import LOCK_TIMEOUT_MS, Pooler

DatabaseUrl = str | Callable[[], str]
"""What libpq takes; or what gives it anew for each connection, as for a password that is rotated."""


def current(url: DatabaseUrl) -> Callable[[], Awaitable[str]]:
    """For each connection, what to connect to. A file is read in a thread."""

    async def read() -> str:
        return url if isinstance(url, str) else await asyncio.to_thread(url)

    return read


FRESH_SECONDS = 1.0
"""A connection that was given back so short a time ago is handed out without being asked whether it still works. One
that has died in between fails its first statement, which everyone here takes for a store that is away."""


_given_back_at: WeakKeyDictionary[AsyncConnection[Any], float] = WeakKeyDictionary()


def open_pool(
    url: DatabaseUrl,
    *,
    name: str,
    min_size: int = 1,
    max_size: int = 10,
    timeout: float = 5.0,
    pooler: Pooler = "none",
    connected: Callable[[Identity], None] | None = None,
) -> AsyncConnectionPool:
    """A pool of autocommit connections, not yet open; ``timeout`` is the wait for a connection in seconds.

    ``name`` shows in ``pg_stat_activity``. TCP keep-alives find a dead path within about 30 s. ``connected`` is told
    which server a new connection leads to, before anybody uses it. ``pooler``: what is between here and the server, by
    the mode it pools in.
    """
    by_transaction = pooler == "transaction"

    async def configure(conn: AsyncConnection[Any]) -> None:
        if not by_transaction:
            await steady(conn)
        if connected is not None:
            connected(await identity(conn))

    return AsyncConnectionPool(
        url if isinstance(url, str) else current(url),
        min_size=min_size,
        max_size=max_size,
        timeout=timeout,
        open=False,
        reconnect_timeout=0,
        kwargs={
            "autocommit": True,
            # Each statement is prepared at its first use: to plan the starter's takes longer than to run it.
            "prepare_threshold": 0,
            "application_name": f"sendonce {name}",
            "connect_timeout": 5,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            # The next transaction may run on a server connection that never prepared it.
            **({"prepare_threshold": None} if by_transaction else {}),
        },
        check=_check,
        reset=_given_back,
        configure=configure,
    )


STEADY = f"""
SELECT set_config('intervalstyle', 'postgres', false), set_config('datestyle', 'ISO, MDY', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'off', false), set_config('jit', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', false)
"""
"""What the statements rely on, whatever the database or the role sets: that reads see what the lock before them
protects, that instants and intervals are written as the driver reads them, and that nothing is compiled for
statements that take a millisecond, nor planned anew each time: their plans do not depend on the values. Nobody waits
longer than :data:`~sendonce.store.pooling.LOCK_TIMEOUT_MS` for a lock: that is said, and tried again, and a process
that ends need not wait for somebody else's transaction."""


LAZILY = "set_config('synchronous_commit', 'off', true)"
"""For a statement that is a transaction of its own: its commit does not wait for the disk, nor for a standby. The log
is written in order, so the next commit that waits makes this one durable too."""

DURABLY = "set_config('synchronous_commit', 'on', true)"
"""For a statement that is a transaction of its own: its commit waits for the disk, whatever the session says."""


async def steady(conn: AsyncConnection[Any]) -> None:
    """Settle what sessions may differ in."""
    await conn.execute(STEADY)


async def _check(conn: AsyncConnection[Any]) -> None:
    if time.monotonic() - _given_back_at.get(conn, -FRESH_SECONDS) > FRESH_SECONDS:
        await AsyncConnectionPool.check_connection(conn)


async def _given_back(conn: AsyncConnection[Any]) -> None:
    _given_back_at[conn] = time.monotonic()
