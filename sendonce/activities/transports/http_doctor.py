"""What can be seen of an HTTP account without sending: the API's host, its port, its certificate.

Whether the credentials are right is not asked: no request is the same at every provider but the one that posts a mail.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from sendonce.activities.transports.doctor_step import (
    PATIENCE,
    Step,
    advise_on_certificate,
    certificate_step,
    look_up,
    not_connected,
)


async def examine_url(setting: str, url: str, *, ca_file: Path | None, seconds: float) -> AsyncGenerator[Step, None]:
    """Each step as it ends; after a failure there are no more. Nothing is requested.

    ``url`` is the value of the setting ``setting``: ``https``, or ``http`` on loopback. Connecting, and again TLS, may
    take ``seconds``, at most :data:`~sendonce.activities.transports.doctor_step.PATIENCE`. Raises OSError when
    ``ca_file`` cannot be read.
    """
    seconds = min(seconds, PATIENCE)
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    steps: list[Callable[[], Awaitable[Step]]] = [
        lambda: look_up(host, port, setting=setting),
        lambda: _tcp(setting, host, port, seconds),
        lambda: _tls(setting, host, port, context if parts.scheme == "https" else None, seconds),
        _credentials,
    ]
    for look in steps:
        started = time.monotonic()
        step = await look()
        yield replace(step, seconds=time.monotonic() - started)
        if step.status == "fail":
            return


async def _tcp(setting: str, host: str, port: int, seconds: float) -> Step:
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, UnicodeError) as error:
        why, fix = not_connected(error, setting=setting, firewall=": allow HTTPS from here")
        return Step("tcp", "fail", f"port {port}: {why}", fix)
    peer = writer.get_extra_info("peername")[0]
    await _close(writer)
    return Step("tcp", "ok", f"connected to {peer} port {port}")


async def _tls(setting: str, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> Step:
    """On a connection of its own: a handshake that fails would hide that TCP works."""
    if context is None:
        return Step("tls", "skip", "http: mail goes in clear, on this machine only")
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        return Step("tls", "fail", f"TLS: {error.verify_message}", advise_on_certificate(error, setting))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "reason", None) or type(error).__name__
        if isinstance(error, TimeoutError):
            why = "no answer in time"
        return Step("tls", "fail", f"TLS: {why}", f"the port may not speak TLS 1.2 or later: check {setting}")
    step = certificate_step(writer.get_extra_info("ssl_object"), {})
    await _close(writer)
    return step


async def _credentials() -> Step:
    return Step("credentials", "skip", "only a mail proves them: --to sends one")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
