"""Resend over its HTTP API: https://resend.com/docs/api-reference/emails/send-email

Resend remembers an idempotency key for 24 hours: the same request is answered with the first one's id, so an
unanswered mail is settled by asking again (https://resend.com/docs/dashboard/emails/idempotency-keys). What it answers
is told apart by the error's ``name`` (https://resend.com/docs/api-reference/errors), and in one case by its message:

================================================  ==========================================================
answer                                            outcome
================================================  ==========================================================
2xx with an ``id``                                ``Accepted``
2xx without one                                   ``Unanswered``: success is read from the body
409 ``invalid_idempotent_request``                ``Unanswered``, ``key_mismatch``: our fault, never a fresh key
409 ``concurrent_idempotent_requests``, any 409   ``Unanswered``: wait, then the same key again
403 ``validation_error``                          ``AccountFault`` of the From domain: not verified, or for tests only
422 ``invalid_from_address``,                     ``AccountFault`` of the From domain, and the mail's own refusal
451 ``security_error``                            once other mail from there passes
429 ``daily_quota_exceeded``,                     ``AccountFault``: the quota is used up
``monthly_quota_exceeded``
400 ``invalid_idempotency_key``                   ``AccountFault``: no mail can change it
400 ``validation_error``, "API key is invalid"    ``AccountFault``: what a malformed key is answered with
429 ``rate_limit_exceeded``, any other 429        ``Deferred`` as long as ``Retry-After`` says
400 413 422                                       ``Refused``
401 402 403 404 405, 3xx, every other 4xx         ``AccountFault``: the key, its rights, or ``base_url``
408 421 425, 5xx                                  ``Unanswered``
================================================  ==========================================================

What differs from the documents, as others have measured it (django-anymail, 2025-12): display names in double quotes
are refused in To, Cc, Bcc and Reply-To, where encoded words are taken, and the other way round in From; a mail whose
file has an extension of another type than its ``content_type`` is accepted and never sent, so the type is left to
Resend, which takes it from the extension. Non-ASCII mailboxes are refused. The Message-ID is Resend's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar

from pydantic import Field

from sendonce.activities.transports.base import Capability, Mail, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, key_mismatch, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import all_shown, groups_with_to, in_base64, is_related, shown
from sendonce.activities.transports.mime_header import encoded_words
from sendonce.message import Address, OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, same_for_all, storable

__all__ = ["ResendSettings", "ResendTransport", "classify"]

_OF_THE_SENDER = frozenset(
    {(403, "validation_error"), (422, "invalid_from_address"), (451, "security_error")},
)
_OF_THE_ACCOUNT = frozenset(
    {"daily_quota_exceeded", "monthly_quota_exceeded", "invalid_idempotency_key", "invalid_api_key"},
)
_BAD_KEY = "api key is invalid"
_NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9_-]")


class ResendSettings(ProviderSettings):
    """One API key of a Resend team; it needs no more than *sending access*."""

    provider: ClassVar[str] = "resend"

    base_url: str = Field("https://api.resend.com", max_length=300)
    """Where the API is. Resend has one address for all regions."""
    key_window: float | None = Field(86400, gt=0, le=30 * 86400)
    """Seconds from the first offer for which Resend knows a key: 24 hours are documented. None: nothing is replayed."""


class ResendTransport(HttpTransport):
    """One Resend account."""

    settings_model = ResendSettings
    capability = Capability(
        webhook="deliveries, delays, bounces, complaints",
        key="header Idempotency-Key",
        replay="the first answer, with the same id",
        keeps_message_id=False,
    )
    """As documented, 2026-08."""

    def __init__(self, settings: ResendSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/emails", now=now)
        self.settings = settings

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:  # noqa: ARG002
        """The request without its secrets. Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone."""
        content = mail.content
        envelope = groups_with_to(content, recipients)
        return self._post(
            {
                "from": shown(content.sender),
                "to": _listed(envelope.to),
                "cc": _listed(envelope.cc),
                "bcc": _listed(envelope.bcc),
                "reply_to": _listed(content.reply_to),
                "subject": content.subject,
                "html": content.html,
                "text": content.text if content.html else content.text or "",
                "headers": content.sent_headers,
                "attachments": _files(content),
                "tags": [
                    {"name": "sendonce_id", "value": _NOT_IN_TAGS.sub("_", mail.email_id)},
                    {"name": "sendonce_key", "value": _NOT_IN_TAGS.sub("_", mail.key)},
                ],
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:
        """The API key, and the idempotency key."""
        return {
            "Authorization": f"Bearer {self.settings.api_key.get_secret_value()}",
            "Idempotency-Key": provider_key,
        }

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer))


def classify(answer: Answer) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top."""
    code = as_code(answer.at("name"))
    if answer.ok:
        provider_id = answer.at("id")
        return Accepted(answer.reply(code), storable(provider_id)) if provider_id else no_id(answer, code)
    if answer.status == 409 and code == "invalid_idempotent_request":
        return key_mismatch(answer)
    if (answer.status, code) in _OF_THE_SENDER:
        return AccountFault(answer.reply(code), answer.retry_after, scope="sender")
    bad_key = answer.status == 400 and answer.at("message").lower().startswith(_BAD_KEY)
    if bad_key or (400 <= answer.status <= 499 and code in _OF_THE_ACCOUNT):
        return AccountFault(answer.reply(code), answer.retry_after)
    return by_status(answer, code)


def _listed(addresses: tuple[Address, ...]) -> list[str]:
    return [
        f"{' '.join(encoded_words('To', address.name))} <{address.mailbox}>" if one.startswith('"') else one
        for address, one in zip(addresses, all_shown(addresses), strict=True)
    ]


def _files(content: OutgoingEmail) -> list[dict[str, str]]:
    return [
        {"filename": file.filename, "content": in_base64(file)}
        | ({"content_id": file.content_id or ""} if is_related(file, content) else {})
        for file in content.attachments
    ]
