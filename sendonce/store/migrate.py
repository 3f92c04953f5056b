"""Bring the schema up to date: safe to repeat, and safe from several processes at once."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection

from sendonce.errors import StoreNotReady

_LOCK = 0x53454E44  # "SEND": one migration at a time in a database, whoever runs it


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def head() -> str:
    """The revision this release needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _current(connection: Connection) -> str | None:
    options = {"version_table": "schema_version", "version_table_schema": "sendonce"}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def migrate(url: str) -> tuple[str | None, str]:
    """Upgrade the database at ``url`` to this release; returns the revision before and after.

    ``url`` is anything libpq takes (``postgresql://…``). An advisory lock makes concurrent calls wait for each other;
    each migration is one transaction, so a call that is killed leaves the schema as it was.
    """
    engine = create_engine(sqlalchemy_url(url))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            connection.execute(text("CREATE SCHEMA IF NOT EXISTS sendonce"))
            before = _current(connection)
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            return before, head()
    finally:
        engine.dispose()


def check(url: str) -> None:
    """Raise :class:`~sendonce.errors.StoreNotReady` unless the schema is the one this release needs."""
    engine = create_engine(sqlalchemy_url(url))
    try:
        with engine.connect() as connection:
            found = _current(connection)
    finally:
        engine.dispose()
    if found != head():
        raise StoreNotReady(
            f"the schema 'sendonce' is at {found or 'nothing'}, this release needs {head()}: run 'sendonce migrate'"
        )


def sqlalchemy_url(url: str) -> str:
    """``postgresql://…`` as SQLAlchemy with psycopg 3 wants it."""
    for prefix in ("postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url[len(prefix) :]
    return url
