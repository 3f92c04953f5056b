"""The shop's own tables. Sendonce's are in a schema of their own, in the same database."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

from sqlalchemy import DateTime, ForeignKey, Numeric
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


def _now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Every table of the shop."""


class Customer(Base):
    """Somebody who ordered once."""

    __tablename__ = "customers"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    email: Mapped[str] = mapped_column(unique=True)
    no_such_mailbox: Mapped[bool] = mapped_column(default=False)
    """The provider said so: ask for another address before writing again."""


class Order(Base):
    """One order of one book."""

    __tablename__ = "orders"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    """Made with the form: pressing the button twice is the same order."""
    customer_id: Mapped[UUID] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[Customer] = relationship(lazy="joined")
    book: Mapped[str]
    price: Mapped[Decimal] = mapped_column(Numeric(8, 2))
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), default=_now)
    unconfirmed: Mapped[str | None]
    """How its confirmation ended, if not by being sent: somebody should call."""


class PasswordReset(Base):
    """One request for a new password."""

    __tablename__ = "password_resets"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    customer_id: Mapped[UUID] = mapped_column(ForeignKey("customers.id"))
    token_digest: Mapped[bytes]
    """The token itself is in the mail only."""
    expires_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
