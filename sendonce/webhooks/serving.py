"""Serving the app with uvicorn, without its access log: a path may hold a secret."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from starlette.applications import Starlette

AT_ONCE = 64
"""Connections; requests on more of them are answered 503, and come again."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the entry point's, which sets ``stop``."""
        yield


async def serve(
    app: Starlette,
    host: str,
    port: int,
    stop: asyncio.Event,
    *,
    ready: Callable[[int], None] | None = None,
    drain_seconds: int = 15,
) -> None:
    """Serve until ``stop`` is set; then requests in progress have ``drain_seconds``.

    ``ready`` is called with the port once it listens (``port`` 0: a free one). Plain HTTP: TLS is the business of the
    proxy in front. Raises OSError when it cannot listen there.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        lifespan="off",
        server_header=False,
        limit_concurrency=AT_ONCE,
        timeout_graceful_shutdown=drain_seconds,
    )
    # Bound here, for uvicorn would end the process when it cannot.
    with _listening(host, port) as door:
        server = _Server(config)
        if ready is not None:
            ready(door.getsockname()[1])
        serving = asyncio.create_task(server.serve(sockets=[door]))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await serving
        finally:
            stopping.cancel()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
        door.listen(128)
    except OSError:
        door.close()
        raise
    door.setblocking(False)
    return door
