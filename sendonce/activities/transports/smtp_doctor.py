"""What is wrong with an SMTP account, step by step, over the very connection that mail would take."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from sendonce.activities.transports.doctor_step import PATIENCE, Step, certificate_step, look_up, not_connected
from sendonce.activities.transports.smtp_auth import choose
from sendonce.activities.transports.smtp_connection import LineLost, NoLine, SmtpLine, connect
from sendonce.activities.transports.smtp_doctor_advice import advise, broke_handshake
from sendonce.activities.transports.smtp_settings import SmtpSettings, SmtpTimeouts
from sendonce.activities.transports.smtp_tls import client_context
from sendonce.activities.transports.smtp_token import token_source
from sendonce.outcome import Reply

BLOCKED = ": many networks block port 25; 587, 465 or the provider's own port may work"


async def examine(settings: SmtpSettings) -> AsyncGenerator[Step, None]:
    """Each step as it ends: dns, tcp, greeting, ehlo, tls, auth, mail. With implicit TLS, tls is before the greeting.

    After a failure there are no more. Sends no mail.

    Raises OSError, naming the setting, when a certificate or key cannot be read.
    """
    examination = _Examination(settings)
    try:
        for name, look in examination.steps():
            started = time.monotonic()
            try:
                step = await look()
            except NoLine as error:
                what, fix = _said(error.outcome.reply), advise(name, error, settings)
                step = Step(name, "fail", what, fix)
                if not (error.outcome.reply.code or error.outcome.reply.enhanced):
                    examination.broken()
            except LineLost as error:
                step = Step(name, "fail", error.reply.text, "the server hung up or fell silent: its log says why")
            yield replace(step, what=_without_secrets(step.what, settings), seconds=time.monotonic() - started)
            if step.status == "fail":
                return
    finally:
        await examination.leave()


class _Examination:
    def __init__(self, settings: SmtpSettings) -> None:
        brief = {name: min(getattr(settings.timeouts, name), PATIENCE) for name in SmtpTimeouts.model_fields}
        token_seconds = min(settings.token_seconds, PATIENCE)
        self.settings = settings.model_copy(update={"timeouts": SmtpTimeouts(**brief), "token_seconds": token_seconds})
        self.context = client_context(settings)
        self.tokens = token_source(self.settings)
        self._line: SmtpLine | None = None
        self._handshake: NoLine | None = None

    def steps(self) -> list[tuple[str, Callable[[], Awaitable[Step]]]]:
        implicit = self.settings.tls == "implicit"
        hello = [("greeting", self.greeting), ("ehlo", self.ehlo)]
        tls = [("tls", self.tls)]
        return [("dns", self.dns), ("tcp", self.tcp), *(tls + hello if implicit else hello + tls),
                ("auth", self.auth), ("mail", self.mail)]  # fmt: skip

    @property
    def line(self) -> SmtpLine:
        assert self._line is not None
        return self._line

    async def dns(self) -> Step:
        return await look_up(self.settings.host, self.settings.port)

    async def tcp(self) -> Step:
        try:
            self._line = await connect(self.settings, self.context)
        except NoLine as error:
            if self.settings.tls == "implicit" and broke_handshake(error):
                # Both come at once.
                self._handshake = error
                return Step("tcp", "ok", f"connected to port {self.settings.port}")
            why, fix = not_connected(error.__cause__, firewall=BLOCKED)
            return Step("tcp", "fail", f"port {self.settings.port}: {why}", fix)
        transport = self.line.protocol.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        return Step("tcp", "ok", f"connected to {peer[0] if peer else self.settings.host} port {self.settings.port}")

    async def greeting(self) -> Step:
        await self.line.greet()
        return Step("greeting", "ok", "the server is ready")

    async def ehlo(self) -> Step:
        await self.line.ehlo()
        offers = self._offers()
        if self.settings.tls == "none" and "starttls" in self.line.extensions:
            fix = "set tls = 'starttls': the server offers it, and now mail goes in clear"
            return Step("ehlo", "warn", f"offers {', '.join(offers)}", fix, details={"offers": offers})
        return Step("ehlo", "ok", f"offers {', '.join(offers) or 'no extensions'}", details={"offers": offers})

    def _offers(self) -> list[str]:
        plain = [name.upper() for name in self.line.extensions if name != "auth"]
        return sorted(plain) + [f"AUTH {name.upper()}" for name in self.line.auth_methods]

    async def tls(self) -> Step:
        if self._handshake is not None:
            raise self._handshake
        if self.settings.tls == "none":
            return Step("tls", "skip", "tls = 'none': mail goes in clear")
        details: dict[str, Any] = {}
        if self.settings.tls == "starttls":
            await self.line.starttls(self.context)
            # What was offered in clear is void (RFC 3207 4.2).
            await self.line.ehlo()
            details["offers"] = self._offers()
        transport = self.line.protocol.transport
        assert transport is not None
        return certificate_step(transport.get_extra_info("ssl_object"), details)

    async def auth(self) -> Step:
        if self.settings.username is None:
            offered = ", though the server offers it" if self.line.auth_methods else ""
            return Step("auth", "skip", f"no username is configured{offered}")
        await self.line.log_in(self.tokens)
        mechanism = choose(self.settings, self.line.auth_methods).upper()
        return Step("auth", "ok", f"logged in by {mechanism}", details={"mechanism": mechanism})

    async def mail(self) -> Step:
        reply = await self.line.command(b"MAIL", b"FROM:<>", timeout=self.settings.timeouts.mail)
        if reply.code == 530:
            return Step("mail", "fail", _said(reply), "the server wants a log-in: set username and password")
        if reply.code == 421:
            return Step("mail", "fail", _said(reply), "the server ends the connection: try later; its log says why")
        if not 200 <= reply.code <= 299:
            fix = "some servers refuse the empty sender; try --to, which names one"
            return Step("mail", "warn", f"MAIL FROM:<> was answered {_said(reply)}", fix)
        reply = await self.line.command(b"RSET", timeout=self.settings.timeouts.mail)
        if reply.code != 250:
            return Step("mail", "warn", f"RSET was answered {_said(reply)}", "the server's log says why")
        return Step("mail", "ok", "takes mail; the transaction was reset")

    def broken(self) -> None:
        """No reply came, so that a good-bye would not get one either."""
        if self._line is not None:
            self._line.abort()

    async def leave(self) -> None:
        if self._line is not None:
            await self._line.quit()


def _said(reply: Reply) -> str:
    text = " ".join(reply.text.split())[:300]
    return f"{reply.code} {text}" if reply.code else text


def _without_secrets(text: str, settings: SmtpSettings) -> str:
    """Some servers repeat what they refuse."""
    for secret in settings.secrets().values():
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return text
