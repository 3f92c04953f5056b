"""What a caller asks for: one mail, as it should arrive.

Whatever an :class:`OutgoingEmail` accepts can be stored, rendered and sent; whatever it refuses is refused with
:class:`~sendonce.errors.InvalidEmail`, which names the field and never repeats the value. The models are frozen, take
no unknown fields, and show no addresses or content in their ``repr``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sendonce.address import Address, Addresses, OneAddress
from sendonce.attachment import Attachment, Attachments
from sendonce.checked import Checked, matching, short_line
from sendonce.checks import LINE_LIMIT, encoded_length, envelope_mailbox, header_text, plain_json, storable_text
from sendonce.errors import ConfigurationError, InvalidEmail
from sendonce.final import OnFinal, SignalWorkflow, read_on_final
from sendonce.headers import Headers, with_auto_submitted
from sendonce.policy import RetryPolicy, UnknownPolicy
from sendonce.ready_made import HEADER_LIMIT, check_ready_made, read_ready_made
from sendonce.template import Template

if TYPE_CHECKING:
    from sendonce.address import AddressLike, AddressList

__all__ = ["Address", "Attachment", "OutgoingEmail"]

DEFAULT_ACCOUNT = "default"
DEFAULT_LANE = "default"

MAX_RECIPIENTS = 1000
"""Mailboxes in one envelope. RFC 5321 4.5.3.1.8 obliges servers to take 100; the rest goes in further transactions."""
CONTENT_LIMIT = 25 * 1024 * 1024
"""Octets of text, html, parameters and attachments together as base64 has them (:func:`encoded_size`), or of
ready-made MIME as it is. What large mailbox providers take as a whole message; ``sendonce.enqueue`` holds the same."""
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_NAME = re.compile(r"[a-z0-9_-]{1,50}")
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,240}>")
_LOCALE = re.compile(r"[A-Za-z0-9]{1,8}([-_][A-Za-z0-9]{1,8}){0,3}")


def _envelope_sender(value: str) -> str:
    return envelope_mailbox(value) if value else ""


def _parameters(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping")  # noqa: TRY004
    copied = plain_json(value, 0)
    assert isinstance(copied, dict)
    return copied or None


# As in the SQL function: what lies beyond is no instant in every time zone and language.
_FIRST_INSTANT, _LAST_INSTANT = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def _instant(value: object) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("must be an ISO 8601 date and time with an offset") from None
    if not isinstance(value, datetime):
        raise ValueError("must be a datetime with a time zone")  # noqa: TRY004
    if value.utcoffset() is None:
        raise ValueError("must have a time zone: a naive datetime names no instant")
    try:
        # Wall time becomes an instant here, once; later changes of a time zone's rules do not move it.
        instant = value.astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not _FIRST_INSTANT <= instant <= _LAST_INSTANT:
        raise ValueError("must lie between the years 1 and 9999, not on their first or last day")
    return instant


def _retry(value: object) -> RetryPolicy | None:
    if value is None or isinstance(value, RetryPolicy):
        return value
    try:
        if isinstance(value, Mapping):
            return RetryPolicy.from_json(dict(value))
    except (ConfigurationError, ValueError, TypeError):
        pass
    raise ValueError("must be a RetryPolicy whose members are within their bounds")


def _ready_made(data: bytes) -> bytes:
    if len(data) > CONTENT_LIMIT:
        raise ValueError(f"must be at most {CONTENT_LIMIT} octets long")
    check_ready_made(data)
    return data


def encoded_size(octets: int) -> int:
    """Octets of so many in base64, in lines of 76 and CRLF (RFC 2045 6.8)."""
    return -(-octets // 57) * 78


def _shown_length(addresses: Iterable[Address]) -> int:
    return sum(len(one.email.encode()) + encoded_length(one.name) + len(' "" <>,') for one in addresses)


def _text(value: str | None) -> str | None:
    """An empty string means that the part is left out."""
    return storable_text(value or "") or None


def _word(value: str | None) -> str | None:
    return header_text(value or "", 200) or None


_Text = Annotated[str | None, AfterValidator(_text)]
_Word = Annotated[str | None, AfterValidator(_word)]
_Instant = Annotated[datetime | None, BeforeValidator(_instant)]
_Id = Annotated[str, matching(_KEY, "1 to 100 characters of A-Z a-z 0-9 . _ : -")]


class OutgoingEmail(Checked):
    """One mail to send once.

    Needs a ``key``, a ``sender``, one recipient or more, and a body: ``text``, ``html`` or both, or a ``template``, or
    attachments alone; :meth:`from_mime` makes one from a message that is ready. Raises
    :class:`~sendonce.errors.InvalidEmail` for everything that could not be stored or sent.
    """

    key: _Id
    """One key, one mail. It is visible in Temporal and to the provider: put no personal data into it."""
    account: Annotated[str, matching(_NAME, "1 to 50 characters of a-z 0-9 _ -")] = DEFAULT_ACCOUNT
    """The provider account that sends it; keys are unique within an account."""
    lane: Annotated[str, matching(_NAME, "1 to 50 characters of a-z 0-9 _ -")] = DEFAULT_LANE
    sender: OneAddress
    """The From address."""
    envelope_sender: Annotated[str, AfterValidator(_envelope_sender)] | None = None
    """Where bounces go; ``""`` is the null sender. None: the sender's mailbox. Kept with its domain in A-labels."""
    to: Addresses = ()
    cc: Addresses = ()
    bcc: Addresses = ()
    """In the envelope only; never in a header."""
    reply_to: Addresses = ()
    subject: Annotated[str, short_line(LINE_LIMIT - len("Subject: "))] = ""
    text: _Text = None
    """The plain part; an empty string leaves it out."""
    html: _Text = None
    """The HTML part; an empty string leaves it out."""
    template: _Word = None
    """The name of the template that makes subject, text and HTML; not together with ``text`` or ``html``. Given as a
    :class:`sendonce.Template`, it brings its parameters."""
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(_parameters)] = None
    """What the template is filled with: JSON values. Copied, so that later changes have no effect."""
    locale: Annotated[str, matching(_LOCALE, 'a language tag such as "de" or "de-AT"')] | None = None
    """In which language the template is wanted. None: its plain files. Without a template it has no effect."""
    rendered: bool = False
    """Subject, text and HTML were made from the template when the mail was enqueued; they come together with it then,
    and are no part of what tells two requests under one key apart."""
    headers: Headers = Field(default_factory=dict)
    """Further headers; none of those that follow from the other fields. Name and value fit one line of 998 octets."""
    attachments: Attachments = ()
    mime: Annotated[bytes, AfterValidator(_ready_made)] | None = None
    """A message that is ready to send, from :meth:`from_mime`. Sender, recipients and subject repeat what it says; it
    comes with no text, HTML, template, headers or attachments."""
    message_id: Annotated[str, matching(_MESSAGE_ID, "<id@domain>")] | None = None
    """The Message-ID of ``mime``, with angle brackets. None: one is minted at intake."""
    send_after: _Instant = None
    """Not before this instant. Aware; kept in UTC."""
    expires_at: _Instant = None
    """Not after this instant; later than ``send_after``. Aware; kept in UTC."""
    requested_by: _Word = None
    """Who asked, for the log of transitions. A service or an operator, not the recipient."""
    fairness_key: _Id | None = None
    """Whose mail it is, such as a tenant's id. Mail of one account and lane takes turns by it, so that one tenant's
    backlog does not delay another's mail. None: together with all other mail that has none."""
    topic: _Id | None = None
    """What this mail is the latest word on, such as ``password-reset:user-42``: the older mails of this account and
    topic that have not been offered yet are cancelled once it commits."""
    on_final: Annotated[OnFinal | None, BeforeValidator(read_on_final)] = None
    """Who is told how it ended: ``"take"``, for :func:`sendonce.take_finals`, or a
    :class:`~sendonce.SignalWorkflow`."""
    retry: Annotated[RetryPolicy | None, BeforeValidator(_retry)] = None
    """This mail's own retry policy instead of its lane's."""
    unknown: UnknownPolicy | None = None
    """This mail's own policy for an unanswered offer instead of its lane's."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            key: str,
            sender: AddressLike,
            account: str = DEFAULT_ACCOUNT,
            lane: str = DEFAULT_LANE,
            envelope_sender: str | None = None,
            to: AddressList = (),
            cc: AddressList = (),
            bcc: AddressList = (),
            reply_to: AddressList = (),
            subject: str = "",
            text: str | None = None,
            html: str | None = None,
            template: str | Template | None = None,
            parameters: Mapping[str, Any] | None = None,
            locale: str | None = None,
            rendered: bool = False,
            headers: Mapping[str, str] | None = None,
            attachments: Iterable[Attachment] = (),
            mime: bytes | None = None,
            message_id: str | None = None,
            send_after: datetime | None = None,
            expires_at: datetime | None = None,
            requested_by: str | None = None,
            fairness_key: str | None = None,
            topic: str | None = None,
            on_final: OnFinal | None = None,
            retry: RetryPolicy | None = None,
            unknown: UnknownPolicy | None = None,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, given: Any) -> Any:
        typed = given.get("template") if isinstance(given, dict) else None
        if not isinstance(typed, Template):
            return given
        if given.get("parameters"):
            raise InvalidEmail("parameters", "are those of the template's class: give no others")
        return {**given, "template": typed.template_name, "parameters": typed.parameters()}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not 1 <= len(self.recipients()) <= MAX_RECIPIENTS:
            raise InvalidEmail("to", f"to, cc and bcc together must name 1 to {MAX_RECIPIENTS} mailboxes")
        if self.rendered and not self.template:
            raise InvalidEmail("rendered", "is for mail made from a template, and there is none")
        if self.rendered and not (self.text or self.html):
            raise InvalidEmail("rendered", "says that text or html were made, and there is neither")
        if self.template and not self.rendered and (self.text or self.html):
            raise InvalidEmail("template", "must not come together with text or html")
        if self.parameters and not self.template:
            raise InvalidEmail("parameters", "belong to a template, and there is none")
        if self.mime is not None:
            self._alone()
        elif self.message_id is not None:
            raise InvalidEmail("message_id", "belongs to ready-made MIME; other mail gets one of its own")
        elif not (self.text or self.html or self.template or self.attachments):
            raise InvalidEmail("text", "give text, html, a template or an attachment: there is nothing to send")
        if self.send_after and self.expires_at and self.expires_at <= self.send_after:
            raise InvalidEmail("expires_at", "must be later than send_after")
        self._fits()
        return self

    def _alone(self) -> None:
        for name in ("text", "html", "template", "parameters", "headers", "attachments"):
            if getattr(self, name):
                raise InvalidEmail(name, "must not come together with mime")

    def _fits(self) -> None:
        fields = {name: _shown_length(getattr(self, name)) for name in ("to", "cc", "reply_to")}
        fields["headers"] = sum(len(name) + encoded_length(text) + 4 for name, text in self.headers.items())
        if sum(fields.values()) > HEADER_LIMIT:
            raise InvalidEmail(
                max(fields, key=lambda name: fields[name]),
                f"to, cc, reply_to and headers together exceed {HEADER_LIMIT} octets as written in the mail; "
                "bcc takes none",
            )
        sizes = {
            "attachments": sum(len(one.content) for one in self.attachments),
            "parameters": len(json.dumps(self.parameters, ensure_ascii=False).encode()) if self.parameters else 0,
            "text": len((self.text or "").encode()),
            "html": len((self.html or "").encode()),
        }
        if (encoded := encoded_size(sum(sizes.values()))) > CONTENT_LIMIT:
            raise InvalidEmail(
                max(sizes, key=lambda field: sizes[field]),
                f"text, html, parameters and attachments together are {encoded} octets in base64, and exceed "
                f"{CONTENT_LIMIT}, which holds files of about 19 MB; send a link to what is larger",
            )

    @classmethod
    def from_mime(
        cls,
        data: bytes,
        *,
        key: str,
        recipients: AddressList | None = None,
        account: str = DEFAULT_ACCOUNT,
        lane: str = DEFAULT_LANE,
        envelope_sender: str | None = None,
        send_after: datetime | None = None,
        expires_at: datetime | None = None,
        requested_by: str | None = None,
        fairness_key: str | None = None,
        topic: str | None = None,
        on_final: OnFinal | None = None,
        retry: RetryPolicy | None = None,
        unknown: UnknownPolicy | None = None,
    ) -> OutgoingEmail:
        """A message that is made already, such as ``bytes(email.message.EmailMessage)``; at most 25 MB.

        It is sent as it is, but for this: ``Bcc``, ``Resent-Bcc`` and ``Return-Path`` leave it, line ends become CRLF,
        and ``Date``, ``Message-ID`` and ``MIME-Version`` are added where they are missing. It goes to everybody in
        ``To``, ``Cc`` and ``Bcc``; or, with ``recipients``, to these alone. The header section must be ASCII and no
        line longer than 998 octets; 8-bit text in the body needs a relay with 8BITMIME. A message with its own
        Message-ID or Date is other content when it is made again under the same key.

        Raises :class:`~sendonce.errors.InvalidEmail` for what cannot be sent as it is.
        """
        made = read_ready_made(data, named=recipients is not None)
        envelope: dict[str, Any] = {"to": made.to, "cc": made.cc, "bcc": made.bcc}
        if recipients is not None:
            envelope = {"bcc": recipients}
        return cls(
            key=key,
            sender=made.sender,
            **envelope,
            reply_to=made.reply_to,
            subject=made.subject,
            mime=made.data,
            message_id=made.message_id,
            account=account,
            lane=lane,
            envelope_sender=envelope_sender,
            send_after=send_after,
            expires_at=expires_at,
            requested_by=requested_by,
            fairness_key=fairness_key,
            topic=topic,
            on_final=on_final,
            retry=retry,
            unknown=unknown,
        )

    @property
    def sent_headers(self) -> dict[str, str]:
        """``headers`` as they are sent: with ``Auto-Submitted: auto-generated``, unless they hold one (RFC 3834 5)."""
        return with_auto_submitted(self.headers)

    def recipients(self) -> tuple[str, ...]:
        """The envelope: every mailbox of to, cc and bcc once, in that order; its index is the recipient's ordinal.

        Domains are compared without case, local parts as they are (RFC 5321 2.4).
        """
        return tuple(dict.fromkeys(address.mailbox for address in (*self.to, *self.cc, *self.bcc)))

    def to_json(self) -> dict[str, Any]:
        """The stored form: everything but :meth:`files`, which have a table of their own."""
        body = {name: getattr(self, name) for name in type(self).model_fields if name != "attachments"}
        body["sender"] = self.sender.model_dump()
        for name in ("to", "cc", "bcc", "reply_to"):
            body[name] = [address.model_dump() for address in body[name]]
        for name in ("send_after", "expires_at"):
            body[name] = body[name] and body[name].isoformat()
        if isinstance(self.on_final, SignalWorkflow):
            body["on_final"] = self.on_final.model_dump()
        body["retry"] = self.retry and self.retry.to_json()
        body["mime"] = True if self.mime is not None else None
        return body

    def files(self) -> list[dict[str, Any]]:
        """What the store keeps as rows of ``sendonce.attachment``: the attachments, or ready-made MIME."""
        if self.mime is not None:
            return [{"filename": "message.eml", "content_type": "message/rfc822", "content": self.mime}]
        return [one.model_dump() for one in self.attachments]

    @classmethod
    def from_json(cls, body: Mapping[str, Any], files: Iterable[Attachment | Mapping[str, Any]] = ()) -> OutgoingEmail:
        """Read the stored form; ``files`` may be rows of ``sendonce.attachment``.

        Checks everything again, for any language may have written the row. Raises
        :class:`~sendonce.errors.InvalidEmail`.
        """
        if "attachments" in body:
            raise InvalidEmail("attachments", "are not part of the stored form")
        if body.get("mime"):
            contents = [dict(one).get("content") for one in files]
            if len(contents) != 1 or not isinstance(contents[0], bytes):
                raise InvalidEmail("mime", "must be stored as one file")
            return cls(**{**body, "mime": contents[0]})
        try:
            made = [one if isinstance(one, Attachment) else Attachment(**one) for one in files]
        except InvalidEmail as error:
            raise InvalidEmail("attachments", f"{error.field}: {error.reason}") from None
        return cls(**{**body, "mime": None}, attachments=made)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("key", self.key), ("account", self.account), ("lane", self.lane)]
