"""One SMTP connection: opened, greeted, encrypted and logged in, ready for transactions.

Replies are paired strictly with commands. Whatever breaks the pairing (a timeout, a cut, a cancellation, a second
reply, something that is no reply) ends the connection: the next message is judged by its own replies only.
"""

from __future__ import annotations

import asyncio
import collections
import ipaddress
import ssl
from collections.abc import Sequence
from typing import cast

from aiosmtplib import (
    SMTPException,
    SMTPReadTimeoutError,
    SMTPResponse,
    SMTPResponseException,
    SMTPServerDisconnected,
    SMTPStatus,
)
from aiosmtplib.esmtp import parse_esmtp_extensions
from aiosmtplib.protocol import MAX_RESPONSE_LENGTH, SMTPProtocol

from sendonce.activities.transports import smtp_auth
from sendonce.activities.transports.smtp_replies import is_reply, reply_of
from sendonce.activities.transports.smtp_settings import SmtpSettings
from sendonce.activities.transports.smtp_token import TokenSource
from sendonce.outcome import AccountFault, Deferred, NotOffered, Outcome, Reply, storable

LEAVING = frozenset({421})
BROKEN_OFF = frozenset({*LEAVING, 500, 502, 503})
"""After these the connection is not used again: the server leaves (RFC 5321 3.8), or it and we do not agree on where
in the conversation we are."""

STRAY = "the server sent a reply nobody asked for"


class NoLine(Exception):
    """There is no connection to offer a mail over. ``outcome`` is what that means for every recipient."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome


class LineLost(Exception):
    """A command got no usable reply, and the connection is closed. ``reply`` says why, with code 0."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.reply = Reply(text=why)


class LineProtocol(SMTPProtocol):
    """aiosmtplib's protocol, with a way to wait until written data has left, and to see what came unasked."""

    def __init__(self) -> None:
        super().__init__()
        self._drained = asyncio.Event()
        self._drained.set()
        self._group: collections.deque[tuple[SMTPResponse | Exception, bool]] | None = None
        self._arrived = asyncio.Event()
        self._unasked = False
        self.mixed = False
        """The last reply had lines of different codes, which no server in order sends (RFC 5321 4.2.1)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.watch_buffer()

    def watch_buffer(self) -> None:
        """Have the transport call :meth:`pause_writing` as soon as anything is left in its buffer."""
        # asyncio's TLS transport pauses at the mark, its TCP transport above it.
        high = 1 if self.transport is not None and self.transport.get_extra_info("sslcontext") else 0
        cast(asyncio.WriteTransport, self.transport).set_write_buffer_limits(high=high, low=0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._drained.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._drained.set()
        self._arrived.set()

    def data_received(self, data: bytes) -> None:
        waiter = self._response_waiter
        if self._group is not None:
            self._buffer.extend(data)
            self._sort()
        elif waiter is not None and (not self._response_pending or waiter.done()):
            # aiosmtplib drops it; a connection on which the server says more than it was asked is not used again.
            self._unasked = True
        else:
            super().data_received(data)

    def _read_response_from_buffer(self) -> SMTPResponse | None:
        before = bytes(self._buffer)
        response = super()._read_response_from_buffer()
        if response is not None:
            lines = before[: len(before) - len(self._buffer)].splitlines()
            self.mixed = len({line[:3] for line in lines}) > 1
        return response

    def write_group(self, data: bytes) -> None:
        """Write several commands at once; as many calls of :meth:`next_reply` follow, then :meth:`end_group`."""
        self._group = collections.deque()
        self._arrived.clear()
        self.write(data)

    def _sort(self) -> None:
        assert self._group is not None
        try:
            while (response := self._read_response_from_buffer()) is not None:
                self._group.append((response, self.mixed))
            if len(self._buffer) > MAX_RESPONSE_LENGTH:
                raise SMTPResponseException(SMTPStatus.invalid_response.value, "Response too long")
        except SMTPResponseException as error:
            self._group.append((error, False))
        self._arrived.set()

    async def next_reply(self, timeout: float) -> SMTPResponse:
        """The next reply of the group. Raises SMTPException when there is none within ``timeout`` seconds."""
        assert self._group is not None
        try:
            async with asyncio.timeout(timeout):
                while not self._group:
                    if not self.is_connected:
                        raise SMTPServerDisconnected("Connection lost")
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise SMTPReadTimeoutError("Timed out waiting for server response") from None
        found, self.mixed = self._group.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def end_group(self) -> None:
        """All replies have been read; one that is left over was not asked for."""
        self._unasked = self._unasked or bool(self._group)
        self._group = None

    async def drained(self) -> None:
        """Return when everything written has been handed to the kernel, or the connection is gone."""
        await self._drained.wait()

    @property
    def replied(self) -> bool:
        """True when a reply (or the connection's end) has arrived that nobody has picked up."""
        return self._response_waiter is None or self._response_waiter.done()

    @property
    def stray(self) -> bool:
        """True when the server wrote more than the one reply it was asked for."""
        return bool(self._buffer) or self._unasked


class SmtpLine:
    """An open connection. Made by :func:`open_line`."""

    def __init__(self, protocol: LineProtocol, settings: SmtpSettings) -> None:
        self.protocol = protocol
        self.settings = settings
        self.extensions: dict[str, str] = {}
        """What the server offered in EHLO, names in lower case."""
        self.auth_methods: Sequence[str] = ()
        """The SASL mechanisms it offered, in lower case."""
        self.mails = 0
        """Transactions it has served."""
        self.open_transaction = False
        """MAIL was accepted and the transaction is not over: RSET is due before another one."""

    @property
    def usable(self) -> bool:
        """True while replies and commands are paired and the connection is up."""
        return self.protocol.is_connected and not self.protocol.stray

    def abort(self) -> None:
        """Close at once, without a word."""
        if self.protocol.transport is not None:
            cast(asyncio.WriteTransport, self.protocol.transport).abort()

    async def command(self, *words: bytes, timeout: float) -> Reply:
        """Send one command and read its reply, for at most ``timeout`` seconds.

        After a 421 the connection is closed (RFC 5321 3.8). Raises :class:`LineLost`. Whoever is cancelled in it must
        close: a reply is still due.
        """
        return (await self._exchange(*words, timeout=timeout))[0]

    async def _exchange(self, *words: bytes, timeout: float) -> tuple[Reply, str]:
        if self.protocol.stray:
            raise self.lost(STRAY)
        try:
            response = await self.protocol.execute_command(*words, timeout=timeout)
        except (SMTPException, ConnectionError) as error:
            raise self.lost(reason(error)) from error
        return self.checked(response), response.message

    def checked(self, response: SMTPResponse, *, refused: bool = False) -> Reply:
        """The reply, if it is one. Raises :class:`LineLost`.

        ``refused``: to a command that was written before its predecessor was refused: it is out of sequence, rightly.
        """
        if not is_reply(response.code):
            raise self.lost("the server's reply is not SMTP")
        if response.code in (LEAVING if refused else BROKEN_OFF) or self.protocol.mixed:
            self.abort()
        return reply_of(response.code, response.message)

    def write_group(self, *commands: bytes) -> None:
        """Send several commands at once (RFC 2920). Raises :class:`LineLost`."""
        if self.protocol.stray:
            raise self.lost(STRAY)
        try:
            self.protocol.write_group(b"".join(command + b"\r\n" for command in commands))
        except (SMTPException, ConnectionError) as error:
            raise self.lost(reason(error)) from error

    async def next_reply(self, timeout: float, *, refused: bool = False) -> Reply:
        """The reply to the next command of the group. Raises :class:`LineLost`. ``refused``: see :meth:`checked`."""
        try:
            return self.checked(await self.protocol.next_reply(timeout), refused=refused)
        except (SMTPException, ConnectionError) as error:
            raise self.lost(reason(error)) from error

    def lost(self, why: str) -> LineLost:
        """Close, and return the exception to raise."""
        self.abort()
        return LineLost(why)

    async def quit(self) -> None:
        """Leave in order, or at least close. Never raises but CancelledError."""
        try:
            if self.usable:
                await self.command(b"QUIT", timeout=self.settings.timeouts.quit)
        except LineLost:
            pass
        finally:
            self.abort()

    async def greet(self) -> None:
        """Read the greeting. Raises :class:`NoLine`."""
        try:
            reply = self.checked(await self.protocol.read_response(timeout=self.settings.timeouts.greeting))
        except (SMTPException, ConnectionError) as error:
            raise NoLine(NotOffered(Reply(text=f"greeting: {reason(error)}"))) from error
        except LineLost as lost:
            raise NoLine(NotOffered(lost.reply)) from lost
        if reply.code >= 500:
            raise NoLine(AccountFault(reply))
        if reply.code != 220:
            raise NoLine(NotOffered(reply))

    async def ehlo(self) -> None:
        """Introduce ourselves and learn what the server offers. Raises :class:`NoLine`."""
        name = self.settings.ehlo_name or self._literal()
        reply, text = await self.set_up(b"EHLO", name.encode(), timeout=self.settings.timeouts.ehlo)
        if reply.code >= 500:
            raise NoLine(AccountFault(reply))
        if reply.code != 250:
            raise NoLine(NotOffered(reply))
        self.extensions, self.auth_methods = parse_esmtp_extensions(text)

    async def set_up(self, *words: bytes, timeout: float) -> tuple[Reply, str]:
        """One command before the first mail: its reply, and the text as it was read. Raises :class:`NoLine`."""
        try:
            reply, text = await self._exchange(*words, timeout=timeout)
        except LineLost as lost:
            raise NoLine(NotOffered(lost.reply)) from lost
        if reply.code == 421:
            raise NoLine(Deferred(reply))
        return reply, text

    def _literal(self) -> str:
        transport = self.protocol.transport
        name = transport.get_extra_info("sockname") if transport is not None else None
        address = ipaddress.ip_address(str(name[0]).partition("%")[0]) if name else ipaddress.IPv4Address("127.0.0.1")
        return f"[IPv6:{address}]" if address.version == 6 else f"[{address}]"

    async def starttls(self, context: ssl.SSLContext) -> None:
        """Encrypt. Raises :class:`NoLine`; there is no way on without it (RFC 3207 4.1, RFC 8314 3)."""
        if "starttls" not in self.extensions:
            why = (
                "the server offers no STARTTLS; nothing was sent in clear: check host and port, or set tls = 'implicit'"
            )
            raise NoLine(AccountFault(Reply(enhanced="starttls_missing", text=why)))
        if self.protocol.stray:
            raise NoLine(NotOffered(Reply(text=STRAY)))
        try:
            await self.protocol.start_tls(
                context, server_hostname=self.settings.host, timeout=self.settings.timeouts.tls
            )
        except SMTPResponseException as error:
            reply = reply_of(error.code, error.message)
            if error.code == 421:
                raise NoLine(Deferred(reply)) from error
            raise NoLine(
                AccountFault(reply) if is_reply(error.code) else NotOffered(Reply(text=reason(error)))
            ) from error
        except ssl.SSLError as error:
            raise NoLine(tls_fault(error)) from error
        except (SMTPException, OSError) as error:
            raise NoLine(NotOffered(Reply(text=f"STARTTLS: {reason(error)}"))) from error
        self.protocol.watch_buffer()

    async def log_in(self, tokens: TokenSource | None) -> None:
        """Log in as the settings say. Raises :class:`NoLine`."""
        fault = await smtp_auth.log_in(self, tokens)
        if fault is not None:
            raise NoLine(fault)


async def open_line(settings: SmtpSettings, context: ssl.SSLContext, tokens: TokenSource | None = None) -> SmtpLine:
    """Connect, greet, encrypt and log in. Raises :class:`NoLine`; the connection is closed before anything leaves."""
    line = await connect(settings, context)
    try:
        await line.greet()
        await line.ehlo()
        if settings.tls == "starttls":
            await line.starttls(context)
            # What was offered in clear is void (RFC 3207 4.2).
            await line.ehlo()
        if settings.username is not None:
            await line.log_in(tokens)
    except BaseException:
        line.abort()
        raise
    return line


async def connect(settings: SmtpSettings, context: ssl.SSLContext) -> SmtpLine:
    """A connection, in TLS if that is implicit, on which nothing was said. Raises :class:`NoLine`."""
    implicit = settings.tls == "implicit"
    timeouts = settings.timeouts
    try:
        async with asyncio.timeout(timeouts.connect + (timeouts.tls if implicit else 0)):
            _, protocol = await asyncio.get_running_loop().create_connection(
                LineProtocol,
                settings.host,
                settings.port,
                ssl=context if implicit else None,
                ssl_handshake_timeout=timeouts.tls if implicit else None,
            )
    except ssl.SSLError as error:
        raise NoLine(tls_fault(error)) from error
    except (OSError, UnicodeError) as error:
        raise NoLine(NotOffered(Reply(text=f"connect: {reason(error)}"))) from error
    return SmtpLine(protocol, settings)


def tls_fault(error: ssl.SSLError) -> Outcome:
    """A certificate that does not verify, no common version, or a port that speaks no TLS: a matter of set-up.

    A handshake that is cut is no SSLError in asyncio, but a ConnectionError.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return AccountFault(Reply(enhanced="certificate", text=storable(f"TLS: {error.verify_message}")))
    return AccountFault(Reply(enhanced="tls", text=storable(f"TLS: {error.reason or type(error).__name__}")))


def reason(error: BaseException) -> str:
    """Why there was no reply, in words that hold nothing the server or the mail said."""
    if isinstance(error, (SMTPReadTimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(error, SMTPResponseException):
        return "the server's reply is not SMTP"
    if isinstance(error, OSError) and error.strerror:
        return storable(error.strerror)
    if isinstance(error, ConnectionError):
        return "the connection was lost"
    return type(error).__name__
