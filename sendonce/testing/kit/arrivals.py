"""What arrived at the playing providers, as a person would see it."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parseaddr
from html.parser import HTMLParser
from typing import Any

from sendonce.testing.mailbox import Mailbox, StoredMail

_URL = re.compile(r"https?://[^\s<>\"']+")
_AFTER_URL = ".,;:!?)]}"
"""What ends a sentence rather than a link."""


@dataclass(frozen=True, slots=True)
class ArrivedFile:
    """One attachment."""

    filename: str
    content_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Arrived:
    """One message that a provider accepted. With two recipients it is one message."""

    account: str
    """The account whose provider took it."""
    recipients: tuple[str, ...]
    """The envelope: To, Cc and Bcc."""
    sender: str
    """The mailbox of the From address."""
    subject: str
    text: str
    """The plain part; ``""`` when there is none."""
    html: str
    """The HTML part; ``""`` when there is none."""
    headers: Mapping[str, str]
    """Names in lower case."""
    attachments: tuple[ArrivedFile, ...]
    raw: StoredMail = field(repr=False)
    """As the playing server stored it: MIME or the request's body."""

    @property
    def links(self) -> list[str]:
        """The web addresses in HTML and text, each once, in order."""
        reader = _Links()
        reader.feed(self.html)
        plain = [found.rstrip(_AFTER_URL) for found in _URL.findall(self.text)]
        return list(dict.fromkeys([*reader.found, *plain]))

    def link(self, containing: str = "") -> str:
        """The one link that contains this. Fails with all links when it is none or several."""
        __tracebackhide__ = True
        found = [link for link in self.links if containing in link]
        if len(found) != 1:
            which = f"with {containing!r} " if containing else ""
            shown = "".join(f"\n  {link}" for link in self.links) or " none"
            raise AssertionError(f"{len(found)} links {which}in the mail {self.subject!r}; its links:{shown}")
        return found[0]

    def attachment(self, filename: str) -> ArrivedFile:
        """The attachment with this name. Fails with all names when there is none."""
        __tracebackhide__ = True
        for one in self.attachments:
            if one.filename == filename:
                return one
        names = ", ".join(one.filename for one in self.attachments) or "none"
        raise AssertionError(f"no attachment {filename!r} in the mail {self.subject!r}; attachments: {names}")

    def __str__(self) -> str:
        return f"{self.subject!r} to {', '.join(self.recipients)}"


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href") if tag in ("a", "area") else None
        if target and re.match(r"https?://", target):
            self.found.append(html.unescape(target))


Reader = Callable[[str, StoredMail], Arrived]
"""From an account's name and what its server stored."""


class Inbox(Mailbox):
    """The mailbox of one playing server: what it takes is seen by the test's :class:`Arrivals` too."""

    def __init__(self, account: str, read: Reader, arrivals: Arrivals) -> None:
        super().__init__()
        self._account, self._reader, self._arrivals = account, read, arrivals

    def store(self, mail: StoredMail) -> None:
        """Keep one message."""
        super().store(mail)
        self._arrivals.add(self._reader(self._account, mail))


class Arrivals:
    """Every message that any provider of the test accepted, in order. Iterate over it, or ask for one."""

    def __init__(self, explain: Callable[[str | None, str], str]) -> None:
        """``explain`` says why nothing arrived: for a mailbox or for anybody, and of which subject."""
        self._mails: list[Arrived] = []
        self._explain = explain

    def add(self, mail: Arrived) -> None:
        """A provider took it."""
        self._mails.append(mail)

    def __iter__(self) -> Iterator[Arrived]:
        return iter(list(self._mails))

    def __len__(self) -> int:
        return len(self._mails)

    def __getitem__(self, index: int) -> Arrived:
        return self._mails[index]

    def to(self, mailbox: str) -> list[Arrived]:
        """Those in whose envelope this mailbox is; its domain is compared without case."""
        wanted = _folded(mailbox)
        return [mail for mail in self if wanted in map(_folded, mail.recipients)]

    def one(self, to: str | None = None, *, subject: str = "") -> Arrived:
        """The one message to this mailbox, whose subject contains this.

        Fails when there is none, and says what became of it; or when there are several, and shows them.
        """
        __tracebackhide__ = True
        found = [mail for mail in (self if to is None else self.to(to)) if subject in mail.subject]
        if not found:
            raise AssertionError(self._explain(to, subject))
        if len(found) > 1:
            raise AssertionError(f"{len(found)} mails instead of one:" + "".join(f"\n  {mail}" for mail in found))
        return found[0]

    def clear(self) -> None:
        """Forget what has arrived."""
        self._mails.clear()


def _folded(mailbox: str) -> str:
    local, at, domain = mailbox.rpartition("@")
    return local + at + domain.lower()


# How a message is written ------------------------------------------------------------------------------------------


def read_mime(account: str, mail: StoredMail) -> Arrived:
    """A MIME message."""
    message = mail.parsed()
    bodies = {kind: message.get_body((kind,)) for kind in ("plain", "html")}
    texts = {kind: "" if part is None else str(part.get_content()) for kind, part in bodies.items()}
    files = []
    for part in message.walk():
        if part.is_multipart() or part in bodies.values():
            continue
        content = part.get_payload(decode=True)
        files.append(
            ArrivedFile(
                part.get_filename() or "", part.get_content_type(), content if isinstance(content, bytes) else b""
            )
        )
    return Arrived(
        account,
        mail.recipients,
        parseaddr(str(message["From"] or ""))[1],
        str(message["Subject"] or ""),
        texts["plain"].replace("\r\n", "\n"),
        texts["html"].replace("\r\n", "\n"),
        {name.lower(): str(value) for name, value in message.items()},
        tuple(files),
        mail,
    )


def read_json(subject: str, text: str, html: str, files: str, name: str, content: str, kind: str = "") -> Reader:
    """A JSON request with members of these names."""

    def read(account: str, mail: StoredMail) -> Arrived:
        body: dict[str, Any] = mail.json()
        found = tuple(
            ArrivedFile(
                one[name], one.get(kind) or "application/octet-stream", base64.b64decode(one.get(content) or "")
            )
            for one in body.get(files) or ()
        )
        return Arrived(
            account,
            mail.recipients,
            mail.sender,
            body.get(subject) or "",
            body.get(text) or "",
            body.get(html) or "",
            mail.headers,
            found,
            mail,
        )

    return read
