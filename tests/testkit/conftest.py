"""The kit's own fixture in place of this suite's, whose ``sendonce`` is the command; and a shop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sendonce import Attachment, OutgoingEmail, enqueue
from sendonce.testing import KitSettings, Sendonce
from sendonce.testing.kit.loop import BackgroundLoop
from sendonce.testing.plugin import sendonce

__all__ = ["sendonce"]

Order = Callable[..., None]
Make = Callable[..., Sendonce]


def mail(key: str = "order-1", **fields: Any) -> OutgoingEmail:
    usual = {"sender": "shop@example.com", "to": "ann@example.org", "subject": "Your order", "text": "Thanks."}
    return OutgoingEmail(key=key, **(usual | fields))


@pytest.fixture
def order() -> Order:
    """Commit a mail."""

    def order(installation: Sendonce, key: str = "order-1", **fields: Any) -> None:
        with installation.connect() as connection:
            enqueue(connection, mail(key, **fields))

    return order


@pytest.fixture
def make(sendonce_database_url: str, sendonce_loop: BackgroundLoop) -> Iterator[Make]:
    """An installation with these settings."""
    made: list[Sendonce] = []

    def make(patience: float = 30.0, **fields: Any) -> Sendonce:
        made.append(Sendonce(sendonce_database_url, KitSettings(**fields), sendonce_loop, patience=patience))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def invoice() -> Attachment:
    return Attachment(filename="invoice.pdf", content_type="application/pdf", content=b"%PDF-1.7")
