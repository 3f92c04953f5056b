"""Access tokens for XOAUTH2 and OAUTHBEARER: from a command, or from the token endpoint of an OAuth 2 server.

A token is kept in memory until shortly before it expires. Neither tokens nor what a source says in words is ever shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx

from sendonce.activities.transports.retry_after import retry_after
from sendonce.activities.transports.smtp_settings import SmtpSettings
from sendonce.activities.transports.smtp_tls import trusting
from sendonce.outcome import AccountFault, NotOffered, Outcome, Reply

USUAL_LIFE = 300.0
"""Seconds for which a token is kept when its source does not say how long it lives."""

MARGIN = 60.0
"""Seconds before its end from which on a token is not used any more; at most a tenth of its life."""

OUTPUT_LIMIT = 64 * 1024
"""Octets; a source that says more than this says no token."""

_TOKEN = re.compile(r"[!-~]{1,16000}")
_ERROR = re.compile(r"[a-z_]{1,60}")


class NoToken(Exception):
    """There is no token to log in with. ``outcome`` is what that means for every recipient."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome


class TokenSource:
    """The tokens of one account in one process."""

    def __init__(self, settings: SmtpSettings, *, now: Callable[[], float] = time.monotonic) -> None:
        """``now`` is a clock in seconds. Raises OSError when ``token_ca_file`` cannot be read."""
        self._settings = settings
        self._now = now
        self._context = trusting("token_ca_file", settings.token_ca_file) if settings.token_url else None
        self._refresh_token = settings.refresh_token.get_secret_value() if settings.refresh_token else ""
        self._lock = asyncio.Lock()
        self._token = ""
        self._until = 0.0

    async def get(self, *, refused: str = "") -> str:
        """A token that has not expired, and is not the one that was ``refused``. Raises :class:`NoToken`.

        Whoever asks while a token is being fetched gets that one.
        """
        async with self._lock:
            if not self._token or self._token == refused or self._now() >= self._until:
                asked = self._now()
                self._token, life = await self._fetch()
                self._until = asked + life - min(MARGIN, life / 10)
            return self._token

    async def _fetch(self) -> tuple[str, float]:
        if self._settings.token_command:
            return await self._run(self._settings.token_command), USUAL_LIFE
        return await self._ask()

    async def _run(self, command: tuple[str, ...]) -> str:
        try:
            async with asyncio.timeout(self._settings.token_seconds):
                output, code = await _output_of(command)
        except TimeoutError:
            raise _fault("token_command", f"no token within {self._settings.token_seconds:g} s") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise _fault("token_command", f"cannot be run: {why}") from None
        if code != 0:
            raise _fault("token_command", f"ended with exit code {code}")
        token = output.decode("ascii", "replace").strip()
        if not _TOKEN.fullmatch(token):
            raise _fault("token_command", "wrote something else than one token to standard output")
        return token

    async def _ask(self) -> tuple[str, float]:
        try:
            async with asyncio.timeout(self._settings.token_seconds):
                response, body = await self._exchange()
        except (httpx.HTTPError, OSError) as error:
            if _names_certificate(error):
                raise _fault(
                    "token_url", "its certificate cannot be verified: check the URL, or set token_ca_file"
                ) from None
            why = (
                "no answer in time"
                if isinstance(error, (httpx.TimeoutException, TimeoutError))
                else type(error).__name__
            )
            raise NoToken(NotOffered(Reply(enhanced="token_url", text=f"token_url: {why}"))) from None
        found = _object(body)
        if response.status_code != 200:
            error_code = found.get("error")
            shown = error_code if isinstance(error_code, str) and _ERROR.fullmatch(error_code) else ""
            wait = retry_after(response.headers.get("retry-after"), datetime.now(UTC))
            raise _fault("token_url", f"answered {response.status_code} {shown}".rstrip(), response.status_code, wait)
        return self._read(found)

    async def _exchange(self) -> tuple[httpx.Response, bytes]:
        """The refresh grant (RFC 6749 6), with the client's secret in the body (2.3.1), where both big ones want it."""
        settings = self._settings
        seconds = settings.token_seconds
        form = {"grant_type": "refresh_token", "client_id": settings.client_id, "refresh_token": self._refresh_token}
        if settings.client_secret is not None:
            form["client_secret"] = settings.client_secret.get_secret_value()
        if settings.scope is not None:
            form["scope"] = settings.scope
        assert settings.token_url is not None
        assert self._context is not None
        # No proxy and no .netrc from the environment, no redirects: secrets go where the settings say.
        async with (
            httpx.AsyncClient(verify=self._context, trust_env=False, follow_redirects=False, timeout=seconds) as client,
            client.stream(
                "POST",
                settings.token_url,
                data=form,
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "sendonce"},
            ) as response,
        ):
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > OUTPUT_LIMIT:
                    raise _fault("token_url", f"answered more than {OUTPUT_LIMIT} octets")
            return response, bytes(body)

    def _read(self, found: dict[str, Any]) -> tuple[str, float]:
        """Token and seconds of life (RFC 6749 5.1)."""
        token, life, renewed = found.get("access_token"), found.get("expires_in"), found.get("refresh_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise _fault("token_url", "answered 200 without a usable access_token")
        if isinstance(renewed, str) and renewed:
            # The old one may be void from now on (RFC 6749 6).
            self._refresh_token = renewed
        try:
            seconds = float(life)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            seconds = USUAL_LIFE
        return token, seconds if 0 < seconds < 1e6 else USUAL_LIFE


def token_source(settings: SmtpSettings) -> TokenSource | None:
    """Where this account's tokens come from; None when it uses none. Raises OSError as above."""
    return TokenSource(settings) if settings.token_command or settings.token_url else None


async def _output_of(command: tuple[str, ...]) -> tuple[bytes, int]:
    """Standard output and exit code. The process and its children are killed if this is cancelled."""
    process = await _started(command)
    assert process.stdout is not None
    over = False
    try:
        output = bytearray()
        while part := await process.stdout.read(4096):
            output += part
            if len(output) > OUTPUT_LIMIT:
                return b"", 0
        code = await process.wait()
        over = True
        return bytes(output), code
    finally:
        if not over:
            await _kill(process)


async def _started(command: tuple[str, ...]) -> asyncio.subprocess.Process:
    nowhere = asyncio.subprocess.DEVNULL
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command, stdin=nowhere, stdout=asyncio.subprocess.PIPE, stderr=nowhere, start_new_session=True
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio would kill the program, and leave the children that it already has.
        with contextlib.suppress(OSError, ValueError):
            await _kill(await starting)
        raise


async def _kill(process: asyncio.subprocess.Process) -> None:
    # The program itself may have ended, and a child of it hold the output open.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _names_certificate(error: Exception) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _fault(source: str, why: str, code: int = 0, retry_after: float | None = None) -> NoToken:
    return NoToken(AccountFault(Reply(code, source, f"{source}: {why}"), retry_after))
