"""Read-only queries for people: the snapshot they read, and lists of mails.

Nothing here writes or locks. Each function reads one consistent snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy import ColumnElement, Connection, Select, and_, case, create_engine, func, literal, or_, select, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from sendonce.errors import ConfigurationError, StoreNotReady
from sendonce.store import tables as t
from sendonce.store.connecting import MISSING, connect_options
from sendonce.store.pool import STEADY

_OPEN = ("pending", "claimed", "unknown")
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
    template: str | None
    """Its name; None when the content is the mail's own."""
    tenant: str
    """Its fairness key; ``""`` when it has none."""
    waits_for: str | None
    """Why nobody tries it now: a broken template, a hold, an account that is paused."""


@dataclass(frozen=True, slots=True)
class MailFilter:
    """Which mails. What is empty or None chooses all."""

    stages: Sequence[str] = ()
    lane: str | None = None
    account: str | None = None
    template: str | None = None
    tenant: str | None = None
    recipient: str | None = None
    """A mailbox as the store keeps it: see :func:`sendonce.checks.envelope_mailbox`."""
    since: datetime | None = None
    """Enqueued then or later."""
    codes: Sequence[str] = field(default=())
    """Of the last reply: ``550``, ``5xx``, or an enhanced code such as ``4.7.1``."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """As SQL over ``email``."""
        e = t.email.c
        equal = {e.lane: self.lane, e.account: self.account, e.template: self.template, e.fairness_key: self.tenant}
        found: list[ColumnElement[bool]] = [column == value for column, value in equal.items() if value is not None]
        if self.stages:
            found.append(e.stage.in_(self.stages))
        if self.since is not None:
            found.append(e.created_at >= self.since)
        if self.recipient is not None:
            whose = select(t.recipient.c.email_id).where(t.recipient.c.mailbox == self.recipient)
            found.append(e.id.in_(whose))
        if self.codes:
            found.append(or_(*(_has_code(code) for code in self.codes)))
        return found


def _has_code(code: str) -> ColumnElement[bool]:
    text = code.lower()
    if len(text) == 3 and text.endswith("xx") and text[0] in "12345":
        return t.email.c.last_code.between(int(text[0]) * 100, int(text[0]) * 100 + 99)
    if text.isascii() and text.isdigit():
        return t.email.c.last_code == int(text[:9])
    return t.email.c.last_enhanced == code


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
            if error.orig.sqlstate in MISSING:
                raise StoreNotReady("the schema 'sendonce' is missing or too old: run 'sendonce migrate'") from None
            raise error.orig from None
        raise
    finally:
        engine.dispose()


def _connect(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, **connect_options(url))
    # Instants and intervals as the driver reads them, whatever the database or the role sets.
    connection.execute(STEADY)
    connection.commit()
    return connection


def mails(
    connection: Connection, which: MailFilter | None = None, *, after: UUID | None = None, limit: int = 50
) -> list[Mail]:
    """The newest mails first; ``after``: those that come after this one, which was the last of the page before.

    Raises :class:`~sendonce.errors.ConfigurationError` when that one is gone.
    """
    e = t.email.c
    query = select_mails().order_by(e.created_at.desc(), e.id.desc()).limit(limit)
    conditions = (which or MailFilter()).conditions()
    if after is not None:
        last = connection.execute(select(e.created_at).where(e.id == after)).scalar()
        if last is None:
            raise ConfigurationError(f"--after {after}: there is no such mail any more; start from the first page")
        conditions.append(tuple_(e.created_at, e.id) < tuple_(last, after))
    return rows(connection, query.where(*conditions), Mail)


def select_mails() -> Select[Any]:
    """A query for :class:`Mail`."""
    e = t.email.c
    a, h, p = t.alarm.c, t.hold.c, t.account.c
    # Whoever holds it back has raised an alarm that says why.
    held = select(a.detail).where(a.email_id == e.id, a.kind == "held", a.closes.is_(None)).order_by(a.id.desc())
    scopes = {"lane": e.lane, "template": e.template, "tenant": e.fairness_key, "account": e.account}
    on_hold = select(func.string_agg(h.scope + " " + h.name, ", ")).where(
        h.ended_at.is_(None), or_(*(and_(h.scope == scope, h.name == name) for scope, name in scopes.items()))
    )
    # Under whichever settings it is. A mail that its account's fallback has taken over is no longer pending.
    paused = select(func.string_agg(func.coalesce(p.pause_why, "a fault").distinct(), ", ")).where(
        p.paused_at.is_not(None), p.name == e.account, p.from_domain.in_(["", e.from_domain])
    )
    waits = case(
        (e.stage.in_(_OPEN), func.nullif(func.concat_ws(
            "; ",
            case((e.held_since.is_not(None), held.limit(1).scalar_subquery())),
            literal("on hold: ").concat(on_hold.scalar_subquery()),
            case((e.stage == "pending",
                  literal("account ").concat(e.account).concat(" is paused: ").concat(paused.scalar_subquery()))),
        ), "")),
    )  # fmt: skip
    special = {
        "tenant": e.fairness_key.label("tenant"),
        "template": func.nullif(e.template, "").label("template"),
        "waits_for": waits.label("waits_for"),
    }
    return select(*(special[c.name] if c.name in special else e[c.name] for c in fields(Mail)))


def accounts_with(connection: Connection, key: str) -> list[str]:
    """The accounts that know this key. The index leads with the account: one step for each account."""
    return [account for account in accounts(connection) if _known(connection, account, key)]


def _known(connection: Connection, account: str, key: str) -> bool:
    k = t.email_key.c
    return connection.execute(select(k.key).where(k.account == account, k.key == key)).first() is not None


def accounts(connection: Connection) -> list[str]:
    """The accounts that ever had a mail, each found by one step through the index of the keys."""
    k = t.email_key.c
    found: list[str] = []
    while True:
        query = select(k.account).order_by(k.account).limit(1)
        name = connection.execute(query.where(k.account > found[-1]) if found else query).scalar()
        if name is None:
            return found
        found.append(name)


def columns(table: Any, row: type[Any]) -> list[Any]:
    """The table's columns that this dataclass has as fields."""
    return [table.c[column.name] for column in fields(row)]


def rows(connection: Connection, query: Select[Any], row: type[_Row]) -> list[_Row]:
    """What the query finds, each as one of these."""
    return [row(*values) for values in connection.execute(query)]


def count(connection: Connection, which: MailFilter) -> int:
    """How many there are."""
    query = select(func.count()).select_from(t.email).where(*which.conditions())
    return int(connection.execute(query).scalar_one())


def ids_of(connection: Connection, account: str, keys: Sequence[str]) -> dict[str, UUID]:
    """The mails of these keys; one that is not known, or was emptied, is left out."""
    e = t.email.c
    k = t.email_key.c
    query = select(k.key, e.id).join(t.email, e.id == k.email_id).where(k.account == account, k.key.in_(keys))
    return {row.key: row.id for row in connection.execute(query)}
