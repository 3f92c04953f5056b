"""The command ``list``."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, JsonOption, app
from sendonce.cli.filters import (
    AccountOption,
    CodeOption,
    LaneOption,
    RecipientOption,
    SinceOption,
    StageOption,
    TemplateOption,
    TenantOption,
    chosen,
)
from sendonce.cli.output import ago, mask_addresses, plural, print_json, print_lines, print_wrapped, progress
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.store.reading import Mail, MailFilter

COLUMNS = ("stage", "tries", "created", "next try", "reply", "key")
CLEAR = "\x1b[H\x1b[2J"


@app.command("list")
def list_(
    stage: StageOption = None,
    lane: LaneOption = None,
    account: AccountOption = None,
    template: TemplateOption = None,
    tenant: TenantOption = None,
    to: RecipientOption = None,
    since: SinceOption = None,
    code: CodeOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many.")] = 50,
    after: Annotated[UUID | None, typer.Option(metavar="ID", help="The page after the mail with this id.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.2, max=3600, metavar="SECONDS", help="With --watch.")] = 2.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List mails, the newest first, page by page.

    JSON: id, key, account, lane, stage, partial, maybe_accepted, attempts, created_at, next_attempt_at, final_at,
    held_why, last_code, last_enhanced, template, tenant, waits_for.
    """
    which = chosen(
        stage=stage, lane=lane, account=account, template=template, tenant=tenant, to=to, since=since, code=code
    )
    url = settings.load(config, with_accounts=False).database_url
    if not watch:
        _once(url, which, after, limit, as_json)
        return
    if as_json:
        raise ConfigurationError("--watch is for people: leave out --json")
    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write(CLEAR)
            _once(url, which, after, limit, as_json)
            sys.stdout.flush()
            time.sleep(every)
    except KeyboardInterrupt:
        return


def _once(url: str, which: MailFilter, after: UUID | None, limit: int, as_json: bool) -> None:
    from sendonce.store import reading  # SQLAlchemy: a second that other commands need not wait

    with progress("reading the store"), reading.reading(url) as connection:
        mails = reading.mails(connection, which, after=after, limit=limit)
    if as_json:
        for mail in mails:
            print_json(members(mail))
        return
    typer.echo(f"{plural(len(mails), 'mail')}, the newest first")
    if mails:
        now = datetime.now(UTC)
        print_lines(COLUMNS, [(_cells(mail, now), notes(mail)) for mail in mails])
    if len(mails) == limit:
        print_wrapped(f"There may be more: give --after {mails[-1].id}, or a higher --limit.")


def members(mail: Mail) -> dict[str, Any]:
    """The mail as JSON has it, with every address masked."""
    masked = {name: getattr(mail, name) and mask_addresses(getattr(mail, name)) for name in ("held_why", "waits_for")}
    return asdict(mail) | masked


def _cells(mail: Mail, now: datetime) -> list[object]:
    # What is being tried is not due: nobody else tries it meanwhile.
    at = None if mail.stage in ("claimed", "transmitting") else mail.next_attempt_at
    return [
        mail.stage,
        mail.attempts,
        ago(mail.created_at, now),
        "due" if at is not None and at <= now else ago(at, now),
        mail.last_code or "-",
        named(mail.key, mail.account),
    ]


def named(key: str, account: str) -> str:
    """The mail as its workflow is named: the key, and the account behind it when it is not the default."""
    return key if account == DEFAULT_ACCOUNT else f"{key}@{account}"


def notes(mail: Mail) -> list[str]:
    """What is to be said of the mail besides."""
    found = [] if mail.lane == "default" else [f"lane {mail.lane}"]
    found += [mask_addresses(mail.waits_for)] if mail.waits_for else []
    found += [f"held: {mask_addresses(mail.held_why)}"] if mail.held_why else []
    found += ["partial: not every recipient"] if mail.partial else []
    found += ["may have been accepted"] if mail.maybe_accepted else []
    return ["; ".join(found)] if found else []
