"""Does some content name this address? Pure. It looks behind the encodings that mail uses."""

from __future__ import annotations

import base64
import quopri
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_to_bytes

import idna

from sendonce.checks import envelope_mailbox

DEPTH = 3
"""Encodings within encodings that are looked behind: base64 in a JSON request, quoted-printable in that."""

_BREAK = re.compile(rb"\r?\n|\\r\\n|\\n")
_ESCAPE = re.compile(rb"\\u([0-9a-fA-F]{4})")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PRINTABLE = frozenset(b"\t\r\n" + bytes(range(32, 127)))
LONG = 64 * 1024
"""Octets beyond which a run of base64 is decoded from its first letter only."""


@dataclass(frozen=True)
class Person:
    """An address as it is looked for. ``mailbox``: its domain in A-labels."""

    mailbox: str

    @classmethod
    def of(cls, address: str) -> Person:
        """Raises ValueError for what is no address."""
        return cls(envelope_mailbox(address))

    @cached_property
    def pattern(self) -> str:
        """A regular expression for text in lower case, the same to Python and to PostgreSQL.

        What goes on at either end is another address: ``joann@example.org``, ``ann@example.org.uk``.
        """
        local, _, domain = self.mailbox.lower().rpartition("@")
        names = {domain, _shown(domain)}
        either = "|".join(re.escape(name) for name in sorted(names))
        return rf"(?<![a-z0-9_+-])(?<![a-z0-9]\.){re.escape(local)}@({either})(?![a-z0-9-])(?!\.[a-z0-9])"

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def _run(self) -> re.Pattern[bytes]:
        # Base64, in lines or not, that is long enough to hold the address.
        letters = max(8, len(self.mailbox.encode()) * 4 // 3)
        return re.compile(rb"[A-Za-z0-9+/_-]{%d,}(?:(?:\r?\n|\\r\\n|\\n)[A-Za-z0-9+/_-]+)*" % letters)

    def named_in(self, content: str | bytes) -> bool:
        """True when it stands there, plainly or encoded: quoted-printable, base64, percent, JSON, UTF-16."""
        data = content.encode() if isinstance(content, str) else content
        return any(self._plainly(one) for one in self._readings(data, DEPTH))

    def _plainly(self, data: bytes) -> bool:
        # Most content holds no address at all, and most others hold another one.
        return b"@" in data and self._expression.search(data.decode("utf-8", "replace").lower()) is not None

    def _readings(self, data: bytes, depth: int) -> Iterator[bytes]:
        yield data
        if b"\x00" in data:
            yield data.replace(b"\x00", b"")
        if not depth:
            return
        if b"=" in data:
            yield quopri.decodestring(data)
        if b"%" in data:
            yield unquote_to_bytes(data)
        if b"\\u" in data:
            yield _ESCAPE.sub(lambda found: chr(int(found[1], 16)).encode("utf-8", "replace"), data)
        for run in self._run.finditer(data):
            letters = _BREAK.sub(b"", run[0]).translate(_URL_SAFE)
            # Letters before it may belong to something else.
            for offset in range(1 if len(letters) > LONG else 4):
                part = letters[offset:]
                part = part[: len(part) - (len(part) % 4 == 1)]
                decoded = base64.b64decode(part + b"=" * (-len(part) % 4))
                # Text may hold more of it; anything else is looked at as it is.
                yield from self._readings(decoded, depth - 1 if _is_text(decoded) else 0)


def _is_text(data: bytes) -> bool:
    head = data[:64]
    return sum(octet in _PRINTABLE for octet in head) * 4 >= len(head) * 3


def _shown(domain: str) -> str:
    try:
        return idna.decode(domain).lower()
    except UnicodeError:
        return domain
