"""Real servers for the tests, started when the first test asks for one, once for each test process; and the command.

Set ``SENDONCE_TEST_POSTGRES`` to the URL of a superuser to use a PostgreSQL server of your own; the tests create
databases there and drop them again.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from sendonce import embedded
from sendonce.cli import main
from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
from sendonce.store.migrate import migrate

# Read before the environment is cleared.
_POSTGRES = os.environ.get("SENDONCE_TEST_POSTGRES")


@pytest.fixture(scope="session", autouse=True)
def scrubbed_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No setting of the person who runs the tests reaches them."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            # Every process that a test starts would compile every module anew, which doubles the time of its start.
            patch.delenv("PYTHONDONTWRITEBYTECODE")
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        for name in list(os.environ):
            if name.startswith(("SENDONCE_", "PG", "TEMPORAL_")):
                patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def postgres_url(scrubbed_environment: None) -> Iterator[str]:
    """URL of the PostgreSQL server's maintenance database, as superuser."""
    if _POSTGRES:
        yield _POSTGRES
        return
    options = {
        # Off by default; what NOTIFY does in a prepared transaction is tested.
        "max_prepared_transactions": "10",
        # In memory it should stay small.
        "min_wal_size": "32MB",
        "max_wal_size": "128MB",
    }
    with (
        tempfile.TemporaryDirectory(dir=_memory()) as folder,
        EmbeddedPostgres.start(Path(folder) / "postgres", options=options) as server,
    ):
        yield server.url


def _memory() -> Path | None:
    """A folder in memory, where a database is cloned ten times as fast as on a disk; None where there is little."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30 else None


@pytest.fixture(scope="session")
def template(postgres_url: str) -> Iterator[str]:
    """Name of a database with the migrated schema, to be cloned."""
    name = f"template_{uuid.uuid4().hex}"
    try:
        migrate(embedded.create_database(postgres_url, name))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            # A connection to it would refuse the next clone.
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        yield name
    finally:
        embedded.drop_database(postgres_url, name)


@pytest.fixture
def database_url(postgres_url: str, template: str) -> Iterator[str]:
    """URL of a database of this test's own with the migrated schema, as superuser."""
    name = f"test_{uuid.uuid4().hex}"
    yield embedded.create_database(postgres_url, name, template)
    embedded.drop_database(postgres_url, name)


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """URL of a database of this test's own with nothing in it, as superuser."""
    name = f"test_{uuid.uuid4().hex}"
    yield embedded.create_database(postgres_url, name)
    embedded.drop_database(postgres_url, name)


@pytest.fixture(scope="session")
def temporal(scrubbed_environment: None) -> Iterator[EmbeddedTemporal]:
    """A Temporal dev server shared by the tests: use task queues and workflow ids of your own, and leave it running."""
    with EmbeddedTemporal.start() as server:
        yield server


@pytest.fixture
async def temporal_client(temporal: EmbeddedTemporal) -> Client:
    """A client of the shared dev server."""
    return await Client.connect(temporal.target, namespace=temporal.namespace)


@pytest.fixture
async def time_skipping(scrubbed_environment: None) -> AsyncIterator[WorkflowEnvironment]:
    """A time-skipping server of this test's own: another test's sleeps would move a shared clock."""
    environment = await embedded.start_time_skipping()
    yield environment
    await environment.shutdown()


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in this process goes its rounds and repeats itself ten times as often as it is made to."""
    monkeypatch.setattr("sendonce.worker.UPKEEP_SECONDS", 0.5)
    monkeypatch.setattr("sendonce.worker.WAKE_SECONDS", 0.1)
    monkeypatch.setattr("sendonce.activities.inflight.UNRECORDED_SLEEP", 0.5)


@pytest.fixture
def free_port() -> int:
    """A free TCP port on 127.0.0.1; call ``sendonce.embedded.free_port()`` for more."""
    return embedded.free_port()


# The command ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Standard output as one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def sendonce() -> Path:
    """The installed command."""
    return Path(sys.executable).with_name("sendonce")


@pytest.fixture
def run_process(tmp_path: Path, sendonce: Path) -> Run:
    """As ``run``, in a process of its own: for what a process is, such as its exit status and its pipes."""

    def run(*arguments: str, standard_input: str = "", **variables: str) -> Result:
        done = subprocess.run(
            [sendonce, *arguments],
            input=standard_input,
            env=os.environ | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``sendonce`` with these arguments, variables and standard input, in an empty folder.

    In this process, by the entry point: another one would spend most of its time on imports. From a test that is
    async, call it in a thread: commands start a loop of their own.
    """

    def run(*arguments: str, standard_input: str = "", **variables: str) -> Result:
        out, err = _stream(), _stream()
        with pytest.MonkeyPatch.context() as patch, _own_logging():
            patch.chdir(tmp_path)
            # Not the width of the terminal in which the tests run.
            for name, value in {"COLUMNS": "80", **variables}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["sendonce", *arguments])
            patch.setattr(sys, "stdin", _stream(standard_input))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code or 0
        assert isinstance(code, int), code
        return Result(code, _written(out), _written(err))

    return run


def _stream(text: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", newline="\n")


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    # With line ends as a pipe to a process in text mode would have them.
    return io.TextIOWrapper(io.BytesIO(stream.buffer.getvalue()), encoding="utf-8").read()


@contextmanager
def _own_logging() -> Iterator[None]:
    """A command sets up the log of its process; here it is put back."""
    loggers = [logging.getLogger(name) for name in (None, "psycopg.pool")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers.clear()
    try:
        yield
    finally:
        for logger, handlers, level in before:
            logger.handlers[:] = handlers
            logger.setLevel(level)
