"""``python -m bench [--mails N] [--rounds N]``: ours against an empty workflow on the same servers, interleaved.

*floor*: workflows that do nothing, started eagerly by the process whose worker runs them. *ours*: mails enqueued in
transactions, delivered by one worker to an SMTP server on loopback, until every row is ``sent``. Rates are per second
of wall time, CPU is seconds of this process per 1,000. The machine's noise shows in the spread between rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from rich.console import Console
from rich.table import Table
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sendonce.activities.failures import client_options
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
from sendonce.message import OutgoingEmail
from sendonce.store.intake import enqueue_many
from sendonce.store.migrate import migrate
from sendonce.testing.smtp_server import SmtpServer
from sendonce.worker import WorkerConfig, serve

AT_ONCE = 20


@workflow.defn
class Empty:
    """The floor."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement."""

    per_second: float
    cpu_per_1000: float


async def floor(client: Client, count: int) -> Round:
    """``count`` empty workflows, :data:`AT_ONCE` at a time."""
    queue = f"floor-{uuid4().hex}"
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            await client.execute_workflow(Empty.run, id=f"{queue}-{number}", task_queue=queue, request_eager_start=True)

    async with Worker(client, task_queue=queue, workflows=[Empty], workflow_runner=UnsandboxedWorkflowRunner()):
        begun, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(one(n) for n in range(count)))
        return _round(count, begun, cpu)


async def ours(client: Client, database_url: str, count: int) -> Round:
    """``count`` mails, from the commit of the last to the acceptance of all."""
    stop, ready = asyncio.Event(), asyncio.Event()
    async with SmtpServer() as server:
        transport = SmtpTransport(SmtpSettings(host="127.0.0.1", port=server.port, tls="none"))
        prefix = f"bench-{uuid4().hex}"
        config = WorkerConfig(database_url, {"default": transport}, task_queue_prefix=prefix)
        serving = asyncio.create_task(serve(config, stop, client=client, ready=ready.set))
        await ready.wait()
        mails = [
            OutgoingEmail(key=f"{prefix}-{n}", sender="a@x.example", to="b@y.example", subject="s", text="t")
            for n in range(count)
        ]
        begun, cpu = time.monotonic(), time.process_time()
        connection = await psycopg.AsyncConnection.connect(database_url)
        async with connection:
            await enqueue_many(connection, mails)
        watch = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
        async with watch:
            left = "SELECT count(*) FROM sendonce.email WHERE stage <> 'sent'"
            while await (await watch.execute(left)).fetchone() != (0,):
                await asyncio.sleep(0.02)
        done = _round(count, begun, cpu)
        stop.set()
        await serving
    return done


def _round(count: int, begun: float, cpu: float) -> Round:
    return Round(count / (time.monotonic() - begun), (time.process_time() - cpu) * 1000 / count)


async def main(mails: int, rounds: int) -> None:
    """Measure, and print a table and one JSON object."""
    found: dict[str, list[Round]] = {"floor": [], "ours": []}
    with EmbeddedPostgres.start(durable=True) as postgres, EmbeddedTemporal.start() as temporal:
        url = postgres.create_database("bench")
        migrate(url)
        client = await Client.connect(temporal.target, **client_options())
        for number in range(rounds + 1):
            measured = {"floor": await floor(client, mails), "ours": await ours(client, url, mails)}
            if number:  # the first round only warms up
                for name, one in measured.items():
                    found[name].append(one)
    view = Table("", "per second", "CPU s per 1,000 (worker, starter, server played)")
    for name, several in found.items():
        view.add_row(name, _spread([r.per_second for r in several]), _spread([r.cpu_per_1000 for r in several]))
    Console().print(view)
    ratios = [a.per_second / b.per_second for a, b in zip(found["ours"], found["floor"], strict=True)]
    print(json.dumps({"throughput_vs_empty": round(statistics.median(ratios), 2), "rounds": rounds, "mails": mails}))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--mails", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.mails, arguments.rounds))
