"""What was enqueued, seen through whatever connection there is; and the schema made through it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from sendonce import Attachment, OutgoingEmail, StoreNotReady, TemplateFault, Templates, enqueue
from sendonce.testing import KitSettings, Outbox, clear, install, read_outbox


def mail(key: str = "order-1", **fields: Any) -> OutgoingEmail:
    usual = {"sender": "shop@example.com", "to": "ann@example.org", "subject": "Your order", "text": "Thanks."}
    return OutgoingEmail(key=key, **(usual | fields))


async def settled(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value


@pytest.fixture(params=["psycopg", "psycopg async", "connection", "session", "async connection", "async session"])
async def connection(request: pytest.FixtureRequest, empty_database_url: str) -> AsyncIterator[Any]:
    """Each kind that enqueue takes, to a database with nothing in it."""
    url = empty_database_url.replace("postgresql://", "postgresql+psycopg://")
    kind = request.param
    if kind == "psycopg":
        with psycopg.connect(empty_database_url) as plain:
            yield plain
            plain.rollback()
    elif kind == "psycopg async":
        async with await psycopg.AsyncConnection.connect(empty_database_url) as plain_async:
            yield plain_async
            await plain_async.rollback()
    elif kind == "connection":
        with create_engine(url, poolclass=NullPool).connect() as connection:
            yield connection
    elif kind == "session":
        with Session(create_engine(url, poolclass=NullPool)) as session:
            yield session
    elif kind == "async connection":
        async with create_async_engine(url, poolclass=NullPool).connect() as async_connection:
            yield async_connection
    else:
        async with AsyncSession(create_async_engine(url, poolclass=NullPool)) as async_session:
            yield async_session


async def test_install_enqueue_look_clear_and_roll_back_through_one_connection(
    connection: Any, empty_database_url: str
) -> None:
    await settled(install(connection))
    await settled(install(connection))  # there already
    await settled(enqueue(connection, mail(attachments=[Attachment(filename="a.txt", content=b"\x00\xff")])))
    outbox = await settled(read_outbox(connection))
    (found,) = outbox
    assert (found.key, found.recipients, found.subject, found.text) == (
        "order-1",
        ("ann@example.org",),
        "Your order",
        "Thanks.",
    )
    assert [(one.filename, one.content) for one in found.attachments] == [("a.txt", b"\x00\xff")]
    await settled(clear(connection))
    assert len(await settled(read_outbox(connection))) == 0
    await settled(enqueue(connection, mail()))
    await settled(connection.rollback())
    with psycopg.connect(empty_database_url) as other:
        assert other.execute("SELECT to_regnamespace('sendonce')").fetchone() == (None,)


SCHEMA = """
SELECT 'column', table_schema || '.' || table_name, column_name, ordinal_position::text, data_type, is_nullable,
    coalesce(column_default, ''), coalesce(is_identity, '')
FROM information_schema.columns WHERE table_schema = 'sendonce'
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', '', ''
FROM pg_constraint WHERE connamespace = 'sendonce'::regnamespace
UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '', '', ''
FROM pg_indexes WHERE schemaname = 'sendonce'
UNION ALL SELECT 'function', proname, pg_get_function_identity_arguments(oid), pg_get_functiondef(oid), '', '', '', ''
FROM pg_proc WHERE pronamespace = 'sendonce'::regnamespace AND prokind = 'f'
UNION ALL SELECT 'options', relname, array_to_string(reloptions, ','), relacl::text, '', '', '', ''
FROM pg_class WHERE relnamespace = 'sendonce'::regnamespace
UNION ALL SELECT 'version', version_num, '', '', '', '', '', '' FROM sendonce.schema_version
"""


def test_install_makes_what_migrate_makes(empty_database_url: str, database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        install(connection)
    with psycopg.connect(empty_database_url) as installed, psycopg.connect(database_url) as migrated:
        query = SCHEMA.encode()
        rows = set(installed.execute(query).fetchall())
        assert len(rows) > 200
        assert rows == set(migrated.execute(query).fetchall())


def test_install_refuses_the_schema_of_another_release(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE sendonce.schema_version SET version_num = '0000'")
        with pytest.raises(StoreNotReady, match="is at 0000, the test kit makes 0001: drop the schema"):
            install(connection)


def test_what_a_savepoint_rolled_back_is_gone(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            enqueue(session, mail("kept"))
            session.commit()
            enqueue(session, mail("dropped"))
            session.rollback()
            assert [found.key for found in read_outbox(session)] == ["kept"]
        transaction.rollback()
    with psycopg.connect(database_url) as other:
        assert len(read_outbox(other)) == 0


@pytest.fixture
def sendonce_settings(tmp_path: Path) -> KitSettings:
    folder = tmp_path / "welcome"
    folder.mkdir()
    (folder / "subject.txt").write_text("Welcome, {{ name }}", encoding="utf-8")
    (folder / "body.html").write_text("<p>Hello {{ name }}</p>", encoding="utf-8")
    return KitSettings(templates=tmp_path)


def test_mail_by_template_is_filled_in(
    sendonce_outbox: Outbox, sendonce_database_url: str, sendonce_settings: KitSettings
) -> None:
    by_template = {"subject": "", "text": None, "template": "welcome"}
    with psycopg.connect(sendonce_database_url) as connection:
        enqueue(connection, mail("welcome-1", **by_template, parameters={"name": "Ann"}))
        enqueue(connection, mail("welcome-2", **by_template, to="bob@example.org"))
        # Not committed: seen here and nowhere else.
        assert len(sendonce_outbox) == 0
        here = read_outbox(connection, Templates(sendonce_settings.templates or ""))
        assert here.one("ann@example.org").subject == "Welcome, Ann"
    found = sendonce_outbox.one(template="welcome", key="welcome-1")
    assert (found.template, found.parameters) == ("welcome", {"name": "Ann"})
    assert (found.subject, found.text.strip(), found.message.subject) == ("Welcome, Ann", "Hello Ann", "")
    assert "<p>Hello Ann</p>" in found.html
    with pytest.raises(TemplateFault, match="name"):
        _ = sendonce_outbox.one("bob@example.org").subject


def test_one_shows_what_there_is(sendonce_outbox: Outbox, sendonce_database_url: str) -> None:
    with pytest.raises(AssertionError, match=r"0 instead of one mail; enqueued: nothing \(was the transaction com"):
        sendonce_outbox.one()
    with psycopg.connect(sendonce_database_url) as connection:
        enqueue(connection, mail("a"))
        enqueue(connection, mail("b", template="welcome", text=None, subject=""))
    with pytest.raises(AssertionError) as failure:
        sendonce_outbox.one("ann@example.org")
    assert str(failure.value).splitlines() == [
        "2 instead of one mail to 'ann@example.org'; enqueued:",
        "  a to ann@example.org: stage pending, due now",
        "  b to ann@example.org by template welcome: stage pending, due now",
    ]
    with pytest.raises(AssertionError, match=r"0 instead of one mail key 'c'; enqueued:\n  a to ann"):
        sendonce_outbox.one(key="c")
    assert [one.key for one in sendonce_outbox[:1]] == [sendonce_outbox[0].key] == ["a"]
