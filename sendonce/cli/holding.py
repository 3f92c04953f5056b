"""Commands of the kill switch: ``pause`` and ``resume``, by lane, template, tenant or account; and ``accounts``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, ExitCode, Group, JsonOption, app
from sendonce.cli.operator import ActorOption, Because, actor, reason, with_store
from sendonce.cli.output import ago, complain, mask_addresses, plural, print_json, print_lines, progress
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.store.holds import Hold, Scope

LaneOption = Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Mail of this lane.")]
TemplateOption = Annotated[str | None, typer.Option("--template", metavar="NAME", help="Mail from this template.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="KEY", help="Mail with this fairness key.")]
AccountOption = Annotated[str | None, typer.Option("--account", metavar="NAME", help="Mail of this account.")]


@app.command()
def pause(
    lane: LaneOption = None,
    template: TemplateOption = None,
    tenant: TenantOption = None,
    account: AccountOption = None,
    because: Because = None,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put mail on hold, that of all workers and starters: nothing of it is started, tried or offered until resume.
    What has been offered is seen through. Its deadline holds; its age stands still. Without an option: list the holds.

    Exit code 1 when it is on hold already. JSON: one object: scope, name, done. The list: scope, name, since, actor,
    why, one object for each.
    """
    url = settings.load(config, with_accounts=False).database_url
    scopes = _scopes(lane, template, tenant, account)
    if not scopes:
        _list(url, as_json)
        return
    why = reason(because)
    from sendonce.store import holds

    async def run(connection: Any) -> list[bool]:
        by = actor(actor_name)
        return [await holds.pause(connection, scope, name, actor=by, why=why) for scope, name in scopes]

    _say(scopes, with_store(url, run), ("on hold", "on hold already"), as_json)


@app.command()
def resume(
    lane: LaneOption = None,
    template: TemplateOption = None,
    tenant: TenantOption = None,
    account: AccountOption = None,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a hold. Its mail goes on at the starters' usual pace, what has waited longest first.

    Exit code 1 when there is no such hold. JSON: one object: scope, name, done.
    """
    url = settings.load(config, with_accounts=False).database_url
    scopes = _scopes(lane, template, tenant, account)
    if not scopes:
        raise ConfigurationError("give --lane, --template, --tenant or --account; 'sendonce pause' lists the holds")
    _say(scopes, _resume(url, scopes, actor_name), ("goes on", "not on hold"), as_json)


def _resume(url: str, scopes: list[tuple[Scope, str]], who: str | None) -> list[bool]:
    from sendonce.store import holds

    async def run(connection: Any) -> list[bool]:
        by = actor(who)
        return [await holds.resume(connection, scope, name, actor=by) for scope, name in scopes]

    return with_store(url, run)


def _scopes(lane: str | None, template: str | None, tenant: str | None, account: str | None) -> list[tuple[Scope, str]]:
    given: list[tuple[Scope, str | None]] = [
        ("lane", lane), ("template", template), ("tenant", tenant), ("account", account),
    ]  # fmt: skip
    for scope, name in given:
        if name == "":
            raise ConfigurationError(f"--{scope}: write a name")
    return [(scope, name) for scope, name in given if name is not None]


def _say(scopes: list[tuple[Scope, str]], done: list[bool], words: tuple[str, str], as_json: bool) -> None:
    for (scope, name), one in zip(scopes, done, strict=True):
        if as_json:
            print_json({"scope": scope, "name": name, "done": one})
        elif one:
            typer.echo(f"{scope} {name}: {words[0]}")
        else:
            complain(f"{scope} {name}: {words[1]}")
    if not all(done):
        raise typer.Exit(ExitCode.NO)


def _list(url: str, as_json: bool) -> None:
    from sendonce.store import holds

    found: list[Hold] = with_store(url, holds.standing)
    if as_json:
        for hold in found:
            print_json(asdict(hold) | {"why": mask_addresses(hold.why), "actor": mask_addresses(hold.actor)})
        return
    typer.echo(plural(len(found), "hold"))
    if found:
        now = datetime.now(UTC)
        print_lines(
            ("scope", "since", "name"),
            [([h.scope, ago(h.since, now), h.name], [mask_addresses(f"by {h.actor}: {h.why}")]) for h in found],
        )


def _masked(state: dict[str, Any]) -> dict[str, Any]:
    """Callers name actors and reasons as they like."""
    for row in (*state["pauses"], *([state["hold"]] if state["hold"] else [])):
        row.update({name: mask_addresses(row[name]) for name in ("actor", "why") if name in row})
    return state


accounts_app = typer.Typer(cls=Group, invoke_without_command=True)
app.add_typer(accounts_app, name="accounts")


@accounts_app.callback(invoke_without_command=True)
def accounts(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the accounts that ever had mail, and their pauses. A pause comes by itself, from faults of the account, and
    ends by itself, when a probe passes; a hold is an operator's.

    JSON: one object for each: account, state (works, paused, on_hold), pauses (from_domain, settings, since, why,
    next_probe), hold (null, or since, actor, why).
    """
    if context.invoked_subcommand is not None:
        return
    from sendonce.store import account_states

    url = settings.load(config, with_accounts=False).database_url
    with progress("reading the store"):
        found = with_store(url, account_states.read)
    now = datetime.now(UTC)
    if as_json:
        for state in found:
            print_json(_masked(asdict(state)) | {"state": state.state})
        return
    typer.echo(plural(len(found), "account"))
    if not found:
        return
    rows = []
    for state in found:
        notes = [
            f"paused {ago(p.since, now)}: {mask_addresses(p.why)}; "
            f"{f'mail from {p.from_domain}; ' if p.from_domain else ''}"
            f"settings {p.settings}; next probe {ago(p.next_probe, now)}"
            for p in state.pauses
        ]
        if state.hold is not None:
            notes.append(
                mask_addresses(f"on hold {ago(state.hold.since, now)}, by {state.hold.actor}: {state.hold.why}")
            )
        rows.append(([state.state, state.account], notes))
    print_lines(("state", "account"), rows)


@accounts_app.command("pause")
def accounts_pause(
    account: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    because: Because = None,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the account's mail on hold: the same as 'pause --account'. Its fallback does not take it over.

    JSON: one object: scope, name, done.
    """
    pause(account=account, because=because, actor_name=actor_name, config=config, as_json=as_json)


@accounts_app.command("resume")
def accounts_resume(
    account: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the account's hold and its pauses, whichever there are. A pause whose cause is not mended comes back.

    Exit code 1 when it was neither paused nor on hold. JSON: one object: scope, name, done.
    """
    from sendonce.store import accounts as pauses

    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> int:
        return await pauses.end_all(connection, account, why=f"ended by {actor(actor_name)}")

    ended = with_store(url, run)
    resumed = _resume(url, [("account", account)], actor_name)
    _say([("account", account)], [bool(ended) or resumed[0]], ("goes on", "neither paused nor on hold"), as_json)
