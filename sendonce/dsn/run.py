"""What ``sendonce dsn`` runs: one of the sources, with what it reads recorded or parked.

``record`` and ``park`` are the store's; they raise when it is away. A mail whose recording failed stays with whoever
has it: the mail server (exit status 75, LMTP 451) or the Maildir.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sendonce.dsn.lmtp import Lmtp, LmtpLimits
from sendonce.dsn.proof import Proof
from sendonce.dsn.reader import Unproven, read
from sendonce.dsn.sources import BATCH, Handle, Maildir, envelope_of, read_descriptor
from sendonce.errors import ConfigurationError
from sendonce.events import Event

Record = Callable[[Sequence[Event]], Awaitable[None]]
"""Records proved events; the same ``event_id`` twice is one. Never called with none."""
Park = Callable[[Sequence[Unproven]], Awaitable[None]]
"""Keeps what is not proved, to be shown; it suppresses and settles nothing. Never called with none."""

EX_TEMPFAIL = 75
"""The exit status at which Postfix and Exim keep a mail and pipe it again (``sysexits.h``). Any other than 0 makes them
drop it: nobody is told of a bounce that bounces."""
STDIN_SECONDS = 600.0
"""How long the end of a mail on standard input is waited for."""
MAILDIR_SECONDS = 5.0
"""Between two looks at a Maildir."""

logger = logging.getLogger(__name__)


def handler(proof: Proof, record: Record, park: Park) -> Handle:
    """What a source hands its mails to. It raises what ``record`` and ``park`` raise."""

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        reading = read(mail, proof, recipients)
        if reading.events:
            await record(reading.events)
        if reading.unproven:
            await park(reading.unproven)
        logger.info("a mail with %d proved and %d other events", len(reading.events), len(reading.unproven))

    return handle


async def from_stdin(
    handle: Handle, *, descriptor: int = 0, environ: Mapping[str, str] = os.environ, seconds: float = STDIN_SECONDS
) -> int:
    """Read one mail, as a mail server pipes it; returns the exit status, 0 or :data:`EX_TEMPFAIL`."""
    try:
        mail = await asyncio.to_thread(read_descriptor, descriptor, seconds)
        await handle(mail, envelope_of(environ))
    except Exception as error:
        logger.warning("the mail was not recorded (%s): exit status %d", type(error).__name__, EX_TEMPFAIL)
        return EX_TEMPFAIL
    return 0


async def from_maildir(
    handle: Handle, folder: Path, stop: asyncio.Event, *, interval: float = MAILDIR_SECONDS, once: bool = False
) -> bool:
    """Take the mails of a Maildir until ``stop`` is set, looking every ``interval`` seconds.

    ``once``: take what is there and return. Returns False when a mail could not be recorded by the end.
    After ``stop`` one more look is taken at most.

    :raises ConfigurationError: there is no Maildir there, or it may not be written.
    """
    maildir = Maildir(folder)
    while True:
        found = await maildir.take(handle)
        more = found.taken >= BATCH and not found.failed
        if stop.is_set() or (once and not more):
            return not found.failed
        if not more:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await stop.wait()


async def from_lmtp(
    handle: Handle,
    address: str,
    stop: asyncio.Event,
    *,
    ready: Callable[[int], None] | None = None,
    limits: LmtpLimits | None = None,
) -> None:
    """Listen until ``stop`` is set; what is being recorded then gets a while to end.

    ``address``: see :func:`lmtp_address`. ``ready`` is called with the port (0: a Unix socket) once it listens.

    :raises ConfigurationError: the address is none that may be listened on.
    :raises OSError: it is taken.
    """
    where = lmtp_address(address)
    async with Lmtp(handle, host=where.host, port=where.port, path=where.path, limits=limits) as listener:
        if ready is not None:
            ready(listener.port)
        await stop.wait()


@dataclass(frozen=True, slots=True)
class LmtpAddress:
    """Where to listen: a Unix socket, or a port of a loopback address."""

    host: str = ""
    port: int = 0
    path: Path | None = None


def lmtp_address(text: str) -> LmtpAddress:
    """Read ``127.0.0.1:10024``, ``localhost:10024``, ``[::1]:10024`` or ``unix:/run/sendonce/dsn.sock``.

    :raises ConfigurationError: anything else, and hosts that are not loopback: LMTP knows no log-in.
    """
    if text.startswith("unix:"):
        if not text.startswith("unix:/"):
            raise ConfigurationError("the path of the LMTP socket must begin with /: unix:/run/sendonce/dsn.sock")
        return LmtpAddress(path=Path(text.removeprefix("unix:")))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ConfigurationError("LMTP listens on HOST:PORT or unix:/PATH, such as 127.0.0.1:10024")
    if host != "localhost":
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ConfigurationError("LMTP knows no log-in: listen on 127.0.0.1, [::1], localhost or a Unix socket")
    return LmtpAddress(host, int(port))
