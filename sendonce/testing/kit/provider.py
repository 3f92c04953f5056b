"""A provider that is played: it accepts everything, or does what the test says, in words that fit SMTP and HTTP."""

from __future__ import annotations

import asyncio
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sendonce.testing import http_misbehaviour, smtp_misbehaviour
from sendonce.testing.http_misbehaviour import HttpAct
from sendonce.testing.http_server import HttpServer
from sendonce.testing.kit.clock import Clock, seconds_of, spoken
from sendonce.testing.script import Rule
from sendonce.testing.smtp_misbehaviour import SmtpAct
from sendonce.testing.smtp_server import SmtpServer

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport


class Provider(ABC):
    """What plays one account's provider. What it is told holds from now on, until :meth:`recover`."""

    server: SmtpServer | HttpServer
    """The playing server, with its script, its mailbox, and its sessions or requests."""

    def __init__(self, account: str, clock: Clock) -> None:
        self.account = account
        self._clock = clock
        self._down_until = -math.inf
        self._told: list[tuple[str, list[Rule[Any]]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shut: socket.socket | None = None

    # What a test says

    def down_for(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Nobody can connect for so long, by the test's clock; connections that are open are cut."""
        length = seconds_of(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._down_until = self._clock.now().timestamp() + length
        self._tell_server()

    def down(self) -> None:
        """Nobody can connect until :meth:`recover`."""
        self._down_until = math.inf
        self._tell_server()

    @abstractmethod
    def reply_with(self, reply: str, *, times: int | None = None, at: str | None = None) -> None:
        """Answer with ``reply`` instead of accepting; ``times`` None: always.

        By SMTP ``"451 4.7.1 greylisted"``, at ``rcpt`` unless ``at`` says mail, data, dot or connect. By HTTP a status,
        and optionally the provider's code of the error: ``"429 rate_limit_exceeded"``.
        """

    @abstractmethod
    def defer(self, *, times: int | None = None) -> None:
        """Say "try again later"."""

    @abstractmethod
    def refuse(self, mailbox: str) -> None:
        """Refuse this recipient for good."""

    @abstractmethod
    def lose_answer(self, *, times: int | None = 1) -> None:
        """Accept the mail and cut the connection instead of saying so."""

    @abstractmethod
    def refuse_login(self) -> None:
        """Refuse the account: what a wrong password or key is answered with."""

    def recover(self) -> None:
        """Accept everything again."""
        self._down_until = -math.inf
        for _, rules in self._told:
            for rule in rules:
                rule.times = 0
        self._told.clear()
        self._tell_server()

    def state(self) -> str:
        """What it does now, for people: ``"accepts everything"``."""
        now = self._clock.now().timestamp()
        if self._down_until == math.inf:
            return "is down"
        if now < self._down_until:
            return f"is down for another {spoken(self._down_until - now)}"
        told = [_left(what, rules) for what, rules in self._told if any(rule.times != 0 for rule in rules)]
        return "; ".join(told) or "accepts everything"

    # What the kit needs

    async def start(self) -> Transport:
        """Listen; returns the transport of the account that is played."""
        self._loop = asyncio.get_running_loop()
        await self.server.start()
        transport = self._transport()
        await self.keep_time()
        return transport

    async def close(self) -> None:
        """Cut every connection."""
        self._loop = None
        await self.server.close()
        self._leave_port()

    async def keep_time(self) -> None:
        """Listen, or do not, as it is to be by now."""
        down = self._clock.now().timestamp() < self._down_until
        if down and self._shut is None:
            await self.server.close()
            # Bound and not listening: connections are refused, and nobody else gets the port.
            self._shut = socket.socket()
            self._shut.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._shut.bind((self.server.host, self.server.port))
        elif not down and self._shut is not None:
            self._leave_port()
            await self.server.start()

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """The test's clock was moved by so much."""

    @abstractmethod
    def _transport(self) -> Transport:
        """The transport to the server, whose port is known."""

    def _tell_server(self) -> None:
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self.keep_time(), self._loop).result()

    def _leave_port(self) -> None:
        if self._shut is not None:
            self._shut.close()
            self._shut = None

    def _tell(self, what: str, *rules: Rule[Any]) -> None:
        self._told.append((what, list(rules)))
        self._add(*rules)

    @abstractmethod
    def _add(self, *rules: Rule[Any]) -> None: ...


def _left(what: str, rules: list[Rule[Any]]) -> str:
    times = rules[0].times
    return what if times is None else f"{what} ({times} more)"


class SmtpProvider(Provider):
    """A relay."""

    def __init__(self, account: str, clock: Clock, server: SmtpServer) -> None:
        super().__init__(account, clock)
        self.server: SmtpServer = server

    def reply_with(self, reply: str, *, times: int | None = None, at: str | None = None) -> None:
        """See :class:`Provider`. Raises ValueError for what is no reply."""
        code, _, text = reply.partition(" ")
        if len(code) != 3 or not code.isdecimal() or code[0] not in "45":
            raise ValueError(f'{reply!r} is no reply that SMTP refuses with: write for example "451 4.7.1 try later"')
        point = at or "rcpt"
        self._tell(f"answers {reply}", smtp_misbehaviour.answer(point, int(code), text or "as scripted", times=times))

    def defer(self, *, times: int | None = None) -> None:
        """See :class:`Provider`."""
        self.reply_with("451 4.7.1 try again later", times=times)

    def refuse(self, mailbox: str) -> None:
        """See :class:`Provider`."""
        self._tell(f"refuses {mailbox}", smtp_misbehaviour.reject_mailbox(mailbox))

    def lose_answer(self, *, times: int | None = 1) -> None:
        """See :class:`Provider`."""
        self._tell("loses its answers", smtp_misbehaviour.cut_after_dot(times=times))

    def refuse_login(self) -> None:
        """See :class:`Provider`."""
        self._tell("refuses the account", smtp_misbehaviour.answer("mail", 530, "5.7.0 authentication required"))

    def _transport(self) -> Transport:
        from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport

        return SmtpTransport(SmtpSettings(host=self.server.host, port=self.server.port, tls="none"))

    def advance(self, seconds: float) -> None:
        """See :class:`Provider`. A relay has no time of its own."""

    def _add(self, *rules: Rule[SmtpAct]) -> None:
        self.server.script.add(*rules)


class HttpProvider(Provider):
    """A mail API."""

    def __init__(
        self,
        account: str,
        clock: Clock,
        server: HttpServer,
        connect: Callable[[HttpServer], Transport],
        error: Callable[[str], bytes],
        refusal: str,
    ) -> None:
        """``connect`` makes the transport, ``error`` the body of an error from its code; ``refusal`` is the code for a
        recipient that is refused.
        """
        super().__init__(account, clock)
        self.server: HttpServer = server
        self._connect, self._error, self._refusal = connect, error, refusal

    def reply_with(self, reply: str, *, times: int | None = None, at: str | None = None) -> None:
        """See :class:`Provider`. Raises ValueError for what is no status of an error."""
        status, _, code = reply.partition(" ")
        if len(status) != 3 or not status.isdecimal() or not 300 <= int(status) <= 599:
            raise ValueError(f'{reply!r} is no status that HTTP refuses with: write for example "503"')
        rule = http_misbehaviour.answer(int(status), body=self._error(code), times=times, at=at or "request")
        self._tell(f"answers {reply}", rule)

    def defer(self, *, times: int | None = None) -> None:
        """See :class:`Provider`."""
        # Not a 5xx: of a provider that knows no keys, nobody can say that it has not taken the mail.
        self._tell("answers 429", http_misbehaviour.too_many_requests(times=times))

    def refuse(self, mailbox: str) -> None:
        """See :class:`Provider`."""
        rule = http_misbehaviour.refuse_mailbox(mailbox, body=self._error(self._refusal))
        self._tell(f"refuses {mailbox}", rule)

    def lose_answer(self, *, times: int | None = 1) -> None:
        """See :class:`Provider`."""
        self._tell("loses its answers", http_misbehaviour.lose_answer(times=times))

    def refuse_login(self) -> None:
        """See :class:`Provider`."""
        self.reply_with("401")

    def _transport(self) -> Transport:
        return self._connect(self.server)

    def advance(self, seconds: float) -> None:
        """Keys are forgotten, and searches find, by the test's clock."""
        self.server.advance(seconds)

    def _add(self, *rules: Rule[HttpAct]) -> None:
        self.server.script.add(*rules)
