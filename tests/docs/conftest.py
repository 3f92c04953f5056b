"""The documentation as data: pages, their fenced blocks, tables, links and anchors; and a world to run examples in."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psycopg
import pytest
from temporalio.client import Client

from sendonce.activities.failures import client_options
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.embedded import EmbeddedTemporal
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.smtp_server import SmtpServer
from sendonce.worker import WorkerConfig, serve

ROOT = Path(__file__).parents[2]

_PACKAGING = re.compile(r"\[project\b")
"""What a block of TOML begins with that is part of a ``pyproject.toml``."""
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line`` is the page's line of its first line."""

    page: str
    language: str
    line: int
    text: str


@dataclass(frozen=True)
class Page:
    """One Markdown file; ``name`` is its path in the repository."""

    name: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The page without its fenced blocks, in which a ``#`` is no heading."""
        return _FENCE.sub("", self.text)

    def blocks(self, *languages: str) -> list[Block]:
        """Its fenced blocks, in order; only those of these languages, if any are given."""
        found = [
            Block(self.name, match[1], self.text.count("\n", 0, match.start(2)) + 1, match[2])
            for match in _FENCE.finditer(self.text)
        ]
        return [block for block in found if not languages or block.language in languages]

    @cached_property
    def anchors(self) -> set[str]:
        """What ``#…`` may name here: headings as GitHub spells them."""
        return {re.sub(r"[^\w\- ]", "", m[2].lower()).replace(" ", "-") for m in _HEADING.finditer(self.prose)}

    @cached_property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    def section(self, heading: str) -> str:
        """What stands under this heading, up to the next heading of any level."""
        parts = re.split(r"^#+ (.+)$", self.prose, flags=re.MULTILINE)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert heading in sections, f"{self.name} has no heading {heading!r}, only {list(sections)}"
        return sections[heading]

    def table(self, heading: str) -> list[dict[str, str]]:
        """The rows of the one table under this heading, by the names of its columns, without code marks."""
        lines = [line.strip() for line in self.section(heading).splitlines() if line.startswith("|")]
        rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
        assert len(rows) > 2, f"{self.name}: there is no table under {heading!r}"
        return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


PAGES = {
    name: Page(name)
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    )
}

FOLLOWED = {
    "docs/django.md",
    "docs/testing.md",
    "docs/tutorial.md",
    "docs/migrating/celery.md",
    "docs/migrating/django-post-office.md",
    "docs/migrating/jobs-table.md",
}
"""Pages whose blocks belong together: test_testing.py, test_tutorial.py, test_migrating.py and
tests/integrations/test_django_page.py run them as their readers would."""


@pytest.fixture
def followed() -> set[str]:
    return FOLLOWED


@pytest.fixture
def example_secrets() -> Callable[[str], dict[str, str]]:
    """Something for every variable that an example of settings reads."""

    def values(text: str) -> dict[str, str]:
        names = re.findall(r'(?:_env|\benv) = "(\w+)"', text)
        return dict.fromkeys(names, "secret-secret-secret") | {
            "DATABASE_URL": "postgresql://shop@db.example.com/shop",
            "AZURE_COMMUNICATION_CONNECTION_STRING": "endpoint=https://shop.communication.azure.com/;accesskey=c2VjcmV0",
        }

    return values


@pytest.fixture
def pages() -> dict[str, Page]:
    return PAGES


@pytest.fixture
def root() -> Path:
    return ROOT


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``page``: each page; ``python_page``, ``sql_page``: each that has such blocks; ``toml_block``."""
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES.values(), ids=PAGES)
    for language in ("python", "sql"):
        if f"{language}_page" in metafunc.fixturenames:
            found = [page for page in PAGES.values() if page.blocks(language) and page.name not in FOLLOWED]
            metafunc.parametrize(f"{language}_page", found, ids=[page.name for page in found])
    if "toml_block" in metafunc.fixturenames:
        blocks = [block for page in PAGES.values() for block in page.blocks("toml") if not _PACKAGING.match(block.text)]
        metafunc.parametrize("toml_block", blocks, ids=[f"{block.page}:{block.line}" for block in blocks])


@pytest.fixture
def example_package(pages: dict[str, Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package that a page shows, installed: its module and its entry point, as they stand there."""
    page = pages["docs/own-transport.md"]
    (packaging,) = (block for block in page.blocks("toml") if _PACKAGING.match(block.text))
    ((group, points),) = tomllib.loads(packaging.text)["project"]["entry-points"].items()
    ((name, value),) = points.items()
    module = value.partition(":")[0]
    folder = tmp_path / "site-packages"
    metadata = folder / f"{module}-1.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(page.blocks("python")[0].text, encoding="utf-8")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop(module, None)


@pytest.fixture
def shop_url(database_url: str) -> str:
    """A database of an application: Sendonce's schema, and a table of the application's own."""
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    return database_url


@pytest.fixture
def own_temporal(scrubbed_environment: None) -> Iterator[EmbeddedTemporal]:
    """A server of this test's own: the examples' keys and queues have the names that users would see."""
    with EmbeddedTemporal.start() as server:
        yield server


@pytest.fixture
async def client(own_temporal: EmbeddedTemporal) -> Client:
    return await Client.connect(own_temporal.target, **client_options())


@pytest.fixture
async def relay() -> AsyncIterator[SmtpServer]:
    async with SmtpServer() as server:
        yield server


@pytest.fixture
def deliver(shop_url: str, client: Client, relay: SmtpServer) -> Callable[[], Awaitable[Mailbox]]:
    """Run a worker until every mail that is due has been sent; returns what arrived."""

    async def run() -> Mailbox:
        connection = await psycopg.AsyncConnection.connect(shop_url, autocommit=True)
        end = time.monotonic() + 60
        async with connection, _worker(shop_url, client, relay):
            while await _open(connection):
                assert time.monotonic() < end, "a mail was not sent within a minute"
                await asyncio.sleep(0.05)
        return relay.mailbox

    return run


async def _open(connection: psycopg.AsyncConnection) -> bool:
    cursor = await connection.execute(
        "SELECT FROM sendonce.email WHERE stage NOT IN ('sent', 'cancelled') AND send_after IS NULL"
    )
    return bool(await cursor.fetchall())


@asynccontextmanager
async def _worker(url: str, client: Client, relay: SmtpServer) -> AsyncIterator[None]:
    account = SmtpTransport(SmtpSettings(host="127.0.0.1", port=relay.port, tls="none"))
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(WorkerConfig(url, {"default": account}), stop, client=client))
    try:
        yield
    finally:
        stop.set()
        await serving
