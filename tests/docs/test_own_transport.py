"""What the page about a transport of one's own says is what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

from sendonce import transport
from sendonce.settings.transports import ACCOUNT_KEYS
from sendonce.store.plan import counts
from sendonce.transport import SendError, SimpleMail, SimpleSettings

if TYPE_CHECKING:
    from tests.docs.conftest import Page

PAGE = "docs/own-transport.md"


def test_what_each_exception_comes_to(pages: dict[str, Page]) -> None:
    rows = pages[PAGE].table("What `send` says")
    documented = {re.sub(r"raises (\w+)", r"\1", row["send"]): (row["outcome"], row["counted"]) for row in rows}
    public = [getattr(transport, name) for name in transport.__all__]
    said = [one for one in public if isinstance(one, type) and issubclass(one, SendError) and one is not SendError]
    outcomes = {one.__name__: one().outcome for one in said}
    made = {name: (one.kind, "yes" if counts(one) else "no") for name, one in outcomes.items()}
    assert made == {name: documented.get(name) for name in made}


def test_what_a_mail_has(pages: dict[str, Page]) -> None:
    named = [name for row in pages[PAGE].table("What `send` gets") for name in row["of mail"].split(", ")]
    assert sorted(named) == sorted(field.name for field in fields(SimpleMail))


def test_the_settings(pages: dict[str, Page]) -> None:
    documented = {row["key"]: row["default"].strip('"') for row in pages[PAGE].table("Settings")}
    assert documented == {name: str(field.default) for name, field in SimpleSettings.model_fields.items()}
    assert all(f"`{key}`" in pages[PAGE].section("Settings") for key in ACCOUNT_KEYS)
