"""Where notifications come from: standard input and a Maildir. The third way is :mod:`sendonce.dsn.lmtp`.

A source hands each mail to a :data:`Handle`. What it cannot hand on stays where it is and comes again.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import select
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sendonce.dsn.parts import LIMIT
from sendonce.errors import ConfigurationError

Handle = Callable[[bytes, tuple[str, ...]], Awaitable[None]]
"""Takes a mail and the mailboxes of its envelope (none when unknown). Any exception means that it was not recorded;
the mail then comes again, and what was recorded of it before is recorded once (``Event.event_id``)."""

BATCH = 500
"""Mails of a Maildir that one pass takes; the next pass takes the next ones."""
_CHUNK = 64 * 1024

logger = logging.getLogger(__name__)


def read_descriptor(descriptor: int, seconds: float, limit: int = LIMIT) -> bytes:
    """Read a mail up to its end and keep the first ``limit`` octets; the rest is read too, for the writer's sake.

    Blocks for ``seconds`` at most.

    :raises TimeoutError: the end did not come in time.
    :raises OSError: it cannot be read.
    """
    mail = bytearray()
    end = time.monotonic() + seconds
    while True:
        # Files are always ready; only a pipe makes one wait.
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no end of the mail after {seconds:g} s")
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            return bytes(mail)
        mail += chunk[: max(0, limit - len(mail))]


def envelope_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The mailboxes that Postfix (local(8)) and Exim (its specification, 29.4) name to a command that gets a mail."""
    named = (environ.get(name, "") for name in ("ORIGINAL_RECIPIENT", "RECIPIENT"))
    return tuple(dict.fromkeys(one for one in named if "@" in one))


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over a Maildir came to."""

    taken: int
    """Mails that were recorded and moved."""
    failed: bool
    """One could not be recorded, and the pass ended there."""


class Maildir:
    """A Maildir of notifications: a mail is read in ``new``, recorded, then moved to ``cur`` with the flag S (seen).

    A crash before the move leaves it in ``new``: it is read again, and its events are the same ones by their
    ``event_id``. After the move it is never read again. Several processes may read one Maildir.
    """

    def __init__(self, folder: Path) -> None:
        """:raises ConfigurationError: there is no Maildir, or it may not be written."""
        self.new, self.cur = folder / "new", folder / "cur"
        for part in (self.new, self.cur):
            # Asked in this order, a name that is too long is only one that is not there.
            if not os.access(part, os.R_OK | os.W_OK | os.X_OK) or not part.is_dir():
                raise ConfigurationError(
                    f"{folder} is no Maildir that can be read: it needs the folders new, cur and tmp, "
                    "and this user needs to read and write them"
                )
        self._put_off: set[str] = set()

    async def take(self, handle: Handle) -> Pass:
        """Hand on every mail in ``new``, in the order of their names; end at the first that cannot be recorded.

        That one comes last from then on, so that a mail which can never be recorded holds up no other.

        :raises OSError: the folder cannot be listed.
        """
        taken = 0
        for name in self._waiting():
            try:
                mail = self._read(name)
                if mail is not None:
                    await handle(mail, ())
                    self._move(name)
                    taken += 1
            except Exception as error:
                # Without its words: they may quote what could not be stored.
                why = type(error).__name__
                logger.warning("the mail %r in %s was not recorded (%s) and stays there", name, self.new, why)
                self._put_off.add(name)
                return Pass(taken, failed=True)
            self._put_off.discard(name)
        return Pass(taken, failed=False)

    def _waiting(self) -> list[str]:
        return [name for _, name in heapq.nsmallest(BATCH, self._names())]

    def _names(self) -> Iterator[tuple[bool, str]]:
        with os.scandir(self.new) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    yield entry.name in self._put_off, entry.name

    def _read(self, name: str) -> bytes | None:
        """The mail, cut at its limit; None when it is gone (another process has taken it) or is no file."""
        try:
            # A pipe or a link in its place must neither block nor lead elsewhere.
            descriptor = os.open(self.new / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            mail = bytearray()
            while len(mail) < LIMIT and (chunk := file.read(min(_CHUNK, LIMIT - len(mail)))):
                mail += chunk
            return bytes(mail)

    def _move(self, name: str) -> None:
        # Gone: another process was faster, and both recorded the same events.
        with contextlib.suppress(FileNotFoundError):
            (self.new / name).rename(self.cur / f"{name.partition(':')[0]}:2,S")
