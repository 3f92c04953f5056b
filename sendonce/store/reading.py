"""Read-only queries for people: lists of mails, one mail with its whole story, open alarms.

Nothing here writes or locks. Each function reads one consistent snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Select, create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from sendonce.errors import NoSuchEmail, StoreNotReady
from sendonce.store import tables as t
from sendonce.store.pool import STEADY

CONNECT_SECONDS = 10
"""How long a connection is tried, unless the URL or ``PGCONNECT_TIMEOUT`` says otherwise."""

_MISSING = {"3F000", "42P01", "42703"}  # schema, table, column: an older schema, or none
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail as a list shows it. Times are aware."""

    id: UUID
    key: str
    account: str
    lane: str
    stage: str
    partial: bool
    """Sent, but not to every recipient."""
    maybe_accepted: bool
    """Final, and some recipient's offer was never answered."""
    attempts: int
    """Counted attempts."""
    created_at: datetime
    next_attempt_at: datetime | None
    """When the next try is due; None when nobody will try."""
    final_at: datetime | None
    held_why: str | None
    last_code: int | None
    last_enhanced: str | None


@dataclass(frozen=True, slots=True)
class RecipientRow:
    """Where one recipient stands. ``mailbox`` and ``reply_text`` are personal data."""

    ordinal: int
    mailbox: str
    stage: str
    code: int | None
    enhanced: str | None
    reply_text: str | None
    provider_id: str | None
    changed_at: datetime | None
    delivery: str | None
    """What became of it afterwards: the highest :class:`~sendonce.events.EventKind` so far."""
    delivery_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One claim and what came of it. ``answers`` maps recipient ordinals to outcomes; their texts are personal data."""

    id: UUID
    number: int
    generation: int
    account: str
    """It went by: the mail's own, or the fallback of that one."""
    mode: str
    worker: str
    claimed_at: datetime
    begun_at: datetime | None
    """None: nothing was offered."""
    offered: list[int]
    answers: dict[str, dict[str, Any]]
    counted: bool
    ended_at: datetime | None
    ended_why: str | None


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One change of stage."""

    at: datetime
    from_stage: str | None
    to_stage: str
    cause: str
    actor: str
    attempt_id: UUID | None
    because: str | None
    """An operator's reason."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One thing that came back. ``proven`` False: anyone could have written it."""

    received_at: datetime
    happened_at: datetime | None
    kind: str
    ordinal: int | None
    source: str
    event_id: str
    proven: bool
    code: int | None
    enhanced: str | None


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One proof that was not an attempt's own answer."""

    recorded_at: datetime
    ordinal: int
    accepted: bool
    generation: int
    source: str
    event_id: str
    actor: str
    after_final: bool


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """One alarm. ``closed`` says that a later row ended it."""

    id: int
    at: datetime
    kind: str
    email_id: UUID | None
    key: str | None
    account: str | None
    detail: str
    delivered_at: datetime | None
    closed: bool


@dataclass(frozen=True, slots=True)
class Story:
    """One mail with everything that happened to it. ``subject`` and ``requested_by`` are personal data."""

    mail: Mail
    send_after: datetime | None
    expires_at: datetime | None
    unknown_since: datetime | None
    cancel_requested_at: datetime | None
    generation: int
    message_id: str | None
    subject: str | None
    requested_by: str | None
    recipients: list[RecipientRow]
    attempts: list[AttemptRow]
    transitions: list[TransitionRow]
    evidence: list[EvidenceRow]
    events: list[EventRow]
    alarms: list[AlarmRow]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A key whose mail retention has emptied: it was accepted once, and is never accepted for other content."""

    id: UUID
    key: str
    account: str
    created_at: datetime


@contextmanager
def reading(url: str) -> Iterator[Connection]:
    """A read-only snapshot of the database at ``url`` (anything libpq takes).

    Raises :class:`~sendonce.errors.StoreNotReady` when the schema is missing or older, and
    :class:`psycopg.OperationalError` when the database is away.
    """
    engine = create_engine("postgresql+psycopg://", creator=lambda: _connect(url), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection
    except DBAPIError as error:
        # The driver's own error: SQLAlchemy's would quote the statement with its parameters.
        if isinstance(error.orig, psycopg.Error):
            if error.orig.sqlstate in _MISSING:
                raise StoreNotReady("the schema 'sendonce' is missing or too old: run 'sendonce migrate'") from None
            raise error.orig from None
        raise
    finally:
        engine.dispose()


def _connect(url: str) -> psycopg.Connection[Any]:
    extra: dict[str, Any] = {"application_name": "sendonce cli"}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        extra["connect_timeout"] = CONNECT_SECONDS
    given = conninfo_to_dict(url)
    connection = psycopg.connect(url, **{name: value for name, value in extra.items() if name not in given})
    # Instants and intervals as the driver reads them, whatever the database or the role sets.
    connection.execute(STEADY)
    connection.commit()
    return connection


def mails(
    connection: Connection,
    *,
    stages: Sequence[str] = (),
    lane: str | None = None,
    account: str | None = None,
    limit: int = 50,
) -> list[Mail]:
    """The newest mails first; empty ``stages`` means all."""
    query = select(*_columns(t.email, Mail)).order_by(t.email.c.created_at.desc(), t.email.c.id.desc()).limit(limit)
    if stages:
        query = query.where(t.email.c.stage.in_(stages))
    if lane is not None:
        query = query.where(t.email.c.lane == lane)
    if account is not None:
        query = query.where(t.email.c.account == account)
    return _rows(connection, query, Mail)


def story(connection: Connection, account: str, key: str) -> Story | Forgotten:
    """Everything about one mail. Raises :class:`~sendonce.errors.NoSuchEmail`."""
    known = connection.execute(
        select(t.email_key.c.email_id, t.email_key.c.created_at).where(
            t.email_key.c.account == account, t.email_key.c.key == key
        )
    ).one_or_none()
    if known is None:
        raise NoSuchEmail(account, key)
    found = _rows(connection, select(*_columns(t.email, Mail)).where(t.email.c.id == known.email_id), Mail)
    if not found:
        return Forgotten(known.email_id, key, account, known.created_at)
    return _story(connection, found[0])


def _story(connection: Connection, mail: Mail) -> Story:
    more = connection.execute(
        select(
            t.email.c.send_after,
            t.email.c.expires_at,
            t.email.c.unknown_since,
            t.email.c.cancel_requested_at,
            t.email.c.generation,
            t.email_content.c.message_id,
            t.email_content.c.content["subject"].astext.label("subject"),
            t.email_content.c.requested_by,
        )
        .outerjoin_from(t.email, t.email_content, t.email_content.c.email_id == t.email.c.id)
        .where(t.email.c.id == mail.id)
    ).one()

    def of_mail(table: Any, row: type[_Row], *order: Any) -> list[_Row]:
        query = select(*_columns(table, row)).where(table.c.email_id == mail.id).order_by(*order)
        return _rows(connection, query, row)

    return Story(
        mail,
        *more,
        recipients=of_mail(t.recipient, RecipientRow, t.recipient.c.ordinal),
        attempts=of_mail(t.attempt, AttemptRow, t.attempt.c.number),
        transitions=of_mail(t.transition, TransitionRow, t.transition.c.id),
        evidence=of_mail(t.evidence, EvidenceRow, t.evidence.c.id),
        events=of_mail(t.event, EventRow, t.event.c.id),
        alarms=_rows(connection, _alarms().where(t.alarm.c.email_id == mail.id).order_by(t.alarm.c.id), AlarmRow),
    )


def open_alarms(connection: Connection, *, limit: int = 100) -> list[AlarmRow]:
    """The alarms that nothing has ended yet, newest first."""
    query = _alarms().where(~_closed()).order_by(t.alarm.c.id.desc()).limit(limit)
    return _rows(connection, query, AlarmRow)


def _closed() -> Any:
    closing = t.alarm.alias("closing")
    return select(closing.c.id).where(closing.c.closes == t.alarm.c.id).exists()


def _alarms() -> Select[Any]:
    a = t.alarm.c
    closed = _closed().label("closed")
    return (
        select(a.id, a.at, a.kind, a.email_id, t.email.c.key, a.account, a.detail, a.delivered_at, closed)
        .outerjoin_from(t.alarm, t.email, t.email.c.id == a.email_id)
        .where(a.closes.is_(None))
    )


def _columns(table: Any, row: type[Any]) -> list[Any]:
    return [table.c[column.name] for column in fields(row)]


def _rows(connection: Connection, query: Select[Any], row: type[_Row]) -> list[_Row]:
    return [row(*values) for values in connection.execute(query)]
