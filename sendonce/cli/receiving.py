"""Commands that take what comes back: ``webhooks`` and ``dsn``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli import logs
from sendonce.cli.base import ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.running import LogLevel, LogLevelOption
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.dsn.reader import Unproven
    from sendonce.events import Event

logger = logging.getLogger(__name__)


@app.command()
def webhooks(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on; put a proxy with TLS in front.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 takes a free one.")] = 8025,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: JsonOption = False,
) -> None:
    """Take webhooks of the accounts that have [accounts.NAME.webhook], until SIGTERM or SIGINT.

    The path of an account is /webhooks/NAME; GET /healthz answers 200. Needs the extra 'webhooks'.
    """
    logs.set_up(log_level.upper(), as_json)
    found = settings.load(config, having="webhook")
    receivers, terms = _receivers(found)
    asyncio.run(_serve(found, receivers, terms, host, port))


def _receivers(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    from sendonce.store.events import Terms

    try:
        # Imported here for their own imports: a package that is missing is said before anything runs.
        import sendonce.webhooks.app
        import sendonce.webhooks.serving  # noqa: F401
        from sendonce.webhooks.registry import make_receiver
    except ImportError as error:
        raise ConfigurationError(
            f"webhooks need more packages ({error.name} is missing): install sendonce[webhooks]"
        ) from None
    accounts = {name: one for name, one in found.accounts.items() if one.webhook is not None}
    if not accounts:
        raise ConfigurationError(f"{found.source}: no account has a webhook; write [accounts.NAME.webhook]")
    # Of these alone: what takes webhooks need not hold the keys of all others.
    transports = settings.build_transports(found)
    receivers = {}
    for name, account in accounts.items():
        try:
            receivers[name] = make_receiver(account.transport, account.webhook)
        except ConfigurationError as error:
            raise ConfigurationError(f"{found.source}: [accounts.{name}.webhook] {error}") from None
    terms = {
        name: Terms(found.lanes, "webhooks", all_or_nothing=transports[name].capability.all_or_nothing)
        for name in accounts
    }
    return receivers, terms


async def _serve(found: Any, receivers: dict[str, Any], terms: dict[str, Any], host: str, port: int) -> None:
    from sendonce.store import Store, open_pool
    from sendonce.webhooks.app import make_app
    from sendonce.webhooks.serving import serve

    stop = _until_signal()
    async with open_pool(found.database_source, name="webhooks", pooler=found.store.pooler) as pool:
        store = Store(pool)

        async def record(account: str, events: Sequence[Event]) -> None:
            await store.record_events(account, events, terms[account])

        def ready(port: int) -> None:
            logger.info("ready: http://%s:%d/webhooks/ for %s", host, port, ", ".join(receivers))

        try:
            await serve(make_app(receivers, record), host, port, stop, ready=ready)
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def _until_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@app.command()
def dsn(
    maildir: Annotated[
        Path | None, typer.Option("--maildir", metavar="FOLDER", help="Take the mails of this Maildir, and new ones.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="With --maildir: take what is there, and end.")] = False,
    lmtp: Annotated[
        str | None, typer.Option("--lmtp", metavar="ADDRESS", help="Listen on 127.0.0.1:PORT or unix:/PATH.")
    ] = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    as_json: JsonOption = False,
) -> None:
    """Read delivery status notifications: one mail from standard input, or from --maildir or --lmtp.

    Exit code 75 when a mail from standard input was not recorded: mail servers keep it then and try again.
    """
    from sendonce.dsn.run import EX_TEMPFAIL, lmtp_address

    logs.set_up(log_level.upper(), as_json)
    if maildir is not None and lmtp is not None:
        raise ConfigurationError("give --maildir or --lmtp, not both")
    if once and maildir is None:
        raise ConfigurationError("--once goes with --maildir")
    if lmtp is not None:
        lmtp_address(lmtp)
    try:
        found = settings.load(config, with_accounts=False)
    except ConfigurationError as error:
        if maildir is None and lmtp is None:
            # A mail server would take any other exit code for the last word on this mail.
            sys.stderr.write(f"sendonce: {error}\n")
            raise typer.Exit(EX_TEMPFAIL) from None
        raise
    raise typer.Exit(asyncio.run(_read(found, maildir, once, lmtp)))


async def _read(found: Any, maildir: Path | None, once: bool, lmtp: str | None) -> int:
    from sendonce.dsn import run
    from sendonce.dsn.proof import Proof
    from sendonce.store import Store, open_pool
    from sendonce.store.events import Terms

    terms = Terms(found.lanes, "dsn")
    async with open_pool(found.database_source, name="dsn", max_size=2, pooler=found.store.pooler) as pool:
        store = Store(pool)

        async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
            # Asked for each mail: a secret that is changed counts at once, and a store that is away keeps the mail.
            await run.handler(Proof(await store.bounce_secrets()), record, park)(mail, recipients)

        async def record(events: Sequence[Event]) -> None:
            await store.record_events("", events, terms)

        async def park(unproven: Sequence[Unproven]) -> None:
            await store.record_events("", [one.event for one in unproven], terms, proven=False)

        if maildir is not None:
            done = await run.from_maildir(handle, maildir, _until_signal(), once=once)
            return ExitCode.OK if done else ExitCode.AWAY
        if lmtp is not None:
            await run.from_lmtp(handle, lmtp, _until_signal(), ready=lambda port: logger.info("ready: port %d", port))
            return ExitCode.OK
        return await run.from_stdin(handle)
