"""What one sees of the demo: lines while it runs, a table at its end, or one JSON object."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sendonce.demo.play import Played
from sendonce.demo.verdict import Judged

WIDTH = 128
"""Columns of the table where there is no terminal, and in the picture."""

NARROWEST = 118
"""Columns that the table needs so that no word in it is broken; a narrower terminal gets lines."""

COLUMNS = ("key", "stage", "attempts", "last reply", "copies", "verdict")
"""Of the lines; lane and story stand below each."""

STAGE_STYLES = {"sent": "green", "failed": "red", "dead": "red", "expired": "red", "unknown": "yellow"}


def teller(console: Console) -> Callable[[str], None]:
    """Prints what happens, with the seconds since the start."""
    begun = time.monotonic()

    def say(what: str) -> None:
        console.print(f"[dim]{time.monotonic() - begun:5.1f} s[/]  {what}", highlight=False)

    return say


def table(played: Played) -> Table:
    """Key, lane, what happened, stage, attempts, last reply, copies and verdict; the same story is one line."""
    view = Table(title="What the store says, and what arrived", title_justify="left", header_style="bold")
    for column in ("key", "lane", "what happened", "stage", "attempts", "last reply", "copies", "verdict"):
        view.add_column(column, justify="right" if column in ("attempts", "copies") else "left", overflow="fold")
    for row in _rows(played):
        view.add_row(*row)
    return view


def lines(played: Played) -> Table:
    """The same for a narrow terminal: what happened stands on a line of its own below the rest."""
    view = Table.grid(padding=(0, 2))
    rows = [(key, *rest, f"{story}, lane {lane}" if lane not in ("-", "default") else story)
            for key, lane, story, *rest in _rows(played)]  # fmt: skip
    texts = [[Text.from_markup(cell) for cell in row] for row in [(*COLUMNS, ""), *rows]]
    widths = [max(cell.cell_len for cell in column) for column in zip(*(row[:-1] for row in texts), strict=True)]
    view.add_row(Text("What the store says, and what arrived", style="italic"))
    for n, (*row, story) in enumerate(texts):
        line = Text(style="bold" if n == 0 else "")
        for cell, width in zip(row, widths, strict=True):
            cell.pad_right(width - cell.cell_len + 2)
            line.append_text(cell)
        line.rstrip()
        view.add_row(line)
        if n:
            view.add_row(Padding(story, (0, 0, 0, 4)))
    return view


def _rows(played: Played) -> list[tuple[str, ...]]:
    stories: dict[str, list[Judged]] = {}
    for line in played.verdict.lines:
        stories.setdefault(line.plan.story, []).append(line)
    return [_told(story, lines) for story, lines in stories.items()]


def _told(story: str, lines: list[Judged]) -> tuple[str, ...]:
    rows = [line.row for line in lines if line.row is not None]
    stages = sorted({row.stage for row in rows})
    replies = sorted({row.reply for row in rows})
    recipients = sum(len(line.plan.recipients) for line in lines)
    faults = [fault for line in lines for fault in line.faults]
    return (
        lines[0].plan.key if len(lines) == 1 else f"{len(lines)} mails",
        ", ".join(sorted({row.lane for row in rows})) or "-",
        story,
        ", ".join(f"[{STAGE_STYLES.get(stage, 'default')}]{stage}[/]" for stage in stages) or "no row",
        str(sum(row.attempts for row in rows)) if rows else "-",
        (replies[0] or "no answer") if len(replies) == 1 else "-" if not replies else "various",
        f"{sum(line.copies for line in lines)} of {recipients}",
        f"[bold red]{faults[0] if len(faults) == 1 else f'{len(faults)} faults'}[/]" if faults else _fine(lines),
    )


def _fine(lines: list[Judged]) -> str:
    line = lines[0]
    if line.plan.rolled_back:
        return "[green]never sent[/]"
    if line.plan.uncertain:
        return "[yellow]said so, alarm[/]"
    if line.plan.refused:
        return "[green]refused one: none[/]" if line.copies else "[green]refused: none[/]"
    return "[green]once[/]" if len(lines) == 1 else "[green]once each[/]"


def summary(played: Played) -> dict[str, Any]:
    """The JSON object."""
    verdict = played.verdict
    return {
        "placed": verdict.placed,
        "rolled_back": verdict.rolled_back,
        "sent": verdict.stages["sent"],
        "failed": verdict.stages["failed"],
        "unknown": verdict.stages["unknown"],
        "dead": verdict.stages["dead"],
        "duplicates": verdict.duplicates,
        "lost": verdict.lost,
        "kills": played.kills,
        "login_code_seconds": round(played.login_code_seconds, 3),
        "seconds": round(played.seconds, 1),
    }


def conclude(console: Console, played: Played, *, svg: Path | None = None) -> None:
    """Print the table and what it comes to; with ``svg`` keep a picture of it there."""
    numbers = summary(played)
    words = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in numbers.items() if isinstance(value, int))
    faults = played.verdict.faults
    end = "[bold red]The promise was broken:[/]" if faults else "[bold green]Every mail is accounted for.[/]"
    recorder = Console(record=True, width=WIDTH, file=io.StringIO())
    for target in (console, recorder):
        target.print(table(played) if target.width >= NARROWEST else lines(played))
        target.print(f"{end} {words}; login code after {numbers['login_code_seconds']} s.", highlight=False)
        for fault in faults:
            target.print(f"  {fault}", highlight=False, markup=False)
    if svg is not None:
        svg.write_text(recorder.export_svg(title="sendonce demo"), encoding="utf-8")
