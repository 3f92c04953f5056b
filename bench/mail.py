"""The mail that everybody here sends, and how many at once."""

from __future__ import annotations

from email.message import EmailMessage

AT_ONCE = 20
"""Mails that are on their way at the same time: what our starter and a lane's places allow, and so for everybody."""

SENDER, SUBJECT = "Bookstore <orders@bookstore.example>", "Your order"

TEXT = """\
Dear reader,

thank you for your order. We have received it and will send you another message as soon as your books are on their way.
You can look at your order at any time in your account.

Kind regards,
The Bookstore
"""


def mailbox(key: str) -> str:
    """Whom the mail goes to: the sink tells mails apart by it."""
    return f"{key}@example.org"


def message(key: str) -> EmailMessage:
    """The mail under ``key``, as code that does not know Sendonce makes it."""
    mail = EmailMessage()
    mail["From"] = SENDER
    mail["To"] = mailbox(key)
    mail["Subject"] = SUBJECT
    mail.set_content(TEXT)
    return mail
