"""What commands print: lines for people, JSON for programs, and nothing personal unless asked."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sendonce.retention import ERASED

if TYPE_CHECKING:
    from rich.console import Console

PROGRESS_SECONDS = 2.0
"""A command that takes longer than this says what it is doing, on standard error."""

_PIPE_WIDTH = 200  # of fields that do not go to a terminal
_ADDRESS = re.compile(r"[^\s@<>,;:\"()]+@(\[[^\]\s]*\]|[^\s@<>,;:\"()\[\]]+)")


def mask(mailbox: str) -> str:
    """An address as far as it may be shown: the first letters and the top-level domain.

    >>> mask("ann@example.org")
    'a***@e***.org'
    """
    if mailbox.startswith(ERASED):
        return "(erased)"
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


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values below each other; what is None is left out."""
    from rich.table import Table  # a tenth of a second that JSON and errors need not wait
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), Text(cell(value)))
    _console().print(table)


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun.

    >>> plural(1, "mail"), plural(2, "mail"), plural(0, "reply", "replies")
    ('1 mail', '2 mails', '0 replies')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def span(seconds: float) -> str:
    """A duration as people say it, in one unit.

    >>> span(0.25), span(42), span(200), span(7200), span(200_000)
    ('0.2 s', '42 s', '3 min', '2 h', '2 d')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


def ago(then: datetime | None, now: datetime) -> str:
    """How far an instant is from now: ``3 min ago``, ``in 2 h``; ``-`` for None."""
    if then is None:
        return "-"
    seconds = (now - then).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def width() -> int:
    """Columns to write for: those of the terminal or of COLUMNS, at least 60."""
    return max(60, shutil.get_terminal_size((80, 24)).columns)


def print_lines(columns: Sequence[str], rows: Iterable[tuple[Sequence[object], Sequence[str]]]) -> None:
    """One line for each row, in columns, and below it, indented, what is to be said of it.

    The last column is as long as it must be and never broken: keys can be copied.
    """
    table = [([cell(value) for value in row], notes) for row, notes in rows]
    widths = [max(len(row[n]) for row in (list(columns), *(row for row, _ in table))) for n in range(len(columns) - 1)]

    def line(row: Sequence[str]) -> str:
        return "  ".join([*(value.ljust(wide) for value, wide in zip(row, widths, strict=False)), row[-1]]).rstrip()

    sys.stdout.write(line([name.upper() for name in columns]) + "\n")
    for row, notes in table:
        sys.stdout.write(line(row) + "\n")
        for note in notes:
            print_wrapped(note, "    ")


def print_wrapped(text: str, indent: str = "", hanging: str | None = None) -> None:
    """Text of any length in lines that fit; words are not broken. ``hanging``: what later lines begin with."""
    lines = textwrap.wrap(
        cell(text),
        width(),
        initial_indent=indent,
        subsequent_indent=indent + "  " if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_pairs(pairs: Iterable[tuple[str, object]], indent: str = "") -> None:
    """Names and values below each other; what is None or empty is left out."""
    there = [(name, value) for name, value in pairs if value not in (None, "", [], ())]
    wide = max((len(name) for name, _ in there), default=0)
    for name, value in there:
        print_wrapped(cell(value), f"{indent}{name.ljust(wide)}  ", " " * (len(indent) + wide + 2))


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
