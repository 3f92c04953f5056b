"""Commands that decide: ``resolve``, and ``suppressions``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, ExitCode, Group, JsonOption, RevealOption, app
from sendonce.cli.filters import mailbox as address_of
from sendonce.cli.operator import DRY_RUN, ActorOption, Because, YesOption, actor, note_reveal, reason, with_store
from sendonce.cli.output import ago, complain, mask, mask_addresses, plural, print_json, print_lines
from sendonce.cli.showing import story_of, told
from sendonce.errors import ConfigurationError, NoSuchEmail


@app.command()
def resolve(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys of unknown mails.")] = None,
    sent: Annotated[bool, typer.Option("--sent", help="It was sent: close it as sent.")] = False,
    not_sent: Annotated[bool, typer.Option("--not-sent", help="It was not: try again, within its limits.")] = False,
    resend: Annotated[
        bool, typer.Option("--resend", help="Nobody knows: send it once more at the risk of two.")
    ] = False,
    because: Because = None,
    account: Annotated[str, typer.Option(metavar="NAME", help="The account they were enqueued for.")] = DEFAULT_ACCOUNT,
    all_unknown: Annotated[bool, typer.Option("--all", help="All unknowns of the account; see --older-than.")] = False,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="MINUTES", help="With --all: unknown for so long at least.")
    ] = 0.0,
    yes: YesOption = False,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about unknown mails, after a look at their evidence, which is shown first.

    The decision is kept with each mail: who, when and why. The worker goes on within a second or two. With --all,
    mails whose provider can be asked and has not been asked yet are left out.
    JSON: one object for each mail: key, account, decision, done, why (not), stage (now).
    """
    from sendonce.store import decisions, reading, story

    chosen: list[decisions.Decision] = []
    chosen += ["sent"] if sent else []
    chosen += ["not-sent"] if not_sent else []
    chosen += ["resend"] if resend else []
    if len(chosen) != 1:
        raise ConfigurationError("give one of --sent, --not-sent and --resend")
    because = reason(because)
    if bool(keys) == all_unknown:
        raise ConfigurationError("name the mails by their keys, or give --all")
    found = settings.load(config, with_accounts=all_unknown)
    askable = _askable(found, account) if all_unknown else False
    (decision,) = chosen

    def show_first() -> list[tuple[UUID, str]]:
        mails = []
        with reading.reading(found.database_url) as connection:
            for key in keys or ():
                found_mail = told(connection, account, key)
                if isinstance(found_mail, story.Forgotten):
                    raise NoSuchEmail(account, key)
                if not as_json:
                    story_of(found_mail)
                mails.append((found_mail.mail.id, key))
        return mails

    async def run(connection: Any) -> bool:
        mails, left_out = show_first_result, []
        if all_unknown:
            there = await decisions.undecided(connection, account, older_than=older_than * 60)
            mails = [(one.id, one.key) for one in there if one.look_ups or not askable]
            left_out = [one.key for one in there if askable and not one.look_ups]
        for key in left_out:
            _say(key, account, decision, "its provider has not been asked yet: wait for the look-up", as_json)
        if not mails and not as_json:
            typer.echo("there is nothing to decide")
        if all_unknown and not yes:
            for _, key in mails:
                if as_json:
                    _say(key, account, decision, DRY_RUN, as_json)
                else:
                    typer.echo(f"{key}: would be called {decision} ({DRY_RUN})")
            return True
        done = True
        for email_id, key in mails:
            why = await decisions.decide(
                connection, email_id, decision, lanes=found.lanes, actor=actor(actor_name), because=because
            )
            done = done and not why
            stage = "" if why else await decisions.stage_of(connection, email_id)
            _say(key, account, decision, decisions.REFUSALS[why] if why else "", as_json, stage)
        return done

    show_first_result = show_first()
    if not with_store(found.database_url, run):
        raise typer.Exit(ExitCode.NO)


def _askable(found: Any, account: str) -> bool:
    if account not in found.accounts:
        raise ConfigurationError(f"{found.source}: there is no account {account!r}")
    from dataclasses import replace

    transport = settings.build_transports(replace(found, accounts={account: found.accounts[account]}))[account]
    asyncio.run(transport.close())
    return bool(transport.capability.look_up)


def _say(key: str, account: str, decision: str, why: str, as_json: bool, stage: str = "") -> None:
    if as_json:
        print_json(
            {
                "key": key,
                "account": account,
                "decision": decision,
                "done": not why,
                "why": why or None,
                "stage": stage or None,
            }
        )
    elif why:
        complain(f"{key}: {why}")
    else:
        typer.echo(f"{key}: {decision}, recorded; it is {stage} now")


suppressions_app = typer.Typer(cls=Group, no_args_is_help=True, help="The addresses that an account must not write to.")
app.add_typer(suppressions_app, name="suppressions")


@suppressions_app.command("list")
def suppressions_list(
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Only this account.")] = None,
    mailbox: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Only this address.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many.")] = 100,
    reveal: RevealOption = False,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List them, the newest first.

    JSON: account, mailbox (masked without --reveal), reason, source, email_id, actor, note, at.
    """
    from sendonce.store import suppressions

    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> list[dict[str, Any]]:
        found = await suppressions.entries(connection, account=account, mailbox=mailbox, limit=limit)
        return [asdict(one) for one in found]

    if reveal:
        note_reveal(url, "suppressions list", actor_name, account=account)
    rows = with_store(url, run)
    if not reveal:
        for row in rows:
            row["mailbox"] = mask(row["mailbox"])
            row.update({name: row[name] and mask_addresses(row[name]) for name in ("actor", "note")})
    if as_json:
        for row in rows:
            print_json(row)
        return
    typer.echo(f"{plural(len(rows), 'address', 'addresses')} suppressed")
    if rows:
        now = datetime.now(UTC)
        print_lines(
            ("since", "reason", "account", "address"),
            [([ago(row["at"], now), row["reason"], row["account"], row["mailbox"]], _notes(row)) for row in rows],
        )


def _notes(row: dict[str, Any]) -> list[str]:
    return [f"from {row['source']}, by {row['actor']}{': ' + row['note'] if row['note'] else ''}"]


@suppressions_app.command("add")
def suppressions_add(
    mailbox: Annotated[str, typer.Argument(metavar="ADDRESS", help="Whom not to write to.")],
    account: Annotated[str, typer.Option(metavar="NAME", help="For this account.")] = DEFAULT_ACCOUNT,
    because: Because = None,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put an address on the list. Exit code 0 also when it is there already.

    JSON: one object: account, mailbox (masked), done.
    """
    from sendonce.store import suppressions

    address = address_of(mailbox)
    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> bool:
        return await suppressions.add(
            connection, account, address, "manual", source="operator", actor=actor(actor_name), note=because
        )

    done = with_store(url, run)
    if as_json:
        print_json({"account": account, "mailbox": mask(address), "done": done})
    else:
        typer.echo("added" if done else "it is on the list already")


@suppressions_app.command("remove")
def suppressions_remove(
    mailbox: Annotated[str, typer.Argument(metavar="ADDRESS", help="Whom to write to again.")],
    account: Annotated[str, typer.Option(metavar="NAME", help="For this account.")] = DEFAULT_ACCOUNT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take an address off the list. Exit code 1 when it is not on it. The provider keeps a list of its own.

    JSON: one object: account, mailbox (masked), done.
    """
    from sendonce.store import suppressions

    address = address_of(mailbox)
    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> bool:
        return await suppressions.remove(connection, account, address)

    done = with_store(url, run)
    if as_json:
        print_json({"account": account, "mailbox": mask(address), "done": done})
    elif done:
        typer.echo("removed")
    else:
        complain("it is not on the list")
    if not done:
        raise typer.Exit(ExitCode.NO)
