"""Child processes that never outlive the process that started them, and what their launchers share."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sendonce.embedded import guard
from sendonce.errors import SendonceError

_POLL = 0.02  # seconds between two looks at something that cannot be waited for


class EmbeddedServerError(SendonceError):
    """An embedded server could not be started or does not answer; the message says where its log is."""


class ChildProcess:
    """A process in a session of its own, gone at the latest when this process is.

    It gets no terminal signals (Ctrl-C reaches the parent only), and standard input is empty. At the parent's normal
    exit it is killed; when the parent dies without one (``kill -9``), a small guard process kills it. Signals go by
    pid, to the whole process group where said.

    ``env`` replaces the environment (None: inherit). Output is appended to the file ``log`` (None: discarded).
    ``user`` and ``group`` are numeric ids to run as; only root may use them. ``pass_fds`` stay open in the child.

    :raises OSError: the program cannot be started.
    """

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        group: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.args = [str(arg) for arg in args]
        self.log = log
        _guard.start()
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else subprocess.DEVNULL
            self._popen = subprocess.Popen(
                self.args,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                pass_fds=pass_fds,
                start_new_session=True,
            )
        _guard.add(self)

    @property
    def pid(self) -> int:
        """The process id, also the id of its process group. Stays the same after the end."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs, else its exit status; negative: the number of the signal that ended it."""
        code = self._popen.poll()
        if code is not None:
            self._ended()
        return code

    @property
    def running(self) -> bool:
        """Whether the process still exists (a stopped one does)."""
        return self.returncode is None

    def kill(self) -> int:
        """SIGKILL to the whole group, and wait for the end. Safe to repeat; returns the exit status."""
        self._signal_group(signal.SIGKILL)
        return self.wait(10)

    def terminate(self) -> None:
        """SIGTERM to the process itself; does not wait."""
        self.signal(signal.SIGTERM)

    def stop_signal(self) -> None:
        """SIGSTOP to the whole group: it freezes until :meth:`continue_signal`."""
        self._signal_group(signal.SIGSTOP)

    def continue_signal(self) -> None:
        """SIGCONT to the whole group."""
        self._signal_group(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Any signal, to the process itself. Nothing happens when it has ended."""
        self._popen.send_signal(number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait up to ``timeout`` seconds (None: without limit) for the end; returns the exit status.

        :raises TimeoutError: it still runs.
        """
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{Path(self.args[0]).name} (process {self.pid}) still runs after {timeout} s") from None
        self._ended()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _signal_group(self, number: int) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _ended(self) -> None:
        if _guard.remove(self):
            # What it started in its own group goes with it. Once only, because the id may be given out again later.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class _Guard:
    """The guard process of this process and the children it knows; started with the first child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._children: set[ChildProcess] = set()

    def start(self) -> None:
        with self._lock:
            if self._owner == os.getpid() and self._popen is not None:
                return
            # First use, or this is a fork: the copied list belongs to the parent.
            self._children = set()
            self._owner = os.getpid()
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(guard.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(self.close)

    def add(self, child: ChildProcess) -> None:
        with self._lock:
            self._children.add(child)
            self._tell(f"+ {child.pid}\n")

    def remove(self, child: ChildProcess) -> bool:
        """True the first time."""
        with self._lock:
            if child not in self._children:
                return False
            self._children.remove(child)
            self._tell(f"- {child.pid}\n")
            return True

    def close(self) -> None:
        """Kill every child that still runs, then let the guard end."""
        if self._owner != os.getpid() or self._popen is None:
            return
        for child in list(self._children):
            child.kill()
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.wait()
        self._popen = None

    def _tell(self, line: str) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        # Without a guard (somebody killed it) the children still end at a normal exit.
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line.encode())
            self._popen.stdin.flush()


_guard = _Guard()


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is free and that the system gives to nobody else for about a minute.

    One connection is made and closed on it, which leaves the port in TIME_WAIT: a listener with SO_REUSEADDR (every
    server here sets it) may take it, another search for a free port does not get it.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first keeps the TIME_WAIT; it must be the server's
    return port


def accepts_connections(port: int) -> bool:
    """Whether something listens on 127.0.0.1 at ``port``."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def check_port(port: int) -> None:
    """Refuse a port that somebody else serves: whoever asks there would get the wrong server.

    :raises EmbeddedServerError: something listens on 127.0.0.1 at ``port``.
    """
    if accepts_connections(port):
        raise EmbeddedServerError(f"port {port} on 127.0.0.1 is in use: stop what listens there or choose another port")


def clean_environment() -> dict[str, str]:
    """This process's environment without the variables that configure PostgreSQL, Temporal or Sendonce."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PG", "TEMPORAL_", "SENDONCE_"))}


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Ask ``condition`` every 20 ms for up to ``timeout`` seconds; False when it never came true."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL)
    return True


def lock_folder(folder: Path, timeout: float = 10.0) -> int:
    """Make a server's folder if it is missing, take its lock and return the file descriptor, for the server to inherit.

    The lock belongs to the open file, so it is held until the last process that inherited it has gone, whoever
    started it and however that one ended: to hold it proves that no server runs in the folder.

    :raises EmbeddedServerError: another server still holds it after ``timeout`` seconds, or the folder is not usable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedServerError(
            f"{error.filename} cannot be written ({error.strerror}): choose a folder of this user"
        ) from error

    def locked() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    if not wait_until(locked, timeout):
        os.close(descriptor)
        raise EmbeddedServerError(f"another server runs in {folder}: stop it first, or choose another folder")
    return descriptor


@contextmanager
def told_of(server: str, folder: Path) -> Iterator[None]:
    """Errors of the disk are told as what they are: of ``server``, with the file and what to do."""
    try:
        yield
    except OSError as error:
        raise EmbeddedServerError(
            f"{server} cannot be started: {error.filename or folder}: {error.strerror}; make room or name another"
            " folder"
        ) from error


def log_tail(log: Path, lines: int = 5) -> str:
    """The last lines of a server's log with its place, for an error message; long ones are cut."""
    try:
        text = [line[:300] for line in log.read_text(errors="replace").strip().splitlines()[-lines:]]
    except OSError:
        text = []
    return f"log: {log}" + "".join(f"\n  {line}" for line in text)
