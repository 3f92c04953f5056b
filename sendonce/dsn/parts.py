"""A mail as fields and parts, within fixed bounds (RFC 5322, RFC 2046). Pure; never raises.

``email`` is not used: it recurses with every level of nesting and ends a hostile mail with RecursionError.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LIMIT = 1024 * 1024
"""Octets of a mail that are looked at. A report comes before the mail that is returned with it, so what a cut takes
away is the end of that mail. Gmail and Exchange put text, HTML and pictures before it: tens of KiB."""
DEPTH = 8
"""Levels of nested parts that are looked into."""
PARTS = 100
"""Parts of a mail that are looked at, at all levels together."""
LINES = 5000
"""Lines of one block of fields that are looked at."""
VALUE = 4000
"""Octets of a field's value that are kept."""

_NAME = re.compile(rb"[!-9;-~]{1,100}")
_BLANK = re.compile(rb"\n[ \t]*(?=\n)")
_TYPE = re.compile(r"\s*([\w!#$&^.+-]{1,80}/[\w!#$&^.+-]{1,80})", re.ASCII)
_BOUNDARY = re.compile(r""";\s*boundary\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))""", re.IGNORECASE)

Fields = list[tuple[str, str]]
"""Names in lower case, values unfolded and stripped, in order."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part that holds no further parts. ``body`` is decoded, its line ends are LF."""

    kind: str
    """The media type in lower case, without parameters."""
    body: bytes = field(repr=False)


def split(mail: bytes) -> tuple[Fields, Iterator[Part]]:
    """The header fields of a mail and its innermost parts in order; a returned message is one part, never looked into.

    Reads the first :data:`LIMIT` octets. Parts that are nested deeper than :data:`DEPTH` are left out.
    """
    fields, body = _head(mail[:LIMIT].replace(b"\r\n", b"\n"))
    return fields, _walk(fields, body)


def fields_of(block: bytes) -> Fields:
    """The fields in a block of lines; a line that belongs to none is left out. Octets that are not UTF-8 are shown."""
    found: list[tuple[bytes, list[bytes]]] = []
    open_field = False
    for line in block.split(b"\n", LINES)[:LINES]:
        if line[:1] in (b" ", b"\t"):
            if open_field:
                found[-1][1].append(line.strip())
            continue
        name, colon, value = line.partition(b":")
        name = name.rstrip()
        open_field = bool(colon) and _NAME.fullmatch(name) is not None
        if open_field:
            found.append((name, [value.strip()]))
    return [(name.decode("ascii").lower(), _text(b" ".join(lines)[:VALUE])) for name, lines in found]


def blocks_of(body: bytes) -> list[Fields]:
    """The groups of fields in a body, which blank lines separate; empty ones are left out."""
    blocks = (fields_of(block) for block in _BLANK.split(body, LINES)[:LINES])
    return [block for block in blocks if block]


def first(fields: Fields, name: str) -> str:
    """The value of the first field of this name (in lower case), ``""`` when there is none."""
    return next((value for found, value in fields if found == name), "")


def header_of(message: bytes) -> Fields:
    """The header fields of a message, or of the header section alone."""
    return _head(message)[0]


def _walk(fields: Fields, body: bytes) -> Iterator[Part]:
    # A stack instead of recursion: the next part to look at is on top.
    waiting: list[tuple[Fields, bytes, int]] = [(fields, body, 0)]
    seen = 0
    while waiting and seen < PARTS:
        seen += 1
        fields, body, depth = waiting.pop()
        kind, boundary = _content_type(first(fields, "content-type"))
        if not kind.startswith("multipart/"):
            yield Part(kind, _decoded(body, first(fields, "content-transfer-encoding")))
        elif boundary and depth < DEPTH:
            inner = [(*_head(part), depth + 1) for part in _pieces(body, boundary)]
            waiting += reversed(inner)


def _head(message: bytes) -> tuple[Fields, bytes]:
    if message.startswith(b"\n"):
        return [], message[1:]
    head, _, body = message.partition(b"\n\n")
    return fields_of(head), body


def _pieces(body: bytes, boundary: bytes) -> list[bytes]:
    """What stands between the delimiter lines (RFC 2046 5.1.1); the last piece ends where the body does, if need be."""
    mark = b"\n--" + boundary
    body = b"\n" + body
    pieces: list[bytes] = []
    start: int | None = None
    at = body.find(mark)
    while at >= 0 and len(pieces) < PARTS:
        end = body.find(b"\n", at + 1)
        end = len(body) if end < 0 else end
        rest = body[at + len(mark) : end].rstrip(b" \t")
        if rest in (b"", b"--"):
            if start is not None:
                pieces.append(body[start:at])
            if rest:
                return pieces
            start = end + 1
        at = body.find(mark, end)
    return pieces if start is None or at >= 0 else [*pieces, body[start:]]


def _content_type(value: str) -> tuple[str, bytes]:
    kind = _TYPE.match(value)
    boundary = _BOUNDARY.search(value)
    if kind is None:
        return "text/plain", b""
    if boundary is None:
        return kind[1].lower(), b""
    # Leading blanks belong to it: OpenSMTPD pads its number with them. Trailing ones cannot (RFC 2046 5.1.1).
    text = re.sub(r"\\(.)", r"\1", boundary[1]) if boundary[1] is not None else boundary[2]
    return kind[1].lower(), text.rstrip().encode()[:200]


def _decoded(body: bytes, encoding: str) -> bytes:
    """A report must be 7bit (RFC 3464 2.1); gateways encode it all the same, and RFC 6533 allows it."""
    try:
        if encoding.lower() == "base64":
            body = binascii.a2b_base64(body)
        elif encoding.lower() == "quoted-printable":
            body = binascii.a2b_qp(body)
    except binascii.Error:
        return b""
    return body.replace(b"\r\n", b"\n")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace").strip()
