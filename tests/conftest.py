"""Real servers for the tests: started when the first test asks for one, once for each test process.

Set ``SENDONCE_TEST_POSTGRES`` to the URL of a superuser to use a PostgreSQL server of your own; the tests create
databases there and drop them again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from sendonce import embedded
from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
from sendonce.store.migrate import migrate

# Read before the environment is cleared.
_POSTGRES = os.environ.get("SENDONCE_TEST_POSTGRES")


@pytest.fixture(scope="session", autouse=True)
def scrubbed_environment() -> Iterator[None]:
    """No setting of the person who runs the tests reaches them."""
    with pytest.MonkeyPatch.context() as patch:
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
    # Prepared transactions are off by default; what NOTIFY does in one is tested.
    with EmbeddedPostgres.start(options={"max_prepared_transactions": "10"}) as server:
        yield server.url


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
def free_port() -> int:
    """A free TCP port on 127.0.0.1; call ``sendonce.embedded.free_port()`` for more."""
    return embedded.free_port()
