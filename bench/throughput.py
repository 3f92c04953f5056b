"""How many per second, and what each costs: an empty workflow, ours, a naive workflow, other queues; interleaved."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from bench import peers, stack
from bench.mail import mailbox
from bench.measure import Meter, memory_mb, peak_mb
from bench.part import Part, PartFailed
from bench.stack import Machine

WARM_UP = 40
"""Mails before the clock starts: modules are loaded, connections are made."""

RELAY = "relay"
"""The part that stands for somebody else's machine: its CPU is shown, and in no sum."""

WAIT_SECONDS = 300.0

FLOOR, OURS, NAIVE, NAIVE_TUNED = "empty workflow", "Sendonce", "naive Temporal", "naive, tuned server"


@dataclass(frozen=True)
class Contender:
    """Something that runs and can be given mails."""

    pids: dict[str, int]
    """Its processes, by what is reported."""
    run: Callable[[str, int], Awaitable[None]]
    """Hand over so many mails, their keys with this prefix, and return when the last one was accepted."""


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement."""

    per_second: float
    cpu: dict[str, float]
    """Seconds per 1,000 mails, by part."""
    memory: dict[str, float]
    """MB, by part: at its most for a single process, at the end for several."""
    foreign: float
    """The part of the machine that others used meanwhile."""

    @property
    def cpu_total(self) -> float:
        """Of all parts but the relay."""
        return sum(seconds for part, seconds in self.cpu.items() if part != RELAY)

    @property
    def cpu_own(self) -> float:
        """Of what is neither a server nor the relay: workers, starters, and who hands the mails over."""
        return sum(seconds for part, seconds in self.cpu.items() if part not in ("store", "Temporal", RELAY))


@dataclass
class Throughput:
    """All rounds of all contenders."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Peers that could not take part, and why."""

    def ratio(self, ours: str, theirs: str, what: Callable[[Round], float]) -> float | None:
        """The median over rounds of ours to theirs; None when either was not measured."""
        mine, other = self.rounds.get(ours, []), self.rounds.get(theirs, [])
        found = [what(a) / what(b) for a, b in zip(mine, other, strict=False) if what(b) > 0]
        return median(found) if found else None

    def middle(self, name: str, what: Callable[[Round], float]) -> float | None:
        """The median over rounds of one contender; None when it was not measured."""
        found = [what(one) for one in self.rounds.get(name, [])]
        return median(found) if found else None


Enter = Callable[[Machine], AbstractAsyncContextManager[Contender]]


@asynccontextmanager
async def floor(machine: Machine) -> AsyncIterator[Contender]:
    """Empty workflows: what the engine costs whatever one does with it."""
    async with (
        stack.temporal() as server,
        await Part.start("bench.engine:floor", machine.folder, target=server.target) as part,
    ):

        async def run(prefix: str, number: int) -> None:
            await part.call(prefix=prefix, number=number)

        yield Contender({"Temporal": server.pid, "worker": part.pid}, run)


@asynccontextmanager
async def ours(machine: Machine) -> AsyncIterator[Contender]:
    """A business transaction for each mail, until its row is ``sent``."""
    async with stack.ours(machine) as installation:

        async def run(prefix: str, number: int) -> None:
            await installation.feeder.call(do="orders", prefix=prefix, number=number)
            await arrived(installation.sink, prefix, number)
            await installation.drained()

        yield Contender(installation.pids, run)


@asynccontextmanager
async def naive(machine: Machine, *, tuned: bool = False) -> AsyncIterator[Contender]:
    """One workflow with one activity, started by an application of its own."""
    async with AsyncExitStack() as closing:
        server = await closing.enter_async_context(stack.temporal(tuned=tuned))
        sink, port = await closing.enter_async_context(stack.sink(machine))
        worker = await closing.enter_async_context(
            await Part.start("bench.naive:worker", machine.folder, target=server.target, tuned=tuned)
        )
        application = await closing.enter_async_context(
            await Part.start("bench.naive:application", machine.folder, target=server.target, port=port, tuned=tuned)
        )

        async def run(prefix: str, number: int) -> None:
            await application.call(prefix=prefix, number=number)
            await arrived(sink, prefix, number)

        pids = {"Temporal": server.pid, "worker": worker.pid, "enqueueing": application.pid, RELAY: sink.pid}
        yield Contender(pids, run)


async def arrived(sink: Part, prefix: str, number: int) -> None:
    """Wait for ``number`` mails at the sink. Raises :class:`PartFailed` unless each came exactly once."""
    await sink.call(wait=number, seconds=WAIT_SECONDS)
    taken = [recipient for recipient, _ in await sink.call(take=True)]
    if sorted(taken) != sorted(mailbox(f"{prefix}-{n}") for n in range(number)):
        raise PartFailed(f"{number} mails were handed over, and {len(set(taken))} arrived in {len(taken)} copies")


async def measure(machine: Machine, enter: Enter, mails: int) -> Round:
    """Start a contender, warm it up, and measure it."""
    async with enter(machine) as contender:
        await contender.run(f"warm{machine.number()}", WARM_UP)
        meter, begun = Meter(contender.pids), time.monotonic()
        await contender.run(f"mail{machine.number()}", mails)
        seconds, usage = time.monotonic() - begun, meter.read()
        memory = {part: memory_mb(pid) if part == "store" else peak_mb(pid) for part, pid in contender.pids.items()}
    cpu = {part: used * 1000 / mails for part, used in usage.by_part.items()}
    return Round(mails / seconds, cpu, memory, usage.foreign_share)


async def run(
    machine: Machine, mails: int, rounds: int, say: Callable[[str], None], only: Sequence[str] = ()
) -> Throughput:
    """Every contender once, then again: what the machine does meanwhile falls on all alike."""
    found = Throughput()
    contenders: dict[str, Enter] = {FLOOR: floor, OURS: ours, NAIVE: naive, NAIVE_TUNED: partial(naive, tuned=True)}
    for name, peer in peers.PEERS.items():
        if (why := peer.missing()) is None:
            contenders[name] = peer.enter
        else:
            found.skipped[name] = why
    for number in range(rounds):
        for name, enter in contenders.items():
            if only and name not in only:
                continue
            one = await measure(machine, enter, mails)
            found.rounds.setdefault(name, []).append(one)
            say(f"round {number + 1}: {name}: {one.per_second:.1f}/s, CPU {one.cpu_total:.1f} s per 1,000")
    return found
