"""Worker and starter processes, forked from one that has loaded their modules: see ``worker_process.py``."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sendonce
from sendonce.embedded import ChildProcess


class Worker:
    """One such process."""

    def __init__(self, forks: Forks, pid: int, log: Path) -> None:
        self._forks = forks
        self.pid = pid
        self.log_file = log
        self._ended: int | None = None

    @property
    def returncode(self) -> int | None:
        """None while it runs, else its exit status; negative: the number of the signal that ended it."""
        if self._ended is None:
            self._ended = self._forks.state(self.pid)["ended"]
        return self._ended

    @property
    def running(self) -> bool:
        """Whether the process still exists (a stopped one does)."""
        return self.returncode is None

    @property
    def stopped(self) -> bool:
        """Whether it has been stopped by SIGSTOP."""
        return self.running and bool(self._forks.state(self.pid)["stopped"])

    def signal(self, number: int) -> None:
        """Any signal; nothing happens when it has ended."""
        # Until it is asked for its status here nobody reaps it, so the id is still its own.
        if self.running:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """SIGKILL, and wait for the end. Safe to repeat; returns the exit status."""
        self.signal(signal.SIGKILL)
        while (code := self.returncode) is None:
            time.sleep(0.001)
        return code

    def log(self) -> str:
        """What it has logged so far."""
        return self.log_file.read_text() if self.log_file.exists() else ""


class Forks:
    """The process that forks them; they end with it, at the latest when the tests do."""

    def __init__(self, folder: Path) -> None:
        """Start it; its modules are loaded meanwhile."""
        ours, theirs = socket.socketpair()
        self._log = folder / "forks.log"
        # The same package as these tests have, wherever they found it.
        root = str(Path(sendonce.__file__).parents[1])
        with theirs:
            self._process = ChildProcess(
                [sys.executable, Path(__file__).with_name("worker_process.py"), str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": root},
                log=self._log,
                pass_fds=[theirs.fileno()],
            )
        with ours:
            self._channel = ours.makefile("rw")

    def process(
        self,
        kind: str,
        settings: Path,
        log: Path,
        *,
        stop: Sequence[str] | None = None,
        holds: Mapping[str, str] | None = None,
    ) -> Worker:
        """Fork a ``worker`` or ``starter``; ``stop`` and ``holds`` as in ``worker_process.py``."""
        request = {"kind": kind, "settings": str(settings), "log": str(log), "stop": stop, "holds": dict(holds or {})}
        return Worker(self, self._ask(request)["pid"], log)

    def state(self, pid: int) -> dict[str, Any]:
        """What became of a worker: ``ended``, its exit status or None, and ``stopped``."""
        return self._ask({"pid": pid})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._channel.write(json.dumps(request) + "\n")
        self._channel.flush()
        answer = self._channel.readline()
        assert answer, f"the process that forks has ended:\n{self._log.read_text()}"
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End it, and every worker that is left."""
        self._channel.close()
        self._process.kill()
