"""The connections that the worker and the starter use, and what every session must be told."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool


def open_pool(
    url: str, *, name: str, min_size: int = 1, max_size: int = 10, timeout: float = 5.0
) -> AsyncConnectionPool:
    """A pool of autocommit connections, not yet open; ``timeout`` is the wait for a connection in seconds.

    ``name`` shows in ``pg_stat_activity``. TCP keep-alives find a dead path within about 30 s.
    """
    return AsyncConnectionPool(
        url,
        min_size=min_size,
        max_size=max_size,
        timeout=timeout,
        open=False,
        reconnect_timeout=0,
        kwargs={
            "autocommit": True,
            "application_name": f"sendonce {name}",
            "connect_timeout": 5,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        },
        check=AsyncConnectionPool.check_connection,
        configure=steady,
    )


STEADY = """
SELECT set_config('intervalstyle', 'postgres', false), set_config('datestyle', 'ISO, MDY', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'off', false), set_config('jit', 'off', false)
"""
"""What the statements rely on, whatever the database or the role sets: that reads see what the lock before them
protects, that instants and intervals are written as the driver reads them, and that nothing is compiled for
statements that take a millisecond."""


async def steady(conn: AsyncConnection[Any]) -> None:
    """Settle what sessions may differ in."""
    await conn.execute(STEADY)
