"""What the commands of operators share: who acts, the store's connection, and what may be shown of personal data."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from sendonce.errors import ConfigurationError, StoreNotReady

T = TypeVar("T")

Because = Annotated[
    str | None, typer.Option("--because", metavar="TEXT", help="Why; it is kept with who and when. No personal data.")
]
ActorOption = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who asks for it, besides the user of this machine.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it, only what would be done is said.")]

DRY_RUN = "dry run: give --yes"


def actor(name: str | None = None) -> str:
    """Who is at the keyboard, for the log: user and host. (``user@host`` would be masked as an address.)"""
    if name is not None and (not name.strip() or not name.isprintable()):
        raise ConfigurationError("--actor: write a name, on one line")
    here = f"{getpass.getuser()} on {socket.gethostname()}"
    return f"{name} ({here})"[:150] if name else here[:100]


def reason(because: str | None) -> str:
    """A reason that must be given."""
    if not because or not because.strip():
        raise ConfigurationError("give --because: whoever looks at this later will want to know")
    return because.strip()


def with_store(url: str, body: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``body`` with a connection to the store, in autocommit mode."""
    import psycopg

    from sendonce.store.connecting import MISSING, connect_options
    from sendonce.store.pool import STEADY

    async def run() -> T:
        connecting = psycopg.AsyncConnection.connect(url, autocommit=True, **connect_options(url))
        async with await connecting as connection:
            await connection.execute(STEADY)
            try:
                return await body(connection)
            except psycopg.Error as error:
                if error.sqlstate in MISSING:
                    raise StoreNotReady("the schema 'sendonce' is missing or too old: run 'sendonce migrate'") from None
                raise

    return asyncio.run(run())


def note_reveal(
    url: str,
    command: str,
    who: str | None,
    *,
    email_id: UUID | None = None,
    account: str | None = None,
    key: str | None = None,
) -> None:
    """Keep in the store that personal data is shown, before it is."""
    from sendonce.store import reveals

    async def run(connection: Any) -> None:
        await reveals.note(connection, command, actor=actor(who), email_id=email_id, account=account, key=key)

    with_store(url, run)
