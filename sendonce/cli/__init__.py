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

import sys

import sendonce.cli.deciding
import sendonce.cli.demo
import sendonce.cli.doctor
import sendonce.cli.reading  # importing a module adds its commands
import sendonce.cli.receiving
import sendonce.cli.running
import sendonce.cli.templates
import sendonce.cli.up  # noqa: F401
from sendonce.cli.base import app

__all__ = ["app", "main"]


def main() -> None:
    """The entry point ``sendonce``."""
    sys.exit(app())
