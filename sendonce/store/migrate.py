"""Bring the schema up to date: safe to repeat, and safe from several processes at once.

Alembic and SQLAlchemy are loaded by :func:`migrate` alone: a worker only looks, and starts in half the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from sendonce.errors import StoreNotReady

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Engine

REVISIONS = ("0001",)
"""Every revision in ``migrations/versions``, oldest first; the last is the one this release needs."""

_LOCK = 0x53454E44  # "SEND": one migration at a time in a database, whoever runs it


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _engine(url: str) -> Engine:
    from sqlalchemy import NullPool, create_engine

    # libpq reads the URL: SQLAlchemy's own reading knows neither key=value strings nor several hosts.
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url),
        poolclass=NullPool,
        # Whoever waited for the lock must see what the other one did, whatever the database defaults to.
        isolation_level="READ COMMITTED",
    )


def head() -> str:
    """The revision this release needs."""
    return REVISIONS[-1]


def _current(connection: psycopg.Connection[Any]) -> str | None:
    row = connection.execute("SELECT to_regclass('sendonce.schema_version')").fetchone()
    if row == (None,):
        return None
    row = connection.execute("SELECT version_num FROM sendonce.schema_version").fetchone()
    return None if row is None else str(row[0])


def _refuse_too_new(connection: psycopg.Connection[Any], found: str | None) -> None:
    """A newer schema says which release it still serves, so that the one before can be started on it."""
    if found is None or found in REVISIONS:
        return
    row = connection.execute("SELECT oldest_revision FROM sendonce.installation").fetchone()
    if row is None or row[0] not in REVISIONS:
        raise StoreNotReady(
            f"the schema 'sendonce' is at {found}, which this release does not know: it is newer, "
            f"and this release ends at {head()}; upgrade the package 'sendonce'"
        )


def migrate(url: str) -> tuple[str | None, str]:
    """Upgrade the database at ``url`` to this release; returns the revision before and after.

    ``url`` is anything libpq takes (``postgresql://…``, ``host=… dbname=…``). An advisory lock makes concurrent calls
    wait for each other; all is one transaction, so a call that is killed leaves the schema as it was. A newer schema
    that still serves this release is left as it is. Raises :class:`~sendonce.errors.StoreNotReady` when it serves it no
    longer.
    """
    from alembic import command

    with _engine(url).begin() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        driver.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        driver.execute("CREATE SCHEMA IF NOT EXISTS sendonce")
        before = _current(driver)
        _refuse_too_new(driver, before)
        if before is not None and before not in REVISIONS:
            return before, before
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return before, head()


def check(url: str) -> None:
    """Raise :class:`~sendonce.errors.StoreNotReady` unless the schema is the one this release needs, or a newer one
    that still serves it.

    ``url`` is as for :func:`migrate`. A store that is away raises :class:`psycopg.OperationalError`.
    """
    with psycopg.connect(url) as connection:
        found = _current(connection)
        _refuse_too_new(connection, found)
    if found is None or found in REVISIONS[:-1]:
        raise StoreNotReady(
            f"the schema 'sendonce' is at {found or 'nothing'}, this release needs {head()}: run 'sendonce migrate'"
        )
