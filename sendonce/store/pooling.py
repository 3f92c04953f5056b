"""A pooler between this process and the server: noticed, and worked with or refused in words.

A pooler that hands out server connections for one transaction at a time, as PgBouncer can, keeps no session: what a
session was told is lost or reaches somebody else, notifications never arrive, and prepared statements may be missing.
"""

from __future__ import annotations

from typing import Literal

import psycopg

from sendonce.errors import ConfigurationError

Pooler = Literal["none", "session", "transaction"]
"""How the pooler pools; ``none``: there is none."""

NEEDED = {
    "intervalstyle": "postgres",
    "datestyle": "ISO, MDY",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}
"""What the statements rely on. A session is told; behind a pooler by transaction the role or the database must be."""

LOCK_TIMEOUT_MS = 5000
"""Nobody waits longer for a lock: see :data:`sendonce.store.pool.STEADY`. A role may begin with less, not with none."""


def check_pooler(url: str, pooler: Pooler) -> None:
    """Raise :class:`~sendonce.errors.ConfigurationError` when there is a pooler that the settings do not name, or one
    by transaction whose sessions begin otherwise than they must.

    A store that is away raises :class:`psycopg.OperationalError`.
    """
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        row = connection.execute("SELECT pg_backend_pid(), session_user").fetchone()
        assert row is not None
        # The pooler has told us a process id of its own making.
        if row[0] != connection.info.backend_pid and pooler == "none":
            raise ConfigurationError(
                "there is a pooler between this process and PostgreSQL: set [store] pooler to 'session' or "
                "'transaction', the mode in which it pools, or connect to PostgreSQL itself"
            )
        if pooler != "transaction":
            return
        # Not the ones that this session may have been given by somebody else before: those that it begins with.
        found = connection.execute(
            "SELECT name, reset_val FROM pg_settings WHERE lower(name) = ANY (%s) ORDER BY name",
            [[*NEEDED, "lock_timeout"]],
        ).fetchall()
        wrong = [f"{name} = '{wanted}'" for name, value in found if (wanted := _wanted(name.lower(), value)) != value]
        if wrong:
            told = "; ".join(f'ALTER ROLE "{row[1]}" SET {setting}' for setting in wrong)
            raise ConfigurationError(
                "[store] pooler = 'transaction': sessions of this role begin with other settings than the statements "
                f"rely on: {told}; then let the pooler reconnect"
            )


def _wanted(name: str, value: str) -> str:
    """What a session must begin with instead of ``value``, which may be right."""
    if name == "lock_timeout":
        return value if 0 < int(value) <= LOCK_TIMEOUT_MS else str(LOCK_TIMEOUT_MS)
    return NEEDED[name]
