"""The command line: ``sendonce``.

Exit codes, the same for every command:

===  ==========================================================================
0    done
1    the answer is no: no such mail, a template with a fault, an account that does not work
2    usage or configuration
3    PostgreSQL or Temporal is away, or the schema is not ready
===  ==========================================================================

With ``--json`` a command prints one object, or one object per row, each on a line of its own, to standard output.
Names in these objects are stable: new ones may come, none goes or changes its meaning. Times are ISO 8601 in UTC.
Errors and progress go to standard error. Personal data is masked or left out unless ``--reveal`` is given.
"""

from __future__ import annotations

import logging
import os
import sys

import sendonce.cli.access  # importing a module adds its commands
import sendonce.cli.acting
import sendonce.cli.alarms
import sendonce.cli.deciding
import sendonce.cli.demo
import sendonce.cli.doctor
import sendonce.cli.erasing
import sendonce.cli.holding
import sendonce.cli.listing
import sendonce.cli.receiving
import sendonce.cli.reconciling
import sendonce.cli.recovery
import sendonce.cli.running
import sendonce.cli.sending_again
import sendonce.cli.setup
import sendonce.cli.showing
import sendonce.cli.stats
import sendonce.cli.templates
import sendonce.cli.up  # noqa: F401
from sendonce.cli.base import app

__all__ = ["app", "main", "process"]


def main() -> None:
    """The entry point ``sendonce``."""
    sys.exit(app())


def process() -> None:
    """The process ``sendonce``: :func:`main`, whose exit code is the process's even when Temporal was talked to.

    A thread of the SDK that still hands over the last answer while the interpreter ends kills the process by SIGABRT
    before Python 3.14 (temporalio/sdk-python#300, python/cpython#87135): a ``setup`` that had done everything failed,
    and whoever waited for it. So where the SDK is loaded, the interpreter is not taken down piece by piece. Every
    command has closed what it opened by then.
    """
    try:
        main()
    except SystemExit as ended:
        if "temporalio.bridge.temporal_sdk_bridge" not in sys.modules or not isinstance(ended.code, int | None):
            raise
        logging.shutdown()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            raise ended from None
        os._exit(ended.code or 0)
