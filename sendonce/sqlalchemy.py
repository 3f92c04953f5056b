"""SQLAlchemy: start a mail's workflow after the outermost commit of its session."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from sendonce import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    from sendonce import Enqueued
    from sendonce.background import Starts

    AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]

logger = logging.getLogger(__name__)

_KEY = "sendonce.start_after_commit"


class _Due(NamedTuple):
    starter: Starts
    mails: tuple[Enqueued, ...]
    connection: Connection | None
    """The session's, if it was given one, whose transaction may be somebody else's."""


def start_after_commit(session: AnySession, starter: Starts, *mails: Enqueued) -> None:
    """Have ``starter`` start the workflows of ``mails``, just enqueued, once ``session`` has committed.

    Call it right after :func:`sendonce.enqueue`, in the same transaction. A rollback forgets them, one to a savepoint
    those that were enqueued since. A session that was joined into an outer transaction of its connection does not know
    when that one commits, so that nothing is started from here. The starter finds whatever is not started. Does no I/O;
    for async sessions too it is not awaited.

    Raises :class:`~sendonce.errors.ConfigurationError` when the session is in no transaction.
    """
    plain = _plain(session)
    transaction = plain.get_nested_transaction() or plain.get_transaction()
    if transaction is None:
        raise ConfigurationError(
            "start_after_commit: the session is in no transaction: call it right after enqueue, before the commit"
        )
    bind = plain.get_bind()
    due = _Due(starter, mails, bind if isinstance(bind, Connection) else None)
    _pending(plain).setdefault(transaction, []).append(due)


def _plain(session: AnySession) -> Session:
    # Not imported: SQLAlchemy's asyncio needs greenlet, which comes with it no more from 2.1 on. Whoever passes one of
    # its sessions has imported it.
    asynchronous: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    found: Any = session
    if isinstance(found, scoped_session) or (asynchronous and isinstance(found, asynchronous.async_scoped_session)):
        found = found()
    plain: Session = found.sync_session if asynchronous and isinstance(found, asynchronous.AsyncSession) else found
    return plain


def _pending(session: Session) -> dict[SessionTransaction, list[_Due]]:
    found: dict[SessionTransaction, list[_Due]] = session.info.setdefault(_KEY, {})
    return found


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    """The outermost transaction has committed, or a savepoint was released."""
    if not session.info.get(_KEY):
        return
    pending = _pending(session)
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        # From now on they go with what surrounds the savepoint.
        if found := pending.pop(savepoint, None):
            pending.setdefault(_around(savepoint), []).extend(found)
        return
    for transaction in list(pending):
        for starter, mails, connection in pending.pop(transaction):
            if connection is not None and connection.in_transaction():
                continue
            try:
                starter.start(*mails)
            except Exception as error:  # somebody else's starter; the commit has happened
                logger.warning("%d mails not started here, the starter will: %s", len(mails), type(error).__name__)


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """The next savepoint, or the outermost transaction; flushes in between are transactions too."""
    transaction = savepoint.parent
    assert transaction is not None, "a savepoint is inside of something"
    while not transaction.nested and transaction.parent is not None:
        transaction = transaction.parent
    return transaction


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Whatever is still there of this transaction was not committed."""
    if pending := session.info.get(_KEY):
        pending.pop(transaction, None)
