"""Files that travel with a mail."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from sendonce.checked import Checked, matching, short_line
from sendonce.checks import LINE_LIMIT, header_text, storable_text
from sendonce.errors import InvalidEmail

_ATTRIBUTE = r"[A-Za-z0-9!#$%&'*+.^_`{|}~-]+"  # RFC 2045 5.1
_MEDIA_TYPE = re.compile(rf'{_ATTRIBUTE}/{_ATTRIBUTE}(; *{_ATTRIBUTE}=({_ATTRIBUTE}|"[ !#-\[\]-~]*"))*')
_CONTENT_ID = re.compile(rf"{_ATTRIBUTE}(@{_ATTRIBUTE})?")


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


class Attachment(Checked):
    """A file that travels with the mail. Raises :class:`~sendonce.errors.InvalidEmail`."""

    filename: Annotated[str, AfterValidator(_filename)]
    """One line, 1 to 255 octets of UTF-8."""
    content: bytes
    content_type: Annotated[str, AfterValidator(_media_type)] = "application/octet-stream"
    """A media type, with parameters if need be; no ``multipart/…`` or ``message/…``, which cannot be base64."""
    inline: bool = False
    """Shown within the HTML part, which refers to it as ``cid:<content_id>``."""
    content_id: Annotated[str, short_line(250), matching(_CONTENT_ID, "id or id@domain, without <>")] | None = None
    """Without angle brackets; required when ``inline``."""
    alternative: bool = False
    """Another form of the text itself, such as an invitation, which mail programs show instead of the text; its
    ``filename`` is not shown. Providers that take no such parts get it as a file."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            filename: str,
            content: bytes,
            content_type: str = "application/octet-stream",
            inline: bool = False,
            content_id: str | None = None,
            alternative: bool = False,
        ) -> None: ...

    @model_validator(mode="after")
    def _referable(self) -> Self:
        if self.inline and not self.content_id:
            raise InvalidEmail("content_id", "is required for an inline attachment")
        if self.inline and self.alternative:
            raise InvalidEmail("alternative", "cannot be inline as well")
        return self

    @classmethod
    def calendar(cls, content: str | bytes, filename: str = "invite.ics") -> Attachment:
        """An invitation, or what follows one: iCalendar text (RFC 5545) that mail programs offer to accept.

        Its ``METHOD`` becomes the part's (RFC 6047 2.4). Line ends become CRLF. Raises
        :class:`~sendonce.errors.InvalidEmail` for text without one.
        """
        octets = storable_text(content).encode() if isinstance(content, str) else content
        octets = re.sub(rb"\r\n|\r|\n", b"\r\n", octets)
        method = re.search(rb"(?im)^METHOD:([a-z-]{1,40})\r?$", octets)
        if method is None or not octets.upper().startswith(b"BEGIN:VCALENDAR"):
            raise InvalidEmail("content", "must be an iCalendar object with a METHOD, such as REQUEST (RFC 5545 3.7.2)")
        content_type = f"text/calendar; method={method[1].decode().upper()}; charset=utf-8"
        return cls(filename=filename, content=octets, content_type=content_type, alternative=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("content_type", self.content_type), ("octets", len(self.content))]


def _attachments(value: object) -> tuple[Attachment, ...]:
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(one, Attachment) for one in found):
        raise ValueError("must be a list of Attachment")
    return found


Attachments = Annotated[tuple[Attachment, ...], BeforeValidator(_attachments)]
