"""The command ``grants``: who may do what in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, JsonOption, app
from sendonce.cli.output import print_json
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from psycopg import sql


@app.command()
def grants(
    app: Annotated[str | None, typer.Option(metavar="ROLE", help="Business code: enqueue, cancel, status.")] = None,
    worker: Annotated[str | None, typer.Option(metavar="ROLE", help="Workers, starters, webhooks, dsn.")] = None,
    operator: Annotated[str | None, typer.Option(metavar="ROLE", help="People who look and decide.")] = None,
    upkeep: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Who empties old mail and erases people; also one of these.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the roles too, unable to log in.")] = False,
    execute: Annotated[bool, typer.Option("--apply", help="Do it, in one transaction, as the schema's owner.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the SQL that gives these database roles just what they need, and takes from them what is beyond it.

    Business code gets the right to call functions and none on a table. Safe to repeat; do so after each migrate.
    JSON: one object for each statement: statement, done.
    """
    import psycopg

    from sendonce.store import roles

    if (app, worker, operator, upkeep) == (None, None, None, None):
        raise ConfigurationError("name a role: give --app, --worker, --operator or --upkeep")
    statements = roles.grants(roles.Roles(app, worker, operator, upkeep), create=create)
    if not execute:
        if as_json:
            _objects(statements, done=False)
        else:
            print(roles.as_text(statements), end="")
        return
    url = settings.load(config, with_accounts=False).database_url
    try:
        roles.apply(url, statements)
    except psycopg.errors.Error as error:
        if isinstance(error, psycopg.OperationalError):
            raise
        raise ConfigurationError(f"nothing was granted: {error.diag.message_primary}") from None
    if as_json:
        _objects(statements, done=True)
    else:
        print(f"{len(statements)} statements done.")


def _objects(statements: list[sql.Composed], *, done: bool) -> None:
    for statement in statements:
        print_json({"statement": statement.as_string(), "done": done})
