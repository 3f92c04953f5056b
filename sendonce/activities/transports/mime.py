"""A mail as MIME: the same bytes for the same row, on every Python."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from datetime import UTC
from email.header import decode_header, make_header
from email.parser import HeaderParser
from email.utils import format_datetime, getaddresses

from sendonce.activities.transports import mime_header
from sendonce.activities.transports.base import Mail
from sendonce.checks import LINE_LIMIT
from sendonce.errors import InvalidEmail
from sendonce.message import Address, Attachment, OutgoingEmail
from sendonce.ready_made import field_names

_LINE_END = re.compile(r"\r\n|\r|\n")
_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]+")
# attribute-char of RFC 2231 7.
_ATTRIBUTE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$&+-.^_`{|}~")


def render_mime(mail: Mail) -> bytes:
    """The message with CRLF line ends, without Bcc; no line is longer than 998 octets.

    Text is 7bit where it can be, else quoted-printable or base64, whichever is shorter, so that no relay has to
    convert it. A text or HTML part that is empty is left out. The header section is parsed back and compared.
    A ready-made message stays as it is; only what RFC 5322 3.6 asks for and it lacks is put before it. Raises
    :class:`~sendonce.errors.InvalidEmail` for a header that cannot be carried.
    """
    content = mail.content
    if content.mime is not None:
        return _completed(content.mime, mail)
    fields = [mime_header.addresses(name, group) for name, _, group in _groups(content)]
    if not content.to and not content.cc:
        fields.append("To: undisclosed-recipients:;")
    fields.append(mime_header.unstructured("Subject", content.subject))
    fields += [_date(mail), f"Message-ID: {mail.message_id}"]
    fields += [mime_header.custom(name, value) for name, value in content.sent_headers.items()]
    fields.append("MIME-Version: 1.0")
    head = "\r\n".join(fields)
    _verify(mail, head)
    body = _Body(mail.email_id).build(content.text or "", content.html or "", content.attachments)
    return head.encode() + b"\r\n" + body


def _completed(data: bytes, mail: Mail) -> bytes:
    there = field_names(data)
    needed = {"date": _date(mail), "message-id": f"Message-ID: {mail.message_id}"}
    if "content-type" in there:
        needed["mime-version"] = "MIME-Version: 1.0"
    return "".join(f"{field}\r\n" for name, field in needed.items() if name not in there).encode() + data


def _date(mail: Mail) -> str:
    return f"Date: {format_datetime(mail.created_at.astimezone(UTC))}"


def _groups(content: OutgoingEmail) -> list[tuple[str, str, tuple[Address, ...]]]:
    """The fields that list mailboxes, in order: header name, the message's own name for it, the mailboxes."""
    groups = [
        ("From", "sender", (content.sender,)),
        ("To", "to", content.to),
        ("Cc", "cc", content.cc),
        ("Reply-To", "reply_to", content.reply_to),
    ]
    return [group for group in groups if group[2]]


class _Body:
    """Builds parts; each is its header fields, an empty line, and its content."""

    def __init__(self, email_id: str) -> None:
        self._seed = email_id
        self._count = 0

    def build(self, text: str, html: str, attachments: tuple[Attachment, ...]) -> bytes:
        # Without HTML there is nothing that could refer to an inline part: it travels as a file.
        related = [_file(a) for a in attachments if a.inline and html]
        forms = [_form(a) for a in attachments if a.alternative]
        others = [_file(a) for a in attachments if not (a.inline and html) and not a.alternative]
        parts = [_text("plain", text)] if text or not (html or forms) else []
        if html:
            page = _text("html", html)
            parts.append(self._multipart('related; type="text/html"', [page, *related]) if related else page)
        parts += forms
        body = parts[0] if len(parts) == 1 else self._multipart("alternative", parts)
        return self._multipart("mixed", [body, *others]) if others else body

    def _multipart(self, subtype: str, parts: list[bytes]) -> bytes:
        boundary = self._boundary(parts)
        head = f'Content-Type: multipart/{subtype};\r\n boundary="{boundary}"\r\n\r\n'.encode()
        mark = f"--{boundary}".encode()
        return head + b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"

    def _boundary(self, parts: list[bytes]) -> str:
        while True:
            self._count += 1
            # "=_" stands in neither base64 nor quoted-printable (RFC 2045 6.7); plain text is looked through.
            boundary = f"=_{hashlib.sha256(f'{self._seed}/{self._count}'.encode()).hexdigest()[:32]}"
            if not any(boundary.encode() in part for part in parts):
                return boundary


def _text(subtype: str, text: str) -> bytes:
    lines = _LINE_END.sub("\r\n", text)
    raw = (lines if lines.endswith("\r\n") else lines + "\r\n").encode()
    head = f'Content-Type: text/{subtype}; charset="utf-8"\r\nContent-Transfer-Encoding: '
    if raw.isascii() and max(map(len, raw.split(b"\r\n"))) <= LINE_LIMIT:
        return f"{head}7bit\r\n\r\n".encode() + raw
    quoted, coded = _quoted_printable(raw), _base64(raw)
    if len(quoted) <= len(coded):
        return f"{head}quoted-printable\r\n\r\n".encode() + quoted
    return f"{head}base64\r\n\r\n".encode() + coded


def _quoted_printable(raw: bytes) -> bytes:
    """RFC 2045 6.7; line ends stay line ends."""
    encoded = binascii.b2a_qp(raw.replace(b"\r\n", b"\n"), istext=True)
    return encoded.replace(b"\n", b"\r\n")


def _base64(raw: bytes) -> bytes:
    return base64.encodebytes(raw).replace(b"\n", b"\r\n")


def _file(attachment: Attachment) -> bytes:
    disposition = "inline" if attachment.inline else "attachment"
    fields = [
        f"Content-Type: {attachment.content_type}",
        "Content-Transfer-Encoding: base64",
        f"Content-Disposition: {disposition};\r\n {_filename(attachment.filename)}",
    ]
    if attachment.content_id:
        fields.append(f"Content-ID: <{attachment.content_id}>")
    return "\r\n".join(fields).encode() + b"\r\n\r\n" + _base64(attachment.content)


def _form(attachment: Attachment) -> bytes:
    """Another form of the text; the last one that a reader knows is shown (RFC 2046 5.1.4)."""
    head = f"Content-Type: {attachment.content_type}\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    return head.encode() + _base64(attachment.content)


def _filename(name: str) -> str:
    """The filename parameter: a quoted string, or RFC 2231 4 where that cannot hold the name."""
    if _PLAIN_NAME.fullmatch(name):
        return f'filename="{name}"'
    escaped = "".join(chr(octet) if octet in _ATTRIBUTE else f"%{octet:02X}" for octet in name.encode())
    return f"filename*=utf-8''{escaped}"


def _verify(mail: Mail, head: str) -> None:
    """Parse the header section back: what a reader gets must be what was asked for."""
    content = mail.content
    if max(len(line.encode()) for line in head.split("\r\n")) > LINE_LIMIT:
        raise InvalidEmail("headers", f"an item of a header is longer than {LINE_LIMIT} octets: shorten it")
    parsed = HeaderParser().parsestr(head)
    names = [name for name, _, _ in _groups(content)]
    if not content.to and not content.cc:
        names.append("To")
    if list(parsed) != [*names, "Subject", "Date", "Message-ID", *content.sent_headers, "MIME-Version"]:
        raise InvalidEmail("headers", "they cannot be read back as written: look for line breaks")
    if _decoded(parsed["Subject"]) != content.subject:
        raise InvalidEmail("subject", "it cannot be read back as written: look for unusual white space")
    if parsed["Message-ID"] != mail.message_id:
        raise InvalidEmail("message_id", "it cannot be read back as written")
    for name, value in content.sent_headers.items():
        if _decoded(parsed[name]).split() != value.split():
            raise InvalidEmail("headers", f"{name} cannot be read back as written")
    for name, field, group in _groups(content):
        found = [(_decoded(shown), spec) for shown, spec in getaddresses([_unfolded(parsed[name])])]
        if found != [(address.name, mime_header.address_spec(address)) for address in group]:
            raise InvalidEmail(field, "an address cannot be read back as written: simplify its display name")


def _unfolded(value: str) -> str:
    return re.sub(r"\r?\n(?=[ \t])", "", value)


def _decoded(value: str) -> str:
    return str(make_header(decode_header(_unfolded(value))))
