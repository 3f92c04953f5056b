"""Ends child processes when the process that started them is gone, however it went.

Run as a script of its own by :mod:`sendonce.embedded.process`. Standard input carries one line per change,
``+ pid`` or ``- pid``; its end means that the parent is gone, and then every process group still listed is killed.
Standard library only: it starts without site-packages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the list until standard input ends, then kill what is left on it."""
    # A Ctrl-C or a hang-up meant for the parent must not take the guard away before the parent is gone.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        sign, pid = line.split()
        if sign == "+":
            groups.add(int(pid))
        else:
            groups.discard(int(pid))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
