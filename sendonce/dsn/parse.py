"""What a delivery status notification says: RFC 3464, with the addresses of RFC 6533. Pure; never raises.

Anyone can send us one, so nothing here is believed: :mod:`sendonce.dsn.reader` asks for a proof. What servers do
otherwise than the RFC says, from their own sources or mails:

============  =====================================================================================================
OpenSMTPD     ``multipart/mixed`` instead of ``multipart/report``; no envelope id, no Original-Recipient, no
              Diagnostic-Code (``bounce.c``)
Exim          ``Original-Envelope-ID``, and it and Original-Recipient left in xtext; ``Action`` first; ``Status`` is
              always 5.0.0 for what failed, expired mail included, and so read as none (``deliver.c``)
Exchange      ``RFC822;`` in capitals, empty lines between the groups
Gmail         no envelope id; the mail's own id is said in ``X-Original-Message-ID``
others        no empty line between the groups, angle brackets and comments around addresses, a report in base64
============  =====================================================================================================
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice

from sendonce.dsn.parts import Fields, Part, blocks_of, first, header_of, split
from sendonce.outcome import storable

ACTIONS = frozenset({"failed", "delayed", "delivered", "relayed", "expanded"})
"""RFC 3464 2.3.3. Only ``failed`` is a bounce."""
RECIPIENTS = 1000
"""Recipients of one notification that are read."""
CANDIDATES = 20
"""Addresses of one notification that are looked at for a return path of ours."""

_REPORT = frozenset({"message/delivery-status", "message/global-delivery-status"})
_RETURNED = frozenset(
    # The last one is no registered type; some software writes it all the same.
    {"message/rfc822", "message/global", "text/rfc822-headers", "message/global-headers", "message/rfc822-headers"}
)
_GROUP = frozenset({"final-recipient", "original-recipient", "action", "status"})
"""One group has each of these once: a second one begins the next recipient's, with or without an empty line."""
_SENT_TO = frozenset({"delivered-to", "x-original-to", "envelope-to", "x-envelope-to", "to"})
_OWN = "x-sendonce-"

_STATUS = re.compile(r"(?<![\d.])([245]\.\d{1,3}\.\d{1,3})(?![\d.])")
_SAID = re.compile(r"(?i)smtp\s*;\s*([2-5]\d\d)(?:[ -]+([245]\.\d{1,3}\.\d{1,3})(?![\d.]))?")
_COMMENT = re.compile(r"\s\([^()]*\)$")
_XTEXT = re.compile(r"\+([0-9A-F]{2})")
_POINT = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}")
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,240}>")
_IN_BRACKETS = re.compile(r"<([^<>\s]{1,320})>|([^\s<>,;\"]{1,320})")


@dataclass(frozen=True, slots=True)
class RecipientReport:
    """What happened to one recipient."""

    action: str
    """One of :data:`ACTIONS`."""
    status: str = ""
    """RFC 3463, as ``5.1.1``; ``""`` when it is missing, none, or what Exim always writes."""
    original: str = field(default="", repr=False)
    """The mailbox that we named, if the server kept it (ORCPT, RFC 3461 4.2); ``""`` when unknown."""
    final: str = field(default="", repr=False)
    """The mailbox at which it ended, after aliases and forwarding; ``""`` when there is none."""
    words: str = field(default="", repr=False)
    """Diagnostic-Code without its type; storable, and may hold personal data."""
    code: int = 0
    """The SMTP reply code in them, 0 when there is none."""
    enhanced: str = ""
    """The enhanced code in them, ``""`` when there is none."""
    last_attempt: datetime | None = None

    @property
    def recipient(self) -> str:
        """The mailbox by which we know it, else the one at which it ended; ``""`` when neither is said."""
        return self.original or self.final


@dataclass(frozen=True, slots=True)
class Notification:
    """One delivery status notification. Text is storable and bounded; nothing in it has been proved."""

    recipients: tuple[RecipientReport, ...]
    envelope_id: str = ""
    """What came with MAIL as ENVID, if the server gives it back."""
    reporting_mta: str = ""
    arrived: str = ""
    """Arrival-Date as it is written: when the reporting server took the mail."""
    sent_at: datetime | None = None
    """The notification's own Date."""
    message_id: str = ""
    """Of the mail that it is about, with angle brackets."""
    own_headers: tuple[tuple[str, str], ...] = ()
    """``X-Sendonce-…`` of the returned mail: names in lower case, values."""
    addresses: tuple[str, ...] = field(default=(), repr=False)
    """Where the notification was sent to and where the returned mail says it came from."""


def parse(mail: bytes) -> Notification | None:
    """Read a mail; None when it holds no delivery status report, or one that names no action.

    Takes anything: looks at bounded parts of it (:mod:`sendonce.dsn.parts`), leaves out what it cannot read, and never
    raises. A report within a returned or forwarded mail is not this mail's and is not read.
    """
    header, parts = split(mail)
    report, returned = _find(parts)
    if report is None:
        return None
    about, groups = _groups(blocks_of(report.body))
    exim = "-eximdsn-" in first(header, "content-type")
    recipients = [found for group in groups if (found := _recipient(group, exim)) is not None]
    if not recipients:
        return None
    of_mail = header_of(returned.body) if returned is not None else []
    return Notification(
        recipients=tuple(recipients),
        envelope_id=_line(first(about, "original-envelope-id"), 200),
        reporting_mta=_line(first(about, "reporting-mta"), 300),
        arrived=_line(first(about, "arrival-date"), 100),
        sent_at=_time(first(header, "date")),
        message_id=_message_id(of_mail, about),
        own_headers=tuple((name, _line(value, 300)) for name, value in of_mail if name.startswith(_OWN))[:CANDIDATES],
        addresses=tuple(islice(_addresses(header, about, of_mail), CANDIDATES)),
    )


def _find(parts: Iterator[Part]) -> tuple[Part | None, Part | None]:
    """The first report and the first returned mail."""
    report: Part | None = None
    returned: Part | None = None
    for part in parts:
        if report is None and part.kind in _REPORT:
            report = part
        elif returned is None and part.kind in _RETURNED:
            returned = part
        if report is not None and returned is not None:
            break
    return report, returned


def _groups(blocks: Iterable[Fields]) -> tuple[Fields, list[Fields]]:
    """The fields about the mail, and a group for each recipient."""
    about: Fields = []
    groups: list[Fields] = []
    for block in blocks:
        names: set[str] = set()
        group: Fields = []
        for name, value in block:
            if name in _GROUP:
                if not names or name in names:
                    names, group = set(), []
                    groups.append(group)
                names.add(name)
            (group if names else about).append((name, value))
        if len(groups) > RECIPIENTS:
            break
    return about, groups[:RECIPIENTS]


def _recipient(group: Fields, exim: bool) -> RecipientReport | None:
    action = re.match(r"[A-Za-z]{1,20}", first(group, "action"))
    if action is None or action[0].lower() not in ACTIONS:
        return None
    found = _STATUS.search(first(group, "status")[:100])
    status = found[1] if found else ""
    diagnostic = first(group, "diagnostic-code")
    said = _SAID.match(diagnostic)
    final = _mailbox(first(group, "final-recipient"))
    original = _mailbox(first(group, "original-recipient"))
    decoded = _XTEXT.sub(lambda found: chr(int(found[1], 16)), original)
    if exim or (final and decoded.lower() == final.lower()):
        original = decoded if _is_mailbox(decoded) else ""
    return RecipientReport(
        action=action[0].lower(),
        status="" if exim and status == "5.0.0" else status,
        original=original,
        final=final,
        words=storable(re.sub(r"^[\w-]{1,80}\s*;\s*", "", diagnostic)),
        code=int(said[1]) if said else 0,
        enhanced=(said[2] or "") if said else "",
        last_attempt=_time(first(group, "last-attempt-date")),
    )


def _mailbox(value: str) -> str:
    """The mailbox in ``rfc822; ann@example.org`` (RFC 3464 2.3) or ``utf-8; …`` (RFC 6533 3); ``""`` for others."""
    kind, semicolon, text = value.partition(";")
    if not semicolon:
        kind, text = "rfc822", value
    text = text.strip()
    kind = kind.strip().lower()
    if text.startswith("<") and ">" in text:
        text = text[1:].partition(">")[0]
    text = _COMMENT.sub("", text[:1000]).strip()
    if kind == "utf-8":
        text = _POINT.sub(_character, text)
    return text if kind in ("rfc822", "utf-8") and _is_mailbox(text) else ""


def _character(found: re.Match[str]) -> str:
    point = int(found[1], 16)
    return found[0] if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF else chr(point)


def _is_mailbox(text: str) -> bool:
    if len(text.encode("utf-8", "replace")) > 320:
        return False
    local, _, domain = text.rpartition("@")
    return bool(local and domain) and all(unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in text)


def _message_id(of_mail: Fields, about: Fields) -> str:
    text = first(of_mail, "message-id") or first(about, "x-original-message-id")
    found = _MESSAGE_ID.search(text)
    return storable(found[0]) if found else ""


def _addresses(header: Fields, about: Fields, of_mail: Fields) -> Iterator[str]:
    values = [value for name, value in header if name in _SENT_TO]
    # Postfix returns the return path in both ways.
    values += [value for name, value in of_mail if name == "return-path"]
    values += [value.partition(";")[2] for name, value in about if name == "x-postfix-sender"]
    for value in values:
        for found in _IN_BRACKETS.finditer(value):
            if _is_mailbox(address := found[1] or found[2]):
                yield address


def _line(value: str, limit: int) -> str:
    return storable(value[:limit]).replace("\n", " ").replace("\t", " ")


def _time(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value[:100])
        # RFC 5322 3.3: "-0000" is a time in UTC of which the zone is not known.
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
