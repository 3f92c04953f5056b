"""What business code may do with a mail afterwards: ask where it stands, and call it off, in its own transaction.

The SQL functions ``sendonce.status`` and ``sendonce.cancel`` do the work; :mod:`~sendonce.store.callers` calls them
through SQLAlchemy or psycopg, sync or async.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from sendonce.errors import ConfigurationError
from sendonce.stages import RecipientStage, Stage
from sendonce.store.callers import Call, Row, Statement, Steps, run

if TYPE_CHECKING:
    from sendonce.store.callers import AnyAsyncConnection, SyncConnection

_STATUS_CALL = Call("status", "what is asked")
_CANCEL_CALL = Call("cancel", "the cancellation")


@dataclass(frozen=True, slots=True)
class MailStatus:
    """Where a mail stands. Counts and codes only: no address, no subject, no reply text."""

    id: UUID
    key: str
    account: str
    stage: Stage | None
    """None: it was there, and retention has removed it. Then nothing below is known."""
    lane: str | None = None
    partial: bool = False
    """Sent, and some recipients did not get it."""
    maybe_accepted: bool = False
    """It ended without an answer that was awaited: a copy may have gone out."""
    cancel_requested: bool = False
    held: bool = False
    """Nobody tries it until somebody decides; there is an alarm."""
    offered: bool = False
    """It was offered to the provider at least once."""
    attempts: int = 0
    """Those that count against its limit."""
    last_code: int | None = None
    last_enhanced: str | None = None
    created_at: datetime | None = None
    next_attempt_at: datetime | None = None
    """None: final, or held."""
    final_at: datetime | None = None
    recipients: Mapping[RecipientStage, int] | None = None
    """How many recipients by their stage."""


class CancelOutcome(StrEnum):
    """What came of a cancellation, once the caller's transaction commits."""

    CANCELLED = "cancelled"
    """Nothing was offered: the mail is final, and no copy of it goes out."""
    REQUESTED = "requested"
    """It is being worked on, was tried before, or is unknown. It is not offered again; what was offered stays so."""
    FINISHED = "finished"
    """It was final already."""
    REMOVED = "removed"
    """It was final, and retention has removed it."""
    MISSING = "missing"
    """Nothing was ever accepted under this key."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer of :func:`cancel`."""

    outcome: CancelOutcome
    id: UUID | None
    stage: Stage | None
    """Where the mail stands now; None when it is removed or missing."""


# Text and numbers only, and times without a zone: every driver reads them alike, whatever the session's time zone.
_STATUS = """
SELECT s.status, CAST(s.email_id AS text), s.stage, s.lane, s.partial, s.maybe_accepted, s.cancel_requested, s.held,
    s.offered, s.attempts, s.last_code, s.last_enhanced, s.created_at AT TIME ZONE 'UTC',
    s.next_attempt_at AT TIME ZONE 'UTC', s.final_at AT TIME ZONE 'UTC', CAST(s.recipients AS text)
FROM sendonce.status(CAST({key} AS text), CAST({account} AS text)) AS s
"""
_CANCEL = """
SELECT c.status, CAST(c.email_id AS text), c.stage
FROM sendonce.cancel(CAST({key} AS text), CAST({account} AS text), CAST({requested_by} AS text)) AS c
"""


@overload
def status(connection: SyncConnection, key: str, *, account: str = "default") -> MailStatus | None: ...
@overload
def status(connection: AnyAsyncConnection, key: str, *, account: str = "default") -> Awaitable[MailStatus | None]: ...
def status(connection: Any, key: str, *, account: str = "default") -> MailStatus | Awaitable[MailStatus | None] | None:
    """Where the mail of this key stands, as the transaction of ``connection`` sees it; None: there was never one.

    ``connection`` is what :func:`sendonce.enqueue` takes; for an async one, await the result. Changes nothing.
    Raises :class:`~sendonce.errors.ConfigurationError` in autocommit mode outside a transaction,
    :class:`~sendonce.errors.StoreNotReady` when the schema is missing. What the driver raises comes through.
    """
    return run(connection, _status_steps(key, account), _STATUS_CALL)


@overload
def cancel(
    connection: SyncConnection, key: str, *, account: str = "default", requested_by: str | None = None
) -> Cancelled: ...
@overload
def cancel(
    connection: AnyAsyncConnection, key: str, *, account: str = "default", requested_by: str | None = None
) -> Awaitable[Cancelled]: ...
def cancel(
    connection: Any, key: str, *, account: str = "default", requested_by: str | None = None
) -> Cancelled | Awaitable[Cancelled]:
    """Call a mail off in the transaction of ``connection``: it takes effect once that commits, else not at all.

    ``requested_by`` is who asked, for the log of transitions, one line of at most 200 characters; by default the
    session's database user. ``connection`` is what :func:`sendonce.enqueue` takes; for an async one, await the result.

    The mail's row stays locked until the transaction ends, so call it near the end. At REPEATABLE READ and
    SERIALIZABLE a mail that was changed meanwhile is the driver's serialization failure (SQLSTATE 40001).
    Raises :class:`~sendonce.errors.ConfigurationError` for a ``requested_by`` that cannot be, and in autocommit mode
    outside a transaction; :class:`~sendonce.errors.StoreNotReady` when the schema is missing. What the driver raises
    comes through.
    """
    return run(connection, _cancel_steps(key, account, requested_by), _CANCEL_CALL)


def _status_steps(key: str, account: str) -> Steps[MailStatus | None]:
    rows = yield Statement(_STATUS, {"key": key, "account": account})
    return _status(key, account, rows[0])


def _status(key: str, account: str, row: Row) -> MailStatus | None:
    what, email_id, stage, lane, *flags, created, due, final, recipients = row
    if what == "missing":
        return None
    if what == "removed":
        return MailStatus(UUID(email_id), key, account, None)
    partial, maybe_accepted, cancel_requested, held, offered, attempts, code, enhanced = flags
    return MailStatus(
        id=UUID(email_id),
        key=key,
        account=account,
        stage=Stage(stage),
        lane=lane,
        partial=partial,
        maybe_accepted=maybe_accepted,
        cancel_requested=cancel_requested,
        held=held,
        offered=offered,
        attempts=attempts,
        last_code=code,
        last_enhanced=enhanced,
        created_at=_utc(created),
        next_attempt_at=_utc(due),
        final_at=_utc(final),
        recipients={RecipientStage(name): int(count) for name, count in json.loads(recipients).items()},
    )


def _utc(instant: datetime | None) -> datetime | None:
    return instant and instant.replace(tzinfo=UTC)


def _cancel_steps(key: str, account: str, requested_by: str | None) -> Steps[Cancelled]:
    rows = yield Statement(_CANCEL, {"key": key, "account": account, "requested_by": requested_by})
    what, email_id, stage = rows[0]
    if what == "invalid:requested_by":
        raise ConfigurationError("cancel: requested_by must be one line of at most 200 characters")
    return Cancelled(CancelOutcome(what), email_id and UUID(email_id), Stage(stage) if stage else None)
