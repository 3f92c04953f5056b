"""The pytest plugin: fixtures whose names begin with ``sendonce``. None is automatic, and nothing is imported before a
test asks for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sendonce.testing.kit.arrivals import Arrivals
    from sendonce.testing.kit.loop import BackgroundLoop
    from sendonce.testing.kit.outbox import Outbox
    from sendonce.testing.kit.provider import Provider
    from sendonce.testing.kit.settings import KitSettings
    from sendonce.testing.kit.world import Sendonce

OPTION = "--sendonce-database-url"
VARIABLE = "SENDONCE_TEST_DATABASE_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option."""
    parser.getgroup("sendonce").addoption(
        OPTION,
        metavar="URL",
        help="A PostgreSQL server for the tests: postgresql://… of a user who may create databases, which are dropped "
        f"again. Default: the variable {VARIABLE}, else a server from wheels.",
    )


@contextmanager
def _told_what_to_install() -> Iterator[None]:
    """A wheel or module that is missing fails the test with what to install, and without a traceback."""
    from sendonce.embedded import EmbeddedServerError

    try:
        yield
    except (EmbeddedServerError, ModuleNotFoundError) as error:
        missing = isinstance(error, ModuleNotFoundError) or "pip install" in str(error)
        if not missing:
            raise
        pytest.fail(f"{error}\nthe fixtures of sendonce need more: pip install 'sendonce[testing]'", pytrace=False)


@pytest.fixture(scope="session")
def sendonce_server_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """A PostgreSQL server: the URL of a database in it, as a user who may create others. One for each process."""
    given = pytestconfig.getoption(OPTION) or os.environ.get(VARIABLE)
    if given:
        yield str(given)
        return
    with _told_what_to_install():
        from sendonce.testing.kit.servers import postgres_server

        server = postgres_server()
        url = server.__enter__()
    try:
        yield url
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def sendonce_prepare_database() -> Callable[[str], None]:
    """Override it to create the application's own tables: a function that gets the template database's URL, once."""

    def nothing(url: str) -> None:
        """Sendonce's schema is there already."""

    return nothing


@pytest.fixture(scope="session")
def sendonce_template(sendonce_server_url: str, sendonce_prepare_database: Callable[[str], None]) -> Iterator[str]:
    """The name of the database that every test gets a clone of."""
    from sendonce.testing.kit.servers import template_database

    with template_database(sendonce_server_url, sendonce_prepare_database) as name:
        yield name


@pytest.fixture
def sendonce_database_url(sendonce_server_url: str, sendonce_template: str) -> Iterator[str]:
    """A database of this test's own. Override it to use the application's own, with Sendonce's schema in it."""
    from sendonce.testing.kit.servers import cloned_database

    with cloned_database(sendonce_server_url, sendonce_template) as url:
        yield url


@pytest.fixture
def sendonce_settings() -> KitSettings:
    """Override it for accounts, lanes and templates of the application's."""
    from sendonce.testing.kit.settings import KitSettings

    return KitSettings()


@pytest.fixture(scope="session")
def sendonce_loop() -> Iterator[BackgroundLoop]:
    """The thread in which mail is delivered."""
    from sendonce.testing.kit.loop import BackgroundLoop

    loop = BackgroundLoop()
    yield loop
    loop.close()


@pytest.fixture
def sendonce(
    sendonce_database_url: str, sendonce_settings: KitSettings, sendonce_loop: BackgroundLoop
) -> Iterator[Sendonce]:
    """Everything: the store, its outbox, the playing provider, the mailbox, and the time."""
    from sendonce.testing.kit.world import Sendonce

    with _told_what_to_install():
        made = Sendonce(sendonce_database_url, sendonce_settings, sendonce_loop)
    yield made
    made.close()


@pytest.fixture
def sendonce_outbox(sendonce_database_url: str, sendonce_settings: KitSettings) -> Outbox:
    """What was enqueued and committed. Needs no Temporal."""
    from sendonce.testing.kit.outbox import outbox_of

    return outbox_of(sendonce_database_url, sendonce_settings.library())


@pytest.fixture
def sendonce_mailbox(sendonce: Sendonce) -> Arrivals:
    """What arrived."""
    return sendonce.mailbox


@pytest.fixture
def sendonce_provider(sendonce: Sendonce) -> Provider:
    """What plays the provider of the account ``default``."""
    return sendonce.provider
