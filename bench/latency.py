"""How long a mail takes from its commit to the relay's acceptance: alone, at half of capacity, beside a flood."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench import stack
from bench.measure import percentile
from bench.part import Part, PartFailed
from bench.stack import Machine, Ours

LANES = ("critical", "default", "bulk")
ALONE = 45
"""Mails of each lane per round, one at a time."""

HALF_SECONDS = 4.0
"""For each lane and round, at half of capacity."""

FLOOD, CODES = 10_000, 70
"""Bulk mails that are queued, and login codes that come meanwhile, one every so many seconds:"""
EVERY = 0.2

STALLED, STALL_SECONDS = 150, 8.0
"""Mails to a relay that does not answer for so long, and what mails to another one take beside them:"""
BESIDE = 40

BARE = "bare"


@dataclass
class Latencies:
    """Seconds, by what was measured; a list for each round."""

    rounds: dict[str, list[list[float]]] = field(default_factory=dict)

    def add(self, name: str, seconds: list[float]) -> None:
        """One round's."""
        self.rounds.setdefault(name, []).append(seconds)

    def ms(self, name: str, part: float) -> float | None:
        """A percentile in milliseconds over all rounds; ``part`` 1 is the longest. None: it was not measured."""
        every = [seconds for one in self.rounds.get(name, []) for seconds in one]
        return percentile(every, part) * 1000 if every else None

    def by_round(self, name: str, part: float) -> list[float]:
        """The same for each round."""
        return [percentile(one, part) * 1000 for one in self.rounds.get(name, []) if one]


async def _taken(sink: Part, committed: dict[str, float], seconds: float) -> list[float]:
    """How long each of these took. Raises :class:`PartFailed` when one did not come."""
    arrived: dict[str, float] = {}
    waited = 0.0
    while not committed.keys() <= arrived.keys():
        if waited > seconds:
            raise PartFailed(f"{len(committed.keys() - arrived.keys())} mails did not arrive within {seconds:g} s")
        arrived |= dict(await sink.call(take=True))
        await asyncio.sleep(0.05)
        waited += 0.05
    return [arrived[one] - at for one, at in committed.items()]


async def _one(ours: Ours, prefix: str, lane: str, account: str = "default") -> float:
    """One mail, with nothing else on its way."""
    committed = await ours.feeder.call(do="orders", prefix=prefix, number=1, lane=lane, account=account)
    ((to, at),) = committed.items()
    await ours.sink.call(wait=1, seconds=30)
    arrived = dict(await ours.sink.call(take=True))
    if to not in arrived:
        raise PartFailed("a mail did not arrive within 30 s")
    return float(arrived[to] - at)


async def _gap() -> None:
    # Longer than the starter's shortest pause, and never in step with anything.
    await asyncio.sleep(random.uniform(0.03, 0.09))


async def _alone(machine: Machine, ours: Ours, bare: Part, mails: int) -> dict[str, list[float]]:
    """Turn by turn, one of each lane and one over the bare path."""
    found: dict[str, list[float]] = {BARE: [], **{f"alone {lane}": [] for lane in LANES}}
    for n in range(-5, mails):
        for lane in LANES:
            await _gap()
            seconds = await _one(ours, f"alone{machine.number()}", lane)
            if n >= 0:  # the first few warm up
                found[f"alone {lane}"].append(seconds)
        await _gap()
        seconds = await bare.call()
        if n >= 0:
            found[BARE].append(seconds)
    return found


async def _half(machine: Machine, ours: Ours, lane: str, capacity: float, seconds: float) -> list[float]:
    rate = capacity / 2
    number = max(5, round(rate * seconds))
    committed = await ours.feeder.call(
        do="orders", prefix=f"half{machine.number()}", number=number, lane=lane, per_second=rate, seed=number
    )
    return await _taken(ours.sink, committed, 60)


async def _flood(machine: Machine, ours: Ours, mails: int, codes: int) -> list[float]:
    await ours.feeder.call(do="bulk", prefix=f"flood{machine.number()}", number=mails, lane="bulk")
    committed: dict[str, float] = {}
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for n in range(codes):
        await asyncio.sleep(max(0.0, begun + n * EVERY - loop.time()))
        prefix = f"code{machine.number()}"
        committed |= await ours.feeder.call(do="orders", prefix=prefix, number=1, lane="critical")
    return await _taken(ours.sink, committed, 60)


async def run(
    machine: Machine,
    rounds: int,
    capacity: float,
    say: Callable[[str], None],
    *,
    alone: int = ALONE,
    half_seconds: float = HALF_SECONDS,
    flood: int = FLOOD,
    codes: int = CODES,
) -> Latencies:
    """All of it, ``rounds`` times. ``capacity``: mails per second, of which half is offered."""
    found = Latencies()
    for number in range(rounds):
        async with AsyncExitStack() as closing:
            ours = await closing.enter_async_context(stack.ours(machine))
            url = await machine.database(migrated=False)
            closing.push_async_callback(machine.drop, url)
            bare = await closing.enter_async_context(
                await Part.start("bench.engine:bare", machine.folder, target=ours.temporal.target, database_url=url)
            )
            for name, seconds in (await _alone(machine, ours, bare, alone)).items():
                found.add(name, seconds)
            for lane in LANES:
                found.add(f"half {lane}", await _half(machine, ours, lane, capacity, half_seconds))
            found.add("flood critical", await _flood(machine, ours, flood, codes))
        say(
            f"round {number + 1}: latency alone {found.by_round('alone critical', 0.5)[-1]:.1f} ms, login code beside "
            f"{flood} bulk mails {found.by_round('flood critical', 0.5)[-1]:.1f} ms"
        )
    return found


async def slow_relay(
    machine: Machine,
    say: Callable[[str], None],
    *,
    stalled: int = STALLED,
    stall_seconds: float = STALL_SECONDS,
    beside: int = BESIDE,
) -> list[float]:
    """Mails to one relay while another account's does not answer; seconds each."""
    async with stack.ours(machine, stalled=stall_seconds) as ours:
        for _ in range(5):
            await _one(ours, f"warm{machine.number()}", "default")
        await ours.feeder.call(
            do="bulk", prefix=f"slow{machine.number()}", number=stalled, account="slow", to="stalled"
        )
        await asyncio.sleep(1.0)
        found = []
        for _ in range(beside):
            await _gap()
            found.append(await _one(ours, f"beside{machine.number()}", "default"))
    say(f"beside {stalled} mails to a relay that stalls: {percentile(found, 0.5) * 1000:.1f} ms")
    return found
