"""A bookstore that records orders in tables of its own and enqueues the mail in the same transaction."""

from __future__ import annotations

from sqlalchemy import MetaData, String, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sendonce.message import OutgoingEmail
from sendonce.store.intake import Enqueued, enqueue


class Base(DeclarativeBase):
    """The bookstore's tables."""

    metadata = MetaData(schema="bookstore")


class Order(Base):
    """One order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(200))
    book: Mapped[str] = mapped_column(String(200))


class PaymentDeclined(Exception):
    """The order does not come about, and neither does its mail."""


class Bookstore:
    """The business code: knows SQLAlchemy and ``enqueue``, and nothing of workers or Temporal."""

    def __init__(self, database_url: str) -> None:
        self._engine = create_engine(
            database_url.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=8, max_overflow=8
        )
        self._sessions = sessionmaker(self._engine)

    def open(self) -> None:
        """Create the shop's own tables."""
        with self._engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA IF NOT EXISTS bookstore"))
        Base.metadata.create_all(self._engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def order(self, mail: OutgoingEmail, *, declined: bool = False) -> Enqueued:
        """Record an order and its mail together. Raises PaymentDeclined, and nothing of either remains."""
        with self._sessions.begin() as session:
            session.add(Order(customer=mail.to[0].mailbox, book="The Art of the Queue"))
            enqueued = enqueue(session, mail)
            if declined:
                raise PaymentDeclined
        return enqueued

    def notify(self, *mails: OutgoingEmail) -> None:
        """Mails that belong to no order, in one transaction."""
        with self._sessions.begin() as session:
            for mail in mails:
                enqueue(session, mail)

    def orders(self) -> int:
        """How many orders there are."""
        with Session(self._engine) as session:
            return int(session.execute(text("SELECT count(*) FROM bookstore.orders")).scalar_one())
