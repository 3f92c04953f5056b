"""What the shop does. Each function works in the transaction of its caller, and so does the mail that it enqueues."""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from bookstore import mails
from bookstore.tables import Customer, Order, PasswordReset
from sendonce import Enqueued, take_finals
from sendonce.fastapi import SyncUnitOfWork

BOOKS = {"Emma": Decimal("9.50"), "Dracula": Decimal("12.00"), "Middlemarch": Decimal("14.90")}
RESET_IS_VALID = timedelta(minutes=15)


class PaymentDeclined(Exception):
    """The order does not come about, and neither does its mail."""


def place_order(
    work: SyncUnitOfWork, order_id: UUID, email: str, book: str, site: str, *, declined: bool = False
) -> Enqueued:
    """The same id again, also at the same moment, is the same order and the same mail."""
    values = {"id": order_id, "customer_id": _customer(work.session, email), "book": book, "price": BOOKS[book]}
    work.session.execute(insert(Order).values(values).on_conflict_do_nothing())
    order = work.session.get_one(Order, order_id)
    mail = work.enqueue(mails.order_confirmation(order, site))
    if declined:
        raise PaymentDeclined
    return mail


def send_invoice(work: SyncUnitOfWork, order: Order) -> Enqueued:
    """Asked for again, it is the mail that was sent already."""
    return work.enqueue(mails.invoice(order))


def reset_password(work: SyncUnitOfWork, email: str, site: str) -> None:
    """A link to choose a new password, if there is such a customer; the caller says the same in both cases."""
    customer = work.session.scalar(select(Customer).where(Customer.email == email))
    if customer is None:
        return
    token = secrets.token_urlsafe()
    reset = PasswordReset(
        customer_id=customer.id,
        token_digest=hashlib.sha256(token.encode()).digest(),
        expires_at=datetime.now(UTC) + RESET_IS_VALID,
    )
    work.session.add(reset)
    work.session.flush()  # it has its id now, and with it the mail its key
    work.enqueue(mails.password_reset(reset, customer, token, site))


def take_ends(session: Session) -> None:
    """Learn how confirmations ended. Each end is handed out once: what is noted here commits together with that."""
    for final in take_finals(session):
        order = session.get_one(Order, UUID(final.key.removeprefix("order-").removesuffix("-confirmation")))
        # A mail can end twice: a requeue, or a late proof, may still make it `sent`.
        order.unconfirmed = None if final.stage == "sent" else str(final.stage)
        if final.stage == "failed" and final.enhanced == "5.1.1":  # RFC 3463 3.2: there is no such mailbox
            order.customer.no_such_mailbox = True


def _customer(session: Session, email: str) -> UUID:
    session.execute(insert(Customer).values(email=email).on_conflict_do_nothing())
    return session.execute(select(Customer.id).where(Customer.email == email)).scalar_one()
