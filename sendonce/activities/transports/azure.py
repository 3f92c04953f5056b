"""Azure Communication Services Email: https://learn.microsoft.com/en-us/rest/api/communication/email/email/send

Two things of the request are ours and settle an unanswered mail. ``Operation-Id`` is a UUID that the send operation can
be asked for (https://learn.microsoft.com/en-us/rest/api/communication/email/email/get-send-result). The same UUID as
``Repeatability-Request-Id``, with ``Repeatability-First-Sent``, makes the request repeatable for five minutes
(https://learn.microsoft.com/en-us/rest/api/communication/repeatable-requests): it is then answered as the first time,
and later it is refused unexecuted.

*Accepted* means that Azure has queued the message (202, a state other than failed): it is Azure's from then on. It
may still drop it, for instance when every recipient is on its suppression list; the look-up and Azure's events say so.

==============================================  ============================================================
answer                                          outcome
==============================================  ============================================================
2xx with an ``id``, ``status`` ``NotStarted``,  ``Accepted``
``Running`` or ``Succeeded``
2xx, ``Failed`` or ``Canceled``                 ``Refused``: nobody gets it
2xx of any other shape                          ``Unanswered``: success is read from the body
412                                             ``Deferred``: too long on the way, and not executed; the next one
                                                has a fresh time. ``AccountFault`` when our clock is wrong
409                                             ``Unanswered``: in progress
400, ``Repeatability-Result: rejected``         ``Unanswered``, ``key_mismatch``: our fault, never a fresh key
400 403 404, code about a domain or sender      ``AccountFault`` of the From domain (``DomainNotLinked``)
400 413 422                                     ``Refused``
401 403 404 405, 3xx, every other 4xx           ``AccountFault``: access key, subscription, or endpoint
429                                             ``Deferred`` as long as ``Retry-After`` says
408 421 425, 5xx                                ``Unanswered``; a repeated request is executed again after 5xx
==============================================  ============================================================

Codes of errors are documented nowhere as a whole. ``Repeatability-First-Sent`` must lie in the last five minutes and be
the same in every repetition. When a mail was asked for can be hours ago, so it is the minute in which the request is
made, which is then pinned with it; a request that was pinned and not offered in its minute is made anew.

Requests are signed with the access key as
https://learn.microsoft.com/en-us/azure/communication-services/tutorials/hmac-header-tutorial says, each time anew.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, ClassVar

import httpx
from pydantic import Field, SecretStr, field_validator, model_validator

from sendonce.activities.transports.base import Asked, Capability, Gate, Job, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, key_mismatch, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import groups_with_to, in_base64, is_related
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

__all__ = ["AzureSettings", "AzureTransport", "classify"]

_TAKEN = frozenset({"NotStarted", "Running", "Succeeded"})
_DROPPED = frozenset({"Failed", "Canceled"})
_SENDER = re.compile(r"domain|sender", re.I)
_CLOCK = "clock"
_SKEW = 120
"""Seconds by which our clock may differ from Azure's before a 412 is put down to it."""
_MINUTE = 60
"""What ``Repeatability-First-Sent`` is rounded down to."""


class AzureSettings(ProviderSettings):
    """One Communication Services resource that an e-mail domain is linked to."""

    provider: ClassVar[str] = "azure"

    api_key: SecretStr
    """The connection string as the portal shows it, ``endpoint=https://…;accesskey=…``; or its access key alone, with
    ``base_url``. A secret."""
    base_url: str = Field("", max_length=300)
    """The resource's endpoint: ``https``, or ``http`` on loopback. Empty: the one in the connection string."""
    api_version: str = Field("2025-09-01", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$")
    """The version of the API that is spoken."""
    key_window: float | None = Field(300, gt=0, le=30 * 86400)
    """Seconds from the first offer for which Azure knows a request: 5 minutes are documented. None: nothing is
    replayed. The worker's ``window_margin_seconds`` goes off it."""

    @model_validator(mode="before")
    @classmethod
    def _endpoint(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("base_url"):
            return values
        secret = values.get("api_key")
        text = secret.get_secret_value() if isinstance(secret, SecretStr) else str(secret or "")
        return {**values, "base_url": _parts(text).get("endpoint", "")}

    @field_validator("api_key")
    @classmethod
    def _decodable(cls, key: SecretStr) -> SecretStr:
        try:
            if _secret(key):
                return key
        except (binascii.Error, ValueError):
            pass
        raise ValueError("api_key: no access key is in it; copy the whole connection string from the portal")


class AzureTransport(HttpTransport):
    """One Communication Services resource."""

    settings_model = AzureSettings
    capability = Capability(
        webhook="deliveries, delays, bounces, complaints",
        key="header Repeatability-Request-Id",
        key_format="uuid",
        replay="the first answer's status, for 5 minutes",
        look_up="Operation-Id",
        keeps_message_id=True,
    )
    """As documented, 2026-08."""

    def __init__(self, settings: AzureSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/emails:send?api-version={settings.api_version}", now=now)
        self.settings = settings
        self._now = now

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def slot(self, generation: int) -> str:
        """One for each minute: a request that was pinned long ago and never offered would be refused unexecuted."""
        return f"{super().slot(generation)}:{_minute(self._now())}"

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its signature; the same within one minute.

        Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone.
        """
        content = mail.content
        envelope = groups_with_to(content, recipients)
        named = {"to": _listed(envelope.to), "cc": _listed(envelope.cc), "bcc": _listed(envelope.bcc)}
        texts = {"subject": content.subject, "plainText": content.text, "html": content.html}
        if not content.html:
            texts["plainText"] = content.text or ""
        rendering = self._post(
            {
                "senderAddress": content.sender.mailbox,
                "recipients": {name: group for name, group in named.items() if group},
                "content": {name: text for name, text in texts.items() if text is not None},
                "attachments": _files(content),
                "replyTo": _listed(content.reply_to),
                "headers": {"Message-ID": mail.message_id, **content.sent_headers},
            }
        )
        first_sent = datetime.fromtimestamp(_minute(self._now()), UTC)
        ours = {
            "Operation-Id": provider_key,
            "Repeatability-Request-Id": provider_key,
            "Repeatability-First-Sent": format_datetime(first_sent, usegmt=True),
        }
        return replace(rendering, headers=(*rendering.headers, *ours.items()))

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002 - pinned with the request
        """None: what is secret is the signature, which covers the request; see :meth:`transmit`."""
        return {}

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """See :class:`~sendonce.activities.transports.base.Transport`. The signature is made for this attempt alone."""
        pinned = job.rendering
        signature = self._signature(pinned.method, pinned.url, pinned.body)
        signed = replace(pinned, headers=(*pinned.headers, *signature.items()))
        return await super().transmit(replace(job, rendering=signed), gate)

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer))

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`. The provider key is the operation's id."""
        operation = question.provider_key
        url = f"{self.settings.base_url}/emails/operations/{operation}?api-version={self.settings.api_version}"
        try:
            answer = await self._client.ask(url, self._signature("GET", url, b""))
        except Asked as failed:
            if failed.why == "http_404":
                return {}
            raise
        if answer.at("id").lower() != operation.lower():
            raise Asked("not_the_operation")
        found = _state(answer)
        if not isinstance(found, Accepted | Refused):
            raise Asked("state_unknown")
        return {recipient.ordinal: found for recipient in question.recipients}

    def _signature(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """The headers that sign a request, over exactly what httpx puts into its first line and ``Host``."""
        parsed = httpx.URL(url)
        host, path = parsed.netloc.decode("ascii"), parsed.raw_path.decode("ascii")
        date = format_datetime(self._now().astimezone(UTC), usegmt=True)
        content = base64.b64encode(hashlib.sha256(body).digest()).decode()
        to_sign = f"{method}\n{path}\n{date};{host};{content}"
        signature = hmac.new(_secret(self.settings.api_key), to_sign.encode(), hashlib.sha256).digest()
        return {
            "x-ms-date": date,
            "x-ms-content-sha256": content,
            "Authorization": "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256"
            f"&Signature={base64.b64encode(signature).decode()}",
        }


def classify(answer: Answer) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top."""
    code = as_code(answer.at("error.code") or answer.headers.get("x-ms-error-code", ""))
    if answer.ok:
        return _state(answer)
    if answer.status == 412:
        if _skewed(answer):
            return AccountFault(answer.reply(_CLOCK))
        return Deferred(answer.reply(code), answer.retry_after)
    if answer.status == 400 and answer.headers.get("Repeatability-Result", "").strip().lower() == "rejected":
        return key_mismatch(answer)
    if answer.status in (400, 403, 404) and _SENDER.search(code):
        return AccountFault(answer.reply(code), answer.retry_after, scope="sender")
    return by_status(answer, code)


def _state(answer: Answer) -> Outcome:
    """What an operation's state says, of the request or looked up."""
    state, operation = answer.at("status"), answer.at("id")
    if operation and state in _TAKEN:
        return Accepted(Reply(answer.status, state), storable(operation))
    if operation and state in _DROPPED:
        return Refused(answer.reply(as_code(answer.at("error.code")) or state))
    return no_id(answer)


def _skewed(answer: Answer) -> bool:
    """Whether our clock, by Azure's own, is the reason why a fresh request looks old."""
    try:
        theirs = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return False
    return abs((theirs.replace(tzinfo=theirs.tzinfo or UTC) - answer.read_at).total_seconds()) > _SKEW


def _minute(now: datetime) -> int:
    return int(now.timestamp()) // _MINUTE * _MINUTE


def _parts(connection_string: str) -> dict[str, str]:
    """The members of a connection string, names in lower case; none for an access key alone."""
    pairs = [part.partition("=") for part in connection_string.split(";")]
    found = {name.strip().lower(): value.strip() for name, separator, value in pairs if separator}
    return found if "accesskey" in found else {}


def _secret(api_key: SecretStr) -> bytes:
    text = api_key.get_secret_value()
    return base64.b64decode(_parts(text).get("accesskey", text), validate=True)


def _named(address: Address) -> dict[str, str]:
    return {"address": address.mailbox} | ({"displayName": address.name} if address.name else {})


def _listed(addresses: tuple[Address, ...]) -> list[dict[str, str]]:
    return [_named(address) for address in addresses]


def _files(content: OutgoingEmail) -> list[dict[str, str]]:
    return [
        {"name": file.filename, "contentType": file.content_type, "contentInBase64": in_base64(file)}
        | ({"contentId": file.content_id or ""} if is_related(file, content) else {})
        for file in content.attachments
    ]
