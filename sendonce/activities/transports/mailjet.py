"""Mailjet over its HTTP API: https://dev.mailjet.com/email/guides/send-api-v31/

Mailjet keeps no idempotency keys, so an unanswered mail is never sent again by itself. But it can be asked: each mail
carries a digest of its provider key as its ``CustomID``, and messages are found by that
(https://dev.mailjet.com/email/reference/messages/). How soon is not documented. Its switch against doubles,
``DeduplicateCampaign``, is not used: for how long it acts, and what it answers, is not documented.

A request holds one message, so an answer has one entry in ``Messages``. Refusals have the status 400 or 401 or 403,
and a list of errors with codes of their own:

==============================================  ============================================================
answer                                          outcome
==============================================  ============================================================
2xx, ``Status`` ``success``, the recipient      ``Accepted``
listed with a ``MessageID``
the same, the recipient not listed              ``Unanswered``: success is read from the body
``Status`` ``error`` and a list of errors, in   as the errors below, by the ``StatusCode`` of the first
a 2xx
2xx of any other shape                          ``Unanswered``
``send-0008``, ``send-0007``                    ``AccountFault`` of the From domain: no validated sender
``send-0006``, ``mj-0001``, ``mj-0015``         ``AccountFault``: rights, suspended, credentials
``mj-0013`` about recipients alone              ``Refused`` for those it quotes, the others ``Deferred``; none
                                                quoted: all
any other error                                 by its status: 400 ``Refused``
errors of several kinds                         the first of the above that is among them
401 403 404 405, 3xx, every other 4xx           ``AccountFault``: the keys, their rights, or ``base_url``
429                                             ``Deferred``: too many calls in a minute
408 409 421 425, 5xx                            ``Unanswered``
==============================================  ============================================================

A caller's Message-ID is refused (``send-0011``) or ignored: it is Mailjet's own.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from pydantic import Field, SecretStr, field_validator

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings, is_header_value
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import groups_with_to, in_base64, is_related, json_bytes
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

__all__ = ["MailjetSettings", "MailjetTransport", "classify"]

_OF_THE_SENDER = frozenset({"send-0007", "send-0008"})
_OF_THE_ACCOUNT = frozenset({"send-0006", "mj-0001", "mj-0015"})
_BAD_MAILBOX = "mj-0013"
_LISTS = ("To[", "Cc[", "Bcc[")
_QUOTED = re.compile(r'"([^"]{1,320})"')
_PAGE = 100
"""Messages asked for. One offer is a message for each of its recipients, at most 50."""


class MailjetSettings(ProviderSettings):
    """One Mailjet API key; with ``secret_key``, its other half."""

    provider: ClassVar[str] = "mailjet"

    secret_key: SecretStr
    """The half of the key pair that Mailjet calls secret key. A secret."""
    base_url: str = Field("https://api.mailjet.com", max_length=300)
    """Where the API is; ``https://api.us.mailjet.com`` for accounts of the US architecture."""

    @field_validator("secret_key")
    @classmethod
    def _sendable_too(cls, key: SecretStr) -> SecretStr:
        if not is_header_value(key.get_secret_value()):
            raise ValueError("secret_key: must be printable ASCII without spaces around it; was it copied whole?")
        return key


class MailjetTransport(HttpTransport):
    """One Mailjet account."""

    settings_model = MailjetSettings
    capability = Capability(
        webhook="deliveries, delays, bounces, complaints",
        look_up="CustomID",
        keeps_message_id=False,
        per_recipient=True,
    )
    """As documented, 2026-08."""

    def __init__(self, settings: MailjetSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/v3.1/send", now=now)
        self.settings = settings

    @property
    def key_window(self) -> None:
        """It keeps no keys."""
        return

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets.

        Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone, several in Reply-To, and no text.
        """
        content = mail.content
        envelope = groups_with_to(content, recipients)
        if len(content.reply_to) > 1:
            raise InvalidEmail("reply_to", "Mailjet takes one address: name one")
        if not (content.text or content.html):
            raise InvalidEmail("text", "Mailjet takes no mail without a text: write one")
        message = {
            "From": _named(content.sender),
            "To": _listed(envelope.to),
            "Cc": _listed(envelope.cc),
            "Bcc": _listed(envelope.bcc),
            "ReplyTo": _named(content.reply_to[0]) if content.reply_to else None,
            "Subject": content.subject,
            "TextPart": content.text,
            "HTMLPart": content.html,
            "Headers": content.sent_headers,
            "Attachments": _files(content, related=False),
            "InlinedAttachments": _files(content, related=True),
            "CustomID": _offer(provider_key),
            "EventPayload": json_bytes({"sendonce_id": mail.email_id, "sendonce_key": mail.key}).decode(),
        }
        return self._post({"Messages": [{name: part for name, part in message.items() if part not in (None, [], {})}]})

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002 - Mailjet keeps no keys
        """The pair of keys, as basic authentication (RFC 7617)."""
        pair = f"{self.settings.api_key.get_secret_value()}:{self.settings.secret_key.get_secret_value()}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """See :func:`classify`."""
        return classify(answer, recipients)

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        Mailjet makes a message for each recipient and names the recipient by a number of its own, so one that is found
        answers for all: a request with one message is taken or refused as a whole.
        """
        offer = _offer(question.provider_key)
        query = {
            "CustomID": offer,
            "ShowCustomID": "true",
            # Without a beginning the list has a window of its own, and that is not documented. Clocks may differ.
            "FromTS": int(question.begun_at.timestamp()) - 3600,
            "Limit": _PAGE,
        }
        answer = await self._client.ask(
            f"{self.settings.base_url}/v3/REST/message?{urlencode(query)}", self.secrets(question.provider_key)
        )
        messages = answer.content.get("Data") if isinstance(answer.content, dict) else None
        if not isinstance(messages, list):
            raise Asked("not_a_list_of_messages")
        for message in messages:
            # Read back: a search that overlooked the filter would show somebody else's mail.
            if not isinstance(message, dict) or message.get("CustomID") != offer or not message.get("ID"):
                continue
            found = Accepted(Reply(answer.status, "found"), storable(str(message["ID"])))
            return {recipient.ordinal: found for recipient in question.recipients}
        return {}


def classify(answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
    """What an answer means for each of those who were offered, as in the table at the top."""
    ordinals = tuple(recipient.ordinal for recipient in recipients)
    message = _message(answer.content)
    errors = _errors(answer.content, message)
    if answer.ok and message.get("Status") == "error" and errors and not _ids(message):
        # A call that worked, with a message that did not.
        answer = replace(answer, status=_own_status(errors[0]) or answer.status)
    if answer.ok:
        if message.get("Status") != "success":
            return same_for_all(ordinals, no_id(answer))
        ids = _ids(message)
        return AttemptResult({one.ordinal: _success(answer, ids.get(one.mailbox.lower())) for one in recipients})
    codes = [as_code(str(error.get("ErrorCode") or "")) for error in errors]
    if not 400 <= answer.status <= 499 or not any(codes):
        return same_for_all(ordinals, by_status(answer))
    for group, scope in ((_OF_THE_SENDER, "sender"), (_OF_THE_ACCOUNT, "account")):
        for code in codes:
            if code in group:
                reply = answer.reply(code)
                fault = AccountFault(reply, answer.retry_after, "sender" if scope == "sender" else "account")
                return same_for_all(ordinals, fault)
    first = next(code for code in codes if code)
    if answer.status == 400 and all(code == _BAD_MAILBOX for code in codes):
        return _apart(answer, recipients, errors)
    return same_for_all(ordinals, by_status(answer, first))


def _success(answer: Answer, provider_id: str | None) -> Outcome:
    return Accepted(Reply(answer.status, "success"), storable(provider_id)) if provider_id else no_id(answer)


def _apart(answer: Answer, recipients: tuple[Recipient, ...], errors: list[dict[str, Any]]) -> AttemptResult:
    """Refused for those who are quoted, deferred for the rest. If none of them is, or others too: all are refused."""
    refused = Refused(answer.reply(_BAD_MAILBOX))
    bad = {quoted.lower() for error in errors for quoted in _QUOTED.findall(str(error.get("ErrorMessage", "")))}
    hit = {recipient.ordinal for recipient in recipients if recipient.mailbox.lower() in bad}
    others: Outcome = Deferred(refused.reply) if hit and all(map(_about_recipients, errors)) else refused
    return AttemptResult({one.ordinal: refused if one.ordinal in hit else others for one in recipients})


def _about_recipients(error: dict[str, Any]) -> bool:
    related = error.get("ErrorRelatedTo")
    return isinstance(related, list) and all(str(one).startswith(_LISTS) for one in related)


def _message(content: Any) -> dict[str, Any]:
    messages = content.get("Messages") if isinstance(content, dict) else None
    first = messages[0] if isinstance(messages, list) and messages else None
    return first if isinstance(first, dict) else {}


def _errors(content: Any, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the message; else the one that concerns the whole request."""
    errors = message.get("Errors")
    listed = [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    return listed or ([content] if isinstance(content, dict) and "ErrorCode" in content else [])


def _own_status(error: dict[str, Any]) -> int:
    """The status that an error gives itself, 400 to 499; 0: none."""
    status = error.get("StatusCode")
    return status if isinstance(status, int) and 400 <= status <= 499 else 0


def _ids(message: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("To", "Cc", "Bcc"):
        group = message.get(name)
        for one in group if isinstance(group, list) else []:
            if isinstance(one, dict) and one.get("MessageID"):
                found.setdefault(str(one.get("Email", "")).lower(), str(one["MessageID"]))
    return found


def _offer(provider_key: str) -> str:
    """The length of a CustomID is not documented; a digest is short."""
    return hashlib.sha256(provider_key.encode()).hexdigest()


def _named(address: Address) -> dict[str, str]:
    return {"Email": address.mailbox} | ({"Name": address.name} if address.name else {})


def _listed(addresses: tuple[Address, ...]) -> list[dict[str, str]]:
    return [_named(address) for address in addresses]


def _files(content: OutgoingEmail, *, related: bool) -> list[dict[str, str]]:
    return [
        {"Filename": file.filename, "ContentType": file.content_type, "Base64Content": in_base64(file)}
        | ({"ContentID": file.content_id or ""} if related else {})
        for file in content.attachments
        if is_related(file, content) == related
    ]
