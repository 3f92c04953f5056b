"""The application all commands hang on, and what they share: exit codes, options, errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from sendonce.cli.output import complain
from sendonce.errors import ConfigurationError, NoSuchEmail, SendonceError, StoreNotReady


class ExitCode(IntEnum):
    """What a command's exit code means."""

    OK = 0
    NO = 1
    """The answer is no, such as for a mail that does not exist."""
    USAGE = 2
    """The command line or the settings are wrong."""
    AWAY = 3
    """PostgreSQL or Temporal cannot be reached, or the schema is not ready."""


_CODES: dict[type[SendonceError], ExitCode] = {
    NoSuchEmail: ExitCode.NO,
    ConfigurationError: ExitCode.USAGE,
    StoreNotReady: ExitCode.AWAY,
}


NO_SETTINGS = "no settings were found: give --config, set SENDONCE_CONFIG, or be where sendonce.toml is"
CHECK_STORE = "check [store] database_url, SENDONCE_DATABASE_URL or the PG* variables"


@contextmanager
def errors_as_exit_codes(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors of ours and an absent database into one line on standard error and an exit code.

    ``arguments``: the command's, which may name a file of settings.
    """
    try:
        yield
    except SendonceError as error:
        complain(str(error))
        raise typer.Exit(_CODES.get(type(error), ExitCode.USAGE)) from None
    except UnicodeEncodeError:
        # How Python keeps the octets of an argument that is not text; the database takes text only.
        if not any("\ud800" <= letter <= "\udfff" for argument in sys.argv for letter in argument):
            raise
        complain("an argument is not valid UTF-8 text; check it, and the terminal's encoding")
        raise typer.Exit(ExitCode.USAGE) from None
    except Exception as error:
        if (refused := _refused(error)) is not None:
            said, code = refused
            complain(f"{_first_line(error)}; {said}")
            raise typer.Exit(code) from None
        if not _is_away(error):
            raise
        complain(
            f"the database cannot be reached: {_first_line(error)}; "
            f"{CHECK_STORE if told_where(arguments) else NO_SETTINGS}"
        )
        raise typer.Exit(ExitCode.AWAY) from None


def told_where(arguments: Sequence[str] = ()) -> bool:
    """Whether anything but libpq's own defaults says where the database is."""
    given = any(argument.partition("=")[0] == "--config" for argument in arguments)
    variables = ("SENDONCE_CONFIG", "SENDONCE_DATABASE_URL", "PGHOST", "PGSERVICE", "PGHOSTADDR")
    return given or any(os.environ.get(name) for name in variables) or Path("sendonce.toml").is_file()


def _is_away(error: Exception) -> bool:
    # Commands that need no database do not wait for its driver; one that raised has loaded it.
    driver = sys.modules.get("psycopg")
    return driver is not None and isinstance(error, driver.OperationalError)


def _refused(error: Exception) -> tuple[str, ExitCode] | None:
    """What to do about a database that is there and refuses, and the exit code."""
    driver = sys.modules.get("psycopg")
    if driver is not None and isinstance(error, driver.errors.InsufficientPrivilege):
        return "this role lacks a right: see 'sendonce grants'", ExitCode.USAGE
    if driver is not None and isinstance(error, driver.errors.ReadOnlySqlTransaction):
        return "this is a standby: name the primary in [store] database_url", ExitCode.AWAY
    return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


ORDER = (
    *("migrate", "setup", "worker", "starter", "up", "demo"),
    *("list", "show", "stats", "alarms", "accounts"),
    *("retry", "cancel", "requeue", "resolve", "send-again", "pause", "resume", "reconcile", "suppressions"),
    *("doctor", "webhooks", "dsn", "erase", "new-installation", "grants", "templates"),
)
"""The commands as ``--help`` lists them: what one starts with comes first. docs/cli.md has the same order."""


class Group(typer.core.TyperGroup):
    """Commands with a word about each, on as many lines as it takes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Whole sentences: what is cut off at the end of a line says nothing.
        rows = [(name, self.commands[name].get_short_help_str(limit=1000)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Root(Group):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes(ctx.args):
            return super().invoke(ctx)


app = typer.Typer(
    name="sendonce",
    cls=_Root,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    # A traceback with local variables would show addresses and secrets.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sendonce {version('sendonce')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Transactional e-mail, sent once.

    Exit codes: 0 done, 1 the answer is no, 2 usage or configuration, 3 PostgreSQL or Temporal is away.
    """


DEFAULT_ACCOUNT = "default"
"""The account of a mail that names none. :mod:`sendonce.message` has it too, and would load pydantic."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file [default: $SENDONCE_CONFIG, else ./sendonce.toml]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
RevealOption = Annotated[
    bool, typer.Option("--reveal", help="Show personal data: addresses, the subject, reply texts.")
]
