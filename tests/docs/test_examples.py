"""Every fenced block of the documentation is run against real servers; one that is wrong fails its test."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from temporalio.client import Client

from sendonce import settings
from sendonce.embedded import EmbeddedTemporal
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.smtp_server import SmtpServer

if TYPE_CHECKING:
    from tests.conftest import Run
    from tests.docs.conftest import Block, Page

LANGUAGES = {"python", "sql", "toml", "sh"}
NOT_RUN = {"text"}
"""Blocks that are pictures."""

NO_MAIL = {"docs/retention.md"}
"""Pages whose Python is about something else than a mail."""

NOT_SENT = {"reset-31", "parcel-17-sent", "order-{number}-from-workflow"}
"""Keys of examples that show how to look at a mail without sending it, or that something else would run."""

RUNS_UNTIL_STOPPED = {"worker", "starter"}

_KEY = re.compile(r"""(?:"key":|\bkey=)\s*f?"([^"]+)\"""")


def test_every_block_says_what_it_is(page: Page) -> None:
    assert [b for b in page.blocks() if b.language not in LANGUAGES | NOT_RUN] == []


# Python -----------------------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Order(Base):
    """The application's own table, which the examples write beside their mail."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("example_package")
async def test_python_runs_and_its_mails_arrive(
    python_page: Page, shop_url: str, client: Client, deliver: Callable[[], Awaitable[Mailbox]]
) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shop_url))
    names: dict[str, Any] = {"engine": engine, "client": client, "database_url": shop_url, "Order": Order}
    names["__name__"] = "example"  # nothing of this file is seen
    try:
        for block in python_page.blocks("python"):
            await execute(block, names)
    finally:
        engine.dispose()
    written = {key for block in python_page.blocks("python") for key in _KEY.findall(block.text)}
    assert written or python_page.name in NO_MAIL, "an example without a mail shows nothing"
    stored = stored_keys(shop_url)
    # What stands in braces is filled in when the example runs.
    patterns = {re.compile(re.sub(r"\\{.+?\\}", ".+", re.escape(key))) for key in written - NOT_SENT}
    assert [pattern for pattern in patterns if not any(pattern.fullmatch(key) for key in stored)] == []
    assert [key for key in stored if not any(pattern.fullmatch(key) for pattern in patterns)] == []
    await deliver()


async def execute(block: Block, names: dict[str, Any]) -> None:
    """Run a block as the body of an async module; errors name the page and its line."""
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


def stored_keys(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {key for (key,) in connection.execute("SELECT key FROM sendonce.email")}


@pytest.mark.parametrize("heading", ["SQLAlchemy", "FastAPI", "Flask", "psycopg"])
def test_an_integration_can_be_copied_without_the_others(pages: dict[str, Page], heading: str) -> None:
    page = pages["docs/integrations.md"]
    part = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page.text, re.M | re.S)
    assert part is not None
    blocks = re.findall(r"```python\n(.*?)```", part[1], re.S)
    tree = ast.Module([node for text in blocks for node in _parsed(text).body], [])
    nodes = list(ast.walk(tree))
    known = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    # The page says of these that they are the application's own.
    assert used - known - set(dir(builtins)) <= {"Order", "engine", "database_url"}


def _parsed(text: str) -> ast.Module:
    # As the examples are run: at the top of a module that may await.
    tree = compile(text, "example", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    return tree


async def test_the_mail_of_the_readme_arrives_as_it_says(
    pages: dict[str, Page], shop_url: str, client: Client, deliver: Callable[[], Awaitable[Mailbox]]
) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shop_url))
    try:
        (block,) = pages["README.md"].blocks("python")
        await execute(block, {"engine": engine, "client": client, "Order": Order})
    finally:
        engine.dispose()
    # start_now has started it already: the id of the workflow is the key, as the page says.
    started = await client.get_workflow_handle("order-4711-confirmation").describe()
    assert started.workflow_type == "EmailDelivery"
    (mail,) = (await deliver()).mails()
    assert mail.recipients == ("ann@example.org",)
    assert mail.parsed()["Subject"] == "Your order 4711"
    with psycopg.connect(shop_url) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(4711,)]


# SQL --------------------------------------------------------------------------------------------------------------


_ANSWERS = {"enqueue": "created", "status": "found", "cancel": "cancelled"}


async def test_sql_runs_and_its_mails_arrive(
    sql_page: Page, shop_url: str, deliver: Callable[[], Awaitable[Mailbox]]
) -> None:
    blocks = sql_page.blocks("sql")
    with psycopg.connect(shop_url, autocommit=True) as connection:
        for block in blocks:
            called = re.findall(r"sendonce\.(enqueue|status|cancel)\(", block.text)
            assert statuses(connection, block.text) == [_ANSWERS[function] for function in called]
    assert stored_keys(shop_url) == {key for block in blocks for key in _KEY.findall(block.text)}
    await deliver()


def statuses(connection: psycopg.Connection, script: str) -> list[str]:
    """Run a script as psql would; the first column of each row that it shows."""
    cursor = connection.execute(script.encode())
    shown: list[str] = []
    while True:
        if cursor.description:
            shown += [row[0] for row in cursor.fetchall()]
        if not cursor.nextset():
            return shown


def test_the_statuses_of_enqueue_are_those_in_its_table(pages: dict[str, Page], shop_url: str) -> None:
    mail = {"key": "k", "sender": "a@example.org", "to": "b@example.org", "text": "t"}
    calls = [mail, mail, mail | {"text": "other"}, mail | {"to": "nobody"}]
    with psycopg.connect(shop_url) as connection:
        seen = [
            connection.execute("SELECT status FROM sendonce.enqueue(%s)", [json.dumps(call)]).fetchone()
            for call in calls
        ]
    documented = [row["status"].replace("<field>", "to") for row in pages["docs/sql.md"].table("The answer")]
    assert [row and row[0] for row in seen] == documented


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("example_package")
async def test_settings_load_and_build(
    toml_block: Block, tmp_path: Path, example_secrets: Callable[[str], dict[str, str]]
) -> None:
    for name in re.findall(r'(?:_file|\bfile) = "([^"]+)"', toml_block.text):
        (tmp_path / name).write_text("secret\n", encoding="utf-8")
    file = tmp_path / "sendonce.toml"
    file.write_text(toml_block.text, encoding="utf-8")
    found = settings.load(file, example_secrets(toml_block.text))
    if not found.accounts:
        return
    transports = settings.build_transports(found)
    try:
        assert settings.build_worker_config(found, transports).transports.keys() == found.accounts.keys()
        # An example must not show what a start would warn of.
        assert settings.warnings(found, transports) == []
    finally:
        for transport in transports.values():
            await transport.close()


# Commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, shop_url: str, own_temporal: EmbeddedTemporal, relay: SmtpServer) -> Path:
    """Where the commands run: settings for real servers, and the mail that they talk of."""
    text = f"""
        [store]
        database_url = "{shop_url}"
        [temporal]
        address = "{own_temporal.target}"
        [accounts.default]
        transport = "smtp"
        host = "127.0.0.1"
        port = {relay.port}
        tls = "none"
    """
    (tmp_path / "sendonce.toml").write_text(text, encoding="utf-8")
    mail = {"key": "order-4711-confirmation", "sender": "a@example.org", "to": "b@example.org", "text": "t"}
    with psycopg.connect(shop_url) as connection:
        connection.execute("SELECT sendonce.enqueue(%s)", [json.dumps(mail)])
    return tmp_path


def test_commands_run(
    pages: dict[str, Page], followed: set[str], folder: Path, root: Path, run: Run, sendonce: Path
) -> None:
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    blocks = [b for page in pages.values() if page.name not in followed for b in page.blocks("sh")]
    lines = [(block.page, line) for block in blocks for line in block.text.splitlines()]
    commands: dict[tuple[str, ...], str] = {}  # each once, however many pages show it
    for page, line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            # Not run: these tests are part of `make test`, and the others run for minutes or until stopped.
            assert set(arguments) <= targets, f"{page}: {line}: the Makefile has {targets}"
        elif program == "sendonce":
            commands.setdefault(tuple(arguments), f"{page}: {line}")
        elif program == "psql":
            # Run by tests/integrations/test_psql.py.
            assert page == "docs/sql.md", f"{page}: {line}"
        else:
            raise AssertionError(f"{page}: {line}: say here how this is checked")
    assert commands
    for command, place in commands.items():
        if RUNS_UNTIL_STOPPED & set(command):
            run_until_ready([str(sendonce), *command], folder)
            continue
        done = run(*command)
        assert (done.code, done.err) == (0, ""), place
        assert done.out or command[0] == "alarms", place


def run_until_ready(command: list[str], folder: Path) -> None:
    log = folder / "log"
    with log.open("w") as written:
        process = subprocess.Popen(command, cwd=folder, stdout=written, stderr=written, env=os.environ)
        try:
            ended = False
            while "ready: " not in log.read_text() and not ended:
                try:
                    process.wait(0.1)
                    ended = True
                except subprocess.TimeoutExpired:
                    pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
