"""Everything around the bookstore: servers in this process, PostgreSQL and Temporal beside it, and one real worker.

The worker is the command ``sendonce worker`` as a process of its own. It is killed with SIGKILL at chosen moments, by
the server that it is talking to, and started again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psycopg
from temporalio.client import Client

from sendonce.embedded import ChildProcess, EmbeddedPostgres, EmbeddedTemporal, clean_environment
from sendonce.errors import SendonceError
from sendonce.search_attributes import register
from sendonce.store.migrate import migrate
from sendonce.testing.http_request import HttpRequest
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.postmark_server import PostmarkServer
from sendonce.testing.resend_server import ResendServer
from sendonce.testing.smtp_server import SmtpServer, SmtpSession

LEASE_SECONDS = 5
READY_SECONDS = 30.0

SETTINGS = """\
# Written by `sendonce demo`: short times, so that an hour's trouble fits into a minute.
[store]
database_url = "{database_url}"

[temporal]
address = "{target}"
namespace = "default"
task_queue_prefix = "demo"

[worker]
lease_seconds = {lease}

[starter]
poll_seconds = 0.5
overdue_seconds = 3

[lanes.critical.retry]
delays = [0.5, 1, 2]

[lanes.default]
answer_seconds = 60
[lanes.default.retry]
delays = [1, 2]
max_attempts = 50

[lanes.bulk]
answer_seconds = 60
[lanes.bulk.retry]
delays = [1, 2]
max_attempts = 50

[accounts.default]
transport = "smtp"
host = "127.0.0.1"
port = {smtp_port}
tls = "none"

# Remembers idempotency keys: what is unanswered is asked again under its key.
[accounts.receipts]
transport = "resend"
base_url = "{resend}"
api_key = "demo"

# Remembers none, and can be asked what became of a mail.
[accounts.shipping]
transport = "postmark"
base_url = "{postmark}"
api_key = "demo"
"""


class DemoFailed(SendonceError):
    """The demo could not be played to its end."""


@dataclass(slots=True)
class _Victim:
    key: str
    killed: asyncio.Event = field(default_factory=asyncio.Event)


class World:
    """Use as ``async with World(say) as world``; at the end everything is stopped and the folder is removed."""

    def __init__(self, say: Callable[[str], None], *, ui: bool = False) -> None:
        """``say`` is told what happens. ``ui``: start Temporal's web interface too."""
        self.say = say
        self.mailbox = Mailbox()
        self.smtp = SmtpServer(self.mailbox, on_event=self._smtp_event)
        self.resend = ResendServer(self.mailbox, on_event=self._http_event)
        self.postmark = PostmarkServer(self.mailbox, on_event=self._http_event)
        self.kills = 0
        self._ui = ui
        self._kill_at: dict[tuple[str, str], _Victim] = {}
        self._workers = 0
        self._stack = AsyncExitStack()
        self.postgres: EmbeddedPostgres
        self.temporal: EmbeddedTemporal
        self.worker: ChildProcess
        self.folder: Path

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.say("stopping everything")
        await self._stack.aclose()

    async def _start(self) -> None:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sendonce-demo-")))
        for server in (self.smtp, self.resend, self.postmark):
            await server.start()
            self._stack.push_async_callback(server.close)
        self.say("starting PostgreSQL and Temporal")
        # Each is stopped even if the other does not come up.
        postgres, temporal = await asyncio.gather(
            asyncio.to_thread(EmbeddedPostgres.start),
            asyncio.to_thread(EmbeddedTemporal.start, self.folder / "temporal", self._ui),
            return_exceptions=True,
        )
        for server_or_error in (postgres, temporal):
            if not isinstance(server_or_error, BaseException):
                self._stack.push_async_callback(asyncio.to_thread, server_or_error.stop)
        for server_or_error in (postgres, temporal):
            if isinstance(server_or_error, BaseException):
                raise server_or_error
        assert isinstance(postgres, EmbeddedPostgres)
        assert isinstance(temporal, EmbeddedTemporal)
        self.postgres, self.temporal = postgres, temporal
        self.database_url = await asyncio.to_thread(postgres.create_database, "bookstore")
        await asyncio.to_thread(migrate, self.database_url)
        await register(await Client.connect(temporal.target, namespace=temporal.namespace))
        self.settings = self.folder / "sendonce.toml"
        self.settings.write_text(
            SETTINGS.format(
                database_url=self.database_url,
                target=temporal.target,
                lease=LEASE_SECONDS,
                smtp_port=self.smtp.port,
                resend=self.resend.origin,
                postmark=self.postmark.origin,
            ),
            encoding="utf-8",
        )
        self.settings.chmod(0o600)
        self._stack.push_async_callback(self._stop_worker)
        await self.start_worker()

    async def start_worker(self) -> None:
        """Start ``sendonce worker`` and wait until it serves."""
        self._workers += 1
        log = self.folder / f"worker-{self._workers}.log"
        self.worker = ChildProcess(
            [sys.executable, "-m", "sendonce", "worker", "--config", str(self.settings)],
            env={
                **clean_environment(),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                # The SDK would read the user's own profile, whose key and TLS belong to another server.
                "TEMPORAL_CONFIG_FILE": os.devnull,
            },
            log=log,
        )
        end = time.monotonic() + READY_SECONDS
        while "ready: " not in (text := log.read_text(encoding="utf-8", errors="replace")):
            if not self.worker.running:
                raise DemoFailed(f"the worker ended at once: {text[-2000:]}")
            if time.monotonic() > end:
                raise DemoFailed(f"the worker was not ready within {READY_SECONDS:g} s: {text[-2000:]}")
            await asyncio.sleep(0.05)

    async def _stop_worker(self) -> None:
        if hasattr(self, "worker") and self.worker.running:
            self.worker.terminate()
            try:
                await asyncio.to_thread(self.worker.wait, 40.0)
            except TimeoutError:
                self.worker.kill()

    def kill_at(self, point: str, key: str, mailbox: str) -> asyncio.Event:
        """Kill the worker when a server comes to ``point`` for this mail; the event is set once it is dead."""
        self._kill_at[point, mailbox] = victim = _Victim(key)
        return victim.killed

    async def _at(self, point: str, seen: str) -> None:
        for (where, mailbox), victim in list(self._kill_at.items()):
            if where == point and mailbox in seen:
                del self._kill_at[where, mailbox]
                await asyncio.to_thread(self._kill, victim.key)
                self.kills += 1
                victim.killed.set()

    def _kill(self, key: str) -> None:
        """Kill once nobody else is between offer and mark: what happens to bystanders is another story.

        While the lock is held no other begin can commit, so none slips in before the kill takes effect.
        """
        others = "SELECT FROM sendonce.email WHERE stage = 'transmitting' AND key <> %s"
        with psycopg.connect(self.database_url) as connection:
            while True:
                connection.execute("LOCK TABLE sendonce.email IN SHARE MODE")
                if connection.execute(others, [key]).fetchone() is None:
                    self.worker.kill()
                    # A statement that waits for the lock would go on without its client.
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name LIKE 'sendonce %%'"
                    )
                    return
                connection.rollback()
                time.sleep(0.005)

    async def _smtp_event(self, name: str, session: SmtpSession) -> None:
        last = session.commands[-1].decode("ascii", "replace") if name == "rcpt" else ""
        await self._at(f"smtp:{name}", " ".join([last, *session.recipients]))

    async def _http_event(self, name: str, request: HttpRequest) -> None:
        await self._at(f"http:{name}", request.body.decode("utf-8", "replace"))

    async def restart_temporal(self) -> None:
        """SIGKILL Temporal, and start it again on its port."""
        await asyncio.to_thread(self.temporal.kill)
        await asyncio.to_thread(self.temporal.restart)
