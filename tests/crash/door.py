"""A door in front of a server: what comes to it can be kept waiting before its TLS handshake is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


class Door:
    """Lets TCP connections through to the port behind it, each once ``knock`` has returned."""

    def __init__(self, port: int, knock: Callable[[], Awaitable[None]]) -> None:
        self._behind, self._knock = port, knock
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self) -> None:
        """Listen; :attr:`port` is the port from then on."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end every connection."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(OSError, asyncio.CancelledError):
            await self._knock()
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        writer.close()
        self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
