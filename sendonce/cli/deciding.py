"""Commands that decide: ``resolve``, and ``suppressions``."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, ExitCode, JsonOption, RevealOption, app
from sendonce.cli.output import complain, mask, mask_addresses, print_json, print_table
from sendonce.cli.reading import story_of
from sendonce.errors import ConfigurationError, NoSuchEmail

T = TypeVar("T")

DRY_RUN = "dry run: give --yes"

Because = Annotated[
    str | None, typer.Option("--because", metavar="TEXT", help="Why; it is kept with who and when. No personal data.")
]


def actor() -> str:
    """Who is at the keyboard, for the log: user and host. (``user@host`` would be masked as an address.)"""
    return f"{getpass.getuser()} on {socket.gethostname()}"[:100]


def _with_store(url: str, body: Callable[[Any], Awaitable[T]]) -> T:
    import psycopg

    async def run() -> T:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            return await body(connection)

    return asyncio.run(run())


@app.command()
def resolve(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys of unknown mails.")] = None,
    sent: Annotated[bool, typer.Option("--sent", help="It was sent: close it as sent.")] = False,
    not_sent: Annotated[bool, typer.Option("--not-sent", help="It was not: try again, within its limits.")] = False,
    resend: Annotated[
        bool, typer.Option("--resend", help="Nobody knows: send it once more at the risk of two.")
    ] = False,
    because: Because = None,
    account: Annotated[str, typer.Option(help="The account they were enqueued for.")] = DEFAULT_ACCOUNT,
    all_unknown: Annotated[bool, typer.Option("--all", help="All unknowns of the account; see --older-than.")] = False,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="MINUTES", help="With --all: unknown for so long at least.")
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do it, do not only say what would be done.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about unknown mails, after a look at their evidence, which is shown first.

    The decision is kept with each mail: who, when and why. The worker goes on within a second or two. With --all,
    mails whose provider can be asked and has not been asked yet are left out.
    JSON: one object for each mail: key, account, decision, done, why (not), stage (now).
    """
    from sendonce.store import decisions, reading

    chosen: list[decisions.Decision] = []
    chosen += ["sent"] if sent else []
    chosen += ["not-sent"] if not_sent else []
    chosen += ["resend"] if resend else []
    if len(chosen) != 1:
        raise ConfigurationError("give one of --sent, --not-sent and --resend")
    if not because or not because.strip():
        raise ConfigurationError("give --because: whoever looks at this mail later will want to know")
    if bool(keys) == all_unknown:
        raise ConfigurationError("name the mails by their keys, or give --all")
    found = settings.load(config, with_accounts=all_unknown)
    askable = _askable(found, account) if all_unknown else False
    (decision,) = chosen

    def show_first() -> list[tuple[UUID, str]]:
        mails = []
        with reading.reading(found.database_url) as connection:
            for key in keys or ():
                told = reading.story(connection, account, key)
                if isinstance(told, reading.Forgotten):
                    raise NoSuchEmail(account, key)
                if not as_json:
                    story_of(told)
                mails.append((UUID(str(told.mail.id)), key))
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
                connection, email_id, decision, lanes=found.lanes, actor=actor(), because=because or ""
            )
            done = done and not why
            stage = "" if why else await decisions.stage_of(connection, email_id)
            _say(key, account, decision, decisions.REFUSALS[why] if why else "", as_json, stage)
        return done

    show_first_result = show_first()
    if not _with_store(found.database_url, run):
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


suppressions_app = typer.Typer(no_args_is_help=True, help="The addresses that an account must not write to.")
app.add_typer(suppressions_app, name="suppressions")


@suppressions_app.command("list")
def suppressions_list(
    account: Annotated[str | None, typer.Option(help="Only this account.")] = None,
    mailbox: Annotated[str | None, typer.Option(help="Only this address.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 100,
    reveal: RevealOption = False,
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

    rows = _with_store(url, run)
    if not reveal:
        for row in rows:
            row["mailbox"] = mask(row["mailbox"])
            row["note"] = row["note"] and mask_addresses(row["note"])
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ("account", "mailbox", "reason", "source", "actor", "at", "note")
    print_table(f"{len(rows)} suppressed, times in UTC", columns, [[row[name] for name in columns] for row in rows])


@suppressions_app.command("add")
def suppressions_add(
    mailbox: Annotated[str, typer.Argument(help="The address.")],
    account: Annotated[str, typer.Option(help="For this account.")] = DEFAULT_ACCOUNT,
    because: Because = None,
    config: ConfigOption = None,
) -> None:
    """Put an address on the list. Exit code 0 also when it is there already."""
    from sendonce.store import suppressions

    address = _address(mailbox)
    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> bool:
        return await suppressions.add(
            connection, account, address, "manual", source="operator", actor=actor(), note=because
        )

    typer.echo("added" if _with_store(url, run) else "it is on the list already")


@suppressions_app.command("remove")
def suppressions_remove(
    mailbox: Annotated[str, typer.Argument(help="The address.")],
    account: Annotated[str, typer.Option(help="For this account.")] = DEFAULT_ACCOUNT,
    config: ConfigOption = None,
) -> None:
    """Take an address off the list. Exit code 1 when it is not on it. The provider keeps a list of its own."""
    from sendonce.store import suppressions

    address = _address(mailbox)
    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> bool:
        return await suppressions.remove(connection, account, address)

    if not _with_store(url, run):
        complain("it is not on the list")
        raise typer.Exit(ExitCode.NO)
    typer.echo("removed")


def _address(text: str) -> str:
    from sendonce.checks import envelope_mailbox

    try:
        return envelope_mailbox(text)
    except ValueError as error:
        raise ConfigurationError(f"the address {error}") from None
