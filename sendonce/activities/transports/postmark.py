"""Postmark over its HTTP API: https://postmarkapp.com/developer/api/email-api

Postmark keeps no idempotency keys
(https://postmarkapp.com/support/article/what-is-an-idempotency-key), so an unanswered mail is never sent again by
itself. But it can be asked: each mail carries a digest of its provider key as metadata, and the search finds it by that
(https://postmarkapp.com/support/article/1125-custom-metadata-faq). How soon is not documented, so "not found" says
nothing.

An answer is told apart by the ``ErrorCode`` in its body, whatever the status, 200 too
(https://postmarkapp.com/developer/api/overview#error-codes); these numbers are not HTTP's, though some look like it:

==========================================  ================================================================
answer                                      outcome
==========================================  ================================================================
2xx, no or zero ErrorCode, ``MessageID``    ``Accepted``; those its Message lists as inactive: ``Refused``
2xx without MessageID                       ``Unanswered``: success is read from the body
5xx, unless its ErrorCode is 100            ``Unanswered``
406 inactive recipient                      ``Refused`` for those named, the others ``Deferred``; no names: all
300 about 'To', 'Cc' or 'Bcc'               the same for the address that is named
300 about 'From'; 400 401 (signature)       ``AccountFault`` of the From domain
300 otherwise; 402 403 409 410 411          ``Refused``: content or shape of the request
10 (token); 405 (credits); 412 413          ``AccountFault``: not allowed to send
(pending, may not send); 1222 1226 1227
1235 1236 (message stream)
100 (maintenance)                           ``Deferred``: the API is offline, and nothing was taken
429                                         ``Deferred``
any other ErrorCode                         ``AccountFault`` of the From domain, and the mail's own refusal once
                                            other mail from there passes
no ErrorCode: 422                           ``Refused``
no ErrorCode: any other status              as in :mod:`~sendonce.activities.transports.http_answer`
==========================================  ================================================================

Postmark names recipients in prose only. Its wording, all in lower case where it lists addresses:
"Found inactive addresses: a@example.com, b@example.com. Inactive recipients are ones that …", "Message OK, but will not
deliver to these inactive addresses: a@example.com. Inactive recipients …", "Error parsing 'To': Illegal email address
'a@example'. It must …", "Invalid 'To' address: 'a@example'.". Should it change, the fallbacks above hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import urlencode

from pydantic import Field

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, by_status, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import all_shown, groups, in_base64, is_related, shown
from sendonce.message import OutgoingEmail
from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    Deferred,
    Outcome,
    Refused,
    Reply,
    same_for_all,
    storable,
)

__all__ = ["PostmarkSettings", "PostmarkTransport", "classify"]

OFFER = "sendonce-offer"
"""The metadata field that a mail is looked for by. Names have at most 20 characters, values 80, and there are ten."""
_VALUE_LIMIT = 80
_PAGE = 10
"""Messages asked for. One offer is one message; more than one is somebody's second offer."""

_OF_THE_SENDER = frozenset({400, 401})
_OF_THE_ACCOUNT = frozenset({10, 405, 412, 413, 1222, 1226, 1227, 1235, 1236})
_OF_THE_MAIL = frozenset({300, 402, 403, 409, 410, 411})
_LATER = frozenset({100, 429})
_INACTIVE = re.compile(r"inactive addresses:\s*(.+?)\.?\s*(?:Inactive recipients|$)", re.DOTALL)
_BAD_RECIPIENT = re.compile(
    r"(?:Invalid|Error\s+parsing)\s+'(?:To|Cc|Bcc)'.*?address:?\s*'(.*?)'(?:[.\s]|$)", re.I | re.DOTALL
)
_BAD_SENDER = re.compile(r"(?:Invalid|Error\s+parsing)\s+'From'", re.I)


class PostmarkSettings(ProviderSettings):
    """One Postmark server. ``api_key`` is its server token."""

    provider: ClassVar[str] = "postmark"

    base_url: str = Field("https://api.postmarkapp.com", max_length=300)
    """Where the API is."""
    message_stream: str = Field("outbound", pattern=r"^[a-z][a-z0-9_-]{0,99}$")
    """The id of the transactional message stream; ``outbound`` is the one that every server has."""


class PostmarkTransport(HttpTransport):
    """One Postmark server."""

    settings_model = PostmarkSettings
    capability = Capability(webhook="deliveries, delays, bounces, complaints", look_up="metadata", per_recipient=True)
    """As documented, 2026-08. Whether ``X-PM-KeepID`` works over this API is documented for SMTP only."""

    def __init__(self, settings: PostmarkSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/email", now=now)
        self.settings = settings

    @property
    def key_window(self) -> None:
        """It keeps no keys."""
        return

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets."""
        content = mail.content
        envelope = groups(content, recipients)
        headers = {"Message-ID": mail.message_id, "X-PM-KeepID": "true", **content.sent_headers}
        return self._post(
            {
                "From": shown(content.sender),
                "To": ", ".join(all_shown(envelope.to)) or None,
                "Cc": ", ".join(all_shown(envelope.cc)) or None,
                "Bcc": ", ".join(all_shown(envelope.bcc)) or None,
                "ReplyTo": ", ".join(all_shown(content.reply_to)) or None,
                "Subject": content.subject,
                "HtmlBody": content.html,
                "TextBody": content.text if content.html else content.text or "",
                "Headers": [{"Name": name, "Value": value} for name, value in headers.items()],
                "Attachments": _files(content),
                "Metadata": {
                    OFFER: _offer(provider_key),
                    "sendonce-id": mail.email_id[:_VALUE_LIMIT],
                    "sendonce-key": mail.key[:_VALUE_LIMIT],
                },
                "MessageStream": self.settings.message_stream,
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002 - Postmark keeps no keys
        """The server token."""
        return {"X-Postmark-Server-Token": self.settings.api_key.get_secret_value()}

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """See :func:`classify`."""
        return classify(answer, recipients)

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        A message that is found was taken as a whole: whom Postmark leaves out of it, it reports itself.
        """
        offer = _offer(question.provider_key)
        query = urlencode({"count": _PAGE, "offset": 0, f"metadata_{OFFER}": offer})
        answer = await self._client.ask(f"{self.settings.base_url}/messages/outbound?{query}", self.secrets(""))
        messages = answer.content.get("Messages") if isinstance(answer.content, dict) else None
        if not isinstance(messages, list):
            raise Asked("not_a_list_of_messages")
        for message in messages:
            metadata = message.get("Metadata") if isinstance(message, dict) else None
            # Read back: a search that overlooked the filter would show somebody else's mail.
            if not isinstance(metadata, dict) or metadata.get(OFFER) != offer or not message.get("MessageID"):
                continue
            found = Accepted(Reply(answer.status, "found"), storable(str(message["MessageID"])))
            return {recipient.ordinal: found for recipient in question.recipients}
        return {}


def classify(answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
    """What an answer means for each of those who were offered, as in the table at the top."""
    ordinals = tuple(recipient.ordinal for recipient in recipients)
    number, message = answer.at("ErrorCode"), answer.at("Message")
    error = int(number) if number.isascii() and number.isdecimal() else None
    code = number if error else ""
    if answer.status >= 500 and error != 100:
        return same_for_all(ordinals, by_status(answer, code))
    if answer.ok and not error:
        provider_id = answer.at("MessageID")
        if not provider_id:
            return same_for_all(ordinals, no_id(answer))
        return _apart(
            recipients, _inactive(message), Refused(answer.reply("406")), Accepted(answer.reply(), provider_id)
        )
    if not error:
        return same_for_all(ordinals, by_status(answer))
    reply = answer.reply(code)
    if error == 406:
        return _apart(recipients, _inactive(message), Refused(reply), Deferred(reply))
    if error == 300 and (bad := _BAD_RECIPIENT.search(message)):
        return _apart(recipients, {bad[1].strip().lower()}, Refused(reply), Deferred(reply))
    return same_for_all(ordinals, _for_all(answer, error, reply))


def _for_all(answer: Answer, error: int, reply: Reply) -> Outcome:
    if error in _LATER:
        return Deferred(reply, answer.retry_after)
    if error in _OF_THE_ACCOUNT:
        return AccountFault(reply, answer.retry_after)
    if (
        error in _OF_THE_SENDER
        or error not in _OF_THE_MAIL
        or (error == 300 and _BAD_SENDER.search(answer.at("Message")))
    ):
        return AccountFault(reply, answer.retry_after, scope="sender")
    return Refused(reply)


def _inactive(message: str) -> set[str]:
    """The addresses that are listed, in lower case."""
    found = _INACTIVE.search(message)
    return {one.strip().lower() for one in found[1].split(",")} if found else set()


def _apart(
    recipients: tuple[Recipient, ...], named: set[str], refused: Refused, others: Accepted | Deferred
) -> AttemptResult:
    """The one for those who are named, the other for the rest. If it was refused and names nobody: all are refused."""
    hit = {recipient.ordinal for recipient in recipients if recipient.mailbox.lower() in named}
    if not hit and isinstance(others, Deferred):
        return same_for_all(tuple(recipient.ordinal for recipient in recipients), refused)
    return AttemptResult({r.ordinal: refused if r.ordinal in hit else others for r in recipients})


def _offer(provider_key: str) -> str:
    """Provider keys are longer than a metadata value may be."""
    return hashlib.sha256(provider_key.encode()).hexdigest()


def _files(content: OutgoingEmail) -> list[dict[str, str]]:
    return [
        {"Name": file.filename, "Content": in_base64(file), "ContentType": file.content_type}
        | ({"ContentID": f"cid:{file.content_id}"} if is_related(file, content) else {})
        for file in content.attachments
    ]
