"""A thread with an event loop of its own, so that sync and async tests ask alike, whatever loop they run in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """The loop runs from the first call until :meth:`close`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run ``work`` there and wait for it. Raises TimeoutError, and cancels it, after so many seconds."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="sendonce.testing", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(_bounded(work, seconds), self._loop).result()

    def close(self) -> None:
        """End the thread. Safe to repeat."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _bounded(work: Coroutine[Any, Any, T], seconds: float) -> T:
    async with asyncio.timeout(seconds):
        return await work
