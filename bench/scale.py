"""Several workers and starters on one installation: each mail goes once, and what it costs that they meet.

They all share this machine with PostgreSQL, Temporal and the relay, so this says nothing about how much faster more
machines are.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import psycopg

from bench import stack
from bench.measure import Meter
from bench.part import PartFailed
from bench.stack import Machine, Servers
from bench.throughput import RELAY, WAIT_SECONDS, arrived

WAYS = {"1 worker": (1, 0), "2 workers": (2, 0), "4 workers": (4, 0), "2 workers, 2 starters": (2, 2)}
"""How many of each. Where there are starters, the workers start no workflows themselves."""

MAILS, ROUNDS = 120, 3
"""Per round, and rounds with the same processes."""

WARM_UP = 25
"""Mails before the clock starts, for each worker."""

WITHOUT_STARTER = "\n[worker]\nwith_starter = false\n"


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement."""

    per_second: float
    cpu: dict[str, float]
    """Seconds per 1,000 mails, by part; of all workers together, and of all starters."""
    foreign: float
    """The part of the machine that others used meanwhile."""

    @property
    def cpu_total(self) -> float:
        """Of all parts but the relay."""
        return sum(seconds for part, seconds in self.cpu.items() if part != RELAY)


@dataclass
class Way:
    """One number of processes."""

    rounds: list[Round] = field(default_factory=list)
    mails: int = 0
    """All that were sent, the warm-up's too. Each came to the relay once: anything else ends the measurement."""
    attempts: int = 0
    """How often one of the workers took a mail: as many as mails, unless two of them got in each other's way."""
    shares: list[float] = field(default_factory=list)
    """The part of the attempts that each worker made, largest first."""

    def summary(self) -> dict[str, float | list[float]]:
        """What there is to say about it; CPU in seconds per 1,000 mails, medians over the rounds."""
        return {
            "per_second": median(one.per_second for one in self.rounds),
            "cpu": median(one.cpu_total for one in self.rounds),
            "used_by_others": median(one.foreign for one in self.rounds),
            "mails": self.mails,
            "attempts": self.attempts,
            "shares": self.shares,
        }


@asynccontextmanager
async def _processes(machine: Machine, text: str, workers: int, starters: int) -> AsyncIterator[dict[str, int]]:
    """So many on one installation; their process ids by name."""
    async with AsyncExitStack() as closing:
        pids = {}
        for command, number in (("worker", workers), ("starter", starters)):
            for n in range(number):
                process = await closing.enter_async_context(stack.worker(machine, text, command=command))
                pids[f"{command} {n + 1}"] = process.pid
        yield pids


def _by_part(used: Mapping[str, float], mails: int) -> dict[str, float]:
    """Per 1,000 mails; ``worker 1`` and ``worker 2`` are both ``worker``."""
    found: dict[str, float] = {}
    for name, seconds in used.items():
        part = name.partition(" ")[0]
        found[part] = found.get(part, 0.0) + seconds * 1000 / mails
    return found


async def _send(machine: Machine, installation: Servers, number: int) -> None:
    """Hand over so many and return when each has come once and its row says so. Raises :class:`PartFailed`."""
    prefix = f"scale{machine.number()}"
    await installation.feeder.call(do="orders", prefix=prefix, number=number)
    await installation.sink.call(wait=number, seconds=WAIT_SECONDS)
    # First the rows: whatever a worker still had to send has been sent then.
    await installation.drained()
    await arrived(installation.sink, prefix, number)


async def _attempts(url: str) -> list[int]:
    """How many each worker made, largest first."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        query = "SELECT count(*) FROM sendonce.attempt GROUP BY worker ORDER BY 1 DESC"
        return [number for (number,) in await (await connection.execute(query)).fetchall()]


async def measure(machine: Machine, workers: int, starters: int, mails: int, rounds: int) -> Way:
    """Start so many processes, warm them up, and measure them together."""
    way = Way()
    async with AsyncExitStack() as closing:
        installation = await closing.enter_async_context(stack.servers(machine))
        text = installation.settings + (WITHOUT_STARTER if starters else "")
        async with _processes(machine, text, workers, starters) as pids:
            warm_up = WARM_UP * workers
            await _send(machine, installation, warm_up)
            for _ in range(rounds):
                meter, begun = Meter({**installation.pids, **pids}), time.monotonic()
                await _send(machine, installation, mails)
                seconds, usage = time.monotonic() - begun, meter.read()
                way.rounds.append(Round(mails / seconds, _by_part(usage.by_part, mails), usage.foreign_share))
        # They have ended, in order: what comes now would be a mail that nobody asked for.
        if late := await installation.sink.call(take=True):
            raise PartFailed(f"{len(late)} mails came once more")
        counts = await _attempts(installation.url)
        way.mails, way.attempts = warm_up + rounds * mails, sum(counts)
        way.shares = [count / way.attempts for count in counts]
    return way


async def run(
    machine: Machine, say: Callable[[str], None], *, mails: int = MAILS, rounds: int = ROUNDS
) -> dict[str, Way]:
    """Each way once, on an installation of its own."""
    found = {}
    for name, (workers, starters) in WAYS.items():
        way = found[name] = await measure(machine, workers, starters, mails, rounds)
        per_second = median(one.per_second for one in way.rounds)
        say(f"scale: {name}: {per_second:.1f}/s, {way.mails} mails once each in {way.attempts} attempts")
    return found
