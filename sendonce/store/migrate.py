"""Bring the schema up to date: safe to repeat, and safe from several processes at once."""

from __future__ import annotations

from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.engine import Connection

from sendonce.errors import StoreNotReady

_LOCK = 0x53454E44  # "SEND": one migration at a time in a database, whoever runs it


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _engine(url: str) -> Engine:
    # libpq reads the URL: SQLAlchemy's own reading knows neither key=value strings nor several hosts.
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url),
        poolclass=NullPool,
        # Whoever waited for the lock must see what the other one did, whatever the database defaults to.
        isolation_level="READ COMMITTED",
    )


def _revisions() -> list[str]:
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def head() -> str:
    """The revision this release needs."""
    return _revisions()[0]


def _current(connection: Connection) -> str | None:
    options = {"version_table": "schema_version", "version_table_schema": "sendonce"}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _refuse_newer(found: str | None) -> None:
    if found is not None and found not in _revisions():
        raise StoreNotReady(
            f"the schema 'sendonce' is at {found}, which this release does not know: it is newer, "
            f"and this release ends at {head()}; upgrade the package 'sendonce'"
        )


def migrate(url: str) -> tuple[str | None, str]:
    """Upgrade the database at ``url`` to this release; returns the revision before and after.

    ``url`` is anything libpq takes (``postgresql://…``, ``host=… dbname=…``). An advisory lock makes concurrent calls
    wait for each other; all is one transaction, so a call that is killed leaves the schema as it was. Raises
    :class:`~sendonce.errors.StoreNotReady` when the schema belongs to a newer release.
    """
    with _engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS sendonce"))
        before = _current(connection)
        _refuse_newer(before)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return before, head()


def check(url: str) -> None:
    """Raise :class:`~sendonce.errors.StoreNotReady` unless the schema is the one this release needs.

    ``url`` is as for :func:`migrate`.
    """
    with _engine(url).connect() as connection:
        found = _current(connection)
    _refuse_newer(found)
    if found != head():
        raise StoreNotReady(
            f"the schema 'sendonce' is at {found or 'nothing'}, this release needs {head()}: run 'sendonce migrate'"
        )
