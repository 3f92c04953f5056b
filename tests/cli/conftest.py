"""Mails in a database of the test's own, written as the intake and the worker would, and the command that looks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

if TYPE_CHECKING:
    from tests.conftest import Result, Run


class Seed:
    """Writes rows as the intake and the worker would."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def mail(self, key: str, **more: Any) -> UUID:
        message = {
            "key": key,
            "sender": "Shop <shop@example.org>",
            "to": ["Ann <ann.lee@example.org>"],
            "subject": "Parcel for Ann",
            "text": "On its way.",
            "requested_by": "desk.clerk@shop.example",
            **more,
        }
        row = self.connection.execute("SELECT status, email_id FROM sendonce.enqueue(%s)", [json.dumps(message)])
        status, email_id = row.fetchone() or ("", None)
        assert (status, type(email_id)) == ("created", UUID)
        return UUID(str(email_id))

    def update(self, email_id: UUID, **values: Any) -> None:
        for name, value in values.items():
            query = sql.SQL("UPDATE sendonce.email SET {} = %s WHERE id = %s").format(sql.Identifier(name))
            self.connection.execute(query, [value, email_id])

    def alarm(self, kind: str, email_id: UUID | None = None, closes: int | None = None) -> int:
        row = self.connection.execute(
            "INSERT INTO sendonce.alarm (kind, email_id, account, detail, closes)"
            " VALUES (%s, %s, 'default', '451 4.7.1', %s) RETURNING id",
            [kind, email_id, closes],
        ).fetchone()
        assert row is not None
        return int(row[0])

    def value(self, query: str, *params: Any) -> Any:
        """The one value that the query finds."""
        row = self.connection.execute(query.encode(), params).fetchone()
        return None if row is None else row[0]

    def stage(self, key: str) -> str:
        return str(self.value("SELECT stage FROM sendonce.email WHERE key = %s", key))


@pytest.fixture
def seed(database_url: str) -> Iterator[Seed]:
    seed = Seed(database_url)
    yield seed
    seed.connection.close()


@pytest.fixture
def look(run: Run, database_url: str) -> Run:
    """Run a command over the database of ``seed``."""

    def look(*arguments: str) -> Result:
        return run(*arguments, SENDONCE_DATABASE_URL=database_url)

    return look
