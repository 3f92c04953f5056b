"""How mails ended, handed to business code in its own transaction: each once, to whoever commits.

One SQL function, ``sendonce.take_finals``, does the work; :mod:`~sendonce.store.callers` calls it through SQLAlchemy or
psycopg, sync or async.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from sendonce.errors import ConfigurationError
from sendonce.final import Final
from sendonce.stages import Stage
from sendonce.store.callers import Call, Row, Statement, Steps, run

if TYPE_CHECKING:
    from sendonce.store.callers import AnyAsyncConnection, SyncConnection

MOST = 1000
"""So many ends at most are taken by one call."""

_CALL = Call("take_finals", "what is taken")

# Text and numbers only, and times without a zone: every driver reads them alike, whatever the session's time zone.
_TAKE = """
SELECT f.account, f.key, CAST(f.email_id AS text), f.stage, f.partial, f.maybe_accepted, f.attempts, f.code, f.enhanced,
    f.superseded_by, f.at AT TIME ZONE 'UTC', f.id
FROM sendonce.take_finals(CAST({most} AS integer)) AS f
"""


@overload
def take_finals(connection: SyncConnection, *, limit: int = 100) -> list[Final]: ...
@overload
def take_finals(connection: AnyAsyncConnection, *, limit: int = 100) -> Awaitable[list[Final]]: ...
def take_finals(connection: Any, *, limit: int = 100) -> list[Final] | Awaitable[list[Final]]:
    """Take how mails with ``on_final="take"`` ended, at most ``limit`` (1 to 1000) of them, in the transaction of
    ``connection``; an empty list: there is no news.

    They count as handed out once that transaction commits; if it does not, they are handed out again. What is done
    with them in the same transaction is thus done exactly once. Two callers at once never get the same one, and do not
    wait for each other. ``connection`` is what :func:`sendonce.enqueue` takes; for an async one, await the result. It
    is never committed or rolled back here. A mail that is requeued, or proved later to have been accepted, ends again.

    At REPEATABLE READ and SERIALIZABLE one that another transaction took meanwhile is the driver's serialization
    failure (SQLSTATE 40001): retry that transaction.

    Raises :class:`~sendonce.errors.ConfigurationError` for a limit that cannot be, and in autocommit mode outside a
    transaction; :class:`~sendonce.errors.StoreNotReady` when the schema is missing. What the driver raises comes
    through.
    """
    if limit not in range(1, MOST + 1):
        raise ConfigurationError(f"take_finals: limit = {limit!r}: write a whole number from 1 to {MOST}")
    return run(connection, _steps(limit), _CALL)


def _steps(limit: int) -> Steps[list[Final]]:
    rows = yield Statement(_TAKE, {"most": limit})
    return [final_of(row) for row in rows]


def final_of(row: Row) -> Final:
    """From the columns as :data:`_TAKE` names them."""
    account, key, email_id, stage, partial, maybe, attempts, code, enhanced, superseded_by, at, number = row
    return Final(
        account=account,
        key=key,
        email_id=UUID(email_id),
        stage=Stage(stage),
        partial=partial,
        maybe_accepted=maybe,
        attempts=attempts,
        code=code,
        enhanced=enhanced,
        superseded_by=superseded_by,
        at=at.replace(tzinfo=UTC),
        id=number,
    )


OF_MAIL = """
SELECT s.account, s.key, CAST(s.email_id AS text), s.stage, s.partial, s.maybe_accepted, s.attempts, s.code, s.enhanced,
    s.superseded_by, s.at AT TIME ZONE 'UTC', CAST(NULL AS bigint)
FROM sendonce.standing(CAST({account} AS text), CAST({key} AS text)) AS s
"""
"""Where one mail stands, at any stage, with the columns of :func:`final_of`."""
