"""SparkPost over its HTTP API: https://developers.sparkpost.com/api/transmissions/

SparkPost remembers an idempotency key for 24 hours and answers the same request with the first answer, marked by
``X-Idempotent-Replayed: true`` (https://github.com/SparkPost/developers.sparkpost.com/pull/590, 2026-08). After that it
can be asked for its events, which it keeps for 10 days (https://developers.sparkpost.com/api/events/): each mail is a
campaign of its own, named by a digest of its key. The search leaves out the last minute, and how much later a mail is
found is not documented.

An answer is told apart by its status together with the error's ``code``: the older table
(https://support.sparkpost.com/docs/tech-resources/extended-error-codes) gives 1600 to 1602 other meanings.

===============================================  ==========================================================
answer                                           outcome
===============================================  ==========================================================
2xx, an ``id``, all recipients accepted          ``Accepted``
2xx, none accepted, all rejected                 ``Refused``
2xx otherwise                                    ``Unanswered``: whom it left out is not said
409 1600                                         ``Unanswered``, ``key_mismatch``: our fault, never a fresh key
409 1601, any other 409                          ``Unanswered``: wait, then the same key again
400 1602 (malformed key), 1910                   ``AccountFault``: no mail can change it
400 7000 7001 (sending domain)                   ``AccountFault`` of the From domain
420, any code (2101 2102 2103 2105: limits)      ``AccountFault``: the quota is used up, and nothing was sent
400 1502 ("resources unavailable, retry later")  ``Deferred``
429                                              ``Deferred`` as long as ``Retry-After`` says
400 (5002: no valid recipient; 1902:             ``Refused``
suppressed; and others), 413, 422
401 403, 3xx, every other 4xx                    ``AccountFault``: the key, its rights, or ``base_url``
408 421 425, 5xx                                 ``Unanswered``
===============================================  ==========================================================

Subject, texts and headers are templates to SparkPost (https://developers.sparkpost.com/api/template-language/): a text
with ``{{`` in it is sent with every brace written as the macro that stands for it. Ready-made MIME cannot be changed,
so one with ``{{`` in its header section or texts is refused.
"""

from __future__ import annotations

import email
import email.policy
import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlencode

from pydantic import Field

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, key_mismatch, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import all_shown, in_base64, is_related
from sendonce.activities.transports.mime import render_mime
from sendonce.errors import InvalidEmail
from sendonce.message import OutgoingEmail
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

__all__ = ["SparkPostSettings", "SparkPostTransport", "classify"]

RETENTION = timedelta(days=10)
"""For which events are kept."""
_SLACK = timedelta(hours=1)
"""By which the clocks may differ."""
_PAGE = 500
"""Events asked for. An event takes some 1500 octets of the answer."""
_BEFORE = frozenset({"generation_failure", "generation_rejection", "policy_rejection"})
"""Events of a recipient for whom no message was made."""
_PARTIAL = "partial"
_BRACE = re.compile(r"[{}]")
_MACROS = {"{": "{{opening_single_curly()}}", "}": "{{closing_single_curly()}}"}


class SparkPostSettings(ProviderSettings):
    """One SparkPost account or subaccount. ``api_key`` needs *Transmissions: Read/Write*, and *Events Search:
    Read-only* to look for unanswered mail.
    """

    provider: ClassVar[str] = "sparkpost"

    base_url: str = Field("https://api.sparkpost.com", max_length=300)
    """Where the API is; ``https://api.eu.sparkpost.com`` for accounts of the EU."""
    key_window: float | None = Field(86400, gt=0, le=30 * 86400)
    """Seconds from the first offer for which SparkPost knows a key: 24 hours are documented. None: nothing is
    replayed."""
    campaigns: bool = True
    """Whether each mail is a campaign of its own: unanswered mail can be looked for by that. It fills the list of
    campaigns in SparkPost's reports."""
    tracking: bool = False
    """Whether opens and clicks are tracked; links are rewritten then."""


class SparkPostTransport(HttpTransport):
    """One SparkPost account."""

    settings_model = SparkPostSettings

    def __init__(self, settings: SparkPostSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/api/v1/transmissions", now=now)
        self.settings = settings
        self._now = now

    @property
    def capability(self) -> Capability:
        """As documented, 2026-08."""
        return Capability(
            webhook="deliveries, delays, bounces, complaints",
            key="header Idempotency-Key",
            replay="the first answer, marked as replayed",
            look_up="campaign" if self.settings.campaigns else "",
            keeps_message_id=False,
            takes_mime=True,
            together=False,
        )

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets.

        Everybody gets a message of their own, which names those whom the mail names in To and Cc. Raises
        :class:`~sendonce.errors.InvalidEmail` for ready-made MIME that would be taken for a template.
        """
        ours = {"sendonce_id": mail.email_id, "sendonce_key": mail.key}
        tracking = self.settings.tracking
        return self._post(
            {
                "options": {"transactional": True, "open_tracking": tracking, "click_tracking": tracking},
                "campaign_id": _offer(provider_key) if self.settings.campaigns else None,
                "metadata": ours,
                "recipients": [{"address": one} for one in _addresses(mail.content, recipients)],
                "content": _ready_made(mail) if mail.content.mime is not None else _content(mail.content),
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:
        """The API key, and the idempotency key."""
        return {
            "Authorization": self.settings.api_key.get_secret_value(),
            "Idempotency-Key": provider_key,
        }

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer, len(recipients)))

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        SparkPost may have left out some recipients of a request, so each is answered by events of their own.
        """
        offer = _offer(question.provider_key)
        since = max(question.begun_at - _SLACK, self._now() - RETENTION + _SLACK)
        query = urlencode(
            {"campaigns": offer, "from": f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", "per_page": _PAGE}
        )
        url = f"{self.settings.base_url}/api/v1/events/message?{query}"
        answer = await self._client.ask(url, {"Authorization": self.settings.api_key.get_secret_value()})
        events = answer.content.get("results") if isinstance(answer.content, dict) else None
        if not isinstance(events, list):
            raise Asked("not_a_list_of_events")
        found: dict[str, Accepted | Refused] = {}
        for event in events:
            # Read back: the search is by words, and one that overlooked the filter would show somebody else's mail.
            if not isinstance(event, dict) or event.get("campaign_id") != offer or not event.get("transmission_id"):
                continue
            made = event.get("type") not in _BEFORE
            for name in ("rcpt_to", "raw_rcpt_to"):
                mailbox = str(event.get(name) or "").lower()
                if made:
                    found[mailbox] = Accepted(Reply(answer.status, "found"), storable(str(event["transmission_id"])))
                else:
                    found.setdefault(mailbox, Refused(Reply(answer.status, as_code(str(event["type"])))))
        asked = {recipient.ordinal: recipient.mailbox.lower() for recipient in question.recipients}
        return {ordinal: found[mailbox] for ordinal, mailbox in asked.items() if mailbox in found}


def classify(answer: Answer, offered: int) -> Outcome:
    """What an answer means for each of the ``offered`` recipients, as in the table at the top."""
    code = as_code(answer.at("errors.0.code"))
    replayed = answer.headers.get("X-Idempotent-Replayed", "").lower() == "true"
    if answer.ok:
        return _counted(answer, code, offered, replayed=replayed)
    match answer.status, code:
        case 409, "1600":
            return key_mismatch(answer)
        case 400, "7000" | "7001":
            return AccountFault(answer.reply(code), answer.retry_after, scope="sender")
        case 400, "1602" | "1910":
            return AccountFault(answer.reply(code), answer.retry_after)
        case 400, "1502":
            return Deferred(answer.reply(code), answer.retry_after)
    outcome = by_status(answer, code)
    return Refused(outcome.reply, replayed) if isinstance(outcome, Refused) else outcome


def _counted(answer: Answer, code: str, offered: int, *, replayed: bool) -> Outcome:
    provider_id = answer.at("results.id")
    counts = answer.at("results.total_accepted_recipients"), answer.at("results.total_rejected_recipients")
    if counts == ("0", str(offered)):
        return Refused(answer.reply(code), replayed)
    if not provider_id:
        return no_id(answer, code)
    if counts == (str(offered), "0"):
        return Accepted(answer.reply(code), storable(provider_id), replayed)
    return Unanswered(answer.reply(code or _PARTIAL))


def _addresses(content: OutgoingEmail, recipients: tuple[Recipient, ...]) -> list[dict[str, str]]:
    """The envelope. Without a To that is said, each message would have its own recipient there."""
    to = ", ".join(all_shown(content.to))
    shown = {"header_to": to} if to and content.mime is None else {}
    return [{"email": recipient.mailbox, **shown} for recipient in recipients]


def _content(content: OutgoingEmail) -> dict[str, Any]:
    sender = {"email": content.sender.mailbox} | ({"name": content.sender.name} if content.sender.name else {})
    headers = ({"Cc": ", ".join(all_shown(content.cc))} if content.cc else {}) | content.sent_headers
    made: dict[str, Any] = {
        "from": {name: _literal(value) for name, value in sender.items()},
        "reply_to": _literal(", ".join(all_shown(content.reply_to))),
        "html": _literal(content.html or ""),
        "text": _literal(content.text or ("" if content.html else " ")),
        "headers": {name: _literal(value) for name, value in headers.items()},
        "attachments": [
            {"name": file.filename, "type": file.content_type, "data": in_base64(file)}
            for file in content.attachments
            if not is_related(file, content)
        ],
        "inline_images": [
            {"name": file.content_id or "", "type": file.content_type, "data": in_base64(file)}
            for file in content.attachments
            if is_related(file, content)
        ],
    }
    return {"subject": _literal(content.subject)} | {name: value for name, value in made.items() if value}


def _literal(text: str) -> str:
    """As it arrives: nothing in it is a template."""
    return _BRACE.sub(lambda brace: _MACROS[brace[0]], text) if "{{" in text else text


def _ready_made(mail: Mail) -> dict[str, str]:
    data = render_mime(mail)
    message = email.message_from_bytes(data, policy=email.policy.default)
    parts = [part.get_payload(decode=True) for part in message.walk() if part.get_content_maintype() == "text"]
    texts = [data.partition(b"\r\n\r\n")[0], *(part for part in parts if isinstance(part, bytes))]
    if any(b"{{" in text for text in texts) or any("{{" in str(value) for value in message.values()):
        raise InvalidEmail("mime", "SparkPost would take {{ in its header section or texts for a template")
    try:
        return {"email_rfc822": data.decode()}
    except UnicodeDecodeError:
        raise InvalidEmail(
            "mime", "SparkPost takes it as text: encode its parts in base64 or quoted-printable"
        ) from None


def _offer(provider_key: str) -> str:
    """The campaign's name: 64 octets at most, and one word to the search, which finds campaigns by each of theirs."""
    return hashlib.sha256(provider_key.encode()).hexdigest()
