"""What text, mailboxes and JSON may hold to be stored and sent. Pure; whatever does not hold raises ValueError.

The messages say what to change and never repeat the value.
"""

from __future__ import annotations

import base64
import binascii
import quopri
import re
import unicodedata
from collections.abc import Mapping

import idna

LINE_LIMIT = 998
"""Octets in one header line without CRLF (RFC 5322 2.1.1). Headers are never folded, so this bounds each of them."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]+"  # RFC 5321 4.1.2 with RFC 6531 3.3
_LOCAL = re.compile(rf'{_ATOM}(\.{_ATOM})*|"([ !#-\[\]-~\u0080-\U0010ffff]|\\[ -~])*"')
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# A lookahead, so that words within words are found too.
_ENCODED_WORD = re.compile(r"(?==\?([^?]*)\?([bq])\?(.*?)\?=)", re.IGNORECASE | re.DOTALL)


def storable_text(text: str) -> str:
    """Refuse what PostgreSQL's text and jsonb cannot hold: U+0000 and lone surrogates (its manual, 8.3 and 8.14)."""
    if "\x00" in text:
        raise ValueError("must not contain the character NUL (U+0000)")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain lone surrogates (text that is not valid Unicode)") from None
    return text


def header_text(text: str, limit: int) -> str:
    """Refuse what could end or break a header line, as it stands and as an encoded word (RFC 2047) would decode.

    ``limit`` is in octets as encoded. It comes first, so that nothing long is searched for encoded words.
    """
    if encoded_length(storable_text(text)) > limit:
        raise ValueError(f"must be at most {limit} octets long as encoded in a header")
    if breaks(text):
        raise ValueError("must be one line without control characters")
    if hides_break(text):
        raise ValueError("must not hide a line break or control character in an encoded word (=?…?=)")
    return text


def breaks(text: str) -> bool:
    """True for text that holds a line end or a control character, TAB excepted."""
    # Cc holds CR, LF, VT, FF, U+0085 and the separators U+001C to U+001E; Zl and Zp are U+2028 and U+2029.
    return any(unicodedata.category(char) in ("Cc", "Zl", "Zp") and char != "\t" for char in text)


def hides_break(text: str) -> bool:
    """True for text in which an encoded word (RFC 2047) holds one of these."""
    # A lenient reading on purpose: whoever decodes later may be lenient too.
    for charset, encoding, body in _ENCODED_WORD.findall(text):
        if encoding in "qQ":
            raw = quopri.decodestring(body.encode("utf-8", "replace"), header=True)
        else:
            letters = re.sub(r"[^A-Za-z0-9+/]", "", body)
            try:
                raw = base64.b64decode(letters + "=" * (-len(letters) % 4))
            except binascii.Error:
                raw = base64.b64decode(letters[:-1] + "=" * (-len(letters[:-1]) % 4))
        try:
            decoded = raw.decode(charset.partition("*")[0], "replace")
        except (LookupError, ValueError):
            decoded = raw.decode("latin-1")
        if any(octet in raw for octet in b"\x00\r\n") or breaks(decoded) or hides_break(decoded):
            return True
    return False


def encoded_length(text: str) -> int:
    """Octets of ``text`` in a header line: RFC 2047 makes at most 42 octets of UTF-8 a word of up to 75 and a space."""
    return len(text) if text.isascii() else -(-len(text.encode()) // 42) * 76


def envelope_mailbox(email: str) -> str:
    """``local@domain`` with the domain as lower-case A-labels; raises ValueError for what RFC 5321 does not allow."""
    storable_text(email)
    local, at, domain = email.rpartition("@")
    if not at or not local or not domain:
        raise ValueError("must be a mailbox, local-part@domain")
    if len(local.encode()) > 64:
        raise ValueError("the part before @ must be at most 64 octets long (RFC 5321 4.5.3.1.1)")
    if not _LOCAL.fullmatch(local) or any(unicodedata.category(char)[0] in "CZ" for char in local.replace(" ", "")):
        raise ValueError("the part before @ has a character or a dot where none is allowed (RFC 5321 4.1.2)")
    if len(domain) > 255:
        raise ValueError("the domain must be at most 255 octets long (RFC 5321 4.5.3.1.2)")
    if domain.isascii():
        domain = domain.lower()
    else:
        try:
            domain = idna.encode(domain, uts46=True).decode("ascii")
        except UnicodeError:
            raise ValueError("the domain is no valid internationalised domain name (RFC 5890, UTS 46)") from None
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("the domain must be labels of letters, digits and hyphens, each at most 63 long")
    if len(local.encode()) + 1 + len(domain) > 254:
        raise ValueError("the mailbox must be at most 254 octets long (RFC 5321 4.5.3.1.3)")
    return f"{local}@{domain}"


def plain_json(value: object, depth: int) -> object:
    """A copy of ``value`` in plain JSON types that PostgreSQL gives back unchanged."""
    if depth > 50:
        raise ValueError("must not be nested deeper than 50 levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable_text(str.__str__(value))
    if isinstance(value, int):
        if abs(value) >= 10**100:
            raise ValueError("must not hold integers of more than 100 digits; write them as text")
        return int(value)
    if isinstance(value, float):
        # jsonb keeps numbers as decimals: from 1e16 on, a float would come back as another, whole number.
        if not abs(value) < 1e16:
            raise ValueError("must not hold floats of 1e16 and more, infinity or NaN; write them as text")
        return float(value)
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ValueError("must have strings as keys throughout")
        return {storable_text(str.__str__(name)): plain_json(one, depth + 1) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(one, depth + 1) for one in value]
    raise ValueError("must hold JSON values only: text, numbers, booleans, None, lists and mappings")
