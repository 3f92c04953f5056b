"""A worker as a process of its own, which can be told to end or to freeze itself at a point of its store.

``worker_process.py sendonce.toml [SIGNAL before|after METHOD]``: the first time that METHOD of the store is called,
the process sends itself SIGNAL before the call, or once it has returned, which is after its commit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sendonce import settings
from sendonce.cli import logs
from sendonce.store import Store
from sendonce.worker import run_until_signal


def signal_itself(name: str, when: str, method: str) -> None:
    """Wrap ``method`` so that its first call sends signal ``name`` to this process."""
    original = getattr(Store, method)
    calls = 0

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        first = calls == 1
        if first and when == "before":
            os.kill(os.getpid(), signal.Signals[name])
        answer = await original(*args, **kwargs)
        if first and when == "after":
            os.kill(os.getpid(), signal.Signals[name])
        return answer

    setattr(Store, method, wrapped)


def main(file: str, *point: str) -> None:
    """Serve until SIGTERM, by the settings in ``file``."""
    logs.set_up("INFO", as_json=False)
    if point:
        signal_itself(*point)
    found = settings.load(Path(file))
    asyncio.run(run_until_signal(settings.build_worker_config(found, settings.build_transports(found))))


if __name__ == "__main__":
    main(*sys.argv[1:])
