"""The proof that a bounce is about a mail of ours: a MAC that the mail carried and the bounce brings back. Pure.

Anyone can send a mail that looks like a bounce. So what a bounce names our mail by carries a MAC under a secret of the
installation:

==================  ==============================================================  ====================
carried by          form                                                            at most
==================  ==============================================================  ====================
ENVID (RFC 3461)    ``<uuid of the mail>.<16 characters>``                          53 of 100 octets
the return path     ``<local>+<26 characters: the uuid><16 characters>@<domain>``   64 octets before @
==================  ==============================================================  ====================

The MAC is HMAC-SHA256 over the mail's uuid, cut to 80 bits and written in base32 (RFC 4648 6), lower case, without
padding. 80 bits are the least that RFC 2104 5 advises; it also advises half of the digest, against collisions, which
gain nothing here: each guess costs a mail. Both forms need no xtext encoding (RFC 3461 4), which some servers undo and
others do not, and no distinction of case.

It proves that the sender of the bounce has seen the mail on its way: every server that carried it and every recipient,
in Return-Path. It does not prove which of them.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Sequence
from uuid import UUID

from sendonce.errors import ConfigurationError

KEY_OCTETS = 16
"""The shortest key, in octets; 32 random ones are as good as any (RFC 2104 3)."""
MAC_CHARACTERS = 16
PROOF_CHARACTERS = 26 + MAC_CHARACTERS
LOCAL_OCTETS = 64
"""The longest local part (RFC 5321 4.5.3.1.1)."""

_CONTEXT = b"sendonce dsn 1\x00"
_ENVELOPE_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([a-z2-7]{16})", re.IGNORECASE | re.ASCII)
_IN_ADDRESS = re.compile(r"(?:^|[^a-z0-9])([a-z2-7]{26})([a-z2-7]{16})@[^@]+", re.IGNORECASE | re.ASCII)


class Proof:
    """Makes and verifies proofs. The first key makes them, all of them verify: put a new key in front to rotate."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """:raises ConfigurationError: no key, or one of fewer than :data:`KEY_OCTETS` octets."""
        if not keys:
            raise ConfigurationError("bounces cannot be verified without a key: give at least one")
        for number, key in enumerate(keys, 1):
            if len(key) < KEY_OCTETS:
                raise ConfigurationError(
                    f"key {number} for bounces has {len(key)} octets: use at least {KEY_OCTETS} random ones"
                )
        self._keys = tuple(keys)

    def envelope_id(self, email_id: UUID) -> str:
        """The mail's ENVID. Printable ASCII without ``+`` and ``=``, 53 octets."""
        return f"{email_id}.{_mac(self._keys[0], email_id)}"

    def return_path(self, email_id: UUID, mailbox: str, delimiter: str = "+") -> str:
        """The mail's own return path, of the mailbox that takes bounces (VERP).

        ``delimiter`` is what the receiving server takes as the begin of an extension (``recipient_delimiter`` of
        Postfix, ``local_part_suffix`` of Exim).

        :raises ValueError: ``mailbox`` is none, its local part is longer than 21 octets, or ``delimiter`` is not one
            character of ``+``, ``-``, ``=``, ``.``, ``_``.
        """
        return return_path(self.envelope_id(email_id), mailbox, delimiter)

    def of_envelope_id(self, envelope_id: str) -> UUID | None:
        """The mail that this envelope id proves, None when it proves none."""
        found = _ENVELOPE_ID.fullmatch(envelope_id)
        return self._proven(UUID(found[1]), found[2]) if found else None

    def of_address(self, address: str) -> UUID | None:
        """The mail that this return path proves, None when it proves none.

        What stands before the proof does not matter: forwarders put words of their own there (SRS, BATV).
        """
        found = _IN_ADDRESS.search(address)
        email_id = _uuid(found[1]) if found else None
        return self._proven(email_id, found[2]) if found and email_id else None

    def _proven(self, email_id: UUID, mac: str) -> UUID | None:
        # Every key is tried, and each comparison takes the same time whatever differs.
        valid = [hmac.compare_digest(_mac(key, email_id), mac.lower()) for key in self._keys]
        return email_id if any(valid) else None


def return_path(envelope_id: str, mailbox: str, delimiter: str = "+") -> str:
    """The return path that carries the same proof as this envelope id; see :meth:`Proof.return_path`."""
    if len(delimiter) != 1 or delimiter not in "+-=._":
        raise ValueError("the delimiter of the mailbox for bounces must be one of + - = . _")
    local, at, domain = mailbox.rpartition("@")
    if not (local and at and domain):
        raise ValueError("the mailbox for bounces must be local-part@domain")
    room = LOCAL_OCTETS - PROOF_CHARACTERS - 1
    if len(local.encode()) > room:
        raise ValueError(f"the mailbox for bounces has more than {room} octets before @: no proof fits behind it")
    uuid, _, mac = envelope_id.partition(".")
    return f"{local}{delimiter}{_base32(UUID(uuid).bytes)}{mac}@{domain}"


def looks_proven(text: str) -> bool:
    """True for what has the form of an envelope id or a return path with a proof, right or wrong."""
    return bool(_ENVELOPE_ID.fullmatch(text) or _IN_ADDRESS.search(text))


def _mac(key: bytes, email_id: UUID) -> str:
    return _base32(hmac.digest(key, _CONTEXT + email_id.bytes, "sha256"))[:MAC_CHARACTERS]


def _base32(octets: bytes) -> str:
    return base64.b32encode(octets).decode("ascii").rstrip("=").lower()


def _uuid(text: str) -> UUID | None:
    """From 26 characters; None when the two bits that are left over are not zero."""
    email_id = UUID(bytes=base64.b32decode(text.upper() + "======"))
    return email_id if _base32(email_id.bytes) == text.lower() else None
