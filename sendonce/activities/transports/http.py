"""A mail gateway that takes JSON over HTTP: one request per attempt, answered for all recipients at once.

What an answer means stands in :mod:`sendonce.activities.transports.http_replies`. Without one the phase decides:
nothing of the request was written → ``NotOffered`` (or ``AccountFault`` for a certificate); anything later →
``Unanswered``.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.activities.transports.http_replies import classify
from sendonce.activities.transports.http_settings import GatewaySettings
from sendonce.activities.transports.json_template import fill_template
from sendonce.outcome import (
    AccountFault,
    AttemptResult,
    NotOffered,
    Outcome,
    Reply,
    Unanswered,
    same_for_all,
    storable,
)

__all__ = ["GatewaySettings", "GatewayTransport"]

ANSWER_LIMIT = 64 * 1024
"""Once that many octets of an answer have arrived, no more of it is read."""


class GatewayTransport:
    """One gateway account. Each attempt opens a connection of its own.

    A kept connection may be dead without our knowing until the request is written, and then the mail is unanswered
    for nothing; opening a new one costs a handshake and never a mail.
    """

    def __init__(self, settings: GatewaySettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """``now`` is the clock that dates in ``Retry-After`` are compared with. Raises OSError or ssl.SSLError when
        ``ca_file`` cannot be read.
        """
        self.settings = settings
        self._slot = hashlib.sha256(settings.url.encode()).hexdigest()[:12]
        self._now = now
        context = ssl.create_default_context(cafile=settings.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # No proxy, no .netrc from the environment, no redirects: the request goes where the settings say.
        self._client = httpx.AsyncClient(
            verify=context,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=settings.connect_seconds),
        )

    @property
    def capability(self) -> Capability:
        """What the settings say of the gateway."""
        if self.settings.key_header is None:
            return Capability()
        return Capability(key=f"header {self.settings.key_header}", replay="as the gateway's settings say")

    @property
    def identity(self) -> str:
        """``http:`` and the scope from the settings, or the URL."""
        return self.settings.identity()

    @property
    def settings_digest(self) -> str:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        return self.settings.digest()

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def slot(self, generation: int) -> str:
        """The body names its recipients, so each generation has its own; and so has each URL.

        A request that was pinned for another gateway and never offered is made anew for this one.
        """
        return f"request:{generation}:{self._slot}"

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets."""
        body = fill_template(self.settings.body, mail, recipients, provider_key)
        return Rendering(body, "POST", self.settings.url, (("Content-Type", "application/json"),))

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        ordinals = tuple(recipient.ordinal for recipient in job.recipients)
        if _origin(job.rendering.url) != _origin(self.settings.url):
            text = "the request was pinned for another host, and these credentials are not for it: restore the URL"
            return same_for_all(ordinals, AccountFault(Reply(enhanced="url_changed", text=text)))
        return same_for_all(
            ordinals, await _Request(self._client, self.settings, job, gate, ordinals).outcome(self._now)
        )

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await self._client.aclose()


class _Request:
    """One job as one request."""

    def __init__(
        self, client: httpx.AsyncClient, settings: GatewaySettings, job: Job, gate: Gate, ordinals: tuple[int, ...]
    ) -> None:
        self.client, self.settings, self.job, self.gate, self.ordinals = client, settings, job, gate, ordinals
        self.offered = False
        self.status = 0
        self.timer = asyncio.timeout(None)

    async def outcome(self, now: Callable[[], datetime]) -> Outcome:
        try:
            async with self.timer:
                status, headers, body = await self.exchange()
        except (httpx.HTTPError, OSError) as error:
            return self.unanswered(error) if self.offered else _not_offered(error)
        return classify(status, headers, body, self.settings, now())

    async def exchange(self) -> tuple[int, httpx.Headers, bytes]:
        rendering = self.job.rendering
        headers = httpx.Headers([*rendering.headers, ("Accept", "application/json"), ("Accept-Encoding", "identity")])
        headers["User-Agent"] = "sendonce"
        headers["Connection"] = "close"
        for name, value in self.settings.headers.items():
            headers[name] = value.get_secret_value()
        if self.settings.key_header is not None:
            headers[self.settings.key_header] = self.job.provider_key
        request = self.client.build_request(
            rendering.method, rendering.url, headers=headers, content=rendering.body, extensions={"trace": self.trace}
        )
        response = await self.client.send(request, stream=True)
        try:
            self.status = response.status_code
            return response.status_code, response.headers, await _limited(response)
        finally:
            await response.aclose()

    async def trace(self, event: str, _: Any) -> None:
        """Called by httpcore at each step. The connection stands, and the first octet is about to be written."""
        if event != "http11.send_request_headers.started":
            return
        await self.gate.begin(self.ordinals)
        self.gate.offered()
        self.offered = True
        self.timer.reschedule(asyncio.get_running_loop().time() + self.job.answer_seconds)

    def unanswered(self, error: Exception) -> Outcome:
        return Unanswered(Reply(self.status, text=f"after the request was written: {_reason(error)}"))


async def _limited(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) >= ANSWER_LIMIT:
            break
    return bytes(body)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _not_offered(error: Exception) -> Outcome:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AccountFault(Reply(enhanced="certificate", text=storable(f"TLS: {cause.verify_message}")))
        cause = cause.__cause__ or cause.__context__
    return NotOffered(Reply(text=f"connect: {_reason(error)}"))


def _reason(error: Exception) -> str:
    """Why there was no answer, in words that hold nothing of the request or the answer."""
    if isinstance(error, (httpx.TimeoutException, TimeoutError)):
        return "no answer in time"
    return type(error).__name__
