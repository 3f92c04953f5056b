"""The application all commands hang on, and what they share: exit codes, options, errors in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn errors of ours and an absent database into one line on standard error and an exit code."""
    try:
        yield
    except SendonceError as error:
        complain(str(error))
        raise typer.Exit(_CODES.get(type(error), ExitCode.USAGE)) from None
    except Exception as error:
        if not _is_away(error):
            raise
        complain(
            f"the database cannot be reached: {_first_line(error)}; "
            "check [store] database_url, SENDONCE_DATABASE_URL or the PG* variables"
        )
        raise typer.Exit(ExitCode.AWAY) from None


def _is_away(error: Exception) -> bool:
    # Commands that need no database do not wait for its driver; one that raised has loaded it.
    driver = sys.modules.get("psycopg")
    return driver is not None and isinstance(error, driver.OperationalError)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


class _Group(typer.core.TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes():
            return super().invoke(ctx)


app = typer.Typer(
    name="sendonce",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
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
