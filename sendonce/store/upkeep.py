"""One round of the upkeep: erasures that are waiting for mails in flight, then what goes with time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from psycopg import AsyncConnection

from sendonce.policy import LanePolicy
from sendonce.retention import Retention
from sendonce.store import erasure, retention


async def erase(
    conn: AsyncConnection[Any], lanes: Mapping[str, LanePolicy], *, actor: str, leave: Callable[[], bool]
) -> int:
    """Finish the erasures of mails that have ended or can be withdrawn since; in how many of them somebody was erased.

    While no erasure waits for a mail in flight, this is one look at an empty table.
    """
    erased = erasure.Erased()
    await erasure.pending(conn, lanes, actor, done=erased, leave=leave)
    emptied = erased.mails + erased.contents
    if emptied:
        await erasure.finish(conn)
    return emptied


async def run(
    conn: AsyncConnection[Any],
    rules: Retention,
    lanes: Mapping[str, LanePolicy],
    *,
    actor: str,
    leave: Callable[[], bool],
) -> tuple[bool, retention.Done]:
    """Do what is due until ``leave`` says that time is over; True when all of it is done, and how many of what went.

    Everything is committed in small parts: it can be stopped anywhere, and several processes may do it at once.
    """
    erased = erasure.Erased()
    await erasure.pending(conn, lanes, actor, done=erased, leave=leave)
    # Also where nothing was erased here: a command may have died between its last mail and this.
    await erasure.finish(conn)
    going = retention.Round(rules, lanes, leave)
    over = await going.run(conn)
    return over, replace(going.done, erased=erased.mails + erased.contents)
