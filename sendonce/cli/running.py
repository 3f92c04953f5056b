"""Commands that do: ``migrate``, ``worker``, ``starter``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce import settings
from sendonce.cli import event_loop, logs
from sendonce.cli.base import ConfigOption, JsonOption, app
from sendonce.cli.output import print_json, progress
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport

logger = logging.getLogger(__name__)


class LogLevel(StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LanesOption = Annotated[
    str | None,
    typer.Option("--lanes", metavar="LANES", help="Serve these lanes only: names, separated by commas."),
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option("--log-level", metavar="LEVEL", help="The least that is logged: debug, info, warning or error."),
]


@app.command()
def migrate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Bring the schema 'sendonce' up to this release. Safe to repeat, and from several places at once.

    JSON: one object, before (null when there was no schema), after, changed.
    """
    before, after = upgraded(settings.load(config, with_accounts=False).database_url)
    if as_json:
        print_json({"before": before, "after": after, "changed": before != after})
    elif before == after:
        print(f"The schema is at {after} already.")
    else:
        print(f"The schema went from {before or 'nothing'} to {after}.")


def upgraded(url: str) -> tuple[str | None, str]:
    """Migrate the store at ``url``; returns the revision before and after."""
    # SQLAlchemy and Alembic are loaded when it comes to this only.
    from psycopg import Error
    from sqlalchemy.exc import DBAPIError

    from sendonce.store.migrate import migrate as upgrade

    try:
        with progress("migrating the schema, or waiting for another migration"):
            return upgrade(url)
    except DBAPIError as error:
        # The driver's own error: SQLAlchemy's would quote the statement.
        raise (error.orig if isinstance(error.orig, Error) else error) from None


@app.command()
def worker(
    lanes: LanesOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: JsonOption = False,
) -> None:
    """Deliver mails until SIGTERM or SIGINT; then finish what is in flight, at most drain_seconds long.

    Logs to standard error. JSON: the log on standard output, one object per record: at, level, logger, message, error
    where there was one, and what the message says as name=value. [log] format = "json" writes these to standard error.
    """
    from sendonce.worker import run_until_signal

    found = _with_lanes(settings.load(config), lanes)
    sdk_metrics = _set_up_logs(found, log_level, as_json)
    transports = settings.build_transports(found)
    _warn(found, transports)
    event_loop.run(run_until_signal(settings.build_worker_config(found, transports, sdk_metrics=sdk_metrics)))


@app.command()
def starter(
    lanes: LanesOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: JsonOption = False,
) -> None:
    """Start workflows for new mails until SIGTERM or SIGINT, and deliver none.

    A worker does this too unless [worker] with_starter = false. With the workers' accounts in its settings it leaves
    paused ones alone. Logs and JSON as for worker.
    """
    from sendonce.cli.starter_process import start_until_signal

    found = _with_lanes(settings.load(config), lanes)
    sdk_metrics = _set_up_logs(found, log_level, as_json)
    transports = settings.build_transports(found) if found.accounts else {}
    event_loop.run(start_until_signal(settings.build_worker_config(found, transports, sdk_metrics=sdk_metrics)))


def _set_up_logs(found: settings.Settings, log_level: LogLevel, as_json: bool) -> str | None:
    """Set up the log, and the SDK's metrics where somebody may ask for them; returns where those are."""
    logs.set_up(log_level.upper(), as_json, json_to_stderr=found.log.format == "json")
    return logs.forward_sdk_logs(metrics=found.watch.listen is not None)


def _with_lanes(found: settings.Settings, lanes: str | None) -> settings.Settings:
    if lanes is None:
        return found
    served = tuple(name.strip() for name in lanes.split(","))
    for name in served:
        if name not in found.lanes:
            raise ConfigurationError(f"--lanes: there is no lane {name!r}; lanes: {', '.join(found.lanes)}")
    return replace(found, worker=found.worker.model_copy(update={"lanes": served}))


def _warn(found: settings.Settings, transports: Mapping[str, Transport]) -> None:
    for warning in settings.warnings(found, transports):
        logger.warning("%s: %s", found.source, warning)
