"""Starting workflows beside an application's own work: never blocking it, never raising into it.

A mail that is not started from here is found by the starter: this saves its moment of looking, and promises nothing.
So whatever goes wrong, or is too much at once, is dropped.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVarTuple, Unpack
from weakref import WeakSet

from temporalio.client import Client

from sendonce.activities.failures import client_options, where
from sendonce.starter import start_now
from sendonce.store.intake import Enqueued

logger = logging.getLogger(__name__)

CAPACITY = 1000
"""Mails that wait or are being started; what is beyond is dropped."""

AT_ONCE = 50
"""Starts that are under way at the same time."""

LONGEST_ROUND = 15.0
"""Seconds for one round of starts, connecting included."""


_Ts = TypeVarTuple("_Ts")

CLOSING = 1.0
"""Seconds for which the loop waits for threads that are handing something over to it when it closes."""


BARRED = (
    "this process was forked from one that had used Temporal's SDK, which does not survive that; the starter will. Make"
    " the first start, or the Temporal runtime, after the fork"
)


class PatientLoop(asyncio.SelectorEventLoop):
    """An event loop that is not closed while another thread is handing something over to it.

    Threads of the SDK hand over what Temporal answered, and let go of the interpreter's lock on the way. A process that
    ended just then, on Python before 3.14, was aborted by them, with a core dump instead of its exit code
    (https://github.com/temporalio/sdk-python/issues/300, https://github.com/python/cpython/issues/87135).
    """

    _inside = 0

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As in the base class. Counted by two plain statements: any call in their place might let go of the lock."""
        self._inside += 1
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        finally:
            self._inside -= 1

    def close(self) -> None:
        """Close, once nobody is handing anything over, or after :data:`CLOSING`."""
        deadline = time.monotonic() + CLOSING
        while self._inside and time.monotonic() < deadline:
            time.sleep(0.001)
        super().close()


class Starts(Protocol):
    """What starts the workflows of committed mails."""

    def start(self, *mails: Enqueued) -> None:
        """Have their workflows started soon. Returns at once, raises nothing, and may drop them."""


class BackgroundStarter:
    """Starts workflows from a thread of its own, with an event loop and a Temporal client of its own.

    For applications without an event loop; it works in all others too. The thread begins with the first mail, in each
    process after a fork, and ends with :meth:`close` or the process. What is forked after the first mail starts none,
    and says so once: Temporal's SDK would hang or crash there.
    """

    def __init__(
        self,
        target_host: str = "localhost:7233",
        *,
        task_queue_prefix: str = "sendonce",
        capacity: int = CAPACITY,
        **options: Any,
    ) -> None:
        """``target_host``: Temporal's address, ``host:port``; it is not asked before the first mail.

        ``capacity``: mails that may wait, 1 or more; what is beyond is dropped. ``options`` are those of
        ``temporalio.client.Client.connect``, such as ``namespace``, ``tls`` and ``api_key``.
        """
        self._connect = {**client_options(), **options, "target_host": target_host, "lazy": True}
        self._prefix = task_queue_prefix
        self._capacity = capacity
        self._closed = False
        self._barred = False
        self._full = False
        self._fresh()
        _all.add(self)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Enqueued | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, *mails: Enqueued) -> None:
        """Have the workflows of these committed mails started soon. Returns at once and raises nothing."""
        with self._lock:
            if self._closed:
                return
            if _barred or self._barred:
                if not self._full:
                    logger.warning("mails are not started here: %s", BARRED)
                self._full = True
                return
            room = max(0, self._capacity - self._waiting.qsize())
            for mail in mails[:room]:
                self._waiting.put(mail)
            if self._thread is None or not self._thread.is_alive():
                self._begin()
            # Said once for as long as there is no room.
            told, self._full = self._full, len(mails) > room
        if self._full and not told:
            logger.warning("mails are not started here, %d wait already; the starter will", self._capacity)

    def close(self, timeout: float = 5.0) -> None:
        """Start what waits, for at most ``timeout`` seconds, and drop the rest. Later mails are dropped at once."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            self._waiting.put(None)
        atexit.unregister(self.close)
        if thread is None:
            return
        thread.join(timeout)
        if thread.is_alive() and (loop := self._loop) is not None:
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(loop.stop)
            thread.join(2 * CLOSING)

    def __enter__(self) -> BackgroundStarter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="sendonce starts", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            logger.warning("no thread to start mails from; the starter will")
            return
        self._thread = thread
        atexit.register(self.close)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=PatientLoop) as runner:
            self._loop = runner.get_loop()
            client: Client | None = None
            while mails := self._next():
                try:
                    if client is None:
                        client = runner.run(self._client())
                    runner.run(self._round(client, mails))
                except Exception as error:
                    if self._closed:
                        return  # the loop was stopped
                    logger.warning("%d mails not started here, the starter will: %s", len(mails), where(error))

    def _next(self) -> list[Enqueued]:
        """What waits, once there is something; nothing when this is to end."""
        mail = self._waiting.get()
        mails: list[Enqueued] = []
        while mail is not None:
            mails.append(mail)
            if len(mails) == AT_ONCE:
                return mails
            try:
                mail = self._waiting.get_nowait()
            except Empty:
                return mails
        if mails:
            self._waiting.put(None)
        return mails

    async def _client(self) -> Client:
        global _used
        _used = True
        return await Client.connect(**self._connect)

    async def _round(self, client: Client, mails: list[Enqueued]) -> None:
        async with asyncio.timeout(LONGEST_ROUND):
            starts = (start_now(client, mail, task_queue_prefix=self._prefix) for mail in mails)
            await asyncio.gather(*starts, return_exceptions=True)


_all: WeakSet[BackgroundStarter] = WeakSet()


_used = False
"""Has this process had the SDK connect from here?"""

_barred = False
"""Or one that it was forked from?"""


def _after_fork() -> None:
    global _barred
    _barred = _used
    for starter in list(_all):
        starter._barred = "runtime" in starter._connect
        starter._fresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class LoopStarter:
    """Starts workflows as tasks of the event loop in which it is made, with the application's own Temporal client.

    ``start`` may be called from any thread.
    """

    def __init__(self, client: Client, *, task_queue_prefix: str = "sendonce", capacity: int = CAPACITY) -> None:
        """``client`` belongs to the running loop; it is best connected with
        :func:`sendonce.activities.failures.client_options`. ``capacity``: starts that may be under way.
        """
        self._client = client
        self._prefix = task_queue_prefix
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[bool]] = set()
        self._full = False

    def start(self, *mails: Enqueued) -> None:
        """Have the workflows of these committed mails started soon. Returns at once and raises nothing."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._spawn, mails)

    async def close(self, timeout: float = 5.0) -> None:
        """Wait for the starts that are under way, at most ``timeout`` seconds, and drop the rest."""
        await asyncio.sleep(0)  # those that were handed over just now become tasks
        if tasks := set(self._tasks):
            _, left = await asyncio.wait(tasks, timeout=timeout)
            for task in left:
                task.cancel()

    def _spawn(self, mails: tuple[Enqueued, ...]) -> None:
        for mail in mails:
            if len(self._tasks) >= self._capacity:
                if not self._full:
                    logger.warning("mails are not started here, %d are being started; the starter will", self._capacity)
                self._full = True
                return
            self._full = False
            task = self._loop.create_task(start_now(self._client, mail, task_queue_prefix=self._prefix))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
