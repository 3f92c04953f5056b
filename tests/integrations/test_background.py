"""Starting beside the application: on a real Temporal server, without one, and with one that never answers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from sendonce import BackgroundStarter, Enqueued, LoopStarter
from sendonce.embedded import EmbeddedTemporal
from sendonce.stages import Stage


def enqueued(key: str | None = None) -> Enqueued:
    key = key or f"start-{uuid.uuid4().hex}"
    return Enqueued(uuid.uuid4(), key, "default", "default", created=True, stage=Stage.PENDING)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sendonce starts"}


@pytest.fixture
def others() -> set[threading.Thread]:
    """Threads that tests of other files have left in this process."""
    return threads()


async def running(client: Client, mail: Enqueued) -> bool:
    try:
        found = await client.get_workflow_handle(mail.key).describe()
    except RPCError:
        return False
    return found.workflow_type == "EmailDelivery"


async def test_it_starts_workflows_and_ends(
    temporal: EmbeddedTemporal, temporal_client: Client, others: set[threading.Thread]
) -> None:
    mails = [enqueued() for _ in range(60)]  # more than at once
    with BackgroundStarter(temporal.target, namespace=temporal.namespace) as starter:
        starter.start(mails[0])
        starter.start(*mails[1:])
    # Leaving the block waits until all are started.
    assert [await running(temporal_client, mail) for mail in mails] == [True] * 60
    assert threads() <= others
    late = enqueued()
    starter.start(late)
    assert not await running(temporal_client, late)


async def test_too_many_are_dropped(
    temporal: EmbeddedTemporal, temporal_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    mails = [enqueued() for _ in range(3)]
    with BackgroundStarter(temporal.target, capacity=2) as starter:
        starter.start(*mails)
    assert [await running(temporal_client, mail) for mail in mails] == [True, True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "mails are not started here, 2 wait already; the starter will"
    ]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_temporal_that_is_silent_blocks_nobody(
    silent: str, caplog: pytest.LogCaptureFixture, others: set[threading.Thread]
) -> None:
    starter = BackgroundStarter(silent, capacity=10)
    starter.start(enqueued())
    before = time.monotonic()
    for _ in range(100):
        starter.start(*(enqueued() for _ in range(10)))
    assert time.monotonic() - before < 1
    assert "the starter will" in caplog.text
    starter.close(0.2)
    assert time.monotonic() - before < 4
    assert threads() <= others


def test_a_temporal_that_is_away_is_survived(
    free_port: int, caplog: pytest.LogCaptureFixture, others: set[threading.Thread]
) -> None:
    starter = BackgroundStarter(f"127.0.0.1:{free_port}")
    starter.start(enqueued("lost-1"))
    starter.close()
    assert "the starter will" in caplog.text
    assert threads() <= others


def test_options_that_cannot_be_are_no_ones_problem(caplog: pytest.LogCaptureFixture) -> None:
    starter = BackgroundStarter("not an address")
    starter.start(enqueued())
    starter.close()
    assert "the starter will" in caplog.text


def program(text: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORKS = """
import os, sys, time, uuid, warnings
from sendonce import BackgroundStarter, Enqueued
from sendonce.stages import Stage

def enqueued(key):
    return Enqueued(uuid.uuid4(), key, "default", "default", created=True, stage=Stage.PENDING)

warnings.simplefilter("ignore")  # that this process has threads is the point
starter = BackgroundStarter(sys.argv[1])
"""


async def test_it_works_in_every_process_that_is_forked_before_the_first_mail(
    temporal: EmbeddedTemporal, temporal_client: Client
) -> None:
    keys = [f"fork-{uuid.uuid4().hex}" for _ in range(2)]
    await asyncio.to_thread(
        program,
        FORKS
        + """
child = os.fork()
starter.start(enqueued(sys.argv[2 if child == 0 else 3]))  # and nobody closes it
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        temporal.target,
        *keys,
    )
    assert [await running(temporal_client, enqueued(key)) for key in keys] == [True] * 2


@pytest.mark.parametrize("runtime", ["default", "own"])
async def test_what_is_forked_after_the_first_mail_leaves_its_mails_alone(
    temporal: EmbeddedTemporal, temporal_client: Client, runtime: str
) -> None:
    """The SDK, which has threads, locks and memory of its own, hung there, or ended the process."""
    keys = [f"fork-{uuid.uuid4().hex}" for _ in range(3)]
    own = """
from temporalio.runtime import Runtime, TelemetryConfig
starter = BackgroundStarter(sys.argv[1], runtime=Runtime(telemetry=TelemetryConfig()))
"""
    await asyncio.to_thread(
        program,
        FORKS
        + (own if runtime == "own" else "")
        + """
import logging
starter.start(enqueued(sys.argv[2]))
while starter._waiting.qsize():
    time.sleep(0.01)
child = os.fork()
if child == 0:
    said = []
    logging.getLogger("sendonce.background").addFilter(lambda record: said.append(record.getMessage()))
    for _ in range(2):
        starter.start(enqueued(sys.argv[3]))
    starter.close()
    (once,) = said
    assert "the starter will" in once, once
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
starter.start(enqueued(sys.argv[4]))
""",
        temporal.target,
        *keys,
    )
    assert [await running(temporal_client, enqueued(key)) for key in keys] == [True, False, True]


async def test_a_process_that_ends_while_it_is_answered_is_not_aborted(
    temporal: EmbeddedTemporal, temporal_client: Client
) -> None:
    """The SDK's thread that hands the answer over is slow to return: the process's end waits for it."""
    key = f"slow-{uuid.uuid4().hex}"
    await asyncio.to_thread(
        program,
        """
        import asyncio.selector_events, sys, threading, time, uuid
        from sendonce import BackgroundStarter, Enqueued
        from sendonce.stages import Stage

        wake = asyncio.selector_events.BaseSelectorEventLoop._write_to_self

        def slowly(self):
            wake(self)
            if threading.current_thread().name != "sendonce starts":
                time.sleep(0.3)  # the loop is awake, and this thread has not returned

        class Last:
            def __del__(self, sleep=time.sleep):
                sleep(0.6)  # the interpreter ends for long enough for that thread to come back

        sys.modules["last"] = Last()
        asyncio.selector_events.BaseSelectorEventLoop._write_to_self = slowly
        starter = BackgroundStarter(sys.argv[1])
        starter.start(Enqueued(uuid.uuid4(), sys.argv[2], "default", "default", created=True, stage=Stage.PENDING))
        """,
        temporal.target,
        key,
    )
    assert await running(temporal_client, enqueued(key))


async def test_an_event_loop_of_the_applications_own(temporal_client: Client) -> None:
    starter = LoopStarter(temporal_client)
    mails = [enqueued(), enqueued()]
    starter.start(mails[0])
    await asyncio.to_thread(starter.start, mails[1])
    await starter.close()
    assert [await running(temporal_client, mail) for mail in mails] == [True, True]


async def test_too_many_at_once_in_a_loop_are_dropped(
    temporal_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    starter = LoopStarter(temporal_client, capacity=1)
    mails = [enqueued(), enqueued()]
    starter.start(*mails)
    await starter.close()
    assert [await running(temporal_client, mail) for mail in mails] == [True, False]
    assert "the starter will" in caplog.text


def test_a_loop_that_is_closed_is_no_ones_problem(temporal: EmbeddedTemporal) -> None:
    async def make() -> LoopStarter:
        return LoopStarter(await Client.connect(temporal.target))

    asyncio.run(make()).start(enqueued())


def test_the_package_loads_no_framework() -> None:
    program(
        """
        import sys
        import sendonce
        sendonce.enqueue, sendonce.OutgoingEmail
        loaded = {"django", "fastapi", "flask", "sqlalchemy", "temporalio"} & set(sys.modules)
        assert not loaded, loaded
        """
    )
