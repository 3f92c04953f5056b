"""What each thing that our workflow has beyond an empty one costs the engine: workflows with one of them more each.

Same server and settings for all, a fresh one each time, interleaved. Nothing of ours runs but the names of the search
attributes; what is measured is Temporal's own processor time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench import stack
from bench.engine import QUEUE, connect
from bench.mail import AT_ONCE
from bench.measure import Meter
from bench.part import Handler, Part
from sendonce.workflows import searching
from sendonce.workflows.port import Ended, Ticket

EMPTY, ACTIVITY, ATTRIBUTES = "empty, with a ticket", "and one local activity", "and attributes and a summary"
WAYS = (EMPTY, ACTIVITY, ATTRIBUTES)
WORKFLOWS = 1500
"""Per way and round."""
WARM_UP = 100


@dataclass
class Steps:
    """Seconds of Temporal's processor time per 1,000 workflows, by way and round."""

    cpu: dict[str, list[float]] = field(default_factory=dict)

    def summary(self) -> dict[str, float]:
        """Medians over the rounds, by way."""
        return {way: median(rounds) for way, rounds in self.cpu.items()}


_ended = asyncio.Semaphore(0)
"""Released at the end of each workflow, in the process that also starts them."""


@activity.defn(name="answer")
async def answer(_key: str) -> Ended:
    """What a mail that was sent at once answers."""
    return Ended("sent", 250, "2.0.0", attempts=1)


@workflow.defn(name="Step")
class Step:
    """As its start says: empty, or with one local activity."""

    @workflow.run
    async def run(self, ticket: Ticket, with_activity: bool) -> None:
        """Do that."""
        if with_activity:
            limit = timedelta(seconds=10)
            await workflow.execute_local_activity(answer, ticket.key, start_to_close_timeout=limit, summary="attempt 1")
        _ended.release()


@asynccontextmanager
async def runner(target: str) -> AsyncIterator[Handler]:
    """Command: run ``number`` workflows of this ``way``, started eagerly, as many at a time as in the floor."""
    client = await connect(target)

    async def start(way: str, key: str) -> None:
        ticket = Ticket(str(uuid4()), key, "default", "default")
        attributes = way == ATTRIBUTES
        await client.start_workflow(
            Step.run,
            args=[ticket, way != EMPTY],
            id=key,
            task_queue=QUEUE,
            request_eager_start=True,
            search_attributes=searching.at_start(ticket, "order") if attributes else None,
            static_summary=searching.static_summary(ticket, "order") if attributes else None,
        )

    async def handle(command: dict[str, Any]) -> None:
        number = command["number"]
        async with asyncio.TaskGroup() as starting:
            for n in range(number):
                if n >= AT_ONCE:
                    await _ended.acquire()
                starting.create_task(start(command["way"], f"{command['prefix']}-{n}"))
        for _ in range(min(number, AT_ONCE)):
            await _ended.acquire()

    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Step],
        activities=[answer],
        workflow_runner=UnsandboxedWorkflowRunner(),
        no_remote_activities=True,
    ):
        yield handle


async def run(folder: Path, rounds: int, say: Callable[[str], None], *, workflows: int = WORKFLOWS) -> Steps:
    """Measure every way, in turns. Logs go into ``folder``."""
    found = Steps()
    for turn in range(rounds):
        for way in WAYS:
            async with (
                stack.temporal() as server,
                await Part.start("bench.steps:runner", folder, target=server.target) as part,
            ):
                await part.call(way=way, prefix="warm", number=min(WARM_UP, workflows))
                meter = Meter({"Temporal": server.pid})
                await part.call(way=way, prefix="step", number=workflows)
                used = meter.read().by_part["Temporal"]
            found.cpu.setdefault(way, []).append(used * 1000 / workflows)
        say(f"steps: round {turn + 1} of {rounds}")
    return found
