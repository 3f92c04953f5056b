"""FastAPI: one transaction for a request, committed before the response is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sendonce import Enqueued, enqueue
from sendonce.sqlalchemy import start_after_commit

if TYPE_CHECKING:
    from sendonce import OutgoingEmail
    from sendonce.background import Starts


@dataclass(frozen=True, slots=True)
class UnitOfWork:
    """The transaction of a request: it commits when the endpoint returns, and rolls back when it raises."""

    session: AsyncSession
    starter: Starts | None = None

    async def enqueue(self, email: OutgoingEmail, **options: Any) -> Enqueued:
        """As :func:`sendonce.enqueue` in this transaction, with its options; started once it has committed."""
        mail = await enqueue(self.session, email, **options)
        if self.starter is not None:
            start_after_commit(self.session, self.starter, mail)
        return mail


@dataclass(frozen=True, slots=True)
class SyncUnitOfWork:
    """The same for endpoints that are no coroutines."""

    session: Session
    starter: Starts | None = None

    def enqueue(self, email: OutgoingEmail, **options: Any) -> Enqueued:
        """As :func:`sendonce.enqueue` in this transaction, with its options; started once it has committed."""
        mail = enqueue(self.session, email, **options)
        if self.starter is not None:
            start_after_commit(self.session, self.starter, mail)
        return mail


def unit_of_work(sessions: async_sessionmaker[Any] | sessionmaker[Any], starter: Starts | None = None) -> Any:
    """A dependency: ``Annotated[UnitOfWork, unit_of_work(sessions, starter)]``.

    With a ``sessionmaker`` it is a :class:`SyncUnitOfWork`. The transaction ends before the response is sent
    (``scope="function"``): a commit that fails is an error that the client sees. FastAPI ends other dependencies after
    the response, when the client has been told already that all went well. Without a ``starter``, or when it cannot,
    the starter process finds the mail.
    """

    async def work() -> AsyncIterator[UnitOfWork]:
        assert isinstance(sessions, async_sessionmaker)
        async with sessions() as session, session.begin():
            yield UnitOfWork(session, starter)

    def sync_work() -> Iterator[SyncUnitOfWork]:
        assert isinstance(sessions, sessionmaker)
        with sessions() as session, session.begin():
            yield SyncUnitOfWork(session, starter)

    return Depends(work if isinstance(sessions, async_sessionmaker) else sync_work, scope="function")
