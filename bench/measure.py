"""What processes cost, read from ``/proc``: CPU seconds, memory; and what everybody else used meanwhile. Linux only."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """One process, as ``/proc/<pid>/stat`` tells it; ``ticks`` include its children that have ended."""

    pid: int
    parent: int
    ticks: int


def parse_stat(text: str) -> Stat:
    """Read one line of ``/proc/<pid>/stat``. The name, in parentheses, may itself hold spaces and parentheses."""
    pid, _, rest = text.partition(" ")
    fields = rest.rpartition(")")[2].split()
    # After the name: state, parent, … and from the eleventh on utime, stime, cutime, cstime (proc_pid_stat(5)).
    return Stat(int(pid), int(fields[1]), sum(int(ticks) for ticks in fields[11:15]))


def parse_kilobytes(text: str, name: str) -> int:
    """The value of ``name`` in a file such as ``/proc/<pid>/status``, in kB; 0 when it has none (a kernel thread)."""
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def busy_ticks(text: str) -> int:
    """What all cores together did since the start, by the first line of ``/proc/stat``: user, nice, system, interrupts.

    Idle, waiting for disks, and what a hypervisor took are not work of anybody here.
    """
    user, nice, system, _, _, irq, soft = (int(field) for field in text.splitlines()[0].split()[1:8])
    return user + nice + system + irq + soft


def tree(stats: Iterable[Stat], root: int) -> list[Stat]:
    """The process ``root`` and everything below it."""
    below: dict[int, list[Stat]] = {}
    by_pid = {}
    for stat in stats:
        below.setdefault(stat.parent, []).append(stat)
        by_pid[stat.pid] = stat
    found = [by_pid[root]] if root in by_pid else []
    for stat in found:
        found += below.get(stat.pid, [])
    return found


def all_stats() -> list[Stat]:
    """Every process there is."""
    texts = (_read(entry / "stat") for entry in PROC.iterdir() if entry.name.isdigit())
    return [parse_stat(text) for text in texts if text]


def memory_mb(pid: int) -> float:
    """Memory of a process and its children in MB: of one process what is resident, of several what is theirs of it
    (shared pages are divided among those who share them).
    """
    family = tree(all_stats(), pid)
    if len(family) == 1:
        return parse_kilobytes(_read(PROC / str(pid) / "status"), "VmRSS") / 1024
    return sum(parse_kilobytes(_read(PROC / str(one.pid) / "smaps_rollup"), "Pss") for one in family) / 1024


def peak_mb(pid: int) -> float:
    """The most memory that was ever resident in a process, in MB; of several processes, what they have now."""
    if len(tree(all_stats(), pid)) == 1:
        return parse_kilobytes(_read(PROC / str(pid) / "status"), "VmHWM") / 1024
    return memory_mb(pid)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        # It ended in between.
        return ""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds between two moments."""

    wall: float
    by_part: Mapping[str, float]
    """Of the processes that were watched, with their children."""
    foreign: float
    """Of everybody else on the machine: noise. This process is not noise, and not in it."""

    @property
    def foreign_share(self) -> float:
        """The part of the machine that was used by others: 0 to 1."""
        return self.foreign / (self.wall * CORES) if self.wall > 0 else 0.0


class Meter:
    """Watches processes from its making on; :meth:`read` says what they used since."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """``pids``: process ids by the name of what they are part of."""
        self._pids = dict(pids)
        self._begun = time.monotonic()
        self._before = self._look()

    def _look(self) -> tuple[dict[str, int], int, int]:
        stats = all_stats()
        parts = {name: sum(one.ticks for one in tree(stats, pid)) for name, pid in self._pids.items()}
        own = sum(one.ticks for one in stats if one.pid == os.getpid())
        return parts, own, busy_ticks(_read(PROC / "stat"))

    def read(self) -> Usage:
        """What was used since the beginning."""
        wall = time.monotonic() - self._begun
        (parts, own, busy), (parts_before, own_before, busy_before) = self._look(), self._before
        used = {name: (ticks - parts_before[name]) / TICKS for name, ticks in parts.items()}
        foreign = (busy - busy_before - (own - own_before)) / TICKS - sum(used.values())
        return Usage(wall, used, max(0.0, foreign))


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Like ``52.1 (48.0-55.3)``; three digits that count."""
        return f"{short(self.median)} ({short(self.low)}-{short(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """The median with the least and the greatest. Raises ValueError when there are none."""
    if not values:
        raise ValueError("nothing was measured")
    return Spread(statistics.median(values), min(values), max(values))


def short(value: float) -> str:
    """A number with as many decimals as matter.

    >>> short(1234.5), short(52.14), short(3.456), short(0.01234)
    ('1234', '52.1', '3.46', '0.0123')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` (0 to 1) of all values do not exceed.

    >>> percentile([4, 1, 3, 2], 0.5), percentile([4, 1, 3, 2], 0.99)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * part // 1).__int__() - 1)]
