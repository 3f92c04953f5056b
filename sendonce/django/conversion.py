"""From Django's messages to :class:`~sendonce.message.OutgoingEmail`."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping
from email.message import Message
from email.utils import getaddresses
from typing import Any

from django.core.mail import EmailMessage

from sendonce import Address, Attachment, ConfigurationError, InvalidEmail, OutgoingEmail
from sendonce.django.options import KeyRule, Options

KEY_HEADER = "X-Sendonce-Key"
"""Gives the key; it is taken out of the mail."""

_FROM_THE_MESSAGE = frozenset(
    {"sender", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "headers", "attachments", "mime", "message_id"}
)
_NO_KEY = (
    "this mail has no key, and without one it could be sent twice or never: a key made from the content would take the "
    "second of two rightful mails for a repetition, and a random one would protect nothing. Pass it as "
    f"headers={{'{KEY_HEADER}': 'order-4711-confirmation'}} or as message.sendonce = {{'key': …}}, or name a rule in "
    "settings: SENDONCE = {'KEY': 'path.to.callable'}, which is given the message and returns the key"
)


def outgoing(message: EmailMessage, options: Options, rule: KeyRule | None) -> OutgoingEmail:
    """``message`` as it is enqueued.

    Its key is that of ``message.sendonce``, else the header ``X-Sendonce-Key``, else what the rule returns.
    ``message.sendonce`` may hold every other field of :class:`~sendonce.message.OutgoingEmail` that is no part of the
    message, such as ``lane`` and ``expires_at``.

    Raises :class:`~sendonce.errors.ConfigurationError` without a key and for a member that cannot be,
    :class:`~sendonce.errors.InvalidEmail` for what cannot be sent.
    """
    chosen = getattr(message, "sendonce", {})
    if not isinstance(chosen, Mapping):
        raise ConfigurationError("message.sendonce must be a dictionary such as {'key': …, 'lane': …}")
    allowed = OutgoingEmail.model_fields.keys() - _FROM_THE_MESSAGE
    if wrong := [name for name in chosen if name not in allowed]:
        raise ConfigurationError(
            f"message.sendonce: {wrong[0]!r} cannot be given there, only {', '.join(sorted(allowed))}"
        )
    headers = {str(name): str(value) for name, value in message.extra_headers.items()}
    given = {name.lower(): headers.pop(name) for name in list(headers) if name.lower() in _TAKEN}
    key = chosen.get("key") or given.get(KEY_HEADER.lower()) or (rule and rule(message))
    if not key:
        raise ConfigurationError(_NO_KEY)
    fields: dict[str, Any] = {"account": options.account, "lane": options.lane, **chosen, "key": key}
    sender = str(message.from_email)
    if shown := given.get("from"):
        # As Django has it: the header is what is shown, from_email where bounces go.
        fields.setdefault("envelope_sender", Address.parse(sender).mailbox)
        sender = shown
    body = _Body(message)
    files = [*body.others, *_attachments(message)]
    if not (body.html or files or fields.get("template")):
        body.text = body.text or "\n"  # a mail that is all subject, which Django's backends send
    reply_to = [
        Address(email=mailbox, name=name) for name, mailbox in getaddresses([given.get("reply-to", "")]) if mailbox
    ]
    return OutgoingEmail(
        **fields,
        sender=sender,
        to=_some(message.to),
        cc=_some(message.cc),
        bcc=_some(message.bcc),
        reply_to=reply_to or _some(message.reply_to),
        subject=str(message.subject),
        text=body.text,
        html=body.html,
        headers=headers,
        attachments=files,
    )


_TAKEN = frozenset({KEY_HEADER.lower(), "from", "reply-to"})


def _some(addresses: Any) -> list[str]:
    return [str(address) for address in addresses if address]


class _Body:
    """The forms of the text: the plain one, the one in HTML, and others."""

    def __init__(self, message: EmailMessage) -> None:
        self.text: str | None = None
        self.html: str | None = None
        self.others: list[Attachment] = []
        if message.body:
            self._add(str(message.body), f"text/{message.content_subtype}")
        for content, mimetype in getattr(message, "alternatives", None) or ():
            self._add(content, str(mimetype))

    def _add(self, content: Any, mimetype: str) -> None:
        if mimetype == "text/plain" and self.text is None and isinstance(content, str):
            self.text = content
        elif mimetype == "text/html" and self.html is None and isinstance(content, str):
            self.html = content
        else:
            octets, media_type = _octets(content, mimetype)
            name = f"alternative-{len(self.others) + 1}{_extension(media_type)}"
            self.others.append(Attachment(filename=name, content=octets, content_type=media_type, alternative=True))


def _attachments(message: EmailMessage) -> Iterator[Attachment]:
    for number, attachment in enumerate(message.attachments, 1):
        if isinstance(attachment, Message):
            yield _part(attachment, number)
            continue
        filename, content, mimetype = attachment
        octets, media_type = _octets(content, mimetype or mimetypes.guess_type(filename or "")[0])
        yield Attachment(
            filename=_filename(filename, number, media_type, content), content=octets, content_type=media_type
        )


def _part(part: Message, number: int) -> Attachment:
    """A part that was made already, such as an image that the HTML shows."""
    if part.get_content_maintype() == "multipart":
        raise InvalidEmail("attachments", f"attachment {number}: has parts of its own: attach them one by one")
    content: Any = part.get_payload(0) if part.get_content_type() == "message/rfc822" else part.get_payload(decode=True)
    content_id = str(part.get("Content-ID", "")).strip(" <>") or None
    inline = content_id is not None and part.get_content_disposition() != "attachment"
    media_type, charset = part.get_content_type(), part.get_content_charset()
    octets, media_type = _octets(content, f"{media_type}; charset={charset}" if charset else media_type)
    return Attachment(
        filename=_filename(part.get_filename(), number, media_type, content),
        content=octets,
        content_type=media_type,
        inline=inline,
        content_id=content_id,
    )


def _octets(content: Any, mimetype: str | None) -> tuple[bytes, str]:
    """The octets and their media type; text is UTF-8, and what is no text is not called so, as in Django."""
    if isinstance(content, EmailMessage):
        content = content.message()
    if isinstance(content, Message):
        content = content.as_bytes()
    mimetype = mimetype or "application/octet-stream"
    octets = content.encode() if isinstance(content, str) else bytes(content)
    if mimetype.startswith("message/"):
        # It would have to travel as it is, and all of a mail's files travel in base64 (RFC 2046 5.2.1).
        return octets, "application/octet-stream"
    if mimetype.startswith("text/") and "charset=" not in mimetype:
        try:
            octets.decode()
        except UnicodeDecodeError:
            return octets, "application/octet-stream"
        return octets, f"{mimetype}; charset=utf-8"
    return octets, mimetype


def _filename(name: str | None, number: int, media_type: str, content: Any) -> str:
    if name:
        return str(name)
    extension = ".eml" if isinstance(content, EmailMessage | Message) else _extension(media_type)
    return f"attachment-{number}{extension}"


def _extension(media_type: str) -> str:
    return mimetypes.guess_extension(media_type.partition(";")[0].strip()) or ".bin"
