"""A process of the benchmark's own: started by name, asked by one JSON line, ended when its standard input closes.

Whatever plays a part (the sink, a feeder, a peer's worker) runs in a process of its own, so that its CPU is its own
line. It cannot outlive the benchmark: when that is gone, so is the other end of its standard input.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
READY_SECONDS = 60.0

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
"""Answers one command, a JSON object, with something that JSON can say."""

Role = Callable[..., AbstractAsyncContextManager[Handler]]
"""What a process plays: made from its arguments, it serves commands while it is open."""


class PartFailed(Exception):
    """A process of the benchmark ended, or could not do what it was asked; the message has the end of its log."""


class Part:
    """One such process, seen from the benchmark. Make it with :meth:`start`; a context manager that ends it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, role: str, folder: Path, variables: Mapping[str, str] | None = None, **arguments: Any) -> Self:
        """Start ``role`` (``module:function``) and return when it is ready. Its log goes into ``folder``.

        ``variables`` are added to its environment. Raises :class:`PartFailed`.
        """
        # Not at the top: what plays a part is to load as little as it needs.
        from sendonce.embedded import clean_environment

        name = role.partition(":")[0].rpartition(".")[2] + "-" + role.rpartition(":")[2]
        log = folder / f"{name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.part", role, json.dumps(arguments)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                cwd=ROOT,
                env={**clean_environment(), "TEMPORAL_CONFIG_FILE": os.devnull, **(variables or {})},
                limit=2**26,
                start_new_session=True,
            )
        part = cls(name, process, log)
        try:
            async with asyncio.timeout(READY_SECONDS):
                await part._answer()
        except BaseException:
            await part.end()
            raise
        return part

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def call(self, **command: Any) -> Any:
        """Ask, and wait for the answer; one at a time. Raises :class:`PartFailed`."""
        assert self._process.stdin is not None
        async with self._turn:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            await self._process.stdin.drain()
            return await self._answer()

    async def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise PartFailed(f"{self.name} ended: {tail}")
        return json.loads(line)["answer"]

    async def end(self) -> None:
        """Close its standard input and wait; kill it after 15 seconds. Safe to repeat."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(15):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()


async def _play(role: str, arguments: dict[str, Any], output: int) -> None:
    module, _, name = role.partition(":")
    play: Role = getattr(importlib.import_module(module), name)
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def say(answer: Any) -> None:
        line = json.dumps({"answer": answer}).encode() + b"\n"
        while line:
            line = line[os.write(output, line) :]

    async with play(**arguments) as handle:
        say("ready")
        while line := await reader.readline():
            say(await handle(json.loads(line)))


if __name__ == "__main__":
    # What others print is log; answers have a way of their own.
    answers = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(_play(sys.argv[1], json.loads(sys.argv[2]), answers))
