"""Migrations: the schema that the SQL files make, that SQLAlchemy sees, and that is safe to make again."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Connection, NullPool, create_engine, text

from sendonce.errors import StoreNotReady
from sendonce.store import migrate
from sendonce.store.tables import metadata


def test_the_revisions_that_are_named_are_those_that_there_are() -> None:
    scripts = ScriptDirectory.from_config(migrate._config()).walk_revisions()
    assert tuple(reversed([script.revision for script in scripts])) == migrate.REVISIONS


def connect(url: str) -> Connection:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool).connect()


def test_alembic_sees_no_difference_between_tables_and_migrations(database_url: str) -> None:
    with connect(database_url) as connection:
        options: dict[str, Any] = {
            "include_schemas": True,
            "include_name": lambda name, kind, _: kind != "schema" or name == "sendonce",
            "include_object": lambda _, name, kind, *__: kind != "table" or name != "schema_version",
            "compare_type": True,
            "compare_server_default": True,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


CATALOGUE = """
SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text, a.attidentity::text,
    pg_get_expr(d.adbin, d.adrelid)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'sendonce'::regnamespace AND c.relkind = 'r' AND c.relname <> 'schema_version'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', '' FROM pg_constraint
WHERE connamespace = 'sendonce'::regnamespace AND conrelid <> 'sendonce.schema_version'::regclass
UNION ALL
SELECT 'index', tablename, indexname, indexdef, '', '', '' FROM pg_indexes
WHERE schemaname = 'sendonce' AND tablename <> 'schema_version'
UNION ALL
SELECT 'options', relname, array_to_string(ARRAY(SELECT unnest(reloptions) ORDER BY 1), ','), '', '', '', ''
FROM pg_class WHERE relnamespace = 'sendonce'::regnamespace AND relkind = 'r' AND relname <> 'schema_version'
ORDER BY 1, 2, 3
"""


def test_tables_and_migrations_make_the_same_schema(database_url: str, empty_database_url: str) -> None:
    """More than Alembic compares: conditions of indexes, checks, names of constraints, storage options."""
    with connect(empty_database_url) as built:
        built.execute(text("CREATE SCHEMA sendonce"))
        built.execute(
            text("CREATE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()'")
        )
        built.execute(text("CREATE TABLE sendonce.schema_version ()"))
        metadata.create_all(built)
        by_tables = [tuple(row) for row in built.execute(text(CATALOGUE))]
    with connect(database_url) as migrated:
        by_migrations = [tuple(row) for row in migrated.execute(text(CATALOGUE))]
    assert len(by_migrations) > 150
    assert by_tables == by_migrations


def test_before_between_and_after(empty_database_url: str) -> None:
    with pytest.raises(StoreNotReady, match="sendonce migrate"):
        migrate.check(empty_database_url)
    assert migrate.migrate(empty_database_url) == (None, migrate.head())
    migrate.check(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        installed = connection.execute("SELECT id, notify FROM sendonce.installation").fetchall()
    assert migrate.migrate(empty_database_url) == (migrate.head(), migrate.head())
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT id, notify FROM sendonce.installation").fetchall() == installed


def test_a_url_may_be_anything_that_libpq_reads(empty_database_url: str) -> None:
    pairs = make_conninfo("", **conninfo_to_dict(empty_database_url))
    assert "://" not in pairs
    assert migrate.migrate(pairs) == (None, migrate.head())
    migrate.check(pairs)


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_from_several_processes_at_once(empty_database_url: str, level: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(
                sql.Identifier(connection.info.dbname), sql.Literal(level)
            )
        )
    code = "import sys; from sendonce.store.migrate import migrate; print(migrate(sys.argv[1]))"
    with psycopg.connect(empty_database_url) as gate, ExitStack() as stack:
        # Both arrive at the lock before either can have it.
        gate.execute("SELECT pg_advisory_xact_lock(%s)", [migrate._LOCK])
        processes = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code, empty_database_url], stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
        with psycopg.connect(empty_database_url, autocommit=True) as observer:
            waiting = 0
            while waiting < 2:
                assert [process.poll() for process in processes] == [None, None]
                (waiting,) = observer.execute(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                ).fetchall()[0]
                threading.Event().wait(0.01)
        gate.commit()
        answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert sorted(answers) == ["('0001', '0001')", "(None, '0001')"]
    migrate.check(empty_database_url)


def test_a_failed_migration_leaves_nothing(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        # In the way of the last file: all that came before is undone.
        connection.execute("CREATE SCHEMA sendonce")
        connection.execute(
            "CREATE FUNCTION sendonce.enqueue_instant(value text) RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'"
        )
    with pytest.raises(psycopg.errors.DuplicateFunction):
        migrate.migrate(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT to_regclass('sendonce.email')").fetchone() == (None,)
        connection.execute("DROP FUNCTION sendonce.enqueue_instant")
    assert migrate.migrate(empty_database_url) == (None, migrate.head())


def test_the_release_before_runs_on_a_newer_schema_that_still_serves_it(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE sendonce.schema_version SET version_num = '9999'")
    migrate.check(database_url)
    assert migrate.migrate(database_url) == ("9999", "9999")


def test_a_schema_that_is_too_new_is_told_from_an_older_one(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE sendonce.schema_version SET version_num = '9999'")
        connection.execute("UPDATE sendonce.installation SET oldest_revision = '9998'")
    for call in (migrate.check, migrate.migrate):
        with pytest.raises(StoreNotReady, match="upgrade the package"):
            call(database_url)


def test_the_clock_is_fit_for_an_index(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT provolatile FROM pg_proc WHERE oid = 'sendonce.clock()'::regprocedure")
        assert found.fetchone() == ("s",)
