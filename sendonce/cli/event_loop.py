"""The event loop of a process that serves: uvloop where it is installed, and garbage looked for less often."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

YOUNG = 20_000
"""Objects made before the collector looks for garbage. A mail makes a few thousand, nearly none of them in a cycle;
the interpreter's own default, 700 (2,000 from 3.13 on), looks several times per mail."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server until it ends."""
    # What was loaded stays: it need not be looked at again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
