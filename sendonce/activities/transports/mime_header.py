"""Header fields of a mail, written so that every Python and every reader gives the same.

The standard library folds long URLs into encoded words and lets a line break through that hides in one (RFC 2047 5
forbids the first, RFC 5322 2.2 the second), differently from release to release. Here a field stays on one line while
it fits, is folded at white space between its items otherwise, and encoded words stand only where they may.
"""

from __future__ import annotations

import base64
import re

from sendonce.address import Address
from sendonce.checks import LINE_LIMIT
from sendonce.headers import STRUCTURED

FOLD_AT = 76
"""Fields made of several items are folded at this length (RFC 2047 2: lines with encoded words hold no more)."""

_PLAIN_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")


def custom(name: str, value: str) -> str:
    """A field of the caller's, without its final CRLF. Raises :class:`InvalidEmail`."""
    return structured(name, value) if STRUCTURED.fullmatch(name) else unstructured(name, value)


def unstructured(name: str, text: str) -> str:
    """A field of free text; in encoded words when it would not arrive as it is."""
    plain = f"{name}: {text}"
    if len(plain) <= LINE_LIMIT and _stays(text):
        return plain
    return fold(name, encoded_words(name, text))


def structured(name: str, text: str) -> str:
    """A field whose syntax allows no encoded words: as it is, folded between items only when it would not fit.

    ``text`` is ASCII; :mod:`sendonce.message` takes no other.
    """
    plain = f"{name}: {text}"
    return plain if len(plain) <= LINE_LIMIT else fold(name, text.split())


def addresses(name: str, these: tuple[Address, ...]) -> str:
    """A field that lists mailboxes; folded between them."""
    items: list[str] = []
    for index, address in enumerate(these):
        comma = "," if index < len(these) - 1 else ""
        spec = address_spec(address)
        items += [*_phrase(name, address.name), f"<{spec}>{comma}"] if address.name else [f"{spec}{comma}"]
    return fold(name, items)


def address_spec(address: Address) -> str:
    """The mailbox as it stands in a header: as given while it is ASCII, else with its domain in A-labels."""
    return address.email if address.email.isascii() else address.mailbox


def _phrase(field: str, name: str) -> list[str]:
    if not _stays(name) or len(name) > LINE_LIMIT // 2:
        return encoded_words(field, name)
    if _PLAIN_PHRASE.fullmatch(name):
        return [name]
    return ['"' + re.sub(r'(["\\])', r"\\\1", name) + '"']


def _stays(text: str) -> bool:
    """True when a reader gets the text as it is written: nothing to decode, no white space to lose."""
    return text.isascii() and text == text.strip() and "=?" not in text


def encoded_words(field: str, text: str) -> list[str]:
    """``text`` as encoded words (RFC 2047), no character cut in two, the first short enough for the field's line."""
    # "=?utf-8?b??=" takes 12 of the line, base64 turns 3 octets into 4; no word is longer than 75.
    room = max(12, (FOLD_AT - len(field) - len(": ") - 12) // 4 * 3)
    words, part = [], b""
    for character in text:
        octets = character.encode()
        if len(part) + len(octets) > room:
            words.append(part)
            part = b""
        part += octets
    return [f"=?utf-8?b?{base64.b64encode(word).decode()}?=" for word in (*words, part)]


def fold(name: str, items: list[str]) -> str:
    """``name: item item …``, with a line break before the space where the line would pass :data:`FOLD_AT`."""
    lines, line = [], f"{name}:"
    for item in items:
        # The first item stays on the field's own line: a line of white space only is obsolete syntax.
        if line != f"{name}:" and len(line.encode()) + 1 + len(item.encode()) > FOLD_AT:
            lines.append(line)
            line = ""
        line += f" {item}"
    return "\r\n".join([*lines, line])
