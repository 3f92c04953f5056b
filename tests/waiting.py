"""What the tasks of a test wait for, shown shortly before its time is over: the time-out itself shows the loop only."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BEFORE_SECONDS = 10.0


@contextmanager
def shown_when_late(timeout: float) -> Iterator[None]:
    """Show it on stderr, ``BEFORE_SECONDS`` before ``timeout`` seconds have gone by within the block."""
    timer = threading.Timer(max(1.0, timeout - BEFORE_SECONDS), lambda: print(awaited(), file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def awaited() -> str:
    """Each task of each loop that runs in this process, and where its coroutines stand, the outermost first."""
    lines = ["What the tasks wait for:"]
    for loop in gc.get_objects():
        if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_running():
            for task in asyncio.all_tasks(loop):
                lines.append(f"  {task.get_name()}")
                inner: Any = task.get_coro()
                while frame := getattr(inner, "cr_frame", None):
                    lines.append(f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
                    inner = getattr(inner, "cr_await", None)
    return "\n".join(lines)
