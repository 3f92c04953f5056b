"""The parts of a mail as members of a JSON request: addresses, lists of recipients, files. Pure."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any

from sendonce.activities.transports.base import Recipient
from sendonce.errors import InvalidEmail
from sendonce.message import Address, Attachment, OutgoingEmail

_SPECIAL = re.compile(r'[()<>\[\]:;@\\,."]')


@dataclass(frozen=True, slots=True)
class Groups:
    """The envelope as the lists that a request names it by: everybody once."""

    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]


def groups(content: OutgoingEmail, recipients: tuple[Recipient, ...]) -> Groups:
    """Who of ``recipients`` stands in which list: in the first of To, Cc and Bcc that names the mailbox."""
    left = {recipient.mailbox for recipient in recipients}
    chosen: list[tuple[Address, ...]] = []
    for group in (content.to, content.cc, content.bcc):
        found = []
        for address in group:
            if address.mailbox in left:
                left.remove(address.mailbox)
                found.append(address)
        chosen.append(tuple(found))
    return Groups(*chosen)


def groups_with_to(content: OutgoingEmail, recipients: tuple[Recipient, ...]) -> Groups:
    """The same for a provider that wants somebody in To.

    Without anybody there, those in Cc move to To, and so does a single one in Bcc: nobody learns anything by it.
    Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone, who would see each other.
    """
    found = groups(content, recipients)
    if found.to:
        return found
    if found.cc:
        return Groups(found.cc, (), found.bcc)
    if len(found.bcc) > 1:
        raise InvalidEmail("to", "this provider needs somebody in To: write one mail for each of those in Bcc")
    return Groups(found.bcc, (), ())


def shown(address: Address) -> str:
    """``Name <mailbox>`` in Unicode; the name is quoted where it would be read otherwise (RFC 5322 3.2.4)."""
    if not address.name:
        return address.mailbox
    name = address.name
    if _SPECIAL.search(name):
        name = '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    return f"{name} <{address.mailbox}>"


def all_shown(addresses: tuple[Address, ...]) -> list[str]:
    """Each as :func:`shown`."""
    return [shown(address) for address in addresses]


def in_base64(file: Attachment) -> str:
    """The file's content."""
    return base64.b64encode(file.content).decode()


def is_related(file: Attachment, content: OutgoingEmail) -> bool:
    """Whether the HTML part can refer to the file by its content id; else it travels as a plain file."""
    return bool(file.inline and file.content_id and content.html)


def json_bytes(value: Any) -> bytes:
    """Compact UTF-8, members in the order given: the same value is always the same bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
