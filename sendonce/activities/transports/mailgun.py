"""Mailgun over its HTTP API: https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/messages

Mailgun keeps no idempotency keys, so an unanswered mail is never sent again by itself. But it can be asked: each mail
has a Message-ID of ours, which Mailgun keeps, and carries a digest of its provider key as a variable; its events are
found by the one and read back by the other
(https://documentation.mailgun.com/docs/mailgun/user-manual/events/events). Events arrive late: a page of them is to be
trusted once it is half an hour old, says the manual, and they are kept for a day to 30.

Every mail is posted as MIME (``messages.mime``): the message is the one that SMTP would carry, with all its parts and
headers, and ``to`` is the envelope, whatever the headers say. Made from its parts, names with unusual characters come
out garbled (django-anymail #270), and a Bcc would be one more list that has to be right.

==========================================  ===============================================================
answer                                      outcome
==========================================  ===============================================================
2xx with an ``id``                          ``Accepted``
2xx without one                             ``Unanswered``: a wrong URL is answered 200 as well
400 413 422                                 ``Refused``: the whole request, whoever is at fault
429                                         ``Deferred`` as long as ``Retry-After`` says
401 402 403 404 420, 3xx, every other 4xx   ``AccountFault``: the key, the domain, a limit, or ``base_url``
408 409 421 425, 5xx                        ``Unanswered``: 5xx was seen for mail that was delivered
==========================================  ===============================================================

There are no codes beside the status
(https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/error-codes); a 403 says in prose that the
domain may not send.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlencode

from pydantic import Field

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, by_status, no_id
from sendonce.activities.transports.http_client import same_origin
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.mime import render_mime
from sendonce.outcome import Accepted, AttemptResult, Outcome, Refused, Reply, same_for_all, storable

__all__ = ["MailgunSettings", "MailgunTransport", "classify"]

OFFER = "sendonce-offer"
"""The variable by which an event is known to be of one offer: a Message-ID is the same for all offers of a mail."""
_EVENTS = "accepted OR delivered OR failed OR rejected"
_PAGE, _PAGES = 300, 5
"""Events on a page, and pages read at most. A mail has some two events for each recipient, and 1000 recipients."""
_SLACK = timedelta(minutes=15)
"""By which the clocks may differ."""


class MailgunSettings(ProviderSettings):
    """One sending domain at Mailgun. ``api_key`` is the domain's sending key, or one of the account; to look for
    unanswered mail it must be allowed to read events.
    """

    provider: ClassVar[str] = "mailgun"

    base_url: str = Field("https://api.mailgun.net", max_length=300)
    """Where the API is; ``https://api.eu.mailgun.net`` for domains in the EU."""
    domain: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
    """The sending domain, as Mailgun's control panel has it: lower case, ASCII."""

    def identity(self) -> str:
        """Whose account it is, and which of its domains: events are found there alone."""
        return f"{super().identity()[:100]}:{self.domain}"[:200]


class MailgunTransport(HttpTransport):
    """One sending domain at Mailgun."""

    settings_model = MailgunSettings
    capability = Capability(
        webhook="deliveries, delays, bounces, complaints",
        look_up="Message-ID",
        look_up_lag=1800,
        keeps_message_id=True,
        takes_mime=True,
    )
    """As documented, 2026-09."""

    def __init__(self, settings: MailgunSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        self._base = f"{settings.base_url}/v3/{settings.domain}"
        super().__init__(settings, f"{self._base}/messages.mime", now=now)
        self.settings = settings

    @property
    def key_window(self) -> None:
        """It keeps no keys."""
        return

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets. Raises :class:`~sendonce.errors.InvalidEmail`."""
        message = render_mime(mail)
        variables = {OFFER: _offer(provider_key), "sendonce-id": mail.email_id, "sendonce-key": mail.key}
        fields = [("to", recipient.mailbox) for recipient in recipients]
        fields += [(f"v:{name}", value) for name, value in variables.items()]
        boundary = _boundary(message, fields)
        body = _form(boundary, fields, message)
        content_type = f'multipart/form-data; boundary="{boundary}"'
        return Rendering(body, "POST", self._url, (("Content-Type", content_type),))

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002 - Mailgun keeps no keys
        """The API key."""
        pair = f"api:{self.settings.api_key.get_secret_value()}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer))

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        Mailgun takes a request for all its recipients or for none; each has events of their own, and what is known
        of one who was taken holds for those whose events are not there yet.
        """
        offer = _offer(question.provider_key)
        message_id = question.message_id.strip("<>")
        found: dict[str, Accepted | Refused] = {}
        async for event in self._events(message_id, question.begun_at):
            variables = event.get("user-variables")
            # Read back: other offers of this mail have the same Message-ID.
            if not isinstance(variables, dict) or variables.get(OFFER) != offer:
                continue
            mailbox = str(event.get("recipient") or "").lower()
            if event.get("event") == "rejected":
                found.setdefault(mailbox, Refused(Reply(200, "rejected")))
            else:
                found[mailbox] = Accepted(Reply(200, "found"), storable(f"<{message_id}>"))
        taken = next((one for one in found.values() if isinstance(one, Accepted)), None)
        asked = {recipient.ordinal: recipient.mailbox.lower() for recipient in question.recipients}
        known = {ordinal: found.get(mailbox, taken) for ordinal, mailbox in asked.items()}
        return {ordinal: one for ordinal, one in known.items() if one is not None}

    async def _events(self, message_id: str, begun_at: datetime) -> AsyncIterator[dict[str, Any]]:
        begin = int((begun_at - _SLACK).timestamp())
        asked = {"message-id": message_id, "event": _EVENTS, "begin": begin, "ascending": "yes", "limit": _PAGE}
        url = f"{self._base}/events?{urlencode(asked)}"
        for _ in range(_PAGES):
            answer = await self._client.ask(url, self.secrets(""))
            events = answer.content.get("items") if isinstance(answer.content, dict) else None
            if not isinstance(events, list):
                raise Asked("not_a_list_of_events")
            for event in events:
                if isinstance(event, dict):
                    yield event
            url = answer.at("paging.next")
            # The key goes to no other host, whatever the answer says.
            if len(events) < _PAGE or not same_origin(url, self._base):
                return


def classify(answer: Answer) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top."""
    if not answer.ok:
        return by_status(answer)
    provider_id = answer.at("id")
    return Accepted(answer.reply(), storable(provider_id)) if provider_id else no_id(answer)


def _form(boundary: str, fields: Iterable[tuple[str, str]], message: bytes) -> bytes:
    """RFC 7578; the message comes last, as a file. The names in quotes are ours: nothing has to be escaped."""
    parts = [(f'name="{name}"\r\n', value.encode()) for name, value in fields]
    parts.append(('name="message"; filename="message.eml"\r\nContent-Type: message/rfc822\r\n', message))
    return (
        b"".join(
            f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n".encode() + value + b"\r\n"
            for head, value in parts
        )
        + f"--{boundary}--\r\n".encode()
    )


def _boundary(message: bytes, fields: Iterable[tuple[str, str]]) -> str:
    """The same for the same request; a digest of all of it stands nowhere in it."""
    return hashlib.sha256(repr(list(fields)).encode() + message).hexdigest()


def _offer(provider_key: str) -> str:
    """A digest: Mailgun shows the variables to recipients, in a header."""
    return hashlib.sha256(provider_key.encode()).hexdigest()
