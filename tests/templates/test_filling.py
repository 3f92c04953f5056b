"""From a template to a mail that can be enqueued, and from that to one that can be sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.errors import InvalidEmail, TemplateFault
from sendonce.message import Address, OutgoingEmail
from sendonce.templates import Templates

if TYPE_CHECKING:
    from tests.templates.conftest import Write

META = """
    from = "Shop <shop@example.org>"
    lane = "critical"
    headers = { X-Kind = "order", Auto-Submitted = "auto-generated" }
"""


def test_a_mail_takes_sender_lane_and_headers_from_the_template(folder: Path, write: Write) -> None:
    write("order", subject="s", text="t", meta=META)
    mail = Templates(folder).email("order", key="k", to="ann@example.org", parameters={"id": 1})
    assert mail == OutgoingEmail(
        key="k",
        to="ann@example.org",
        template="order",
        parameters={"id": 1},
        sender=Address(email="shop@example.org", name="Shop"),
        lane="critical",
        headers={"X-Kind": "order", "Auto-Submitted": "auto-generated"},
    )


def test_what_is_given_wins_over_the_template(folder: Path, write: Write) -> None:
    write("order", subject="s", text="t", meta=META)
    mail = Templates(folder).email(
        "order",
        key="k",
        to="ann@example.org",
        sender="b@example.org",
        lane="bulk",
        headers={"x-kind": "mine"},
        account="news",
    )
    assert (mail.sender.email, mail.lane, mail.account) == ("b@example.org", "bulk", "news")
    assert mail.headers == {"x-kind": "mine", "Auto-Submitted": "auto-generated"}


def test_the_meta_file_of_the_locale_serves(folder: Path, write: Write) -> None:
    write("order", subject="s", text="t", meta=META)
    write("order/de", meta='from = "Laden <laden@example.org>"')
    mail = Templates(folder).email("order", key="k", to="ann@example.org", locale="de-AT")
    assert (mail.sender.name, mail.lane, mail.headers, mail.locale) == ("Laden", "default", {}, "de-AT")


def test_a_mail_by_a_template_without_sender_needs_one(folder: Path, write: Write) -> None:
    write("order", subject="s", text="t")
    templates = Templates(folder)
    with pytest.raises(InvalidEmail, match=r"sender: is required: .*meta\.toml"):
        templates.email("order", key="k", to="ann@example.org")
    assert templates.email("order", key="k", to="ann@example.org", sender="b@example.org").headers == {}
    with pytest.raises(TemplateFault, match="no such template"):
        templates.email("odrer2", key="k", to="ann@example.org", sender="b@example.org")


def mail(**more: object) -> OutgoingEmail:
    fields = {"key": "k", "sender": "a@example.org", "to": "ann@example.org", "template": "order", "locale": "de"}
    return OutgoingEmail(**{**fields, **more})  # type: ignore[arg-type]


def test_a_mail_is_filled_and_marked(folder: Path, write: Write) -> None:
    write("order", subject="{{ id }}", text="text {{ id }}", html="<p>{{ id }}</p>", meta=META)
    write("order/de", subject="Nr. {{ id }}")
    asked = mail(parameters={"id": 7}, headers={"x-KIND": "mine"})
    filled = Templates(folder).fill(asked)
    assert (filled.subject, filled.text, filled.html) == ("Nr. 7", "text 7", "<p>7</p>")
    assert filled.headers == {"x-KIND": "mine", "Auto-Submitted": "auto-generated"}
    assert filled.rendered
    unchanged = ("key", "sender", "to", "lane", "template", "parameters", "locale")
    assert [getattr(filled, name) for name in unchanged] == [getattr(asked, name) for name in unchanged]
    assert OutgoingEmail.from_json(filled.to_json()) == filled


def test_a_mail_is_filled_once(folder: Path, write: Write) -> None:
    path = write("order", subject="one", text="t")
    templates = Templates(folder)
    filled = templates.fill(mail())
    (path / "subject.txt").write_text("another")
    assert templates.fill(filled) is filled


def test_a_mail_without_a_template_stays_as_it_is(folder: Path) -> None:
    plain = mail(template=None, text="t")
    assert Templates(folder).fill(plain) is plain


def test_filling_raises_what_is_wrong(folder: Path, write: Write) -> None:
    write("order", subject="{{ id }}", text="t")
    templates = Templates(folder)
    with pytest.raises(TemplateFault) as caught:
        templates.fill(mail())
    assert caught.value.place == "order/subject.txt:1: UndefinedError: 'id' is not given"
    with pytest.raises(InvalidEmail, match="subject: must be at most"):
        templates.fill(mail(parameters={"id": "x" * 2000}))
