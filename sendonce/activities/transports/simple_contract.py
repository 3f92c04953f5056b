"""What the author of a simple transport gets and may say: the mail, the settings, the exceptions.

An exception of this module is a statement about the provider, made by whoever wrote the call. Whatever else is raised
says nothing about it. Only what is handed over here on purpose is ever kept: made storable, cut, and in the store only.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sendonce.activities.transports.base import Recipient
from sendonce.activities.transports.http_account import digest
from sendonce.activities.transports.retry_after import retry_after
from sendonce.message import OutgoingEmail
from sendonce.outcome import AccountFault, Deferred, NotOffered, Outcome, Refused, Reply, Unanswered, storable

CODE_LIMIT = 100
"""Characters of an error's name that are kept."""

_PACKAGE = PurePath(__file__).parents[2]


class SendError(Exception):
    """What can be said of a mail instead of its provider's id; raise one of the five below.

    ``code`` is the HTTP status or SMTP reply code (0 to 999), or the provider's name for the error; ``name`` is that
    name where there is a number too. Names that look like a code are shown in logs and Temporal. ``text`` is for
    people: it is kept in the store only, cut to 1000 characters.
    """

    def __init__(self, code: int | str = 0, text: str | bytes = "", *, name: str = "") -> None:
        number = int(code) if isinstance(code, int) and 0 <= code <= 999 else 0
        if not name and code != number:
            name = str(code)
        self.reply = Reply(number, storable(str(name))[:CODE_LIMIT], _storable(text))
        super().__init__(f"{number or ''} {self.reply.enhanced}".strip())

    @property
    def outcome(self) -> Outcome:
        """The outcome for a recipient of whom this is said."""
        return Unanswered(self.reply)

    def outcomes(self, recipients: Iterable[Recipient]) -> dict[int, Outcome]:
        """The outcome for each of those who were offered."""
        return {recipient.ordinal: self.outcome for recipient in recipients}


class PermanentError(SendError):
    """The provider refused the mail for good: the same request is never made again.

    ``recipients`` are the mailboxes that are to blame, where the provider says so and took the mail for *nobody*: they
    are refused, and the others are tried again without them. None: everybody is refused. Where some were taken, let
    ``send`` return who was answered what.
    """

    def __init__(
        self,
        code: int | str = 0,
        text: str | bytes = "",
        *,
        name: str = "",
        recipients: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(code, text, name=name)
        blamed = (recipients,) if isinstance(recipients, str) else recipients
        self.blamed = None if blamed is None else frozenset(str(mailbox).casefold() for mailbox in blamed)

    @property
    def outcome(self) -> Outcome:
        """Refused."""
        return Refused(self.reply)

    def outcomes(self, recipients: Iterable[Recipient]) -> dict[int, Outcome]:
        """Refused for those who are to blame; what is said of them is not kept with the others."""
        others = Deferred(Reply(self.reply.code, self.reply.enhanced))
        return {
            one.ordinal: self.outcome if self.blamed is None or one.mailbox.casefold() in self.blamed else others
            for one in recipients
        }


class RetryLater(SendError):
    """The provider did *not* take the mail, and may later. It is tried again by the lane's retry policy.

    ``after``: not sooner than so many seconds, or a ``Retry-After`` header as it came; the policy caps it.
    """

    def __init__(
        self, after: float | str | None = None, code: int | str = 0, text: str | bytes = "", *, name: str = ""
    ) -> None:
        super().__init__(code, text, name=name)
        self.after = _seconds(after)

    @property
    def outcome(self) -> Outcome:
        """Deferred."""
        return Deferred(self.reply, self.after)


class AccountError(SendError):
    """Our own fault: credentials, quota, a domain that is not verified. Nobody's mail is blamed, no attempt counted.

    The account pauses with an alarm and is probed with one mail at a time; ``after`` as in :class:`RetryLater`.
    ``sender=True``: it is about the mail's From domain, and only that domain pauses.
    """

    def __init__(
        self,
        code: int | str = 0,
        text: str | bytes = "",
        *,
        name: str = "",
        after: float | str | None = None,
        sender: bool = False,
    ) -> None:
        super().__init__(code, text, name=name)
        self.after, self.sender = _seconds(after), sender

    @property
    def outcome(self) -> Outcome:
        """The account's fault, or the From domain's."""
        return AccountFault(self.reply, self.after, "sender" if self.sender else "account")


class NotSent(SendError):
    """Certainly nothing reached the provider: no connection could be made. It is tried again, and counted.

    Not for a time-out or a reset on a connection that stood: the request may have got out.
    """

    def __init__(self, text: str | bytes = "", *, after: float | str | None = None) -> None:
        super().__init__(text=text)
        self.after = _seconds(after)

    @property
    def outcome(self) -> Outcome:
        """Not offered."""
        return NotOffered(self.reply, retry_after=self.after)


class MaybeTaken(SendError):
    """Nobody can know whether the provider took the mail: it is *unknown*, as after any exception not named here.

    For an answer that settles nothing, such as HTTP 500: unlike another exception it keeps the code and the text.
    """


@dataclass(frozen=True, slots=True)
class SimpleMail:
    """One mail for one attempt. Everything in it but the recipients' share is pinned: the same at every attempt."""

    email_id: str
    """Sendonce's id of the mail."""
    key: str
    """The key under which the application enqueued it. Not for the provider: see ``idempotency_key``."""
    account: str
    message_id: str
    """With angle brackets."""
    created_at: datetime
    """Aware; the Date of the message."""
    idempotency_key: str
    """The key for the provider: the same when this request is made again, another one for another request."""
    content: OutgoingEmail
    """Sender, subject, text, HTML, headers, attachments, as rendered. ``to``, ``cc`` and ``bcc`` name exactly those
    whom this attempt is for, each once."""
    envelope_sender: str = field(repr=False)
    """For bounces; ``""`` is the null sender."""
    recipients: tuple[str, ...] = field(repr=False)
    """The mailboxes this attempt is for, ready for RCPT TO; nobody else must get it."""
    body: bytes = field(repr=False)
    """What :meth:`SimpleTransport.request` returned; without one, the message as MIME with CRLF line ends, no Bcc."""
    answer_seconds: float = 0.0
    """How long the answer is awaited; 0 while the request is made."""
    prepared: Any = field(default=None, repr=False)
    """What :meth:`SimpleTransport.prepare` yielded."""


class SimpleSettings(BaseModel):
    """Settings of an account whose transport is simple; subclass it for settings of your own, secrets as SecretStr.

    Unknown keys are refused. Raises pydantic's ValidationError, which never shows a value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    scope: str = Field("default", pattern=r"^[!-~]{1,150}$")
    """In whose name the provider knows our keys and mails: its team, account or server, in words of your own. Change it
    when the credentials come to belong to another one: no mail that was offered before is then replayed or looked for
    there. 1 to 150 characters of printable ASCII, default ``default``."""
    prepare_seconds: float = Field(30, ge=0.01, le=3600)
    """How long :meth:`SimpleTransport.prepare` may take. 0.01 to 3600, default 30."""

    def digest(self) -> str:
        """SHA-256, in hex, over all settings, secrets included: whose account fault it was."""
        return digest(self)


def id_of(one: object) -> str | None:
    """A provider's id as it is kept; None for what is none. It is a text that is not empty, or a number."""
    return storable(str(one)) if isinstance(one, (str, int)) and not isinstance(one, bool) and one != "" else None


def place_of(error: BaseException) -> str:
    """An error's type and place, for logs and records, without its text: ``ReadError at pigeon.py:33 _client.py:101``.

    The places are where it left our code for somebody else's, and where it was raised.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    # Our calls go through these two.
    theirs = [(PurePath(file), line) for file, line in frames if "importlib" not in file and "contextlib" not in file]
    theirs = [(file, line) for file, line in theirs if _PACKAGE not in file.parents]
    places = [f"{file.name}:{line}" for file, line in (*theirs[:1], *theirs[-1:])]
    return f"{type(error).__name__} at {' '.join(dict.fromkeys(places)) or 'unknown place'}"


def _storable(text: object) -> str:
    return storable(text if isinstance(text, (str, bytes)) else str(text))


def _seconds(after: object) -> float | None:
    """Seconds to wait; None for no wish and for nonsense, which leaves the wait to the policy."""
    if isinstance(after, str):
        return retry_after(after, datetime.now(UTC))
    if not isinstance(after, (int, float)) or not math.isfinite(after):
        return None
    return max(0.0, float(after))
