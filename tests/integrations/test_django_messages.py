"""What Django would have sent is what Sendonce sends: both as MIME, read back and compared."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Callable
from email.message import EmailMessage as Part
from email.mime.base import MIMEBase
from email.mime.image import MIMEImage
from email.mime.multipart import MIMEMultipart
from typing import Any

import django
import pytest
from django.core.mail import EmailMessage, EmailMultiAlternatives
from django.utils.functional import lazystr

from sendonce import InvalidEmail
from sendonce.activities.transports.mime import render_mime
from sendonce.django.conversion import outgoing
from sendonce.django.options import Options
from sendonce.message import OutgoingEmail
from sendonce.testing.attempt import make_mail

pytestmark = pytest.mark.filterwarnings("ignore:MIMEBase attachments are deprecated")  # Django 6: and still taken


def converted(message: EmailMessage) -> OutgoingEmail:
    return outgoing(message, Options(), lambda _: "key-1")


Seen = dict[str, Any]


def seen(data: bytes) -> Seen:
    """What a mail program gets to see."""
    message = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(message, Part)
    parts = [part for part in message.walk() if not part.is_multipart()]
    return {
        "headers": {
            name: [(one.display_name, one.addr_spec) for one in message[name].addresses]
            if name in ADDRESSES
            else message[name]
            for name in (*ADDRESSES, "Subject", "X-Note", "In-Reply-To", "List-Unsubscribe")
            if message[name] is not None
        },
        "parts": sorted(
            (p.get_content_type(), p.get_filename() or "", p.get("Content-ID", ""), _content(p)) for p in parts
        ),
    }


ADDRESSES = ("From", "To", "Cc", "Bcc", "Reply-To")


def _content(part: Part) -> bytes:
    content = part.get_content()
    octets = content.encode() if isinstance(content, str) else content
    assert isinstance(octets, bytes)
    return octets.replace(b"\r\n", b"\n").rstrip(b"\n") if part.get_content_maintype() == "text" else octets


def plain(**more: Any) -> EmailMessage:
    given = {"subject": "Your order", "body": "Thank you.", "from_email": "shop@example.com", "to": ["ann@example.org"]}
    return EmailMessage(**{**given, **more})


def alternatives(*found: tuple[str, str], **more: Any) -> EmailMultiAlternatives:
    given = {"subject": "Order", "body": "Thank you.", "from_email": "shop@example.com", "to": ["ann@example.org"]}
    message = EmailMultiAlternatives(**{**given, **more})
    for content, mimetype in found:
        message.attach_alternative(content, mimetype)
    return message


def html_body() -> EmailMessage:
    message = plain(body="<p>Dank für alles</p>")
    message.content_subtype = "html"
    return message


def files() -> EmailMessage:
    message = alternatives(("<p>Hi</p>", "text/html"))
    message.attach("invoice.pdf", b"%PDF-1.7 \xff\x00", "application/pdf")
    message.attach("Größe.csv", "a;b\nü;2\n", "text/csv")
    message.attach("guessed.png", b"\x89PNG")
    message.attach("no-type", b"\x00\x01")
    message.attach("latin.txt", b"Gr\xfc\xdfe", "text/plain")
    return message


def image(disposition: str | None) -> EmailMessage:
    message = alternatives(("<img src='cid:logo@shop'>", "text/html"))
    picture = MIMEImage(b"\x89PNG\r\n", "png")
    picture.add_header("Content-ID", "<logo@shop>")
    picture.add_header("Content-Disposition", disposition or "inline", filename="logo.png")
    message.attach(picture)
    return message


MESSAGES: dict[str, Callable[[], EmailMessage]] = {
    "plain": plain,
    "subject only": lambda: plain(body=""),
    "lazy strings": lambda: plain(
        subject=lazystr("Bestellung №1"), body=lazystr("Grüße"), from_email=lazystr("a@example.com")
    ),
    "html body": html_body,
    "alternatives": lambda: alternatives(("<p>Grüße</p>", "text/html")),
    "everybody": lambda: plain(
        from_email='"Shop, Inc." <shop@example.com>',
        to=["Ann Ü <ann@example.org>", "b@example.org"],
        cc=["c@example.org"],
        reply_to=["help@example.com", "Other <o@example.com>"],
    ),
    "headers": lambda: plain(
        headers={"X-Note": "Grüße", "In-Reply-To": "<1@example.com>", "List-Unsubscribe": "<https://example.com/u>"}
    ),
    "headers that Django gives a meaning": lambda: plain(
        headers={"From": "Shown <shown@example.com>", "Reply-To": "Help <help@example.com>, o@example.com"}
    ),
    "files": files,
    "inline image": lambda: image(None),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_it_is_what_django_would_have_sent(name: str) -> None:
    message = MESSAGES[name]()
    ours = seen(render_mime(make_mail(converted(message))))
    theirs = seen(message.message().as_bytes())
    # Ours names the file of an inline image, Django's says so as well.
    assert ours == theirs


def test_the_envelope() -> None:
    found = converted(plain(to=["a@example.org", ""], cc=["b@example.org"], bcc=["Hidden <c@example.org>"]))
    assert found.recipients() == ("a@example.org", "b@example.org", "c@example.org")
    assert b"c@example.org" not in render_mime(make_mail(found))
    assert found.envelope_sender is None
    shown = converted(plain(from_email="Bounces <bounces@example.com>", headers={"From": "shop@example.com"}))
    assert (shown.sender.email, shown.envelope_sender) == ("shop@example.com", "bounces@example.com")


def test_an_inline_image_is_shown_within_and_another_is_a_file() -> None:
    (inline,) = converted(image(None)).attachments
    assert (inline.inline, inline.content_id, inline.filename) == (True, "logo@shop", "logo.png")
    (file,) = converted(image("attachment")).attachments
    assert (file.inline, file.content_id) == (False, "logo@shop")


def test_other_forms_of_the_text() -> None:
    found = converted(
        alternatives(("<p>1</p>", "text/html"), ("<p>2</p>", "text/html"), ("BEGIN:VCALENDAR", "text/calendar"))
    )
    assert (found.text, found.html) == ("Thank you.", "<p>1</p>")
    assert [(one.alternative, one.filename, one.content_type) for one in found.attachments] == [
        (True, "alternative-1.html", "text/html; charset=utf-8"),
        (True, "alternative-2.ics", "text/calendar; charset=utf-8"),
    ]


def test_a_mail_within_a_mail_travels_as_a_file() -> None:
    inner = plain(subject="Inner")
    message = plain()
    message.attach("inner.eml", inner, "message/rfc822")
    message.attach(None, inner, "message/rfc822")
    found = converted(message).attachments
    assert [(one.filename, one.content_type) for one in found] == [
        ("inner.eml", "application/octet-stream"),
        ("attachment-2.eml", "application/octet-stream"),
    ]
    assert email.message_from_bytes(found[0].content)["Subject"] == "Inner"


def test_parts_without_a_name_get_one() -> None:
    part = MIMEBase("application", "pdf")
    part.set_payload(b"JVBERg==")
    part["Content-Transfer-Encoding"] = "base64"
    message = plain(attachments=[part])
    message.attach(None, "text", "text/plain")
    assert [(one.filename, one.content) for one in converted(message).attachments] == [
        ("attachment-1.pdf", b"%PDF"),
        ("attachment-2.txt", b"text"),
    ]


def test_text_of_an_unknown_charset_is_no_text() -> None:
    part = MIMEBase("text", "plain")
    part.set_payload("R3L832U=")
    part["Content-Transfer-Encoding"] = "base64"
    (found,) = converted(plain(attachments=[part])).attachments
    assert (found.content, found.content_type) == (b"Gr\xfc\xdfe", "application/octet-stream")
    part.set_param("charset", "iso-8859-1")
    (found,) = converted(plain(attachments=[part])).attachments
    assert (found.content, found.content_type) == (b"Gr\xfc\xdfe", "text/plain; charset=iso-8859-1")


def test_a_template_instead_of_a_body() -> None:
    message = plain(subject="", body="")
    message.sendonce = {"template": "order_confirmation", "parameters": {"order": 1}, "locale": "de"}
    found = converted(message)
    assert (found.template, found.parameters, found.text) == ("order_confirmation", {"order": 1}, None)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (lambda: plain(headers={"To": "list@example.com"}), "headers"),
        (lambda: plain(headers={"Message-ID": "<1@example.com>"}), "headers"),
        (lambda: plain(to=["no address"]), "to"),
        (lambda: plain(attachments=[MIMEMultipart()]), "attachments"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(message: Callable[[], EmailMessage], field: str) -> None:
    with pytest.raises(InvalidEmail) as refused:
        converted(message())
    assert refused.value.field == field


@pytest.mark.skipif(django.VERSION < (6, 0), reason="parts of the newer kind came with Django 6.0")
def test_parts_of_the_newer_kind() -> None:
    from email.message import MIMEPart

    part = MIMEPart()
    part.set_content(b"\x89PNG", "image", "png", disposition="inline", cid="<logo@shop>", filename="logo.png")
    (found,) = converted(plain(attachments=[part])).attachments
    assert (found.inline, found.content_id, found.content) == (True, "logo@shop", b"\x89PNG")
