"""Ready-made MIME: what its header section says, and the bytes as they may be sent. Pure.

What is wrong raises :class:`~sendonce.errors.InvalidEmail` for the field ``mime``; the message never repeats content.
"""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import dataclass
from email.errors import InvalidHeaderDefect, MessageDefect
from typing import Any

from sendonce.address import Address
from sendonce.checks import LINE_LIMIT, breaks, hides_break
from sendonce.errors import InvalidEmail

HEADER_LIMIT = 100_000
"""Octets of a header section. Postfix cuts off what is beyond 102400 of a header (its ``header_size_limit``)."""

_NAME = re.compile(rb"([!-9;-~]+)[ \t]*:")  # RFC 5322 2.2, and 4.5 for the white space
_ONCE = frozenset(
    {"from", "sender", "reply-to", "to", "cc", "message-id", "in-reply-to", "references", "subject", "date"}
    | {"mime-version", "content-type", "content-transfer-encoding"}
)
"""RFC 5322 3.6 and RFC 2045 3. Bcc too, but all of them leave."""
_LEAVES = frozenset({"bcc", "resent-bcc", "return-path"})
"""Nobody but the blind recipients may see the first two; the third is written at final delivery (RFC 5321 4.4)."""
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,240}>")


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """What a message says of itself."""

    data: bytes
    """With CRLF line ends and without Bcc."""
    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    reply_to: tuple[Address, ...]
    subject: str
    message_id: str | None
    """With angle brackets; None when it has none."""


def read_ready_made(data: bytes, *, named: bool) -> ReadyMade:
    """Read and check a message; ``named``: the caller says who gets it, the header section need not.

    Line ends may be LF; everything else must be as RFC 5322 and RFC 2045 have it.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise _wrong("must be bytes")
    lines = re.sub(rb"\r?\n", b"\r\n", bytes(data))
    fields, body = _fields(lines)
    if not named and any(name.startswith("resent-") for name, _ in fields):
        raise _wrong("it was resent (Resent-…): say with recipients who gets it")
    try:
        message = email.message_from_bytes(_joined(fields) + body, policy=email.policy.default)
        found = {name: _addresses(message, name) for name in ("From", "To", "Cc", "Bcc", "Reply-To")}
        _well_formed(message)
        texts = {name: _text(message, name) for name in ("Message-ID", "Subject")}
    except (IndexError, AttributeError, TypeError, KeyError, LookupError, RecursionError):
        # The standard library's reader fails so on some broken headers (To: <), though it means to report them.
        raise _wrong("a header cannot be read") from None
    if len(found["From"]) != 1:
        raise _wrong("From must name one mailbox")
    kept = [(name, line) for name, line in fields if name not in _LEAVES]
    message_id = texts["Message-ID"].strip() or None
    if message_id is not None and not _MESSAGE_ID.fullmatch(message_id):
        raise _wrong("Message-ID must be <id@domain>, at most 240 characters (RFC 5322 3.6.4)")
    subject = " ".join(texts["Subject"].split())
    return ReadyMade(
        _joined(kept) + body,
        found["From"][0],
        found["To"],
        found["Cc"],
        found["Bcc"],
        found["Reply-To"],
        subject,
        message_id,
    )


def check_ready_made(data: bytes) -> None:
    """Refuse bytes that :func:`read_ready_made` did not return: they may come from another language."""
    if re.search(rb"(?<!\r)\n", data):
        raise _wrong("line ends must be CRLF")
    if any(name in _LEAVES for name, _ in _fields(data)[0]):
        raise _wrong("Bcc, Resent-Bcc and Return-Path must not be in it: recipients are named beside it")


def field_names(data: bytes) -> frozenset[str]:
    """The names in the header section, in lower case."""
    return frozenset(name for name, _ in _fields(data)[0])


def _wrong(why: str) -> InvalidEmail:
    return InvalidEmail("mime", why)


def _fields(data: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """Each field's name in lower case and its lines, and the body."""
    if b"\x00" in data:
        raise _wrong("must not contain NUL")
    if re.search(rb"\r(?!\n)", data):
        raise _wrong("must not contain a carriage return without a line feed (RFC 5322 2.2)")
    head, _, body = data.partition(b"\r\n\r\n")
    if len(head) > HEADER_LIMIT:
        raise _wrong(f"the header section must be at most {HEADER_LIMIT} octets long")
    if not head.isascii():
        raise _wrong("the header section must be ASCII: write other characters as encoded words (RFC 2047)")
    # Anchored, or every octet of a large mail would begin a search of its own.
    if (long := re.search(rb"(?m)^[^\n]{%d}" % (LINE_LIMIT + 2), data)) is not None:
        where = data.count(b"\n", 0, long.start()) + 1
        raise _wrong(
            f"line {where} is longer than {LINE_LIMIT} octets: use quoted-printable or base64 (RFC 5322 2.1.1)"
        )
    fields: list[tuple[str, bytes]] = []
    lines: list[bytes] = head.removesuffix(b"\r\n").split(b"\r\n")
    for number, line in enumerate(lines, 1):
        match = _NAME.match(line)
        if line[:1] in (b" ", b"\t") and line.strip() and fields:
            name, before = fields[-1]
            fields[-1] = name, before + line + b"\r\n"
        elif match is None:
            raise _wrong(f"line {number} is no header field (name: value), and the header section is not over")
        else:
            # White space before the colon is obsolete syntax, which not every reader takes for a field.
            fields.append((match[1].decode().lower(), match[1] + b":" + line[match.end() :] + b"\r\n"))
    _check_fields(fields)
    return fields, body


def _joined(fields: list[tuple[str, bytes]]) -> bytes:
    return b"".join(line for _, line in fields) + b"\r\n"


def _check_fields(fields: list[tuple[str, bytes]]) -> None:
    names = [name for name, _ in fields]
    if twice := next((name for name in names if name in _ONCE and names.count(name) > 1), None):
        raise _wrong(f"{twice} is there twice")
    for name, lines in fields:
        text = lines.decode().replace("\r\n", "")
        if breaks(text) or hides_break(text):
            raise _wrong(
                f"{name if name in _ONCE else 'a header'} holds, or hides in an encoded word, a control character"
            )


def _addresses(message: Any, name: str) -> tuple[Address, ...]:
    found: list[Address] = []
    for header in message.get_all(name, ()):
        if any(isinstance(defect, InvalidHeaderDefect) for defect in header.defects):
            raise _wrong(f"{name} is no list of addresses (RFC 5322 3.4)")
        for one in header.addresses:
            try:
                found.append(Address(email=one.addr_spec, name=one.display_name))
            except InvalidEmail as error:
                raise _wrong(f"{name}, address {len(found) + 1}: {error.reason}") from None
    return tuple(found)


def _text(message: Any, name: str) -> str:
    return str(message[name] or "")


def _well_formed(message: Any) -> None:
    defects: list[MessageDefect] = [defect for part in message.walk() for defect in part.defects]
    if defects:
        raise _wrong(f"its parts cannot be read: {type(defects[0]).__name__}")
