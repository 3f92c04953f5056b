"""The MIME message: what a reader gets is what was asked for, in the same bytes everywhere."""

from __future__ import annotations

import email
import email.policy
import hashlib
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.activities.transports.base import Mail
from sendonce.activities.transports.mime import render_mime
from sendonce.errors import InvalidEmail
from sendonce.message import Address, Attachment, OutgoingEmail
from sendonce.testing.attempt import CREATED_AT, make_mail

URL = f"<https://news.example.com/u/{'0123456789abcdef' * 6}?m=42>"


def build(**changes: Any) -> bytes:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": ["a@example.org"], "text": "Hi.\n"}
    return render_mime(make_mail(OutgoingEmail(**{**content, **changes})))


def read(data: bytes) -> EmailMessage:
    return email.message_from_bytes(data, policy=email.policy.default)


def head(data: bytes) -> list[str]:
    return data.partition(b"\r\n\r\n")[0].decode().split("\r\n")


def part(message: EmailMessage, kind: str) -> EmailMessage:
    found = message.get_body((kind,))
    assert isinstance(found, EmailMessage)
    return found


def text_of(message: EmailMessage) -> str:
    content = message.get_content()
    assert isinstance(content, str)
    return content.replace("\r\n", "\n")


EVERYTHING: dict[str, Any] = {
    "sender": "Grüße, “Shop” <shop@example.org>",
    "to": ['"Ann, B." <ann@example.org>', "Very long name in Cyrillic: " + "Ж" * 60 + " <b@example.org>"],
    "cc": [f"c{n}@example.org" for n in range(40)],
    "bcc": ["hidden@example.org"],
    "reply_to": ["help@example.org"],
    "subject": "Заказ " * 20 + "🎉",
    "text": "Zażółć gęślą jaźń\n.\n" * 5 + "x" * 2000,
    "html": "<p>" + "Ж" * 3000 + "</p><img src='cid:logo@shop'>",
    "headers": {"List-Unsubscribe": URL, "List-Unsubscribe-Post": "List-Unsubscribe=One-Click", "X-Note": "ünï"},
    "attachments": [
        Attachment(
            filename="logo.png", content=b"\x89PNG", content_type="image/png", inline=True, content_id="logo@shop"
        ),
        Attachment(filename='Rechnung "№ 7"; ä/b.pdf', content=bytes(range(256)) * 9, content_type="application/pdf"),
        Attachment(filename="data.csv", content=b"a;b\r\n", content_type="text/csv; charset=utf-8"),
    ],
}


def test_the_bytes_are_the_same_on_every_python() -> None:
    # Change this only when a release is meant to render new mails differently; pinned ones keep their bytes.
    digest = hashlib.sha256(build(**EVERYTHING)).hexdigest()
    assert digest == "0a4c87ffed84b41216dc459f8252ad52e9d667e9e486cdc0272c0ba4ffa92fe0"


def test_everything_can_be_read_back() -> None:
    data = build(**EVERYTHING)
    message = read(data)
    assert message["Subject"] == EVERYTHING["subject"]
    assert message["Date"].datetime == CREATED_AT
    assert message["Message-ID"] == "<k1@sendonce.test>"
    assert message["From"].addresses[0].display_name == "Grüße, “Shop”"
    assert [a.addr_spec for a in message["Cc"].addresses] == EVERYTHING["cc"]
    assert message["X-Note"] == "ünï"
    assert message["Bcc"] is None
    assert b"hidden@" not in data
    assert message.get_content_type() == "multipart/mixed"
    assert text_of(part(message, "plain")) == EVERYTHING["text"] + "\n"
    assert text_of(part(message, "html")) == EVERYTHING["html"] + "\n"
    types = [found.get_content_type() for found in message.walk()]
    assert types == [
        "multipart/mixed", "multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png",
        "application/pdf", "text/csv",
    ]  # fmt: skip
    files = {str(found.get_filename()): found for found in message.walk() if found.get_filename()}
    assert list(files) == [one.filename for one in EVERYTHING["attachments"]]
    for one in EVERYTHING["attachments"]:
        assert files[one.filename].get_payload(decode=True) == one.content
    assert files["logo.png"]["Content-ID"] == "<logo@shop>"
    assert files["logo.png"].get_content_disposition() == "inline"
    assert all(not found.defects for found in message.walk())


def test_lines_are_short_ascii_and_end_in_crlf() -> None:
    data = build(**EVERYTHING)
    assert data.isascii()
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert b"\n" not in data.replace(b"\r\n", b"")
    assert b"\r" not in data.replace(b"\r\n", b"")
    # RFC 2047 2: at most 75 characters a word, and 76 a line that holds one.
    assert all(len(line) <= 76 for line in head(data) if "=?utf-8?" in line)


@pytest.mark.parametrize("name", ["List-Unsubscribe", "In-Reply-To", "References"])
def test_a_long_url_or_id_stays_whole_on_one_line(name: str) -> None:
    assert f"{name}: {URL}" in head(build(headers={name: URL}))


def test_a_long_list_of_ids_stays_on_one_line_while_it_fits() -> None:
    ids = " ".join(f"<{n:090}@example.org>" for n in range(9))
    assert f"References: {ids}" in head(build(headers={"References": ids}))


@pytest.mark.parametrize("name", ["List-Unsubscribe", "In-Reply-To", "References", "Feedback-ID", "list-id"])
def test_no_encoded_words_where_none_may_stand(name: str) -> None:
    with pytest.raises(InvalidEmail) as caught:
        build(headers={name: "<https://example.org/ü>"})
    assert caught.value.field == "headers"
    assert "ASCII only" in str(caught.value)
    assert "ü" not in str(caught.value)


@pytest.mark.parametrize(
    "subject",
    [
        "x" * 200,
        "Ж" * 120,
        "  led and trailed  ",
        "two  spaces",
        "a\ttab",
        "=?utf-8?q?literal?=",
        "=?",
        "",
        " ",
        "🎉" * 90,
        "Re: [x] a_b?c=d",
        "word " * 180 + "end",
    ],
)
def test_a_subject_arrives_as_it_was_given(subject: str) -> None:
    parsed = email.message_from_bytes(build(subject=subject))
    raw = "".join(parsed["Subject"].splitlines())
    assert str(make_header(decode_header(raw))) == subject


def test_a_long_plain_subject_is_not_folded() -> None:
    assert f"Subject: {'x' * 200}" in head(build(subject="x" * 200))


@given(
    subject=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=300),
    name=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200),
    value=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=300),
)
@settings(deadline=None)
def test_whatever_is_accepted_can_be_rendered(subject: str, name: str, value: str) -> None:
    try:
        to = Address(email="ann@example.org", name=name)
        content = OutgoingEmail(
            key="k", sender=to, to=[to, to], reply_to=[to], subject=subject, text="x", headers={"X-Note": value}
        )
    except InvalidEmail:
        return
    data = render_mime(make_mail(content))
    assert max(map(len, data.split(b"\r\n"))) <= 998
    names = [line.partition(":")[0] for line in head(data) if not line.startswith(" ")]
    ours = ["From", "To", "Reply-To", "Subject", "Date", "Message-ID", "X-Note", "Auto-Submitted", "MIME-Version"]
    assert names == [*ours, "Content-Type", "Content-Transfer-Encoding"]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=400))
@settings(deadline=None)
def test_text_arrives_as_it_was_given_but_for_its_line_ends(text: str) -> None:
    data = build(text=text, html="<p>")
    found = part(read(data), "plain").get_payload(decode=True) if text else None
    if found is None:
        assert text == ""
        return
    assert isinstance(found, bytes)
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    assert found.decode().replace("\r\n", "\n") == (lines if lines.endswith("\n") else lines + "\n")
    assert data.isascii()


@pytest.mark.parametrize(
    ("text", "html", "types"),
    [
        ("t", None, ["text/plain"]),
        ("t", "", ["text/plain"]),
        (None, "<p>", ["text/html"]),
        ("", "<p>", ["text/html"]),
        ("t", "<p>", ["multipart/alternative", "text/plain", "text/html"]),
    ],
)
def test_an_empty_part_is_left_out(text: str | None, html: str | None, types: list[str]) -> None:
    assert [found.get_content_type() for found in read(build(text=text, html=html)).walk()] == types


def test_a_line_that_is_too_long_is_wrapped_for_the_way() -> None:
    data = build(text="x" * 2000)
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert text_of(part(read(data), "plain")) == "x" * 2000 + "\n"


@pytest.mark.parametrize("quoted", [True, False])
def test_the_shorter_encoding_is_taken(quoted: bool) -> None:
    text = "mostly plain, one ü\n" if quoted else "Ж" * 500
    encoding = read(build(text=text))["Content-Transfer-Encoding"]
    assert encoding == ("quoted-printable" if quoted else "base64")


def test_an_inline_part_without_html_travels_as_a_file() -> None:
    one = Attachment(filename="a.png", content=b"x", content_type="image/png", inline=True, content_id="a")
    assert [found.get_content_type() for found in read(build(attachments=[one])).walk()] == [
        "multipart/mixed",
        "text/plain",
        "image/png",
    ]


def test_a_text_that_holds_the_boundary_gets_another() -> None:
    boundary = read(build(html="<p>")).get_boundary()
    assert boundary is not None
    message = read(build(html="<p>", text=f"--{boundary}--\n"))
    assert message.get_boundary() != boundary
    assert text_of(part(message, "plain")) == f"--{boundary}--\n"


def test_boundaries_follow_from_the_row() -> None:
    one, two = build(html="<p>"), build(html="<p>", key="k2")
    assert one == build(html="<p>")
    assert read(one).get_boundary() != read(two).get_boundary()


def test_blind_recipients_alone_leave_the_group_that_says_so() -> None:
    assert "To: undisclosed-recipients:;" in head(build(to=[], bcc=["h@example.org"]))


def test_headers_say_what_the_caller_wrote_not_what_the_envelope_needs() -> None:
    message = read(build(to=["Ann <ann@EXAMPLE.org>"], cc=["ann@example.org"]))
    assert str(message["To"]) == "Ann <ann@EXAMPLE.org>"
    assert str(message["Cc"]) == "ann@example.org"


def test_an_internationalised_mailbox_stands_in_utf8_with_its_domain_in_ascii() -> None:
    parsed = email.message_from_string(build(to=["Jörg <jörg@bücher.example>"]).decode())
    assert getaddresses([parsed["To"]])[0][1] == "jörg@xn--bcher-kva.example"


@pytest.mark.parametrize(
    "name", ["a b", 'with "quotes"', "back\\slash", "comma, dot.", "x" * 650, '"' * 650, "(comment)", "a@b"]
)
def test_display_names_survive(name: str) -> None:
    parsed = email.message_from_bytes(build(sender=Address(email="shop@example.org", name=name)))
    [(shown, spec)] = getaddresses([parsed["From"].replace("\r\n", "")])
    assert (str(make_header(decode_header(shown))), spec) == (name, "shop@example.org")


def test_a_header_that_smuggles_another_is_refused_even_unchecked() -> None:
    content = OutgoingEmail(key="k", sender="shop@example.org", to=["a@example.org"], text="x")
    for field, value in (("subject", "a\r\nBcc: x@example.org"), ("headers", {"X-A": "b\nBcc: x@example.org"})):
        smuggled = OutgoingEmail.model_construct(**{**dict(content), field: value})
        with pytest.raises(InvalidEmail):
            render_mime(make_mail(smuggled))


def test_a_message_id_that_does_not_survive_is_refused() -> None:
    mail = make_mail(OutgoingEmail(key="k", sender="shop@example.org", to=["a@example.org"], text="x"))
    for message_id in ("<a@b>\r\nBcc: x@example.org", "<" + "x" * 1000 + "@b>"):
        with pytest.raises(InvalidEmail):
            render_mime(Mail(mail.email_id, mail.key, mail.account, message_id, mail.created_at, mail.content))
