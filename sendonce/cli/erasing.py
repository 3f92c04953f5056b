"""The command that erases a person: ``erase``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.operator import ActorOption, Because, actor, with_store
from sendonce.cli.output import complain, print_json, progress
from sendonce.errors import ConfigurationError

_SAID = {
    "mails": "mails to the person emptied: address, content, texts of replies",
    "contents": "mails to others whose content named the person: content emptied",
    "withdrawn": "mails in flight that are not sent to the person any more",
    "waiting": "mails in flight; each is emptied as soon as it is final",
    "events": "events deleted that named the person and no known mail",
    "suppressions": "suppressions kept as a digest",
    "texts": "log rows in which the address stood",
}


@app.command()
def erase(
    recipient: Annotated[str, typer.Option("--recipient", metavar="ADDRESS", help="Whose data is to go.")],
    because: Because = None,
    actor_name: ActorOption = None,
    keep_pending: Annotated[
        bool, typer.Option("--keep-pending", help="Still send what is in flight; it is emptied when it is final.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase a person from the store, at once or, for mail in flight, as soon as that is final. Safe to repeat.

    Reads all content that is there. What is in flight and was not offered to the person is withdrawn.
    JSON: one object, dry_run, mails, contents, withdrawn, waiting, events, suppressions, texts.
    """
    from psycopg.errors import LockNotAvailable

    from sendonce.store import erasure
    from sendonce.store.naming import Person

    try:
        person = Person.of(recipient.strip())
    except ValueError as error:
        raise ConfigurationError(f"--recipient {error}") from None
    if because is not None and person.named_in(because):
        raise ConfigurationError("--because names the address, and it is kept: write a ticket's number instead")
    found = settings.load(config, with_accounts=False)

    async def run(connection: Any) -> erasure.Erased:
        named = await erasure.search(connection, person)
        if dry_run:
            return await erasure.dry_run(connection, person, named, withdraw=not keep_pending)
        return await erasure.erase(
            connection,
            person,
            named,
            lanes=found.lanes,
            actor=actor(actor_name),
            because=because,
            withdraw=not keep_pending,
        )

    try:
        with progress("searching all content"):
            done = with_store(found.database_url, run)
    except LockNotAvailable:
        complain("somebody holds a row in which the address stands: it is not erased everywhere yet; run this again")
        raise typer.Exit(ExitCode.NO) from None
    if as_json:
        print_json({"dry_run": dry_run, **asdict(done)})
        return
    counts = asdict(done)
    if dry_run:
        # What stands in logs is only looked for while it is erased.
        del counts["texts"]
        typer.echo("dry run: nothing was written")
    for name, count in counts.items():
        typer.echo(f"{count:>7}  {_SAID[name]}")
