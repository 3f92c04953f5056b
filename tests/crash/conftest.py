"""Installations to crash: see :class:`tests.crash.world.World`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from sendonce import embedded
from sendonce.activities.failures import client_options
from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
from sendonce.store.migrate import migrate
from sendonce.testing.certificate import Certificate, self_signed
from tests.crash.forks import Forks
from tests.crash.world import World

MakeWorld = Callable[..., Awaitable[World]]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1")


@pytest.fixture(scope="session")
def forks(scrubbed_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Loads the workers' modules while the servers start."""
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture
async def make_world(
    forks: Forks,
    postgres_url: str,
    template: str,
    temporal: EmbeddedTemporal,
    tmp_path: Path,
    certificate: Certificate,
) -> AsyncIterator[MakeWorld]:
    """Make installations; ``postgres`` and ``temporal`` replace the shared servers, for a test that stops them."""
    made: list[str] = []

    async def make(*, postgres: EmbeddedPostgres | None = None, own_temporal: EmbeddedTemporal | None = None) -> World:
        name = f"test_{uuid4().hex}"
        if postgres is None:
            url = embedded.create_database(postgres_url, name, template)
            made.append(name)
        else:
            url = postgres.create_database(name)
            await asyncio.to_thread(migrate, url)
        client = await Client.connect((own_temporal or temporal).target, **client_options())
        return await closing.enter_async_context(World(tmp_path / name, url, client, certificate, forks))

    async with AsyncExitStack() as closing:
        yield make
    for name in made:
        embedded.drop_database(postgres_url, name)


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    """One installation on the shared servers."""
    return await make_world()
