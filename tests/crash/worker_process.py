"""Workers and starters as processes of their own, which can be told to stand still, or to freeze, at a point of their
store.

``worker_process.py FD`` loads a worker's modules once, which takes seconds, and then forks a process for each that
:mod:`tests.crash.forks` asks for over the socket ``FD``. It has one thread and no connection to anything: what a
worker needs it makes itself, after the fork.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from sendonce import settings, starter, worker
from sendonce.activities import upkeep
from sendonce.cli import logs, starter_process
from sendonce.settings.transports import BUILT_IN, find
from sendonce.store import Store, conclude, plan, sweeps

logger = logging.getLogger(__name__)

QUICK: dict[tuple[Any, str], Any] = {
    (starter, "TASK_TIMEOUT"): timedelta(seconds=3),
    (worker, "UPKEEP_SECONDS"): upkeep.UPKEEP_SECONDS / 10,
    (conclude, "LOOK_UP_FIRST"): 1.0,
    (plan, "ASKED_FIRST"): 4.0,
    (sweeps, "LAPSE_ALARM_SECONDS"): 2.0,
}
"""Durations that nobody can set. What follows a crash waits for them, and is the same when they are shorter."""


def freeze(when: str, method: str) -> None:
    """Let this process send itself SIGSTOP the first time that ``method`` of the store is called, ``before`` the call
    or ``after`` its commit.
    """
    original = getattr(Store, method)
    calls = 0

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        first = calls == 1
        if first and when == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = await original(*args, **kwargs)
        if first and when == "after":
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    setattr(Store, method, wrapped)


def hold(email: str, when: str, method: str) -> None:
    """Let whoever calls ``method`` of the store for this mail wait for ever, ``before`` the call or ``after`` its
    commit; the log says so.
    """
    original = getattr(Store, method)

    async def wrapped(store: Store, email_id: object, *args: Any, **kwargs: Any) -> Any:
        mine = str(email_id) == email
        if mine and when == "before":
            await _for_ever(email)
        answer = await original(store, email_id, *args, **kwargs)
        if mine and when == "after":
            await _for_ever(email)
        return answer

    setattr(Store, method, wrapped)


async def _for_ever(email: str) -> None:
    logger.info("held: email_id=%s", email)
    await asyncio.Event().wait()


def serve(kind: str, file: str, stop: list[str] | None, holds: dict[str, str]) -> None:
    """Serve until SIGTERM as a ``worker`` or ``starter``, by the settings in ``file``; ``stop`` and ``holds`` (by mail)
    are points such as ``before begin``.
    """
    logs.set_up("INFO", as_json=False)
    if stop is not None:
        freeze(*stop)
    for email, point in holds.items():
        hold(email, *point.split())
    for (module, name), value in QUICK.items():
        assert hasattr(module, name)
        setattr(module, name, value)
    found = settings.load(Path(file))
    config = settings.build_worker_config(found, settings.build_transports(found))
    run = {"worker": worker.run_until_signal, "starter": starter_process.start_until_signal}[kind]
    asyncio.run(run(config))


class _Forks:
    """The process that forks: answers requests, one at a time, until nobody is left to make any."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._states: dict[int, dict[str, Any]] = {}

    def next_worker(self) -> dict[str, Any] | None:
        """Go on until a worker is asked for, and return what it is to do: in that worker. None: it is over."""
        with self._channel, self._channel.makefile("rw") as lines:
            for line in lines:
                request: dict[str, Any] = json.loads(line)
                if "pid" in request:
                    answer = self._state(request["pid"])
                else:
                    pid = os.fork()
                    if pid == 0:
                        return request
                    self._states[pid] = {"ended": None, "stopped": False}
                    answer = {"pid": pid}
                lines.write(json.dumps(answer) + "\n")
                lines.flush()
        return None

    def _state(self, pid: int) -> dict[str, Any]:
        state = self._states[pid]
        with suppress(ChildProcessError):
            while (change := os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED))[0]:
                status = change[1]
                if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                    state["stopped"] = os.WIFSTOPPED(status)
                else:
                    state["ended"] = os.waitstatus_to_exitcode(status)
        return state


def main(fd: int) -> None:
    """Fork workers; in a worker, be one."""
    for name in BUILT_IN:
        find(name)
    request = _Forks(socket.socket(fileno=fd)).next_worker()
    if request is None:
        return
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    serve(request["kind"], request["settings"], request["stop"], request["holds"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
