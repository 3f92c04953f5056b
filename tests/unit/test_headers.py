"""Header fields for unsubscribing, for machines, and how much of them a mail may have."""

from __future__ import annotations

from typing import Any

import pytest

from sendonce import Attachment, InvalidEmail, OutgoingEmail, unsubscribe_headers
from sendonce.ready_made import HEADER_LIMIT


def mail(**fields: Any) -> OutgoingEmail:
    return OutgoingEmail(**{"key": "k", "sender": "a@example.org", "to": "b@example.org", "text": "x", **fields})


def test_one_click() -> None:
    fields = unsubscribe_headers("https://shop.example/u/1,2?m=3", mailto="leave+1@bücher.example")
    assert fields == {
        "List-Unsubscribe": "<https://shop.example/u/1%2C2?m=3>, <mailto:leave%2B1@xn--bcher-kva.example>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }
    assert mail(headers=fields).headers == fields


def test_without_one_click() -> None:
    assert unsubscribe_headers(mailto="leave@shop.example") == {"List-Unsubscribe": "<mailto:leave@shop.example>"}
    assert list(unsubscribe_headers("https://shop.example/u", one_click=False)) == ["List-Unsubscribe"]


@pytest.mark.parametrize(
    ("url", "mailto"),
    [(None, None), ("http://shop.example/u", None), ("https://shop.example/ü", None), ("https://a/\r\nBcc: x", None),
     ("https://a/>b", None), ("https://" + "a" * 893, None), (None, "nobody"), (None, "a@b\r\nBcc: x")],
)  # fmt: skip
def test_what_cannot_be_unsubscribed_by(url: str | None, mailto: str | None) -> None:
    with pytest.raises(InvalidEmail) as caught:
        unsubscribe_headers(url, mailto=mailto)
    assert caught.value.field == "headers"


@pytest.mark.parametrize(
    "fields",
    [
        {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"},
        {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click", "List-Unsubscribe": "<mailto:a@b.c>"},
        {"List-Unsubscribe-Post": "yes", "List-Unsubscribe": "<https://a.example/u>"},
    ],
)
def test_one_click_that_no_mailbox_provider_honours_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidEmail, match="RFC 8058"):
        mail(headers=fields)


def test_no_human_wrote_it() -> None:
    assert mail().headers == {}
    assert mail(headers={"X-A": "1"}).sent_headers == {"X-A": "1", "Auto-Submitted": "auto-generated"}
    assert mail(headers={"auto-submitted": "no"}).sent_headers == {"auto-submitted": "no"}


def test_a_header_section_has_its_limit() -> None:
    many = [f"{'n' * 40}{n:03}@{'d' * 50}.example" for n in range(1000)]
    with pytest.raises(InvalidEmail) as caught:
        mail(to=many)
    assert caught.value.field == "to"
    assert str(HEADER_LIMIT) in caught.value.reason
    # Blind recipients stand in no header.
    assert len(mail(to=(), bcc=many).bcc) == 1000
    with pytest.raises(InvalidEmail) as caught:
        mail(headers={f"X-{n}": "v" * 900 for n in range(120)})
    assert caught.value.field == "headers"


ICS = "BEGIN:VCALENDAR\nVERSION:2.0\nMETHOD:REQUEST\nEND:VCALENDAR\n"


@pytest.mark.parametrize("content", [ICS, ICS.encode(), ICS.replace("\n", "\r\n"), ICS.replace("\n", "\r")])
def test_an_invitation(content: str | bytes) -> None:
    made = Attachment.calendar(content)
    assert (made.filename, made.alternative, made.inline) == ("invite.ics", True, False)
    assert made.content_type == "text/calendar; method=REQUEST; charset=utf-8"
    assert made.content == ICS.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    "content", ["", "METHOD:REQUEST", ICS.replace("METHOD:REQUEST\n", ""), ICS.replace("REQUEST", "a b")]
)
def test_no_invitation(content: str) -> None:
    with pytest.raises(InvalidEmail) as caught:
        Attachment.calendar(content)
    assert caught.value.field == "content"


def test_another_form_is_not_inline() -> None:
    with pytest.raises(InvalidEmail, match="alternative"):
        Attachment(filename="a", content=b"", inline=True, content_id="a", alternative=True)
