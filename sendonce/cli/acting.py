"""Commands that act on mails: ``retry``, ``cancel``, ``requeue``. One by one by their keys, or many by a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.filters import (
    CodeOption,
    LaneOption,
    RecipientOption,
    SinceOption,
    StageOption,
    TemplateOption,
    TenantOption,
    chosen,
)
from sendonce.cli.listing import named
from sendonce.cli.operator import DRY_RUN, ActorOption, Because, YesOption, actor, reason, with_store
from sendonce.cli.output import complain, plural, print_json, progress
from sendonce.errors import ConfigurationError, NoSuchEmail

if TYPE_CHECKING:
    from sendonce.settings import Settings
    from sendonce.store.operating import Operation
    from sendonce.store.reading import MailFilter

PAGE = 500
"""Mails that are read at once; each is then a transaction of its own."""

SAMPLE = 10
"""Mails that a dry run names."""

DONE = {"retry": "is tried now", "cancel": "cancelled", "requeue": "requeued"}

KeysArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY", help="Keys of mails; or choose them by the options.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Although a second copy may go out.")]
AccountOption = Annotated[
    str | None,
    typer.Option("--account", metavar="NAME", help="Of the keys [default: default]; without keys, only this account."),
]
AllOption = Annotated[bool, typer.Option("--all", help="All there are, when no other option chooses.")]


@app.command()
def retry(
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of mails that wait.")],
    account: Annotated[str, typer.Option(metavar="NAME", help="The account they were enqueued for.")] = DEFAULT_ACCOUNT,
    force: Annotated[bool, typer.Option("--force", help="Also what is held, and before its send_after.")] = False,
    because: Because = None,
    actor: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try pending mails now, and not only at their next time. Limits, pauses, holds and rates go on to hold.

    Exit code 1 when one of them could not be. JSON: one object for each mail: key, account, operation, done, why (not),
    stage (now).
    """
    found = settings.load(config, with_accounts=False)
    _by_keys(found, "retry", keys, account, because, actor, force, as_json)


@app.command()
def cancel(
    keys: KeysArgument = None,
    stage: StageOption = None,
    lane: LaneOption = None,
    account: AccountOption = None,
    template: TemplateOption = None,
    tenant: TenantOption = None,
    to: RecipientOption = None,
    since: SinceOption = None,
    code: CodeOption = None,
    everything: AllOption = False,
    because: Because = None,
    yes: YesOption = False,
    actor: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Withdraw mails: those of these keys, or all that the options choose (then with --yes; pending ones, unless
    --stage says otherwise). What is being offered is not cut, and is not tried again.

    Exit code 1 when one of them could not be. JSON: one object for each mail: key, account, operation, done, why (not),
    stage (now). A dry run: one object: dry_run, operation, matching, sample (keys, with the account after an @).
    """
    which = chosen(
        stage=stage, lane=lane, account=account, template=template, tenant=tenant, to=to, since=since, code=code
    )
    found = settings.load(config, with_accounts=False)
    if keys:
        _refuse_both(replace(which, account=None), everything)
        _by_keys(found, "cancel", keys, account or DEFAULT_ACCOUNT, because, actor, False, as_json)
    else:
        which = which if which.stages else replace(_some(which, everything), stages=["pending", "claimed"])
        _by_filter(found, "cancel", which, because, actor, False, yes, as_json)


@app.command()
def requeue(
    keys: KeysArgument = None,
    stage: StageOption = None,
    lane: LaneOption = None,
    account: AccountOption = None,
    template: TemplateOption = None,
    tenant: TenantOption = None,
    to: RecipientOption = None,
    since: SinceOption = None,
    code: CodeOption = None,
    everything: AllOption = False,
    force: ForceOption = False,
    because: Because = None,
    yes: YesOption = False,
    actor: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try mails again after their end: those of these keys, or all that the options choose (then with --yes; dead ones,
    unless --stage says failed). Their limits begin anew; whoever got the mail does not get it again.

    Exit code 1 when one of them could not be. JSON: one object for each mail: key, account, operation, done, why (not),
    stage (now). A dry run: one object: dry_run, operation, matching, sample (keys, with the account after an @).
    """
    which = chosen(
        stage=stage, lane=lane, account=account, template=template, tenant=tenant, to=to, since=since, code=code
    )
    found = settings.load(config, with_accounts=False)
    if keys:
        _refuse_both(replace(which, account=None), everything)
        _by_keys(found, "requeue", keys, account or DEFAULT_ACCOUNT, because, actor, force, as_json)
    else:
        which = which if which.stages else replace(_some(which, everything), stages=["dead"])
        _by_filter(found, "requeue", which, because, actor, force, yes, as_json)


def _chooses(which: MailFilter) -> bool:
    return bool(which.conditions())


def _refuse_both(which: MailFilter, everything: bool) -> None:
    if everything or _chooses(which):
        raise ConfigurationError("name the mails by their keys or choose them by options, not both")


def _some(which: MailFilter, everything: bool) -> MailFilter:
    if not everything and not _chooses(which):
        raise ConfigurationError("name mails by their keys, choose them by options such as --lane, or give --all")
    return which


def _by_keys(
    found: Settings,
    operation: Operation,
    keys: list[str],
    account: str,
    because: str | None,
    who: str | None,
    force: bool,
    as_json: bool,
) -> None:
    from sendonce.cli.showing import told
    from sendonce.store import reading

    with progress("reading the store"), reading.reading(found.database_url) as connection:
        known = reading.ids_of(connection, account, keys)
        for key in keys:
            if key not in known:
                told(connection, account, key)
                raise NoSuchEmail(account, key, hint=": retention has emptied it")
    mails = ((known[key], key, account) for key in keys)
    _, refused = _carry_out(found, operation, mails, because, who, force, as_json=as_json, each=True)
    if refused:
        raise typer.Exit(ExitCode.NO)


def _by_filter(
    found: Settings,
    operation: Operation,
    which: MailFilter,
    because: str | None,
    who: str | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from sendonce.store import reading

    if not yes:
        with progress("reading the store"), reading.reading(found.database_url) as connection:
            matching = reading.count(connection, which)
            sample = [named(mail.key, mail.account) for mail in reading.mails(connection, which, limit=SAMPLE)]
        _say_what_would_be(operation, which, matching, sample, as_json)
        return
    reason(because)
    with progress(f"{operation}: going on"):
        done, refused = _carry_out(
            found, operation, _pages(found.database_url, which), because, who, force, as_json=as_json, each=False
        )
    if not as_json:
        typer.echo(f"{plural(done, 'mail')}: {DONE[operation]}")
        for why, count in refused.most_common():
            complain(f"{plural(count, 'mail')} not: {why}")
    if refused:
        raise typer.Exit(ExitCode.NO)


def _say_what_would_be(operation: str, which: MailFilter, matching: int, sample: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "operation": operation, "matching": matching, "sample": sample})
        return
    typer.echo(f"{operation} would be tried with {plural(matching, 'mail')} ({', '.join(which.stages)})")
    for key in sample:
        typer.echo(f"  {key}")
    if matching > len(sample):
        typer.echo(f"  and {matching - len(sample)} more")
    if matching:
        typer.echo(f"Nothing was done ({DRY_RUN} and --because).")


def _pages(url: str, which: MailFilter) -> Iterator[tuple[UUID, str, str]]:
    """The mails, page by page: what comes meanwhile is not among them, and no snapshot stands for long."""
    from sendonce.store import reading

    after: UUID | None = None
    while True:
        with reading.reading(url) as connection:
            mails = reading.mails(connection, which, after=after, limit=PAGE)
        for mail in mails:
            yield mail.id, mail.key, mail.account
        if len(mails) < PAGE:
            return
        after = mails[-1].id


def _carry_out(
    found: Settings,
    operation: Operation,
    mails: Iterator[tuple[UUID, str, str]],
    because: str | None,
    who: str | None,
    force: bool,
    *,
    as_json: bool,
    each: bool,
) -> tuple[int, Counter[str]]:
    """How many were done, and why the others were not."""
    from sendonce.store import decisions, operating

    by = actor(who)

    async def run(connection: Any) -> tuple[int, Counter[str]]:
        done, refused = 0, Counter[str]()
        for email_id, key, account in mails:
            answer = await operating.operate(
                connection, email_id, operation, lanes=found.lanes, actor=by, because=because or "", force=force
            )
            why = operating.REFUSALS[answer] if answer else ""
            done += not why
            refused.update([why] if why else [])
            if as_json or each:
                stage = await decisions.stage_of(connection, email_id)
                _say(operation, key, account, why, stage, as_json)
        return done, refused

    return with_store(found.database_url, run)


def _say(operation: str, key: str, account: str, why: str, stage: str, as_json: bool) -> None:
    if as_json:
        print_json({"key": key, "account": account, "operation": operation, "done": not why, "why": why or None,
                    "stage": stage or None})  # fmt: skip
    elif why:
        complain(f"{key}: {why}")
    else:
        typer.echo(f"{key}: {DONE[operation]}; it is {stage} now")
