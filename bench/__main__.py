"""``python -m bench``: Sendonce beside an empty workflow, a naive one and other queues, on servers of its own.

Everything runs on loopback, interleaved, several rounds. Figures are this machine's; the ratios are what can be
compared, see ``docs/performance.md``. Results: tables here, ``latest.json`` and ``latest.svg`` in ``bench/results``;
with ``--only``, ``partial.json`` and ``partial.svg``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from rich.console import Console

from bench import latency, reuse, scale, soak, stack, steps, store, throughput
from bench.goals import Measured
from bench.report import show, write

SECTIONS = ("throughput", "latency", "relay", "store", "soak", "scale", "reuse", "steps")
CAPACITY = 40.0
"""Mails per second that are taken for the capacity when throughput was not measured."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="SECTIONS", help=f"of {','.join(SECTIONS)}; default: all")
    parser.add_argument("--mails", type=int, default=500, help="per round and contender; default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--long", action="store_true", help=f"a soak of {soak.LONG:,} mails, not {soak.SHORT:,}")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", help="default: %(default)s")
    arguments = parser.parse_args()
    arguments.sections = arguments.only.split(",") if arguments.only else list(SECTIONS)
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}; sections: {', '.join(SECTIONS)}")
    if arguments.mails < 10 or arguments.rounds < 1:
        parser.error("--mails is 10 or more, --rounds 1 or more")
    return arguments


async def measure(arguments: argparse.Namespace) -> Measured:
    """Run the sections that are asked for."""
    found, begun = Measured(), time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", file=sys.stderr, flush=True)

    async with stack.machine() as machine:
        capacity = CAPACITY
        if "throughput" in arguments.sections:
            found.throughput = await throughput.run(machine, arguments.mails, arguments.rounds, say)
            capacity = found.throughput.middle(throughput.OURS, lambda one: one.per_second) or CAPACITY
        if "latency" in arguments.sections:
            found.latencies = await latency.run(machine, arguments.rounds, capacity, say)
        if "relay" in arguments.sections:
            found.neighbour = await latency.slow_relay(machine, say)
        if "store" in arguments.sections:
            found.store = await store.run(machine, arguments.rounds, say)
        if "soak" in arguments.sections:
            found.soak = await soak.run(machine, soak.LONG if arguments.long else soak.SHORT, say)
        if "scale" in arguments.sections:
            found.scale = await scale.run(machine, say)
        if "reuse" in arguments.sections:
            found.reuse = await reuse.run(machine, arguments.rounds, say)
        if "steps" in arguments.sections:
            found.steps = await steps.run(machine.folder, arguments.rounds, say)
    return found


def main() -> None:
    """Measure, show and write."""
    arguments = _arguments()
    found = asyncio.run(measure(arguments))
    console = Console(width=None if sys.stdout.isatty() else 160)
    show(found, console)
    name = "partial" if arguments.only else "latest"
    write(found, arguments.results, name)
    console.print(f"written: {arguments.results / name}.json")


if __name__ == "__main__":
    main()
