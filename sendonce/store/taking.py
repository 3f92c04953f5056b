"""What came back about mails, handed to business code in its own transaction: each event once, to whoever commits.

One SQL function, ``sendonce.take_events``, does the work; :mod:`~sendonce.store.callers` calls it through SQLAlchemy or
psycopg, sync or async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from sendonce.errors import ConfigurationError
from sendonce.events import EventKind
from sendonce.store.callers import Call, Row, Statement, Steps, run

if TYPE_CHECKING:
    from sendonce.store.callers import AnyAsyncConnection, SyncConnection

MOST = 1000
"""So many events at most are taken by one call."""

_CALL = Call("take_events", "what is taken")

# Text and numbers only, and times without a zone: every driver reads them alike, whatever the session's time zone.
_TAKE = """
SELECT e.id, e.kind, e.account, e.key, CAST(e.email_id AS text), e.ordinal, e.mailbox, e.provider_id,
    e.happened_at AT TIME ZONE 'UTC', e.received_at AT TIME ZONE 'UTC', e.code, e.enhanced
FROM sendonce.take_events(string_to_array(CAST({kinds} AS text), ','), CAST({most} AS integer)) AS e
"""


@dataclass(frozen=True, slots=True)
class TakenEvent:
    """One authentic event about a mail, as it is handed out."""

    id: int
    """Unique for ever, and the order in which events are handed out: that of their arrival, or nearly."""
    kind: EventKind
    account: str
    key: str
    """Account and key as the mail was enqueued."""
    email_id: UUID
    ordinal: int | None
    """Which of the mail's recipients, from 0. None: the event names nobody of several, or somebody else."""
    mailbox: str | None = field(repr=False)
    """The recipient, as the mail names them, or who else is named by the event. None: it names nobody of several."""
    provider_id: str | None
    """The provider's id of the mail."""
    happened_at: datetime | None
    """By the provider's clock, in UTC, if it said so."""
    received_at: datetime
    """By the store's clock, in UTC."""
    code: int | None
    """The SMTP reply code of the recipient's server, if it was told."""
    enhanced: str | None
    """Its enhanced status code, such as ``5.1.1`` (RFC 3463)."""


@overload
def take_events(
    connection: SyncConnection, *, kinds: Iterable[EventKind | str] | None = None, limit: int = 100
) -> list[TakenEvent]: ...
@overload
def take_events(
    connection: AnyAsyncConnection, *, kinds: Iterable[EventKind | str] | None = None, limit: int = 100
) -> Awaitable[list[TakenEvent]]: ...
def take_events(
    connection: Any, *, kinds: Iterable[EventKind | str] | None = None, limit: int = 100
) -> list[TakenEvent] | Awaitable[list[TakenEvent]]:
    """Take the next events, at most ``limit`` (1 to 1000), in the transaction of ``connection``; an empty list: none.

    They count as handed out once that transaction commits; if it does not, they are handed out again. What is done
    with them in the same transaction is thus done exactly once. Two callers at once never get the same event, and do
    not wait for each other. ``connection`` is what :func:`sendonce.enqueue` takes; for an async one, await the result.
    It is never committed or rolled back here.

    ``kinds``: only these, such as ``["bounced", "complained"]``; the others stay for another call. None: all. Only
    events that prove who wrote them and whose mail is known are handed out, in the order of their ids. That is nearly
    the order of their arrival, which is not always the order in which things happened.

    At REPEATABLE READ and SERIALIZABLE an event that another transaction took meanwhile is the driver's serialization
    failure (SQLSTATE 40001): retry that transaction, as for any concurrent update.

    Raises :class:`~sendonce.errors.ConfigurationError` for a kind or a limit that there is not, and in autocommit mode
    outside a transaction; :class:`~sendonce.errors.StoreNotReady` when the schema is missing. What the driver raises
    comes through.
    """
    return run(connection, _steps(_kinds(kinds), _limit(limit)), _CALL)


def _kinds(kinds: Iterable[EventKind | str] | None) -> str | None:
    if kinds is None:
        return None
    asked = [kinds] if isinstance(kinds, str) else list(kinds)
    known = [str(kind) for kind in EventKind]
    for kind in asked:
        if kind not in known:
            raise ConfigurationError(f"take_events: there is no kind of event {kind!r}, only {', '.join(known)}")
    return ",".join(asked)


def _limit(limit: int) -> int:
    if limit not in range(1, MOST + 1):
        raise ConfigurationError(f"take_events: limit = {limit!r}: write a whole number from 1 to {MOST}")
    return limit


def _steps(kinds: str | None, limit: int) -> Steps[list[TakenEvent]]:
    rows = yield Statement(_TAKE, {"kinds": kinds, "most": limit})
    return [_taken(row) for row in rows]


def _taken(row: Row) -> TakenEvent:
    number, kind, account, key, email_id, ordinal, mailbox, provider_id, happened_at, received_at, code, enhanced = row
    return TakenEvent(
        id=number,
        kind=EventKind(kind),
        account=account,
        key=key,
        email_id=UUID(email_id),
        ordinal=ordinal,
        mailbox=mailbox,
        provider_id=provider_id,
        happened_at=happened_at and happened_at.replace(tzinfo=UTC),
        received_at=received_at.replace(tzinfo=UTC),
        code=code,
        enhanced=enhanced,
    )
