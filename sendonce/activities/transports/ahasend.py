"""AhaSend over its HTTP API, version 2: https://ahasend.com/docs/api-reference/messages/create-conversation

AhaSend remembers an idempotency key for 24 hours, per account, and says when an answer is the stored one
(https://ahasend.com/docs/api-reference/idempotency). It stores refusals (4xx) as well. A 5xx is not stored: the same
request is carried out again, so a mail of which AhaSend answers 5xx after it took it becomes a second one. It can be
asked, too: each mail carries a digest of its provider key among its tags, and messages are listed by that
(https://ahasend.com/docs/api-reference/messages/get-messages). How soon is not documented.

The conversation endpoint makes one message of it, with To, Cc and Bcc as they are; the other one sends everybody a mail
of their own and fills in templates. Inside a success, each recipient has an answer of their own:

==============================================  ============================================================
answer                                          outcome
==============================================  ============================================================
2xx, recipient ``queued`` or ``scheduled``,     ``Accepted``
with an ``id``
2xx, recipient ``error`` or ``failed``          ``Deferred``: it was not sent, and the reason is prose
2xx without an entry for the recipient          ``Unanswered``: success is read from the body
409                                             ``Unanswered`` as long as ``Retry-After`` says: in progress
422 about the idempotency key                   ``Unanswered``, ``key_mismatch``: our fault, never a fresh key
412                                             ``Unanswered``: the first request failed, it is not said how
400 413 422                                     ``Refused``
403 about the domain                            ``AccountFault`` of the From domain: not verified, or not the key's
401 402 403 404 405, 3xx, every other 4xx       ``AccountFault``: the key, its rights, the account, or ``base_url``
429                                             ``Deferred``
any of these four, marked as stored             ``Refused`` too is marked as a replay and answers the first
                                                request; the others are about a past moment, and ``Unanswered``
408 421 425, 5xx                                ``Unanswered``
==============================================  ============================================================

An error is ``{"message": …}`` (https://ahasend.com/docs/api-reference/errors): there are no codes, so the two cases
that share a status are told apart by words of the message. The Message-ID is AhaSend's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from pydantic import Field

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, by_status, key_mismatch, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import groups_with_to, in_base64, is_related
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
    Unanswered,
    same_for_all,
    storable,
)

__all__ = ["AhaSendSettings", "AhaSendTransport", "classify"]

REPLAYED = "Idempotent-Replayed"
"""The header that says whether an answer is the stored one."""
_TAKEN = frozenset({"queued", "scheduled"})
_NOT_SENT = frozenset({"error", "failed"})
_PAGE = 100
"""Messages asked for. One offer is a message for each of its recipients, at most 50."""


class AhaSendSettings(ProviderSettings):
    """One AhaSend account. ``api_key`` needs the scope ``messages:send``, and ``messages:read`` to be asked."""

    provider: ClassVar[str] = "ahasend"

    account_id: str = Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
    """The account's id, a UUID. Keys belong to the account, so it is the scope unless ``scope`` is set."""
    base_url: str = Field("https://api.ahasend.com", max_length=300)
    """Where the API is."""
    key_window: float | None = Field(86400, gt=0, le=30 * 86400)
    """Seconds from the first offer for which AhaSend knows a key: 24 hours are documented. None: nothing is
    replayed."""

    def identity(self) -> str:
        """The account, by its id unless ``scope`` is set."""
        return f"{self.provider}:{self.scope or self.account_id.lower()}"


class AhaSendTransport(HttpTransport):
    """One AhaSend account."""

    settings_model = AhaSendSettings
    capability = Capability(
        webhook="deliveries, delays, bounces, complaints",
        key="header Idempotency-Key",
        replay="the first answer, marked as stored",
        look_up="tag",
        keeps_message_id=False,
        per_recipient=True,
    )
    """As documented, 2026-07."""

    def __init__(self, settings: AhaSendSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        self._messages = f"{settings.base_url}/v2/accounts/{settings.account_id}/messages"
        super().__init__(settings, f"{self._messages}/conversation", now=now)
        self.settings = settings

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets.

        Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone, several in Reply-To, and no text.
        """
        content = mail.content
        envelope = groups_with_to(content, recipients)
        if len(content.reply_to) > 1:
            raise InvalidEmail("reply_to", "AhaSend takes one address: name one")
        if not (content.text or content.html):
            raise InvalidEmail("text", "AhaSend takes no mail without a text: write one")
        return self._post(
            {
                "from": _named(content.sender),
                "to": _listed(envelope.to),
                "cc": _listed(envelope.cc),
                "bcc": _listed(envelope.bcc),
                "reply_to": _named(content.reply_to[0]) if content.reply_to else None,
                "subject": content.subject,
                "text_content": content.text,
                "html_content": content.html,
                "attachments": _files(content),
                "headers": content.sent_headers,
                "tags": [_offer(provider_key), f"sendonce_id-{mail.email_id}", f"sendonce_key-{mail.key}"],
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:
        """The API key, and the idempotency key."""
        return {**self._bearer(), "Idempotency-Key": provider_key}

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """See :func:`classify`."""
        return classify(answer, recipients)

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        Whatever became of a message since (delivered, bounced, suppressed): AhaSend took it.
        """
        offer = _offer(question.provider_key)
        query = urlencode({"tags": offer, "limit": _PAGE})
        answer = await self._client.ask(f"{self._messages}?{query}", self._bearer())
        messages = _data(answer.content)
        if messages is None:
            raise Asked("not_a_list_of_messages")
        ids: dict[str, str] = {}
        for message in messages:
            # Read back: a search that overlooked the filter would show somebody else's mail.
            if offer in _texts(message.get("tags")) and message.get("id"):
                ids.setdefault(str(message.get("recipient", "")).lower(), str(message["id"]))
        return {
            recipient.ordinal: Accepted(Reply(answer.status, "found"), storable(ids[recipient.mailbox.lower()]))
            for recipient in question.recipients
            if recipient.mailbox.lower() in ids
        }

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.settings.api_key.get_secret_value()}"}


def classify(answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
    """What an answer means for each of those who were offered, as in the table at the top."""
    stored = answer.headers.get(REPLAYED, "").strip().lower() == "true"
    if not answer.ok:
        outcome = _for_all(answer)
        if stored:
            outcome = _of_the_first(outcome)
        return same_for_all(tuple(recipient.ordinal for recipient in recipients), outcome)
    entries: dict[str, dict[str, Any]] = {}
    for entry in _data(answer.content) or []:
        named = entry.get("recipient")
        if isinstance(named, dict):
            entries.setdefault(str(named.get("email", "")).lower(), entry)
    return AttemptResult(
        {one.ordinal: _for_one(answer, entries.get(one.mailbox.lower(), {}), stored=stored) for one in recipients}
    )


def _for_one(answer: Answer, entry: dict[str, Any], *, stored: bool) -> Outcome:
    status, provider_id = entry.get("status"), entry.get("id")
    if status in _TAKEN and provider_id:
        return Accepted(Reply(answer.status, str(status)), storable(str(provider_id)), stored)
    if status in _NOT_SENT:
        return Deferred(Reply(answer.status, str(status), storable(str(entry.get("error") or ""))))
    return no_id(answer)


def _for_all(answer: Answer) -> Outcome:
    message = (answer.at("message") or answer.at("error.message")).lower()
    if answer.status == 422 and "idempotency key" in message:
        return key_mismatch(answer)
    if answer.status == 412:
        return Unanswered(answer.reply(), answer.retry_after)
    if answer.status == 403 and "domain" in message:
        return AccountFault(answer.reply(), answer.retry_after, scope="sender")
    return by_status(answer)


def _of_the_first(outcome: Outcome) -> Outcome:
    """A stored answer says what was, not what is: it must not pause an account that has been put right since."""
    if isinstance(outcome, Refused):
        return replace(outcome, replayed=True)
    if isinstance(outcome, AccountFault | Deferred):
        return Unanswered(outcome.reply)
    return outcome


def _data(content: Any) -> list[dict[str, Any]] | None:
    """The entries of a list; None when it is none."""
    data = content.get("data") if isinstance(content, dict) else None
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else None


def _texts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _offer(provider_key: str) -> str:
    """Tags are filtered by a list with commas between them, and their length is not documented."""
    return f"sendonce-{hashlib.sha256(provider_key.encode()).hexdigest()}"


def _named(address: Address) -> dict[str, str]:
    return {"email": address.mailbox} | ({"name": address.name} if address.name else {})


def _listed(addresses: tuple[Address, ...]) -> list[dict[str, str]]:
    return [_named(address) for address in addresses]


def _files(content: OutgoingEmail) -> list[dict[str, Any]]:
    return [
        {"file_name": file.filename, "data": in_base64(file), "base64": True, "content_type": file.content_type}
        | ({"content_id": f"<{file.content_id}>"} if is_related(file, content) else {})
        for file in content.attachments
    ]
