"""The log of a running process: text or JSON, on standard error, or as JSON on standard output.

What a line says of a mail stands in it as ``name=value``; JSON has these as members of their own, too.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
from datetime import UTC, datetime
from types import TracebackType

from sendonce.cli.output import to_json
from sendonce.errors import ConfigurationError

SDK_PORTS = 5
"""Free ports that are tried: between looking and taking, somebody else may take one."""


_PLACEHOLDER = re.compile(r"(?:\b([a-z][a-z_]*)=)?%([%sdrgf]|\.\d+f)")
"""A place in a format, and its name if it has one."""

_NOT_A_NAME = frozenset({"at", "level", "logger", "message", "error"})

_QUIET = ("httpx", "httpcore", "botocore", "urllib3", "opentelemetry")
"""Libraries that write down URLs, headers and bodies: that of a look-up may hold what the mail is found by."""


def set_up(level: str, as_json: bool, *, json_to_stderr: bool = False) -> None:
    """Log everything from ``level`` upwards. Of an exception only the type and the place are shown: its text may
    quote a mail.
    """
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    plain = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_Json() if as_json or json_to_stderr else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It warns of every failed connection, many a second; the loops say once that the store is away, and once that it
    # is back.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def forward_sdk_logs(*, metrics: bool = False) -> str | None:
    """Let the Temporal SDK's own log go the same way as everything else, instead of to standard output.

    For commands that talk to Temporal; the others need not load its SDK. Once in a process. ``metrics``: have the SDK
    show its metrics on a free port of loopback; returned as ``host:port``.
    """
    from temporalio.runtime import (
        LogForwardingConfig,
        LoggingConfig,
        PrometheusConfig,
        Runtime,
        TelemetryConfig,
        TelemetryFilter,
    )

    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    log = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"), forwarding=forwarding)
    if not metrics:
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=log)))
        return None
    for _ in range(SDK_PORTS):
        address = f"127.0.0.1:{_free_port()}"
        shown = PrometheusConfig(bind_address=address, durations_as_seconds=True, unit_suffix=True)
        try:
            Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=log, metrics=shown)))
        except ValueError:
            # Somebody else took the port in between.
            continue
        return address
    raise ConfigurationError("the Temporal SDK found no port on 127.0.0.1 for its metrics")


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


class _Plain(logging.Formatter):
    def formatException(  # noqa: N802  # the standard library's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        # Loaded where a process runs anyway; a command that only looks never gets here.
        from sendonce.activities.failures import where

        return where(ei[1]) if ei[1] is not None else ""


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What the record's format says by name: ``key=%s`` with the argument ``order-1`` is the member ``key``."""
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return {}
    places = [place[1] for place in _PLACEHOLDER.finditer(record.msg) if place[2] != "%"]
    if len(places) != len(record.args):
        return {}
    named = zip(places, record.args, strict=True)
    return {name: _jsonable(value) for name, value in named if name and name not in _NOT_A_NAME}


def _jsonable(value: object) -> object:
    return value if isinstance(value, (int, float, bool)) else str(value)


class _Json(_Plain):
    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return to_json(body)
