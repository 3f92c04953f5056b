"""What the shop writes to its customers: every mail in one place, none of them sent from here.

A key comes from what the mail is about, so that the same event is the same mail. It is visible in Temporal and to the
provider: ids, no addresses, no secrets.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from bookstore.pdf import pdf
from bookstore.tables import Customer, Order, PasswordReset
from sendonce import Attachment, OutgoingEmail, Template

ORDERS = "Bookstore <orders@bookstore.example>"
ACCOUNTS = "Bookstore <accounts@bookstore.example>"


class OrderConfirmation(Template):
    """What `templates/order_confirmation` is filled with."""

    book: str = Field(examples=["Emma"])
    price: Decimal = Field(examples=[Decimal("9.50")])
    url: str = Field(examples=["https://bookstore.example/mails/order-1-confirmation"])


class PasswordResetLink(Template, template="password_reset"):
    """What `templates/password_reset` is filled with."""

    url: str = Field(examples=["https://bookstore.example/passwords/7f3a"])


class Invoice(Template):
    """What `templates/invoice` is filled with."""

    book: str = Field(examples=["Emma"])


def confirmation_key(order: Order) -> str:
    """The key of the order's confirmation."""
    return f"order-{order.id}-confirmation"


def order_confirmation(order: Order, site: str) -> OutgoingEmail:
    """Sent when the order is placed. The shop wants to know how it ends."""
    key = confirmation_key(order)
    return OutgoingEmail(
        key=key,
        sender=ORDERS,
        to=order.customer.email,
        template=OrderConfirmation(book=order.book, price=order.price, url=f"{site}/mails/{key}"),
        on_final="take",
    )


def password_reset(reset: PasswordReset, customer: Customer, token: str, site: str) -> OutgoingEmail:
    """Urgent, worthless when it comes late, and out of date as soon as there is a newer one."""
    return OutgoingEmail(
        key=f"password-reset-{reset.id}",
        sender=ACCOUNTS,
        to=customer.email,
        template=PasswordResetLink(url=f"{site}/passwords/{token}"),
        lane="critical",
        topic=f"password-reset:{customer.id}",
        expires_at=reset.expires_at,
    )


def invoice(order: Order) -> OutgoingEmail:
    """The PDF is the same bytes each time, so that asking twice is the same mail."""
    lines = ["Bookstore, 1 Main Street", "", f"Invoice for order {order.id}", f"{order.book}: {order.price} EUR"]
    return OutgoingEmail(
        key=f"order-{order.id}-invoice",
        sender=ORDERS,
        to=order.customer.email,
        template=Invoice(book=order.book),
        attachments=[Attachment(filename="invoice.pdf", content=pdf(lines), content_type="application/pdf")],
    )
