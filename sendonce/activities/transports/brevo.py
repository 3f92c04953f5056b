"""Brevo over its HTTP API: https://developers.brevo.com/reference/send-transac-email

Brevo takes an idempotency key in the body, but what it does is not settled: its guide speaks of 30 minutes
(https://developers.brevo.com/docs/heterogenous-versions-batch-emails), its changelog of 15
(https://developers.brevo.com/changelog/email-api-now-supports-idempotency), the guide is about batches, and a key that
is known is answered with an error that holds no id. So the key is sent, and nothing is ever replayed. Brevo can be
asked instead: each mail carries a digest of its provider key as a tag, and the events are found by it
(https://developers.brevo.com/reference/get-email-event-report). How soon is not documented.

Errors are ``{"code", "message"}`` (https://developers.brevo.com/docs/how-it-works):

=================================================  =========================================================
answer                                             outcome
=================================================  =========================================================
2xx with a ``messageId``                           ``Accepted``
2xx without one                                    ``Unanswered``: success is read from the body
4xx ``duplicate_parameter``,                       ``Unanswered``: the key was used, perhaps by a mail that was
``duplicate_request``                              taken; the events tell
4xx ``unauthorized``, ``permission_denied``,       ``AccountFault``: the key, its rights, or the credits
``not_enough_credits``, ``reseller_permission_``
``denied``, ``account_under_validation``
400 that names the sender in its message           ``AccountFault`` of the From domain, and the mail's own
                                                   refusal once other mail from there passes
429                                                ``Deferred``, as long as ``Retry-After`` says, or else
                                                   ``x-sib-ratelimit-reset``
400 413 422                                        ``Refused``
401 402 403 404 405 406, 3xx, every other 4xx      ``AccountFault``: the key, credits, or ``base_url``
408 409 421 425, 5xx                               ``Unanswered``
=================================================  =========================================================

An accepted mail is not always sent: users have seen a sender that is not validated accepted, and dropped with an event
``error`` later. Such an event is no proof of anything here: a mail with one stays unknown.

What differs from the documents, or is left out of them, as others have measured it (django-anymail, 2026-07): a mail
needs an HTML part; there are no inline images; one Reply-To; header values outside ASCII leave as raw octets, which
many servers refuse; a display name that holds both non-ASCII and special characters is dropped unless it is written in
encoded words. The Message-ID is Brevo's own.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from pydantic import Field

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import groups_with_to, in_base64, is_related, shown
from sendonce.activities.transports.mime_header import encoded_words
from sendonce.activities.transports.retry_after import retry_after
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

__all__ = ["BrevoSettings", "BrevoTransport", "classify"]

_KEY = "idempotencyKey"
_PAGE = 100
"""Events asked for, the newest first. A mail has a few for each recipient, and one is enough."""

_KEY_WAS_USED = frozenset({"duplicate_parameter", "duplicate_request"})
_OF_THE_ACCOUNT = frozenset(
    {
        "unauthorized",
        "permission_denied",
        "reseller_permission_denied",
        "not_enough_credits",
        "account_under_validation",
    }
)
_DROPPED = "error"
_NOT_SENT_TO = frozenset({"blocked", "invalid"})
_TAKEN = "requests"


class BrevoSettings(ProviderSettings):
    """One API key (version 3) of a Brevo account."""

    provider: ClassVar[str] = "brevo"

    base_url: str = Field("https://api.brevo.com/v3", max_length=300)
    """Where the API is, with its version."""


class BrevoTransport(HttpTransport):
    """One Brevo account."""

    settings_model = BrevoSettings
    capability = Capability(
        webhook="deliveries, delays, bounces, complaints",
        key=f"body headers.{_KEY}",
        key_format="uuid",
        key_assumed=True,
        replay="an error without an id, or a second mail",
        look_up="tag",
        keeps_message_id=False,
    )
    """As documented, 2026-08. For how long Brevo knows a key is not confirmed."""

    def __init__(self, settings: BrevoSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/smtp/email", now=now)
        self.settings = settings

    @property
    def key_window(self) -> None:
        """Nothing is replayed: what a key does is not confirmed."""
        return

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets.

        Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone, more than one Reply-To, an inline image
        and a header value outside ASCII.
        """
        content = mail.content
        envelope = groups_with_to(content, recipients)
        if len(content.reply_to) > 1:
            raise InvalidEmail("reply_to", "Brevo takes one address: leave one")
        return self._post(
            {
                "sender": _address(content.sender),
                "to": [_address(one) for one in envelope.to],
                "cc": [_address(one) for one in envelope.cc],
                "bcc": [_address(one) for one in envelope.bcc],
                "replyTo": _address(content.reply_to[0]) if content.reply_to else None,
                "subject": content.subject,
                "htmlContent": content.html or _as_html(content.text or ""),
                "textContent": content.text,
                "headers": _headers(content) | {_KEY: provider_key},
                "attachment": _files(content),
                "tags": [_offer(provider_key), f"sendonce-id-{mail.email_id}", f"sendonce-key-{mail.key}"],
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002 - the key is in the body
        """The API key."""
        return {"api-key": self.settings.api_key.get_secret_value()}

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer))

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """By the events that carry the offer's tag; one of any recipient says that the request was taken.

        Raises :class:`~sendonce.activities.transports.base.Asked` without a usable answer.
        """
        offer = _offer(question.provider_key)
        query = urlencode({"limit": _PAGE, "offset": 0, "sort": "desc", "tags": offer})
        url = f"{self.settings.base_url}/smtp/statistics/events?{query}"
        answer = await self._client.ask(url, self.secrets(question.provider_key))
        # An empty report is an empty object.
        events = answer.content.get("events", []) if isinstance(answer.content, dict) else None
        if not isinstance(events, list):
            raise Asked("not_a_list_of_events")
        return _settled([one for one in events if _carries(one, offer)], question.recipients, answer.status)


def classify(answer: Answer) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top."""
    code = as_code(answer.at("code"))
    if answer.ok:
        provider_id = answer.at("messageId")
        return Accepted(answer.reply(code), storable(provider_id)) if provider_id else no_id(answer, code)
    if 400 <= answer.status <= 499:
        reply = answer.reply(code)
        if code in _KEY_WAS_USED:
            return Unanswered(reply, answer.retry_after)
        if code in _OF_THE_ACCOUNT:
            return AccountFault(reply, answer.retry_after)
        if answer.status == 400 and "sender" in answer.at("message").lower():
            return AccountFault(reply, answer.retry_after, scope="sender")
        if answer.status == 429:
            wait = answer.retry_after
            reset = retry_after(answer.headers.get("x-sib-ratelimit-reset"), answer.read_at)
            return Deferred(reply, reset if wait is None else wait)
    return by_status(answer, code)


def _settled(
    events: list[dict[str, Any]], recipients: tuple[Recipient, ...], status: int
) -> dict[int, Accepted | Refused]:
    """What the events of one offer say of each recipient."""
    kinds: dict[str, set[str]] = {}
    for event in events:
        kinds.setdefault(str(event.get("email", "")).lower(), set()).add(str(event.get("event", "")))
    if not events or any(_DROPPED in found for found in kinds.values()):
        return {}
    accepted = Accepted(Reply(status, "found"), storable(str(events[0]["messageId"])))
    settled: dict[int, Accepted | Refused] = {}
    for recipient in recipients:
        found = kinds.get(recipient.mailbox.lower(), set()) - {_TAKEN}
        kept_back = sorted(found) if found <= _NOT_SENT_TO else []
        settled[recipient.ordinal] = Refused(Reply(status, kept_back[0])) if kept_back else accepted
    return settled


def _carries(event: Any, offer: str) -> bool:
    """Whether it is an event of this offer: a filter that is ignored would show those of others.

    One tag is shown as it is, several as a list that is written out.
    """
    if not isinstance(event, dict) or not event.get("messageId"):
        return False
    return offer in f"{event.get('tag')} {event.get('tags')}"


def _offer(provider_key: str) -> str:
    """The tag that a mail is looked for by."""
    return f"sendonce-offer-{hashlib.sha256(provider_key.encode()).hexdigest()[:32]}"


def _address(address: Address) -> dict[str, str]:
    name = address.name
    if not name.isascii() and shown(address).startswith('"'):
        name = " ".join(encoded_words("To", name))
    return ({"name": name} if name else {}) | {"email": address.mailbox}


def _headers(content: OutgoingEmail) -> dict[str, str]:
    for name, value in content.sent_headers.items():
        if not value.isascii():
            raise InvalidEmail("headers", f"Brevo sends {name} as raw octets: write its value in ASCII")
    return {name: value for name, value in content.sent_headers.items() if name.lower() != _KEY.lower()}


def _files(content: OutgoingEmail) -> list[dict[str, str]]:
    if any(is_related(file, content) for file in content.attachments):
        raise InvalidEmail("attachments", "Brevo has no inline images: link to them, or attach them")
    return [{"name": file.filename, "content": in_base64(file)} for file in content.attachments]


def _as_html(text: str) -> str:
    """The text as the HTML part that Brevo insists on."""
    return f'<div style="white-space: pre-wrap">{html.escape(text)}</div>'
