"""Commands for after a disaster: ``reconcile --after-restore``, and ``new-installation`` for copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.operator import ActorOption, Because, actor, with_store
from sendonce.cli.output import complain, print_fields, print_json, progress
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.activities.reconcile import Report
    from sendonce.settings import Settings

MARGIN = timedelta(minutes=15)
"""How long before the restored store's last sign of life runs are read: its clock and Temporal's may differ."""

HALT_SECONDS = 6.0
"""After which every process knows that nothing is to be sent (each looks every 5 seconds)."""

WORDS = {
    "sent": "was sent, by Temporal: recorded",
    "unanswered": "may have been offered and nobody knows: it is unknown now, see 'sendonce resolve'",
    "missing": "has a run, and the store has no such mail: it was enqueued after the backup",
    "other_mail": "was sent before as another mail: this one will be held",
}


def after_restore(
    found: Settings,
    *,
    since: datetime | None,
    lost_temporal: bool,
    stay_halted: bool,
    per_second: float,
    actor_name: str | None,
    as_json: bool,
) -> None:
    """Write into the store what it has forgotten, then let the workers go on. Raises Exit when Temporal is away."""
    from temporalio.service import RPCError

    from sendonce.activities.failures import said_of

    instant = None if since is None else since.replace(tzinfo=since.tzinfo or UTC)

    by = actor(actor_name)

    def tell(what: str, account: str, key: str) -> None:
        if as_json:
            print_json({"found": what, "account": account, "key": key})
        else:
            typer.echo(f"{key} ({account}): {WORDS[what]}")

    try:
        with progress("reading what Temporal knows"):
            report = asyncio.run(
                _reconcile(
                    found, instant, lost_temporal, stay_halted=stay_halted, per_second=per_second, by=by, tell=tell
                )
            )
    except (RPCError, RuntimeError) as error:
        reason = said_of(error)
        complain(f"Temporal cannot be asked ({reason}); nothing goes on. Repeat this when it is back")
        raise typer.Exit(ExitCode.AWAY) from None
    if as_json:
        print_json({**asdict(report), "going_on": not stay_halted})
        return
    print_fields(asdict(report))
    if report.unwitnessed and not lost_temporal:
        typer.echo(
            f"{report.unwitnessed} mails were due and have no run: they are sent now. If Temporal lost runs too, "
            "nobody can know whether they went out before: use --lost-temporal"
        )
    typer.echo("Still halted." if stay_halted else "The workers go on within seconds.")


async def _reconcile(
    found: Settings,
    since: datetime | None,
    lost_temporal: bool,
    *,
    stay_halted: bool,
    per_second: float,
    by: str,
    tell: Callable[[str, str, str], None],
) -> Report:
    from temporalio.client import Client

    from sendonce.activities.failures import client_options
    from sendonce.activities.reconcile import Reconciliation
    from sendonce.store import open_pool

    async with AsyncExitStack() as closing:
        transports = settings.build_transports(found)
        for transport in transports.values():
            closing.push_async_callback(transport.close)
        worker = settings.build_worker_config(found, transports)
        client = await Client.connect(**{**worker.temporal, **client_options(worker.payload_codec)})
        pool = open_pool(worker.database_url, name="reconcile", max_size=2, pooler=worker.pooler)
        closing.push_async_callback(pool.close)
        await pool.open()
        store = worker.store(pool)
        if await store.halt("reconcile"):
            await asyncio.sleep(HALT_SECONDS)
        known, _ = await store.server()
        assert known.halted_at is not None
        if since is None:
            since = (known.seen_at or await store.answers_since()) - MARGIN
        reconciliation = Reconciliation(
            store,
            client,
            transports,
            worker.lanes,
            worker.task_queues(),
            actor=by,
            per_second=per_second,
            tell=tell,
        )
        report = await reconciliation.run(since, known.halted_at, lost_temporal=lost_temporal)
        if not stay_halted:
            await store.go_on(by, "reconciled")
        return report


@app.command("new-installation")
def new_installation(
    because: Because = None,
    yes: Annotated[bool, typer.Option("--yes", help="This database is a copy, and the original lives on.")] = False,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a copy of a database an installation of its own, such as one in staging. Never run it on the original.

    It gets another id, so that its provider keys are others, and another secret. Every open mail in it is put on hold:
    the original sends it. JSON: one object: installation, held.
    """
    from sendonce.store import continuity

    if not yes:
        raise ConfigurationError("give --yes if this database is a copy: in the original, mail would go out twice")
    if not because or not because.strip():
        raise ConfigurationError("give --because: it is kept with each mail that is put on hold")
    url = settings.load(config, with_accounts=False).database_url
    installation, held = with_store(url, lambda conn: continuity.renew_installation(conn, actor(actor_name), because))
    if as_json:
        print_json({"installation": str(installation), "held": held})
    else:
        typer.echo(f"This is installation {installation} now; {held} open mails are held: the original sends them.")
