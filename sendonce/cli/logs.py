"""The log of a running process, on standard error, or as JSON on standard output."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from types import TracebackType

from sendonce.cli.output import to_json


def set_up(level: str, as_json: bool) -> None:
    """Log everything from ``level`` upwards. Of an exception only the type and the place are shown: its text may
    quote a mail.
    """
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    handler.setFormatter(_Json() if as_json else _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It warns of every failed connection, many a second; the loops say once that the store is away, and once that it
    # is back.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    # It writes down the URL of every request; that of a look-up may hold what the mail is found by.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def forward_sdk_logs() -> None:
    """Let the Temporal SDK's own log go the same way as everything else, instead of to standard output.

    For commands that talk to Temporal; the others need not load its SDK. Once in a process.
    """
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    log = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"), forwarding=forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=log)))


class _Plain(logging.Formatter):
    def formatException(  # noqa: N802  # the standard library's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        # Loaded where a process runs anyway; a command that only looks never gets here.
        from sendonce.activities.failures import where

        return where(ei[1]) if ei[1] is not None else ""


class _Json(_Plain):
    def format(self, record: logging.LogRecord) -> str:
        body = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return to_json(body)
