"""One request over HTTP, made so that it is always known whether it was offered.

A mail is posted on a connection of its own: a kept one may be dead without our knowing until the request is written,
and then the mail is unanswered for nothing; opening a new one costs a handshake and never a mail. Without an answer
the phase decides: nothing of the request was written → ``NotOffered`` (or ``AccountFault`` for a certificate);
anything later → ``Unanswered``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from sendonce.activities.transports.base import Asked, Gate, Job
from sendonce.activities.transports.http_answer import Answer
from sendonce.outcome import AccountFault, NotOffered, Outcome, Reply, Unanswered, storable

ANSWER_LIMIT = 64 * 1024
"""Once that many octets of the answer to a mail have arrived, no more of it is read."""
FOUND_LIMIT = 1024 * 1024
"""The same for the answer to a look-up, which may list many recipients."""


class HttpClient:
    """Makes the requests of one account."""

    def __init__(
        self,
        *,
        ca_file: Path | None,
        connect_seconds: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``connect_seconds``: for name resolution and TCP, and again for TLS. Raises OSError or ssl.SSLError when
        ``ca_file`` cannot be read.
        """
        context = ssl.create_default_context(cafile=ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._now = now
        # No proxy, no .netrc from the environment, no redirects: the request goes where the settings say.
        self._client = httpx.AsyncClient(
            verify=context,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=connect_seconds),
        )

    async def offer(self, job: Job, gate: Gate, secrets: Mapping[str, str]) -> Answer | Outcome:
        """Post the job's rendering: the answer, or what its absence means for everybody in the job.

        ``secrets`` are headers that are not pinned. Begin comes once the connection stands, before the first octet of
        the request; the job's answer timer runs from there. Raises what the gate raises, and ``CancelledError``.
        """
        return await _Offer(self._client, job, gate).outcome(secrets, self._now)

    async def ask(self, url: str, headers: Mapping[str, str]) -> Answer:
        """GET what a provider knows; nothing can be accepted by it, so it needs no gate.

        The caller bounds the time. Raises :class:`~sendonce.activities.transports.base.Asked` without a 2xx answer
        that was read whole.
        """
        try:
            request = self._client.build_request("GET", url, headers=_headers({}, headers))
            response = await self._client.send(request, stream=True)
            try:
                body = await _limited(response, FOUND_LIMIT)
            finally:
                await response.aclose()
        except (httpx.HTTPError, OSError) as error:
            raise Asked(type(error).__name__) from None
        answer = Answer(response.status_code, response.headers, body, self._now())
        if not answer.ok:
            raise Asked(f"http_{answer.status}", answer.retry_after)
        if len(body) >= FOUND_LIMIT:
            raise Asked("answer_too_long")
        return answer

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await self._client.aclose()


def same_origin(url: str, other: str) -> bool:
    """Whether both name the same scheme, host and port: credentials for one are for the other too."""
    return _origin(url) == _origin(other)


class _Offer:
    """One job as one request."""

    def __init__(self, client: httpx.AsyncClient, job: Job, gate: Gate) -> None:
        self.client, self.job, self.gate = client, job, gate
        self.offered = False
        self.status = 0
        self.timer = asyncio.timeout(None)

    async def outcome(self, secrets: Mapping[str, str], now: Callable[[], datetime]) -> Answer | Outcome:
        try:
            async with self.timer:
                status, headers, body = await self.exchange(secrets)
        except (httpx.HTTPError, OSError) as error:
            return self.unanswered(error) if self.offered else _not_offered(error)
        return Answer(status, headers, body, now())

    async def exchange(self, secrets: Mapping[str, str]) -> tuple[int, httpx.Headers, bytes]:
        rendering = self.job.rendering
        request = self.client.build_request(
            rendering.method,
            rendering.url,
            headers=_headers(dict(rendering.headers), secrets),
            content=rendering.body,
            extensions={"trace": self.trace},
        )
        response = await self.client.send(request, stream=True)
        try:
            self.status = response.status_code
            return response.status_code, response.headers, await _limited(response, ANSWER_LIMIT)
        finally:
            await response.aclose()

    async def trace(self, event: str, _: Any) -> None:
        """Called by httpcore at each step. The connection stands, and the first octet is about to be written."""
        if event != "http11.send_request_headers.started":
            return
        await self.gate.begin(tuple(recipient.ordinal for recipient in self.job.recipients))
        self.gate.offered()
        self.offered = True
        self.timer.reschedule(asyncio.get_running_loop().time() + self.job.answer_seconds)

    def unanswered(self, error: Exception) -> Outcome:
        return Unanswered(Reply(self.status, text=f"after the request was written: {_reason(error)}"))


def _headers(pinned: Mapping[str, str], secrets: Mapping[str, str]) -> httpx.Headers:
    headers = httpx.Headers(dict(pinned))
    headers["Accept"] = "application/json"
    headers["Accept-Encoding"] = "identity"
    headers["User-Agent"] = "sendonce"
    headers["Connection"] = "close"
    for name, value in secrets.items():
        headers[name] = value
    return headers


async def _limited(response: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) >= limit:
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
