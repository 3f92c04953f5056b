"""Ready-made MIME: who gets it, what leaves it, and what is refused."""

from __future__ import annotations

import json
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.errors import InvalidEmail
from sendonce.message import CONTENT_LIMIT, OutgoingEmail
from sendonce.ready_made import HEADER_LIMIT

HEAD = b"From: Shop <shop@example.org>\r\nTo: Ann <ann@example.org>\r\nSubject: Hello\r\n"


def taken(data: bytes, **more: Any) -> OutgoingEmail:
    return OutgoingEmail.from_mime(data, key="k", **more)


def refused(data: bytes, **more: Any) -> str:
    with pytest.raises(InvalidEmail) as caught:
        taken(data, **more)
    assert caught.value.field == "mime"
    assert "secret" not in str(caught.value)
    return caught.value.reason


def test_what_the_standard_library_makes_is_taken() -> None:
    made = EmailMessage()
    made["From"] = "Grüße <shop@example.org>"
    made["To"] = "Ann <ann@example.org>, bob@EXAMPLE.org"
    made["Cc"] = '"Carl, C." <carl@example.org>'
    made["Bcc"] = "hidden@example.org"
    made["Reply-To"] = "help@example.org"
    made["Subject"] = "Ваш заказ"
    made["Message-ID"] = "<made@example.org>"
    made.set_content("Zażółć.\n")
    made.add_attachment(b"\x00\x01", maintype="application", subtype="pdf", filename="ü.pdf")
    email = taken(bytes(made))
    assert email.sender.name == "Grüße"
    assert email.recipients() == ("ann@example.org", "bob@example.org", "carl@example.org", "hidden@example.org")
    assert [one.email for one in email.bcc] == ["hidden@example.org"]
    assert email.cc[0].name == "Carl, C."
    assert email.reply_to[0].email == "help@example.org"
    assert email.subject == "Ваш заказ"
    assert email.message_id == "<made@example.org>"
    del made["Bcc"]
    assert email.mime == made.as_bytes(policy=SMTP)


@pytest.mark.parametrize(
    "line",
    [b"Bcc: hidden@example.org", b"bcc : hidden@example.org", b"BCC:\r\n hidden@example.org",
     b"Bcc: x:;\r\nBcc: hidden@example.org",
     b"Resent-Bcc: hidden@example.org", b"Return-Path: <hidden@example.org>"],
)  # fmt: skip
def test_blind_recipients_leave_the_bytes(line: bytes) -> None:
    email = taken(HEAD + line + b"\r\nX-Last: 1\r\n\r\nHi\r\n", recipients="ann@example.org")
    assert email.mime == HEAD + b"X-Last: 1\r\n\r\nHi\r\n"


def test_blind_recipients_join_the_envelope() -> None:
    email = taken(HEAD + b"Bcc : h1@example.org,\r\n h2@example.org\r\n\r\nHi\r\n")
    assert email.recipients() == ("ann@example.org", "h1@example.org", "h2@example.org")


def test_recipients_instead_of_those_in_the_header() -> None:
    email = taken(HEAD + b"Bcc: h1@example.org\r\n\r\nHi\r\n", recipients=["list@example.net"])
    assert email.recipients() == ("list@example.net",)
    assert b"h1@" not in (email.mime or b"")
    assert refused(HEAD + b"Resent-To: b@example.org\r\n\r\n").startswith("it was resent")


def test_line_ends_become_crlf() -> None:
    assert taken(HEAD.replace(b"\r\n", b"\n") + b"\nHi\n.\n").mime == HEAD + b"\r\nHi\r\n.\r\n"


def test_a_message_without_a_body() -> None:
    assert taken(HEAD).mime == HEAD + b"\r\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "line 1 is no header field"),
        (b"hello secret", "line 1 is no header field"),
        (b"\r\n" + HEAD, "line 1 is no header field"),
        (b"From secret@example.org Mon\r\n" + HEAD + b"\r\n", "line 1 is no header field"),
        (HEAD + b"secret\r\n\r\n", "line 4 is no header field"),
        (b" secret\r\n" + HEAD + b"\r\n", "line 1 is no header field"),
        (HEAD + b" \r\nX: 1\r\n\r\n", "line 4 is no header field"),
        (HEAD + b"\r\nsecret\x00", "must not contain NUL"),
        (HEAD + b"\r\nsecret\rmore", "must not contain a carriage return"),
        (HEAD + "X: secré\r\n\r\n".encode(), "the header section must be ASCII"),
        (HEAD + b"From: secret@example.org\r\n\r\n", "from is there twice"),
        (HEAD + b"subject: secret\r\n\r\n", "subject is there twice"),
        (HEAD + b"X: " + b"s" * 996 + b"\r\n\r\n", "line 4 is longer than 998 octets"),
        (HEAD + b"\r\n" + b"s" * 999 + b"\r\n", "line 5 is longer than 998 octets"),
        (HEAD + b"X: s\r\n" * (HEADER_LIMIT // 6) + b"\r\n", "the header section must be at most"),
        (b"To: secret@example.org\r\n\r\n", "From must name one mailbox"),
        (b"From: a@b.c, secret@e.f\r\nTo: a@b.c\r\n\r\n", "From must name one mailbox"),
        (b"From: a@example.org\r\nTo: secret\r\n\r\n", "To is no list of addresses"),
        (b"From: a@example.org\r\nTo: secret@exa_mple.org\r\n\r\n", "To, address 1: the domain must be labels"),
        (HEAD + b"X: =?utf-8?q?secret=0ABcc:_x=40y.z?=\r\n\r\n", "a header holds, or hides"),
        (HEAD.replace(b"Hello", b"=?utf-8?q?secret=0D?=") + b"\r\n", "subject holds, or hides"),
        (HEAD + b"Message-ID: secret\r\n\r\n", "Message-ID must be"),
        (HEAD + b"Content-Type: multipart/mixed; boundary=x\r\n\r\nsecret", "its parts cannot be read: StartBoundary"),
        (HEAD + b"Content-Type: multipart/mixed\r\n\r\nsecret", "its parts cannot be read: NoBoundary"),
    ],
)  # fmt: skip
def test_what_is_refused(data: bytes, why: str) -> None:
    assert why in refused(data)


@pytest.mark.parametrize(
    "data",
    [
        b"From: a@example.org\r\nTo: <\r\n\r\n",
        b"From: \\@\r\nTo: secret@example.org\r\n\r\n",
        b'From: a@example.org\r\nTo: b@example.org\r\nCc: "\r\n\r\n',
    ],
)
def test_what_the_standard_library_falls_over_is_refused(data: bytes) -> None:
    # Some releases raise IndexError for these, others report them.
    assert refused(data)


def test_longest_lines_are_taken() -> None:
    data = HEAD + b"X: " + b"s" * 995 + b"\r\n\r\n" + b"s" * 998 + b"\r\n"
    assert taken(data).mime == data


def test_size() -> None:
    line = b"x" * 76 + b"\r\n"
    data = (HEAD + b"\r\n" + line * (CONTENT_LIMIT // len(line)))[:CONTENT_LIMIT]
    assert len(taken(data).mime or b"") == CONTENT_LIMIT
    assert refused(data + b"x") == f"must be at most {CONTENT_LIMIT} octets long"


def test_nobody_to_send_it_to() -> None:
    with pytest.raises(InvalidEmail, match="to: to, cc and bcc together"):
        taken(b"From: a@example.org\r\nTo: undisclosed-recipients:;\r\n\r\n")


def test_the_stored_form_comes_back_equal() -> None:
    email = taken(HEAD + b"Message-ID: <a@b>\r\n\r\nHi\r\n", lane="bulk", envelope_sender="", requested_by="me")
    stored = json.loads(json.dumps(email.to_json()))
    assert stored["mime"] is True
    assert OutgoingEmail.from_json(stored, email.files()) == email
    for files in ([], email.files() * 2):
        with pytest.raises(InvalidEmail, match="mime: must be stored as one file"):
            OutgoingEmail.from_json(stored, files)


@pytest.mark.parametrize("stored", [HEAD + b"Bcc: x@y.z\r\n\r\n", HEAD.replace(b"\r\n", b"\n"), HEAD + b"a\x00\r\n"])
def test_what_other_languages_store_is_checked_too(stored: bytes) -> None:
    with pytest.raises(InvalidEmail, match=r"^mime: "):
        OutgoingEmail(key="k", sender="a@example.org", to="b@example.org", mime=stored)


@pytest.mark.parametrize("other", ["text", "html", "template", "headers"])
def test_nothing_comes_beside_it(other: str) -> None:
    values: dict[str, Any] = {other: {"X-A": "1"} if other == "headers" else "x"}
    with pytest.raises(InvalidEmail) as caught:
        OutgoingEmail(key="k", sender="a@example.org", to="b@example.org", mime=HEAD + b"\r\n", **values)
    assert caught.value.field == other


def test_other_mail_has_no_message_id_of_its_own() -> None:
    with pytest.raises(InvalidEmail, match="message_id: belongs to"):
        OutgoingEmail(key="k", sender="a@example.org", to="b@example.org", text="x", message_id="<a@b>")


PIECES = [HEAD, b"\r\n", b"\n", b"\r", b"Bcc: x@y.z", b" ", b":", b"X", "é".encode(), b"=?utf-8?q?=0A?=", b"To: a@b\n"]


@given(st.lists(st.sampled_from(PIECES)))
def test_any_bytes_are_taken_or_refused(pieces: list[bytes]) -> None:
    try:
        email = taken(b"".join(pieces))
    except InvalidEmail:
        return
    assert email.mime is not None
    head = email.mime.partition(b"\r\n\r\n")[0]
    assert b"bcc" not in head.lower()
    assert OutgoingEmail.from_json(email.to_json(), email.files()) == email
