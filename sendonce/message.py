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

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from sendonce.checks import envelope_mailbox, header_text, plain_json, storable_text
from sendonce.errors import ConfigurationError, InvalidEmail
from sendonce.policy import RetryPolicy, UnknownPolicy

DEFAULT_ACCOUNT = "default"
DEFAULT_LANE = "default"

MAX_RECIPIENTS = 1000
"""Mailboxes in one envelope. RFC 5321 4.5.3.1.8 obliges servers to take 100; the rest goes in further transactions."""
CONTENT_LIMIT = 25 * 1024 * 1024
"""Octets of text, html, parameters and attachments together, after base64 (four thirds). What large mailbox providers
take as a whole message; ``sendonce.enqueue`` holds the same number."""
LINE_LIMIT = 998
"""Octets in one header line without CRLF (RFC 5322 2.1.1). Headers are never folded, so this bounds each of them."""

_KEY = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_NAME = re.compile(r"[a-z0-9_-]{1,50}")
_FTEXT = re.compile(r"[!-9;-~]+")  # RFC 5322 3.6.8
_ATTRIBUTE = r"[A-Za-z0-9!#$%&'*+.^_`{|}~-]+"  # RFC 2045 5.1
_LOCALE = re.compile(r"[A-Za-z0-9]{1,8}([-_][A-Za-z0-9]{1,8}){0,3}")
_MEDIA_TYPE = re.compile(rf'{_ATTRIBUTE}/{_ATTRIBUTE}(; *{_ATTRIBUTE}=({_ATTRIBUTE}|"[ !#-\[\]-~]*"))*')
_CONTENT_ID = re.compile(rf"{_ATTRIBUTE}(@{_ATTRIBUTE})?")
# Fields whose syntax has no place for encoded words (RFC 2047 5 (3)); everything else a caller may set is free text.
STRUCTURED = re.compile(
    r"(?i)list-.*|in-reply-to|references|auto-submitted|precedence|priority|importance|x-priority|errors-to"
    r"|disposition-notification-to|feedback-id|archived-at|expires|supersedes|original-message-id"
)
_OURS = frozenset(
    {"from", "to", "cc", "bcc", "subject", "date", "message-id", "mime-version", "sender", "reply-to"}
    | {"return-path", "received", "dkim-signature"}
)


def _short_line(limit: int) -> AfterValidator:
    return AfterValidator(lambda text: header_text(text, limit))


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"must be {what}")
        return text

    return AfterValidator(check)


class _Checked(BaseModel):
    """Frozen, strict, and raising :class:`InvalidEmail` itself, so that callers never meet pydantic's errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    if not TYPE_CHECKING:  # subclasses declare what they take; this is how all of them fail

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                problem = error.errors(include_url=False, include_input=False)[0]
            else:
                return
            # Raised outside the handler: the error that callers see keeps no pydantic error as its context.
            raise _invalid(problem)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A copy with other values, checked like a new one (pydantic's own does not check)."""
        return type(self)(**{**dict(self), **(update or {})})


def _invalid(problem: Any) -> InvalidEmail:
    cause = problem.get("ctx", {}).get("error")
    field = str(problem["loc"][0]) if problem["loc"] else "message"
    if problem["type"] == "extra_forbidden":
        # The name itself may come from anywhere: it is shown when it looks like a field's.
        return InvalidEmail(field if re.fullmatch("[a-z_]{1,30}", field) else "message", "is not a known field")
    if problem["type"] == "missing":
        return InvalidEmail(field, "is required")
    if isinstance(cause, InvalidEmail):
        return InvalidEmail(field, f"{cause.field}: {cause.reason}") if problem["loc"] else cause
    return InvalidEmail(field, str(cause) if cause else problem["msg"].replace("Input should", "must"))


def _checked_mailbox(email: str) -> str:
    envelope_mailbox(email)
    return email


class Address(_Checked):
    """A mailbox and the name shown with it. A plain string ``"Ann <ann@example.org>"`` is taken wherever one fits.

    Raises :class:`~sendonce.errors.InvalidEmail` for a mailbox that RFC 5321 does not allow, and for a name of more
    than one line. Local parts outside ASCII are allowed: the next hop decides whether it takes them (RFC 6531).
    """

    email: Annotated[str, AfterValidator(_checked_mailbox)]
    """``local-part@domain``; the domain may be internationalised. At most 64, 255 and 254 octets (RFC 5321 4.5.3.1)."""
    name: Annotated[str, _short_line(700)] = ""
    """What mail programs show. One line, at most 700 octets as encoded."""

    if TYPE_CHECKING:

        def __init__(self, *, email: str, name: str = "") -> None: ...

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``"ann@example.org"``, ``"Ann <ann@example.org>"`` or ``'"Ann, B." <ann@example.org>'``.

        >>> Address.parse('"Ann, B." <ann@example.org>').name
        'Ann, B.'
        """
        text = text.strip(" \t")
        before, bracket, inside = text.rpartition("<")
        if not bracket or not inside.endswith(">"):
            return cls(email=text)
        name = before.strip(" \t")
        if len(name) > 1 and name[0] == name[-1] == '"':
            name = re.sub(r"\\(.)", r"\1", name[1:-1], flags=re.DOTALL)
        return cls(email=inside[:-1].strip(" \t"), name=name)

    @property
    def mailbox(self) -> str:
        """The mailbox for the envelope: the local part as it is, the domain lower-case in A-labels (RFC 5321 2.4).

        >>> Address(email="Ann@BÜCHER.example").mailbox
        'Ann@xn--bcher-kva.example'
        """
        return envelope_mailbox(self.email)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return ()


def _address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    try:
        if isinstance(value, str):
            return Address.parse(value)
        if isinstance(value, Mapping):
            return Address(**value)
    except InvalidEmail as error:
        raise ValueError(error.reason if error.field == "email" else str(error)) from None
    raise ValueError('must be an Address or a string such as "Ann <ann@example.org>"')


def _addresses(value: object) -> tuple[Address, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, Address, Mapping)):
        value = (value,)
    if not isinstance(value, Iterable):
        raise ValueError("must be an address or a list of them")  # noqa: TRY004
    found = []
    for number, one in enumerate(value, 1):
        try:
            found.append(_address(one))
        except ValueError as error:
            raise ValueError(f"address {number}: {error}") from None
    return tuple(found)


def _envelope_sender(value: str) -> str:
    return envelope_mailbox(value) if value else ""


def _filename(name: str) -> str:
    if not 1 <= len(storable_text(name).encode()) <= 255 or "\t" in name:
        raise ValueError("must be a name of 1 to 255 octets without control characters")
    return header_text(name, LINE_LIMIT)


def _media_type(value: str) -> str:
    if len(value) > 255 or not _MEDIA_TYPE.fullmatch(value):
        raise ValueError('must be a media type such as "application/pdf" (RFC 2045 5.1)')
    if value.lower().startswith(("multipart/", "message/")):
        # RFC 2045 6.4 and RFC 2046 5.2.1 forbid base64 for these, and bytes travel in base64.
        raise ValueError("must not be a multipart or message type; use application/octet-stream")
    return value


class Attachment(_Checked):
    """A file that travels with the mail. Raises :class:`~sendonce.errors.InvalidEmail`."""

    filename: Annotated[str, AfterValidator(_filename)]
    """One line, 1 to 255 octets of UTF-8."""
    content: bytes
    content_type: Annotated[str, AfterValidator(_media_type)] = "application/octet-stream"
    """A media type, with parameters if need be; no ``multipart/…`` or ``message/…``, which cannot be base64."""
    inline: bool = False
    """Shown within the HTML part, which refers to it as ``cid:<content_id>``."""
    content_id: Annotated[str, _short_line(250), _matching(_CONTENT_ID, "id or id@domain, without <>")] | None = None
    """Without angle brackets; required when ``inline``."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            filename: str,
            content: bytes,
            content_type: str = "application/octet-stream",
            inline: bool = False,
            content_id: str | None = None,
        ) -> None: ...

    @model_validator(mode="after")
    def _referable(self) -> Self:
        if self.inline and not self.content_id:
            raise InvalidEmail("content_id", "is required for an inline attachment")
        return self

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("content_type", self.content_type), ("octets", len(self.content))]


def _attachments(value: object) -> tuple[Attachment, ...]:
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(one, Attachment) for one in found):
        raise ValueError("must be a list of Attachment")
    return found


def _headers(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of header names to values")  # noqa: TRY004
    seen: set[str] = set()
    for number, (name, text) in enumerate(value.items(), 1):
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"header {number}: name and value must be strings")  # noqa: TRY004
        lower = name.lower()
        if not _FTEXT.fullmatch(name):
            raise ValueError(f"header {number}: the name may hold printable ASCII but no colon (RFC 5322 3.6.8)")
        if lower in _OURS or lower.startswith(("content-", "resent-")):
            raise ValueError(f"header {number}: this one is set by Sendonce from the other fields")
        if lower in seen:
            raise ValueError(f"header {number}: the name is there twice")
        seen.add(lower)
        if STRUCTURED.fullmatch(name) and not text.isascii():
            raise ValueError(f"header {number}: takes ASCII only: write other characters %-encoded or leave them out")
        try:
            header_text(name, LINE_LIMIT)
            header_text(text, LINE_LIMIT - len(name) - len(": "))
        except ValueError as error:
            raise ValueError(f"header {number}: name and value {error}") from None
    return {str(name): str(text) for name, text in value.items()}


def _parameters(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping")  # noqa: TRY004
    copied = plain_json(value, 0)
    assert isinstance(copied, dict)
    return copied or None


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
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie in the years 1 to 9999") from None


def _retry(value: object) -> RetryPolicy | None:
    if value is None or isinstance(value, RetryPolicy):
        return value
    try:
        if isinstance(value, Mapping):
            return RetryPolicy.from_json(dict(value))
    except (ConfigurationError, ValueError, TypeError):
        pass
    raise ValueError("must be a RetryPolicy whose members are within their bounds")


def _text(value: str | None) -> str | None:
    """An empty string means that the part is left out."""
    return storable_text(value or "") or None


def _word(value: str | None) -> str | None:
    return header_text(value or "", 200) or None


_OneAddress = Annotated[Address, BeforeValidator(_address)]
_Addresses = Annotated[tuple[Address, ...], BeforeValidator(_addresses)]
_Text = Annotated[str | None, AfterValidator(_text)]
_Word = Annotated[str | None, AfterValidator(_word)]
_Instant = Annotated[datetime | None, BeforeValidator(_instant)]

if TYPE_CHECKING:
    AddressLike = Address | str
    AddressList = AddressLike | Iterable[AddressLike]


class OutgoingEmail(_Checked):
    """One mail to send once.

    Needs a ``key``, a ``sender``, one recipient or more, and a body: ``text``, ``html`` or both, or a ``template``, or
    attachments alone. Raises :class:`~sendonce.errors.InvalidEmail` for everything that could not be stored or sent.
    """

    key: Annotated[str, _matching(_KEY, "1 to 100 characters of A-Z a-z 0-9 . _ : -")]
    """One key, one mail. It is visible in Temporal and to the provider: put no personal data into it."""
    account: Annotated[str, _matching(_NAME, "1 to 50 characters of a-z 0-9 _ -")] = DEFAULT_ACCOUNT
    """The provider account that sends it; keys are unique within an account."""
    lane: Annotated[str, _matching(_NAME, "1 to 50 characters of a-z 0-9 _ -")] = DEFAULT_LANE
    sender: _OneAddress
    """The From address."""
    envelope_sender: Annotated[str, AfterValidator(_envelope_sender)] | None = None
    """Where bounces go; ``""`` is the null sender. None: the sender's mailbox. Kept with its domain in A-labels."""
    to: _Addresses = ()
    cc: _Addresses = ()
    bcc: _Addresses = ()
    """In the envelope only; never in a header."""
    reply_to: _Addresses = ()
    subject: Annotated[str, _short_line(LINE_LIMIT - len("Subject: "))] = ""
    text: _Text = None
    """The plain part; an empty string leaves it out."""
    html: _Text = None
    """The HTML part; an empty string leaves it out."""
    template: _Word = None
    """The name of the template that makes subject, text and HTML; not together with ``text`` or ``html``."""
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(_parameters)] = None
    """What the template is filled with: JSON values. Copied, so that later changes have no effect."""
    locale: Annotated[str, _matching(_LOCALE, 'a language tag such as "de" or "de-AT"')] | None = None
    """In which language the template is wanted. None: its plain files. Without a template it has no effect."""
    rendered: bool = False
    """Subject, text and HTML were made from the template when the mail was enqueued; they come together with it then,
    and are no part of what tells two requests under one key apart."""
    headers: Annotated[dict[str, str], BeforeValidator(_headers)] = {}
    """Further headers; none of those that follow from the other fields. Name and value fit one line of 998 octets."""
    attachments: Annotated[tuple[Attachment, ...], BeforeValidator(_attachments)] = ()
    send_after: _Instant = None
    """Not before this instant. Aware; kept in UTC."""
    expires_at: _Instant = None
    """Not after this instant; later than ``send_after``. Aware; kept in UTC."""
    requested_by: _Word = None
    """Who asked, for the log of transitions. A service or an operator, not the recipient."""
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
            template: str | None = None,
            parameters: Mapping[str, Any] | None = None,
            locale: str | None = None,
            rendered: bool = False,
            headers: Mapping[str, str] | None = None,
            attachments: Iterable[Attachment] = (),
            send_after: datetime | None = None,
            expires_at: datetime | None = None,
            requested_by: str | None = None,
            retry: RetryPolicy | None = None,
            unknown: UnknownPolicy | None = None,
        ) -> None: ...

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
        if not (self.text or self.html or self.template or self.attachments):
            raise InvalidEmail("text", "give text, html, a template or an attachment: there is nothing to send")
        if self.send_after and self.expires_at and self.expires_at <= self.send_after:
            raise InvalidEmail("expires_at", "must be later than send_after")
        sizes = {
            "attachments": sum(len(one.content) for one in self.attachments),
            "parameters": len(json.dumps(self.parameters, ensure_ascii=False).encode()) if self.parameters else 0,
            "text": len((self.text or "").encode()),
            "html": len((self.html or "").encode()),
        }
        if (sum(sizes.values()) + 2) // 3 * 4 > CONTENT_LIMIT:
            raise InvalidEmail(
                max(sizes, key=lambda field: sizes[field]),
                f"text, html, parameters and attachments together exceed {CONTENT_LIMIT} octets after base64",
            )
        return self

    def recipients(self) -> tuple[str, ...]:
        """The envelope: every mailbox of to, cc and bcc once, in that order; its index is the recipient's ordinal.

        Domains are compared without case, local parts as they are (RFC 5321 2.4).
        """
        return tuple(dict.fromkeys(address.mailbox for address in (*self.to, *self.cc, *self.bcc)))

    def to_json(self) -> dict[str, Any]:
        """The stored form: everything but the attachments, which have a table of their own."""
        body = {name: getattr(self, name) for name in type(self).model_fields if name != "attachments"}
        body["sender"] = self.sender.model_dump()
        for name in ("to", "cc", "bcc", "reply_to"):
            body[name] = [address.model_dump() for address in body[name]]
        for name in ("send_after", "expires_at"):
            body[name] = body[name] and body[name].isoformat()
        body["retry"] = self.retry and self.retry.to_json()
        return body

    @classmethod
    def from_json(
        cls, body: Mapping[str, Any], attachments: Iterable[Attachment | Mapping[str, Any]] = ()
    ) -> OutgoingEmail:
        """Read the stored form; ``attachments`` may be rows of ``sendonce.attachment``.

        Checks everything again, for any language may have written the row. Raises
        :class:`~sendonce.errors.InvalidEmail`.
        """
        if "attachments" in body:
            raise InvalidEmail("attachments", "are not part of the stored form")
        try:
            files = [one if isinstance(one, Attachment) else Attachment(**one) for one in attachments]
        except InvalidEmail as error:
            raise InvalidEmail("attachments", f"{error.field}: {error.reason}") from None
        return cls(**body, attachments=files)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("key", self.key), ("account", self.account), ("lane", self.lane)]
