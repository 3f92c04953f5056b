"""Faults of the standard library's e-mail package that Sendonce goes around; each with the releases that have it.

When one of these tests fails on a new Python, the fault is gone there, and a way around it may go too.
"""

from __future__ import annotations

import email
import email.policy
import sys
from email.errors import MessageError
from email.message import EmailMessage

import pytest

from sendonce import Address, OutgoingEmail
from sendonce.activities.transports.mime import render_mime
from sendonce.testing.attempt import make_mail

URL = f"<https://news.example.com/u/{'0123456789abcdef' * 6}?m=42>"
SMUGGLED = "Hello =?utf-8?q?=0ABcc:_x=40example.net?= world"


def has(**fixed_in: tuple[int, int, int]) -> bool:
    """True when this Python is older than the release that mended it: ``has(py311=(3, 11, 10))``."""
    fixed = fixed_in.get(f"py3{sys.version_info.minor}")
    return fixed is not None and sys.version_info < fixed


def ours(**fields: object) -> bytes:
    values = {"key": "k", "sender": "a@example.org", "to": "b@example.org", "text": "x", **fields}
    return render_mime(make_mail(OutgoingEmail(**values)))  # type: ignore[arg-type]


def theirs(name: str, value: str) -> bytes:
    message = EmailMessage(policy=email.policy.SMTP)
    message[name] = value
    return bytes(message)


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="not known for this Python")
@pytest.mark.parametrize("name", ["List-Unsubscribe", "In-Reply-To"])
def test_long_urls_and_ids_become_encoded_words(name: str) -> None:
    """https://github.com/python/cpython/issues/85725, open."""
    assert b"=?utf-8?q?" in theirs(name, URL)
    assert f"{name}: {URL}\r\n".encode() in ours(headers={name: URL})


def test_a_line_break_in_an_encoded_word_is_written_as_one() -> None:
    """CVE-2024-6923, https://github.com/python/cpython/issues/121650."""
    vulnerable = has(py311=(3, 11, 10), py312=(3, 12, 5))
    try:
        smuggled = b"\nBcc:" in theirs("Subject", SMUGGLED)
    except MessageError:
        smuggled = False
    assert smuggled == vulnerable
    with pytest.raises(ValueError, match="must not hide a line break"):
        Address(email="a@example.org", name=SMUGGLED)


def test_long_lines_go_out_as_they_are_when_8bit_is_asked_for() -> None:
    """By design of ``cte="8bit"``; RFC 5322 2.1.1 forbids such lines."""
    message = EmailMessage(policy=email.policy.SMTP)
    message.set_content("ж" * 1200, cte="8bit")
    assert max(map(len, bytes(message).split(b"\r\n"))) > 998
    assert max(map(len, ours(text="ж" * 1200).split(b"\r\n"))) <= 998


def test_names_of_files_lose_their_outer_white_space_when_read() -> None:
    """``get_filename`` strips; the parameter itself is whole."""
    message = email.message_from_bytes(b"Content-Disposition: attachment; filename*=utf-8''%20a%20\r\n\r\n")
    assert message.get_filename() == "a"
    assert message.get_param("filename", header="content-disposition") == ("utf-8", "", " a ")
