"""The example of business code that takes what came back, with something that came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields
from threading import Thread
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sendonce import EventKind, TakenEvent
from sendonce.events import Event
from sendonce.store.events import Terms, record

if TYPE_CHECKING:
    from tests.docs.conftest import Page

HEADING = "What business code does with them"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def example(pages: dict[str, Page], shop_url: str) -> Iterator[dict[str, Any]]:
    """The names that the page's examples define, after they have run; and the table that they write to."""
    with psycopg.connect(shop_url) as connection:
        connection.execute("CREATE TABLE calls (email_key text, why text)")
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shop_url))
    names: dict[str, Any] = {"engine": engine, "database_url": shop_url, "Order": Order}
    for block in pages["docs/webhooks.md"].blocks("python"):
        exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), names)
    yield names
    engine.dispose()


async def came(url: str, *kinds: EventKind) -> None:
    """Something comes back about the example's mail."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute("SELECT id FROM sendonce.email")
        ((email_id,),) = await cursor.fetchall()
        found = [Event("test", kind, kind, email_id=str(email_id)) for kind in kinds]
        await record(connection, "default", found, Terms({}, "test"))


def calls(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT email_key, why FROM calls ORDER BY 2").fetchall()


async def test_each_event_is_acted_upon_once(example: dict[str, Any], shop_url: str) -> None:
    await came(shop_url, EventKind.DELIVERED, EventKind.BOUNCED)
    assert [example["take_what_came_back"]() for _ in range(2)] == [1, 0]
    assert calls(shop_url) == [("order-4714-confirmation", "bounced")]


async def test_who_listens_hears_of_it_at_once_and_what_was_there_before(
    example: dict[str, Any], shop_url: str
) -> None:
    await came(shop_url, EventKind.BOUNCED)
    # Longer than a test may last: it is not the clock that wakes it.
    following = Thread(target=example["follow"], args=(300,))
    following.start()
    try:
        await until(shop_url, 1)
        await came(shop_url, EventKind.COMPLAINED)
        await until(shop_url, 2)
    finally:
        example["stopping"].set()
        with psycopg.connect(shop_url) as connection:
            connection.execute("NOTIFY sendonce_events")
        await asyncio.to_thread(following.join, 30)
    assert not following.is_alive()


async def test_who_hears_nothing_asks(example: dict[str, Any], shop_url: str) -> None:
    with psycopg.connect(shop_url) as connection:
        connection.execute("UPDATE sendonce.installation SET notify = false")
    following = Thread(target=example["follow"], args=(0.1,))
    following.start()
    try:
        await came(shop_url, EventKind.BOUNCED)
        await until(shop_url, 1)
    finally:
        example["stopping"].set()
        await asyncio.to_thread(following.join, 30)
    assert not following.is_alive()


async def until(url: str, number: int) -> None:
    """Wait until so many calls are to be made."""
    end = time.monotonic() + 30
    while len(await asyncio.to_thread(calls, url)) < number:
        assert time.monotonic() < end, "not acted upon within 30 s"
        await asyncio.sleep(0.02)


def test_the_kinds_and_the_fields(pages: dict[str, Page]) -> None:
    kinds, taken = pages["docs/webhooks.md"].section(HEADING).split("| field | meaning |")
    for table, names in ((kinds, list(map(str, EventKind))), (taken, [field.name for field in fields(TakenEvent)])):
        named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
        assert named == names
