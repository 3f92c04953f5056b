"""The connections of one SMTP account: bounded, kept for a while, and never trusted longer than they deserve."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

from sendonce.activities.transports.smtp_connection import LineLost, NoLine, SmtpLine, open_line
from sendonce.activities.transports.smtp_settings import SmtpSettings
from sendonce.activities.transports.smtp_token import TokenSource
from sendonce.ending import end
from sendonce.outcome import NotOffered, Reply

WAIT_SECONDS = 30.0
"""How long a mail waits for one of the pool's connections; then it is tried again later, uncounted."""


class SmtpPool:
    """Idle connections are taken last in, first out, so that those nobody needs reach their idle time."""

    def __init__(self, settings: SmtpSettings, context: ssl.SSLContext, tokens: TokenSource | None = None) -> None:
        self._settings = settings
        self._context = context
        self._tokens = tokens
        self._places = _Places(settings.pool.max_connections, settings.pool.kept_free)
        self._idle: dict[SmtpLine, asyncio.TimerHandle] = {}
        # With whether the place is one of those for urgent mail only.
        self._busy: dict[SmtpLine, bool] = {}
        self._leaving: dict[asyncio.Task[None], SmtpLine] = {}
        self._closed = False

    async def take(self, *, fresh: bool = False, urgent: bool = False) -> SmtpLine:
        """A connection that is up, for one mail; ``fresh``: one that nobody has used; ``urgent``: also one of those
        that are kept free for such mail.

        A connection that the server closed, or wrote to unasked, is passed over. Raises
        :class:`~sendonce.activities.transports.smtp_connection.NoLine`. Give it back with :meth:`give` or :meth:`drop`.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire(urgent=urgent)
        except TimeoutError:
            raise NoLine(
                NotOffered(Reply(text="no connection of the account's pool was free"), counted=False)
            ) from None
        try:
            line = None if fresh else self._kept()
            if line is None:
                line = await open_line(self._settings, self._context, self._tokens)
        except BaseException:
            self._places.release(urgent=urgent)
            raise
        self._busy[line] = urgent
        return line

    def _kept(self) -> SmtpLine | None:
        while self._idle:
            line, timer = self._idle.popitem()
            timer.cancel()
            if line.usable:
                return line
            line.abort()
        return None

    def give(self, line: SmtpLine) -> None:
        """The mail is settled: keep the connection if it may be used again, else leave in order. Returns at once."""
        urgent = self._busy.pop(line)
        line.mails += 1
        pool = self._settings.pool
        if not line.usable:
            line.abort()
            self._places.release(urgent=urgent)
        elif self._closed or pool.idle_seconds == 0 or line.mails >= pool.mails_per_connection:
            # Nobody waits for the good-bye.
            self._later(line, self._leave(line, urgent=urgent))
        elif line.open_transaction:
            self._later(line, self._reset(line, urgent=urgent))
        else:
            self._keep(line)
            self._places.release(urgent=urgent)

    def drop(self, line: SmtpLine) -> None:
        """Something broke the pairing of commands and replies, or nobody knows: close at once."""
        urgent = self._busy.pop(line)
        line.abort()
        self._places.release(urgent=urgent)

    def _keep(self, line: SmtpLine) -> None:
        timer = asyncio.get_running_loop().call_later(self._settings.pool.idle_seconds, self._expire, line)
        self._idle[line] = timer

    def _expire(self, line: SmtpLine) -> None:
        if self._idle.pop(line, None) is not None:
            self._later(line, line.quit())

    async def _leave(self, line: SmtpLine, *, urgent: bool) -> None:
        try:
            await line.quit()
        finally:
            self._places.release(urgent=urgent)

    async def _reset(self, line: SmtpLine, *, urgent: bool) -> None:
        """The server refused the transaction in order (RFC 5321 4.1.1.5): it may be used again once it says so."""
        try:
            reply = await line.command(b"RSET", timeout=self._settings.timeouts.quit)
            if reply.code == 250 and line.usable and not self._closed:
                line.open_transaction = False
                self._keep(line)
            else:
                line.abort()
        except LineLost:
            pass
        except BaseException:
            line.abort()
            raise
        finally:
            self._places.release(urgent=urgent)

    def _later(self, line: SmtpLine, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(body)
        self._leaving[task] = line
        task.add_done_callback(self._leaving.pop)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self._closed = True
        leaving = dict(self._leaving)
        await end(leaving)
        for line in leaving.values():
            # A task that is cancelled before its first step has closed nothing.
            line.abort()
        for line, timer in self._idle.items():
            timer.cancel()
            line.abort()
        self._idle.clear()
        for line in list(self._busy):
            line.abort()


class _Places:
    """Connections at once: some are kept free for urgent mail, which may take any."""

    def __init__(self, places: int, kept_free: int) -> None:
        self._all = asyncio.Semaphore(places)
        self._common = asyncio.Semaphore(places - kept_free)

    async def acquire(self, *, urgent: bool) -> None:
        if urgent:
            await self._all.acquire()
            return
        await self._common.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._common.release()
            raise

    def release(self, *, urgent: bool) -> None:
        self._all.release()
        if not urgent:
            self._common.release()
