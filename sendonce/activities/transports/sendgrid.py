"""SendGrid over its HTTP API: https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send

SendGrid keeps no idempotency keys, so an unanswered mail is never sent again by itself. Accounts that have bought
additional email activity history can be asked (https://www.twilio.com/docs/sendgrid/api-reference/email-activity);
whether that is so stands in the settings. Each mail carries a digest of its provider key among its ``custom_args``,
which the search calls ``unique_args``. How to search by one of them is known from other clients only, so what is found
is read back, one by one, and counts only if it names the digest. How soon a mail is found is not documented.

=============================================  ============================================================
answer                                         outcome
=============================================  ============================================================
202 with ``X-Message-Id``                      ``Accepted``; the body is empty
any other 2xx                                  ``Unanswered``: 200 means *valid, and not queued*
400 413 422                                    ``Refused``: the whole request, whoever is at fault
401                                            ``AccountFault``: the key, or "Maximum credits exceeded"
403 about the field ``from``                   ``AccountFault`` of the From domain: no verified sender identity
403, 404, 405, 406, 3xx, every other 4xx       ``AccountFault``: rights, a temporary block, or ``base_url``
429                                            ``Deferred`` until ``Retry-After`` or ``X-RateLimit-Reset``
408 409 421 425, 5xx                           ``Unanswered``
=============================================  ============================================================

Errors: https://www.twilio.com/docs/sendgrid/api-reference/mail-send/errors, limits:
https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits. The type of a file must
not hold parameters, and names of files outside ASCII arrive garbled (django-anymail, 2026-07).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from pydantic import Field

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import groups_with_to, in_base64, is_related
from sendonce.activities.transports.mime_header import encoded_words
from sendonce.errors import InvalidEmail
from sendonce.message import Address, OutgoingEmail
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

__all__ = ["SendGridSettings", "SendGridTransport", "classify"]

OFFER = "sendonce_offer"
"""The custom argument that a mail is looked for by."""
_READ_BACK = 3
"""Messages that are read back. An offer is one message for each of its recipients, and one of them is enough."""
_MESSAGE = re.compile(r"[A-Za-z0-9._-]{1,200}")
_AFTER_ID = re.compile(r"\.(?:filter|recvd)")
"""Where a message's id goes on after what ``X-Message-Id`` says of the request."""
_RESET = re.compile(r"[0-9]{1,12}")


class SendGridSettings(ProviderSettings):
    """One SendGrid account or subuser. ``api_key`` needs the right to send mail, and no other without
    ``email_activity``.
    """

    provider: ClassVar[str] = "sendgrid"

    base_url: str = Field("https://api.sendgrid.com", max_length=300)
    """Where the API is; ``https://api.eu.sendgrid.com`` for subusers of the EU."""
    email_activity: bool = False
    """Whether the account has bought additional email activity history, and ``api_key`` may read it: unanswered mail
    is then looked for. SendGrid has no such history for subusers of the EU."""


class SendGridTransport(HttpTransport):
    """One SendGrid account."""

    settings_model = SendGridSettings

    def __init__(self, settings: SendGridSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/v3/mail/send", now=now)
        self.settings = settings

    @property
    def capability(self) -> Capability:
        """As documented, 2026-01. Our Message-ID is sent; what becomes of it is not documented."""
        return Capability(
            webhook="deliveries, delays, bounces, complaints",
            look_up="custom argument" if self.settings.email_activity else "",
        )

    @property
    def key_window(self) -> None:
        """It keeps no keys."""
        return

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets.

        Raises :class:`~sendonce.errors.InvalidEmail` for an empty subject, and for several in Bcc alone.
        """
        content = mail.content
        if not content.subject:
            raise InvalidEmail("subject", "SendGrid takes no mail without a subject: write one")
        envelope = groups_with_to(content, recipients)
        named = {"to": _listed(envelope.to), "cc": _listed(envelope.cc), "bcc": _listed(envelope.bcc)}
        headers = {"Message-ID": mail.message_id, **content.sent_headers}
        return self._post(
            {
                "personalizations": [{name: group for name, group in named.items() if group}],
                "from": _named(content.sender),
                "reply_to_list": _listed(content.reply_to),
                "subject": content.subject,
                "content": _texts(content),
                "attachments": _files(content),
                "headers": {name: _encoded(name, value) for name, value in headers.items()},
                "custom_args": {
                    OFFER: _offer(provider_key),
                    "sendonce_id": mail.email_id,
                    "sendonce_key": mail.key,
                },
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002 - SendGrid keeps no keys
        """The API key."""
        return {"Authorization": f"Bearer {self.settings.api_key.get_secret_value()}"}

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer))

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        A request is taken for all its recipients or for none, so one message that is found answers for everybody.
        """
        if not self.settings.email_activity:
            raise Asked("email_activity_is_off")
        offer = _offer(question.provider_key)
        query = urlencode({"limit": _READ_BACK, "query": f"(unique_args['{OFFER}']=\"{offer}\")"})
        messages = self._of(await self._client.ask(f"{self._base}/messages?{query}", self.secrets("")), "messages")
        if not isinstance(messages, list):
            raise Asked("not_a_list_of_messages")
        ids = [one.get("msg_id") for one in messages if isinstance(one, dict)]
        for found in [one for one in ids if isinstance(one, str) and _MESSAGE.fullmatch(one)][:_READ_BACK]:
            answer = await self._client.ask(f"{self._base}/messages/{quote(found)}", self.secrets(""))
            # The arguments come as text, in one notation or another; a digest stands in it as it is.
            if offer in json.dumps(self._of(answer, "unique_args")):
                accepted = Accepted(Reply(answer.status, "found"), _AFTER_ID.split(found)[0])
                return {recipient.ordinal: accepted for recipient in question.recipients}
        return {}

    @property
    def _base(self) -> str:
        return f"{self.settings.base_url}/v3"

    @staticmethod
    def _of(answer: Answer, member: str) -> Any:
        return answer.content.get(member) if isinstance(answer.content, dict) else None


def classify(answer: Answer) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top."""
    field = as_code(answer.at("errors.0.field"))
    if answer.ok:
        provider_id = answer.headers.get("X-Message-Id", "")
        if answer.status == 202 and provider_id:
            return Accepted(answer.reply(), storable(provider_id))
        return no_id(answer)
    if answer.status == 403 and field == "from":
        return AccountFault(answer.reply(field), answer.retry_after, scope="sender")
    if answer.status == 429:
        return Deferred(answer.reply(field), _wait(answer))
    return by_status(answer, field)


def _wait(answer: Answer) -> float | None:
    """Seconds; ``X-RateLimit-Reset`` is the Unix time at which the limit starts anew."""
    reset = answer.headers.get("X-RateLimit-Reset", "")
    if answer.retry_after is not None or not _RESET.fullmatch(reset):
        return answer.retry_after
    return max(0.0, float(reset) - answer.read_at.timestamp())


def _named(address: Address) -> dict[str, str]:
    return {"email": address.mailbox} | ({"name": address.name} if address.name else {})


def _listed(addresses: tuple[Address, ...]) -> list[dict[str, str]]:
    return [_named(address) for address in addresses]


def _texts(content: OutgoingEmail) -> list[dict[str, str]]:
    """In the order that is asked for. One is needed, and none may be empty."""
    parts = {"text/plain": content.text or ("" if content.html else " "), "text/html": content.html or ""}
    return [{"type": kind, "value": value} for kind, value in parts.items() if value]


def _encoded(name: str, value: str) -> str:
    """Headers have to be encoded by the caller."""
    return value if value.isascii() else " ".join(encoded_words(name, value))


def _files(content: OutgoingEmail) -> list[dict[str, str]]:
    return [
        {"content": in_base64(file), "type": file.content_type.partition(";")[0], "filename": file.filename}
        | (
            {"disposition": "inline", "content_id": file.content_id or ""}
            if is_related(file, content)
            else {"disposition": "attachment"}
        )
        for file in content.attachments
    ]


def _offer(provider_key: str) -> str:
    """A digest: the search is by a quoted text, and this one needs no quoting."""
    return hashlib.sha256(provider_key.encode()).hexdigest()
