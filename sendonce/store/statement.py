"""Statements that run for every mail: their named parameters are found once, not at each execution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import AsyncRowFactory

_PARAMETER = re.compile(r"%(?:%|\((\w+)\)s)")


class Statement:
    """A text with parameters ``%(name)s``, as PostgreSQL takes it: ``$1``, ``$2``, …

    psycopg does the same, but keeps what it found for texts up to 4,096 characters only; and its key for a prepared
    statement, which is the text, is then another object each time and compared letter by letter.

    >>> Statement("SELECT %(a)s, %(b)s, %(a)s, '100 %%'").text
    b"SELECT $1, $2, $1, '100 %'"
    """

    def __init__(self, text: str) -> None:
        self._names: list[str] = []
        self.text = _PARAMETER.sub(self._place, text).encode()

    def _place(self, found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in self._names:
            self._names.append(name)
        return f"${self._names.index(name) + 1}"

    async def execute(
        self, conn: AsyncConnection[Any], params: Mapping[str, Any], row_factory: AsyncRowFactory[Any]
    ) -> AsyncRawCursor[Any]:
        """Run it; returns the cursor with its rows. ``params`` may hold more than it names."""
        cursor = AsyncRawCursor(conn, row_factory=row_factory)
        await cursor.execute(self.text, [params[name] for name in self._names])
        return cursor
