"""What is wrong with an SMTP account, step by step, over the very connection that mail would take."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sendonce.activities.transports.smtp_auth import choose
from sendonce.activities.transports.smtp_connection import LineLost, NoLine, SmtpLine, connect, reason
from sendonce.activities.transports.smtp_doctor_advice import advise
from sendonce.activities.transports.smtp_settings import SmtpSettings, SmtpTimeouts
from sendonce.activities.transports.smtp_tls import client_context
from sendonce.activities.transports.smtp_token import token_source
from sendonce.outcome import Reply

STEPS = ("dns", "tcp", "greeting", "ehlo", "tls", "auth", "mail")
"""In the order of STARTTLS; with implicit TLS, ``tls`` comes before the greeting."""

PATIENCE = 20.0
"""Seconds that a step may take at most: somebody is looking."""

EXPIRES_SOON = timedelta(days=14)

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step found."""

    name: str
    status: Status
    what: str
    """In words; what a server said may be in it, secrets are not."""
    fix: str = ""
    """What to do about it."""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    """For programs: ``offers``, ``certificate``, ``mechanism`` …"""


async def examine(settings: SmtpSettings) -> AsyncIterator[Step]:
    """Each step as it ends; after a failure there are no more. Sends no mail.

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
            except LineLost as error:
                step = Step(name, "fail", error.reply.text, "the server hung up: its log says why")
            yield replace(step, what=_without_secrets(step.what, settings), seconds=time.monotonic() - started)
            if step.status == "fail":
                return
    finally:
        await examination.leave()


class _Examination:
    def __init__(self, settings: SmtpSettings) -> None:
        brief = {name: min(getattr(settings.timeouts, name), PATIENCE) for name in SmtpTimeouts.model_fields}
        self.settings = settings.model_copy(update={"timeouts": SmtpTimeouts(**brief)})
        self.context = client_context(settings)
        self.tokens = token_source(settings)
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
        host, port = self.settings.host, self.settings.port
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return Step("dns", "skip", f"{host} is an address")
        try:
            async with asyncio.timeout(PATIENCE):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return Step("dns", "fail", f"{host}: {reason(error)}", "check host, and the name server of this machine")
        addresses = sorted({str(entry[4][0]) for entry in found})
        return Step("dns", "ok", f"{host} is {', '.join(addresses)}", details={"addresses": addresses})

    async def tcp(self) -> Step:
        try:
            self._line = await connect(self.settings, self.context)
        except NoLine as error:
            if not isinstance(error.__cause__, ssl.SSLError):
                raise
            # With implicit TLS both come at once.
            self._handshake = error
            return Step("tcp", "ok", f"connected to port {self.settings.port}")
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
        details["certificate"] = certificate = self._certificate()
        what = "{protocol} {cipher}, certificate for {subject} by {issuer} until {until:%Y-%m-%d}".format(**certificate)
        if certificate["until"] - datetime.now(UTC) < EXPIRES_SOON:
            return Step(
                "tls", "warn", what, "the server's certificate expires soon: its operator renews it", 0, details
            )
        return Step("tls", "ok", what, details=details)

    def _certificate(self) -> dict[str, Any]:
        assert self.line.protocol.transport is not None
        tls = self.line.protocol.transport.get_extra_info("ssl_object")
        shown = tls.getpeercert()
        names = [value for _, value in shown.get("subjectAltName", ())]
        return {
            "subject": ", ".join(names) or _name(shown["subject"]),
            "issuer": _name(shown["issuer"]),
            "until": datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), UTC),
            "protocol": tls.version(),
            "cipher": tls.cipher()[0],
        }

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
        if not 200 <= reply.code <= 299:
            fix = "some servers refuse the empty sender; try --to, which names one"
            return Step("mail", "warn", f"MAIL FROM:<> was answered {_said(reply)}", fix)
        reply = await self.line.command(b"RSET", timeout=self.settings.timeouts.mail)
        if reply.code != 250:
            return Step("mail", "warn", f"RSET was answered {_said(reply)}", "the server's log says why")
        return Step("mail", "ok", "takes mail; the transaction was reset")

    async def leave(self) -> None:
        if self._line is not None:
            await self._line.quit()


def _name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """A distinguished name: its common name, else its organisation, else all of it."""
    pairs = {key: value for part in parts for key, value in part}
    return pairs.get("commonName") or pairs.get("organizationName") or ", ".join(pairs.values()) or "nobody"


def _said(reply: Reply) -> str:
    text = " ".join(reply.text.split())[:300]
    return f"{reply.code} {text}" if reply.code else text


def _without_secrets(text: str, settings: SmtpSettings) -> str:
    """Some servers repeat what they refuse."""
    for secret in settings.secrets().values():
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return text
