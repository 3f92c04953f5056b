"""The command ``demo``."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.base import ExitCode, JsonOption, app
from sendonce.cli.output import complain, print_json
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sendonce.demo.play import Played


@app.command()
def demo(
    as_json: JsonOption = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl-C, for the Temporal UI.")
    ] = False,
    mails: Annotated[
        int, typer.Option("--mails", metavar="N", min=10, max=2000, help="How many newsletters are queued.")
    ] = 60,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Keep a picture of the table at the end.")
    ] = None,
) -> None:
    """Watch a bookstore's mails through crashes, on servers of the demo's own. About a minute; needs the extra
    'embedded', nothing else.

    Exit code 0 only if every accepted recipient has exactly one copy and every other mail is told truly, else 1.
    JSON: the last line is one object: placed, rolled_back, sent, failed, unknown, dead, duplicates, lost, kills,
    login_code_seconds, seconds.
    """
    try:
        from rich.console import Console

        from sendonce.demo import show
        from sendonce.demo.world import DemoFailed
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed: pip install 'sendonce[embedded]'") from None

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=show.WIDTH)
    told = partial(show.conclude, console, svg=svg)
    try:
        played = asyncio.run(_play(show.teller(console), mails=mails, keep=keep, told=told))
    except DemoFailed as error:
        complain(str(error))
        raise typer.Exit(ExitCode.NO) from None
    if played is None:
        complain("interrupted; everything is stopped")
        raise typer.Exit(ExitCode.NO)
    if as_json:
        sys.stdout.flush()
        print_json(show.summary(played))
    if played.verdict.faults:
        raise typer.Exit(ExitCode.NO)


async def _play(say: Callable[[str], None], *, mails: int, keep: bool, told: Callable[[Played], None]) -> Played | None:
    """Play, tell, and with ``keep`` wait for a signal. None when a signal came before the end."""
    from sendonce.demo.play import Play
    from sendonce.demo.shop import Bookstore
    from sendonce.demo.world import World

    begun = time.monotonic()
    stop, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    async def whole() -> Played:
        async with World(say, ui=keep) as world:
            shop = Bookstore(world.database_url)
            try:
                played = await Play(world, shop, mails=mails, begun=begun).run()
            finally:
                shop.close()
            told(played)
            if keep:
                ended.set()
                say(f"Temporal UI: {world.temporal.ui_url}   settings: {world.settings}   Ctrl-C ends it")
                await stop.wait()
        return played

    playing = asyncio.create_task(whole())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not playing.done() and not ended.is_set():
        playing.cancel()
    try:
        return await playing
    except asyncio.CancelledError:
        return None
    finally:
        stopping.cancel()
