"""A PostgreSQL server for a test run, and databases in it, cloned from a template."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from sendonce.embedded import EmbeddedPostgres, create_database, drop_database
from sendonce.store.migrate import migrate

_OPTIONS = {
    # In memory it should stay small.
    "min_wal_size": "32MB",
    "max_wal_size": "128MB",
}


@contextmanager
def postgres_server(**options: str) -> Iterator[str]:
    """A server of this process's own, in memory where there is room; gives its maintenance database's URL.

    ``options`` are further settings of the server. Raises :class:`~sendonce.embedded.EmbeddedServerError`.
    """
    with (
        tempfile.TemporaryDirectory(dir=_memory()) as folder,
        EmbeddedPostgres.start(Path(folder) / "postgres", options={**_OPTIONS, **options}) as server,
    ):
        yield server.url


def _memory() -> Path | None:
    """A folder in memory, where a database is cloned ten times as fast as on a disk; None where there is little."""
    memory = Path("/dev/shm")  # noqa: S108 - what is made there has a random name
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30 else None


@contextmanager
def template_database(server_url: str, prepare: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """The name of a database with the schema, to be cloned; ``prepare`` is called with its URL."""
    name = f"sendonce_template_{uuid.uuid4().hex}"
    try:
        url = create_database(server_url, name)
        migrate(url)
        prepare(url)
        with psycopg.connect(server_url, autocommit=True) as connection:
            # A connection to it would refuse the next clone.
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        yield name
    finally:
        drop_database(server_url, name)


@contextmanager
def cloned_database(server_url: str, template: str | None) -> Iterator[str]:
    """The URL of a database that is a clone of ``template`` (None: empty), and is dropped in the end."""
    name = f"sendonce_test_{uuid.uuid4().hex}"
    yield create_database(server_url, name, template)
    drop_database(server_url, name)
