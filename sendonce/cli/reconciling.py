"""The command ``reconcile``: mails and workflows compared both ways."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce import settings
from sendonce.cli import recovery
from sendonce.cli.base import ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.listing import named
from sendonce.cli.operator import ActorOption
from sendonce.cli.output import complain, plural, print_json, progress
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.settings import Settings

WORDS = {
    "no_workflow": "waits, and no workflow looks after it",
    "other_queue": "its workflow waits on another task queue",
    "completed": "Temporal says that it was sent, and the store does not: reconcile --after-restore",
    "row_ended": "has ended, and its workflow runs on",
    "no_row": "a workflow runs, and the store has no such mail",
}


@app.command()
def reconcile(
    deep: Annotated[bool, typer.Option("--deep", help="Compare all open mails with all running workflows.")] = False,
    mend: Annotated[bool, typer.Option("--mend", help="Act: start, wake or replace workflows.")] = False,
    after_restore: Annotated[
        bool, typer.Option("--after-restore", help="Write into the store what Temporal and the providers still know.")
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="WHEN",
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S"],
            help="With --after-restore: runs closed after this instant, in UTC unless it has an offset"
            " [default: what the store knew last].",
        ),
    ] = None,
    lost_temporal: Annotated[
        bool,
        typer.Option(
            "--lost-temporal",
            help="With --after-restore: Temporal lost its runs too; what is due and has no run becomes unknown.",
        ),
    ] = False,
    stay_halted: Annotated[
        bool, typer.Option("--stay-halted", help="With --after-restore: do not let the workers go on afterwards.")
    ] = False,
    per_second: Annotated[float, typer.Option(metavar="N", min=0.1, max=1000, help="Requests to Temporal.")] = 50.0,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare mails and workflows both ways, and tell what does not fit; with --mend, have it fit. Page by page and no
    faster than --per-second, however many there are. What was started or seen in the last 30 seconds is left alone.

    Exit code 1 when something does not fit and was not mended. JSON: one object for each: finding (no_workflow,
    other_queue, completed, row_ended, no_row), key, account, mended; then one: rows, runs, found, mended.

    --after-restore: after a restore or a failover, write into the store what it has forgotten, then let the workers go
    on. A completed run is evidence that its mail was sent; a mail that may have been offered becomes unknown; providers
    that can be asked are asked. Nothing is sent meanwhile. May be broken off and repeated. JSON: one object for each
    mail that was found: found, account, key; then one: runs, sent, unanswered, missing, other_mail, asked, unwitnessed,
    going_on.
    """
    if deep == after_restore:
        raise ConfigurationError("give either --deep or --after-restore")
    if after_restore:
        recovery.after_restore(
            settings.load(config),
            since=since,
            lost_temporal=lost_temporal,
            stay_halted=stay_halted,
            per_second=per_second,
            actor_name=actor_name,
            as_json=as_json,
        )
        return
    compare(settings.load(config, with_accounts=False), mend=mend, per_second=per_second, as_json=as_json)


def compare(loaded: Settings, *, mend: bool, per_second: float, as_json: bool) -> None:
    """Tell what does not fit, and mend it if asked. Raises Exit when something is left, or Temporal is away."""
    from temporalio.service import RPCError

    from sendonce.activities.failures import said_of

    try:
        with progress("comparing mails and workflows"):
            left = asyncio.run(_compare(loaded, mend=mend, per_second=per_second, as_json=as_json))
    except (RPCError, RuntimeError) as error:
        why = said_of(error)
        complain(f"Temporal cannot be used ({why}); check [temporal] address and namespace")
        raise typer.Exit(ExitCode.AWAY) from None
    if left:
        raise typer.Exit(ExitCode.NO)


async def _compare(loaded: Settings, *, mend: bool, per_second: float, as_json: bool) -> int:
    """How many are left as they were."""
    import psycopg
    from temporalio.client import Client

    from sendonce.activities.failures import client_options
    from sendonce.deep import Comparison
    from sendonce.settings.codec import load_codec
    from sendonce.store.connecting import connect_options

    found: Counter[str] = Counter()
    mended = 0
    url = loaded.database_url
    # What is started must be readable for the workers, and for nobody else.
    codec = load_codec(loaded.source, loaded.temporal.payload_codec)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, **connect_options(url)) as connection:
        client = await Client.connect(**{**settings.temporal_connection(loaded), **client_options(codec)})
        comparison = Comparison(
            connection, client, prefix=loaded.temporal.task_queue_prefix, per_second=per_second, mend=mend
        )
        async for one in comparison.run():
            found[one.finding] += 1
            mended += one.mended
            if as_json:
                print_json(asdict(one))
            else:
                done = "; mended" if one.mended else ""
                typer.echo(f"{named(one.key, one.account)}: {WORDS[one.finding]}{done}")
    if as_json:
        print_json({"rows": comparison.rows, "runs": comparison.runs, "found": dict(found), "mended": mended})
    else:
        total = sum(found.values())
        typer.echo(
            f"{plural(comparison.rows, 'open mail')} and {plural(comparison.runs, 'running workflow')}: "
            f"{'all fit' if not total else f'{total} did not fit, {mended} mended'}"
        )
        if total and not mend:
            typer.echo("Nothing was done: give --mend.")
    return sum(found.values()) - mended
