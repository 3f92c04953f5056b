"""Real servers for the tests, started when the first test asks for one, once for each test process; and the command.

Set ``SENDONCE_TEST_POSTGRES`` to the URL of a superuser to use a PostgreSQL server of your own; the tests create
databases there and drop them again.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import quopri
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from sendonce import embedded
from sendonce.cli import main
from sendonce.embedded import EmbeddedTemporal
from sendonce.search_attributes import NAMES
from sendonce.testing.kit.servers import cloned_database, postgres_server, template_database
from tests.waiting import shown_when_late

# Read before the environment is cleared.
_POSTGRES = os.environ.get("SENDONCE_TEST_POSTGRES")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("timeout")
    with shown_when_late(float(mark.args[0] if mark and mark.args else item.config.getini("timeout"))):
        return (yield)


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
    # Off by default; what NOTIFY does in a prepared transaction is tested.
    with postgres_server(max_prepared_transactions="10") as url:
        yield url


@pytest.fixture(scope="session")
def template(postgres_url: str) -> Iterator[str]:
    """Name of a database with the migrated schema, to be cloned."""
    with template_database(postgres_url) as name:
        yield name


@pytest.fixture
def database_url(postgres_url: str, template: str) -> Iterator[str]:
    """URL of a database of this test's own with the migrated schema, as superuser."""
    with cloned_database(postgres_url, template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """URL of a database of this test's own with nothing in it, as superuser."""
    with cloned_database(postgres_url, None) as url:
        yield url


@pytest.fixture(scope="session")
def sendonce_server_url(postgres_url: str) -> str:
    """The test kit's fixtures use the same server."""
    return postgres_url


@pytest.fixture(scope="session")
def sendonce_template(template: str) -> str:
    """And the same template."""
    return template


@pytest.fixture(scope="session")
def temporal(scrubbed_environment: None) -> Iterator[EmbeddedTemporal]:
    """A Temporal dev server shared by the tests: use task queues and workflow ids of your own, and leave it running."""
    with EmbeddedTemporal.start(search_attributes=dict.fromkeys(NAMES, "Keyword")) as server:
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


# Personal data ----------------------------------------------------------------------------------------------------


@pytest.fixture
def standing_in(database_url: str) -> Callable[[str], set[str]]:
    """Where in the whole database a text stands, whatever its case and encoding: names of columns."""

    def standing_in(text: str) -> set[str]:
        found = set()
        with psycopg.connect(database_url) as connection:
            columns = connection.execute(
                "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns"
                " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
            ).fetchall()
            for schema, table, column, kind in columns:
                as_read = sql.SQL("{}" if kind == "bytea" else "{}::text").format(sql.Identifier(column))
                query = sql.SQL("SELECT {} FROM {}").format(as_read, sql.Identifier(schema, table))
                for (value,) in connection.execute(query):
                    data = value.encode() if isinstance(value, str) else value or b""
                    if any(text.lower().encode() in one.lower() for one in _decoded(data)):
                        found.add(f"{table}.{column}")
        return found

    return standing_in


def _decoded(data: bytes) -> Iterator[bytes]:
    """What a curious reader would try."""
    yield data
    yield data.replace(b"\x00", b"")
    yield quopri.decodestring(data)
    yield unquote_to_bytes(data)
    yield re.sub(rb"\\u00([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), data)
    for run in re.findall(rb"[A-Za-z0-9+/_\s-]{12,}", data):
        letters = re.sub(rb"\s", b"", run).replace(b"-", b"+").replace(b"_", b"/")
        for offset in range(4):
            part = letters[offset:]
            part = part[: len(part) // 4 * 4]
            once = base64.b64decode(part)
            yield once
            yield quopri.decodestring(once)
            for inner in re.findall(rb"[A-Za-z0-9+/]{12,}", once):
                yield base64.b64decode(inner[: len(inner) // 4 * 4])


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
