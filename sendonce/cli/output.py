"""What commands print: tables for people, JSON for programs, and nothing personal unless asked."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from rich.console import Console

PROGRESS_SECONDS = 2.0
"""A command that takes longer than this says what it is doing, on standard error."""

_PIPE_WIDTH = 200  # of tables that do not go to a terminal
_ADDRESS = re.compile(r"[^\s@<>,;:\"()]+@(\[[^\]\s]*\]|[^\s@<>,;:\"()\[\]]+)")


def mask(mailbox: str) -> str:
    """An address as far as it may be shown: the first letters and the top-level domain.

    >>> mask("ann@example.org")
    'a***@e***.org'
    """
    local, _, domain = mailbox.rpartition("@")
    first, dot, _ = domain.partition(".")
    top = domain.rpartition(".")[2] if dot and not domain.startswith("[") else ""
    return f"{local[:1]}***@{first[:1]}***{dot and top and f'.{top}'}"


def mask_addresses(text: str) -> str:
    """Text of others (an actor, a cause) with every address in it masked."""
    return _ADDRESS.sub(lambda found: mask(found.group()), text)


def to_json(value: Any) -> str:
    """One line of JSON in ASCII: UUIDs as text, times in UTC as ISO 8601."""
    return json.dumps(value, default=_plain, ensure_ascii=True)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_json(value: Any) -> None:
    """One object on a line of its own."""
    sys.stdout.write(to_json(value) + "\n")


def complain(message: str) -> None:
    """An error, on one line of standard error."""
    sys.stderr.write(f"sendonce: {_printable(' '.join(message.split()))}\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on standard output."""
    from rich.table import Table  # a tenth of a second that JSON and errors need not wait
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    _console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values below each other; what is None is left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), Text(cell(value)))
    _console().print(table)


def cell(value: object) -> str:
    """A value as people read it. Text of others is stripped of what could steer a terminal."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        case _:
            return _printable(str(value))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _console() -> Console:
    from rich.console import Console

    # Rich guesses 80 columns where there is no terminal, which would fold keys and ids.
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Say ``doing`` on standard error if the body takes longer than :data:`PROGRESS_SECONDS`."""
    timer = threading.Timer(PROGRESS_SECONDS, lambda: sys.stderr.write(f"sendonce: {doing} ...\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
