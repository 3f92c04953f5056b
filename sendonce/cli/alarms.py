"""The command ``alarms``: what is open, and taking note of it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, ExitCode, Group, JsonOption, app
from sendonce.cli.operator import DRY_RUN, ActorOption, YesOption, actor, with_store
from sendonce.cli.output import ago, complain, mask_addresses, plural, print_json, print_lines, progress
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.store.open_alarms import AlarmFilter, AlarmGroup, AlarmRow

alarms_app = typer.Typer(cls=Group, invoke_without_command=True)
app.add_typer(alarms_app, name="alarms")

KindOption = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind.")]
AccountOption = Annotated[str | None, typer.Option("--account", metavar="NAME", help="Only of this account.")]


@alarms_app.callback(invoke_without_command=True)
def alarms(
    context: typer.Context,
    kind: KindOption = None,
    account: AccountOption = None,
    acknowledged: Annotated[
        bool, typer.Option("--acknowledged", help="Those too that somebody has taken note of.")
    ] = False,
    each: Annotated[bool, typer.Option("--each", help="One by one, and not in groups.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many lines.")] = 100,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the open alarms, the newest first: alike ones in groups. Exit code 0 whether or not there are any.

    JSON, one by one: id, at, kind, email_id, key, account, detail, delivered_at, closed (always false here),
    acknowledged_at, acknowledged_by.
    """
    if context.invoked_subcommand is not None:
        return
    from sendonce.store import open_alarms, reading  # SQLAlchemy: a second that other commands need not wait

    which = open_alarms.AlarmFilter(kind=kind, account=account, acknowledged=acknowledged)
    url = settings.load(config, with_accounts=False).database_url
    rows: list[AlarmRow] = []
    groups: list[AlarmGroup] = []
    with progress("reading the store"), reading.reading(url) as connection:
        if as_json or each:
            rows = open_alarms.open_alarms(connection, which, limit=limit)
        else:
            groups = open_alarms.groups(connection, which, limit=limit)
    if as_json:
        for row in rows:
            masked = {"detail": mask_addresses(row.detail), "acknowledged_by": _by(row)}
            print_json(asdict(row) | masked)
    elif each:
        _print_each(rows, limit)
    else:
        _print_groups(groups, limit)


def _print_each(rows: list[AlarmRow], limit: int) -> None:
    typer.echo(plural(len(rows), "open alarm"))
    if rows:
        now = datetime.now(UTC)
        print_lines(
            ("id", "raised", "kind", "account", "key"),
            [([r.id, ago(r.at, now), r.kind, r.account or "-", r.key or "-"], _notes(r.detail, r)) for r in rows],
        )
    _more(len(rows), limit)


def _by(row: AlarmRow) -> str | None:
    """Who took note; callers name actors as they like."""
    return row.acknowledged_by and mask_addresses(row.acknowledged_by)


def _notes(detail: str, row: AlarmRow) -> list[str]:
    seen = f"acknowledged by {_by(row)}" if row.acknowledged_at else ""
    return [note for note in (mask_addresses(detail), seen) if note]


def _print_groups(groups: list[AlarmGroup], limit: int) -> None:
    typer.echo(plural(sum(group.count for group in groups), "open alarm"))
    if groups:
        now = datetime.now(UTC)
        print_lines(
            ("alarms", "first", "last", "kind", "account", "last key"),
            [
                (
                    [g.count, ago(g.first_at, now), ago(g.last_at, now), g.kind, g.account or "-", g.key or "-"],
                    [mask_addresses(g.detail)] if g.detail else [],
                )
                for g in groups
            ],
        )
        typer.echo("One by one: --each. To take note of some: sendonce alarms ack.")
    _more(len(groups), limit)


def _more(count: int, limit: int) -> None:
    if count == limit:
        typer.echo("There may be more: --limit.")


@alarms_app.command("ack")
def ack(
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="Their ids.")] = None,
    kind: KindOption = None,
    account: AccountOption = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="What is done about it. No personal data.")
    ] = None,
    yes: YesOption = False,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take note of open alarms: these, or with --kind, --account or both (then with --yes) all such. They are listed
    no more, and stay open until what caused them ends.

    Exit code 1 when there was none to take note of. JSON: one object: acknowledged (how many). A dry run: dry_run,
    matching.
    """
    from sendonce.store import open_alarms, reading

    if bool(ids) == bool(kind or account):
        raise ConfigurationError("name the alarms by their ids, or give --kind, --account or both")
    which = open_alarms.AlarmFilter(ids=ids or (), kind=kind, account=account)
    url = settings.load(config, with_accounts=False).database_url
    if not ids and not yes:
        with reading.reading(url) as connection:
            matching = sum(group.count for group in open_alarms.groups(connection, which, limit=100_000))
        if as_json:
            print_json({"dry_run": True, "matching": matching})
        else:
            typer.echo(f"{plural(matching, 'open alarm')} would be taken note of ({DRY_RUN})")
        return
    done = with_store(url, _acknowledging(which, actor(actor_name), note))
    if as_json:
        print_json({"acknowledged": done})
    elif done:
        typer.echo(f"took note of {plural(done, 'alarm')}")
    if not done:
        if not as_json:
            complain("there is no such open alarm of which nobody has taken note")
        raise typer.Exit(ExitCode.NO)


def _acknowledging(which: AlarmFilter, by: str, note: str | None) -> Any:
    from sendonce.store import open_alarms

    async def run(connection: Any) -> int:
        return await open_alarms.acknowledge(connection, which, actor=by, note=note)

    return run
