"""Amazon SES over its API, version 2: https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendEmail.html

Every mail is posted as MIME: the message is the one that SMTP would carry, and ``Destination`` is the envelope,
whatever its headers say. SES has no idempotency keys, and cannot be asked for a mail by anything that was known before
its answer: an unanswered one stays unknown, until an event with its tags arrives or somebody decides.

An answer is told apart by the error's name, and where that has two meanings by its message
(https://docs.aws.amazon.com/ses/latest/APIReference-V2/CommonErrors.html,
https://docs.aws.amazon.com/ses/latest/dg/manage-sending-quotas-errors.html); ``Exception`` at the end of a name does
not count:

===================================================  =======================================================
answer                                               outcome
===================================================  =======================================================
2xx with a ``MessageId``                             ``Accepted``
2xx without one                                      ``Unanswered``: success is read from the body
4xx "daily message quota"; ``LimitExceeded``         ``AccountFault``: the quota of 24 hours is used up
4xx ``TooManyRequests``, ``Throttling``; "maximum    ``Deferred``
sending rate"
``MailFromDomainNotVerified``; ``MessageRejected``   ``AccountFault`` of the From domain, and the mail's own
or ``BadRequest`` with "not verified";               refusal once other mail from there passes (in the
``AccessDenied`` to an identity                      sandbox it may be a recipient that is not verified)
``AccountSuspended``, ``SendingPaused``;             ``AccountFault``: SES sends nothing for it
``MessageRejected`` with "paused" or "suspended"
``NotFound``                                         ``AccountFault``: the configuration set
``AccessDenied``, ``ExpiredToken``,                  ``AccountFault``: credentials, their rights, the clock
``InvalidSignature``, ``SignatureDoesNotMatch``,
``RequestExpired``, ``UnrecognizedClient`` and such
``MessageRejected``, ``BadRequest``, any other 400   ``Refused``: content or shape
413 422                                              ``Refused``
3xx and every other 4xx                              ``AccountFault``: credentials or ``base_url``
408 409 421 425, 5xx                                 ``Unanswered``
===================================================  =======================================================

The Message-ID is replaced by ``<MessageId@region.amazonses.com>``
(https://docs.aws.amazon.com/ses/latest/dg/header-fields.html).
"""

from __future__ import annotations

import base64
import importlib.util
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sendonce.activities.transports.aws_signature import AwsCredentials, NoCredentials, signed
from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.activities.transports.http_account import checked_url, digest, is_header_value
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import groups
from sendonce.activities.transports.mime import render_mime
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Deferred, Outcome, same_for_all, storable

__all__ = ["SesSettings", "SesTransport", "classify"]

SERVICE = "ses"
"""The name that requests are signed for."""

_NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9_-]")

_LATER = frozenset({"TooManyRequests", "Throttling", "Throttled", "RequestThrottled", "RequestLimitExceeded"})
_OF_THE_CREDENTIALS = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignature",
        "InvalidToken",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClient",
    }
)
_OF_THE_ACCOUNT = _OF_THE_CREDENTIALS | {
    "AccountSuspended",
    "LimitExceeded",
    "NotFound",
    "SendingPaused",
    "UnknownOperation",
}
_REJECTED = frozenset({"MessageRejected", "BadRequest"})
_DAILY = re.compile(r"daily (?:message|sending) quota", re.I)
_RATE = re.compile(r"sending rate", re.I)
_NOT_VERIFIED = re.compile(r"not verified", re.I)
_STOPPED = re.compile(r"sending (?:is )?(?:currently )?(?:paused|suspended|disabled)", re.I)


class SesSettings(BaseModel):
    """One AWS account's SES in one region. Raises pydantic's ValidationError, which never shows a value.

    Without ``access_key_id`` and ``secret_access_key`` credentials are looked for as every AWS tool does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    region: str = Field(pattern=r"^[a-z]{2,5}(?:-[a-z]+)+-[0-9]{1,2}$")
    """Where the identities are verified, for example ``eu-central-1``."""
    access_key_id: SecretStr | None = None
    """Of an IAM user or a session that may ``ses:SendEmail``. Never pinned, logged or shown."""
    secret_access_key: SecretStr | None = None
    """Goes with ``access_key_id``."""
    session_token: SecretStr | None = None
    """For credentials of a session, which expire: a role or profile is refreshed by itself, these are not."""
    profile: str | None = Field(None, pattern=r"^[!-~]{1,100}$")
    """A profile of the shared AWS configuration, instead of the usual one."""
    configuration_set: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The configuration set of every mail: where its events go. None: the identity's default one."""
    base_url: str | None = Field(None, max_length=300)
    """Where the API is: ``https``, or ``http`` on loopback. None: the region's usual address. For FIPS, dual-stack and
    VPC endpoints."""
    scope: str | None = Field(None, pattern=r"^[!-~]{1,150}$")
    """The AWS account, in words of your own. None: the host of the API."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    connect_seconds: float = Field(30, ge=0.01, le=3600)
    """For name resolution and TCP, again for TLS, and before them for credentials that have to be fetched. The lane's
    ``answer_seconds`` bounds all that comes after."""

    @field_validator("base_url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        try:
            return url and checked_url(url).rstrip("/")
        except ValueError as error:
            raise ValueError(f"base_url: {error}") from None

    @field_validator("access_key_id", "secret_access_key", "session_token")
    @classmethod
    def _sendable(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not is_header_value(secret.get_secret_value()):
            raise ValueError("must be printable ASCII without spaces around it; was it copied whole?")
        return secret

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key go together: set both or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token belongs to an access_key_id: set that too")
        if self.profile is not None and self.access_key_id is not None:
            raise ValueError("profile and access_key_id: give one")
        if importlib.util.find_spec("botocore") is None:
            raise ValueError("botocore is not installed, and signs what is sent: pip install 'sendonce[ses]'")
        return self

    @property
    def origin(self) -> str:
        """Where the API is."""
        suffix = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        return self.base_url or f"https://email.{self.region}.{suffix}"

    def identity(self) -> str:
        """Whose account it is, without secrets; at most 200 characters."""
        return f"ses:{self.scope or urlsplit(self.origin).netloc}"[:200]

    def digest(self) -> str:
        """SHA-256, in hex, over all settings, the secrets included; what a chain finds is not."""
        return digest(self)


class SesTransport(HttpTransport):
    """One AWS account in one region."""

    settings_model = SesSettings
    capability = Capability(webhook="deliveries, delays, bounces, complaints", keeps_message_id=False, takes_mime=True)
    """As documented, 2026-08."""

    def __init__(self, settings: SesSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """``now``, aware, is also the time in signatures.

        See :class:`~sendonce.activities.transports.http_transport.HttpTransport`.
        """
        super().__init__(settings, f"{settings.origin}/v2/email/outbound-emails", now=now)
        self.settings = settings
        self._now = now
        self._credentials = AwsCredentials(
            settings.access_key_id,
            settings.secret_access_key,
            settings.session_token,
            profile=settings.profile,
            seconds=settings.connect_seconds,
        )

    @property
    def key_window(self) -> None:
        """It keeps no keys."""
        return

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:  # noqa: ARG002
        """The request without its signature. Raises :class:`~sendonce.errors.InvalidEmail` as SMTP's MIME does."""
        content = mail.content
        envelope = groups(content, recipients)
        listed = {
            "ToAddresses": [one.mailbox for one in envelope.to],
            "CcAddresses": [one.mailbox for one in envelope.cc],
            "BccAddresses": [one.mailbox for one in envelope.bcc],
        }
        # No FromEmailAddress: it would replace the message's own From, with its name.
        return self._post(
            {
                "Destination": {name: mailboxes for name, mailboxes in listed.items() if mailboxes},
                "FeedbackForwardingEmailAddress": content.envelope_sender or None,
                "Content": {"Raw": {"Data": base64.b64encode(render_mime(mail)).decode()}},
                "EmailTags": [
                    {"Name": "sendonce_id", "Value": _NOT_IN_TAGS.sub("_", mail.email_id)},
                    {"Name": "sendonce_key", "Value": _NOT_IN_TAGS.sub("_", mail.key)},
                ],
                "ConfigurationSetName": self.settings.configuration_set,
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:  # noqa: ARG002
        """None: what authorises a request is its signature."""
        return {}

    async def unpinned(self, job: Job) -> Mapping[str, str] | Outcome:
        """The signature over the pinned bytes, at the time it is."""
        try:
            credentials = await self._credentials.get()
        except NoCredentials as none:
            return none.outcome
        return signed(job.rendering, credentials, region=self.settings.region, service=SERVICE, now=self._now())

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        result = await super().transmit(job, gate)
        if any(_short(outcome.reply.enhanced) in _OF_THE_CREDENTIALS for outcome in result.outcomes.values()):
            self._credentials.forget()
        return result

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer))


def classify(answer: Answer) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top."""
    if answer.ok:
        provider_id = answer.at("MessageId")
        return Accepted(answer.reply(), storable(provider_id)) if provider_id else no_id(answer)
    code = _code(answer)
    if not 400 <= answer.status <= 499:
        return by_status(answer, code)
    name, text = _short(code), answer.at("message") or answer.at("Message")
    reply, wait = answer.reply(code), answer.retry_after
    if _DAILY.search(text):
        return AccountFault(reply, wait)
    if name in _LATER or _RATE.search(text):
        return Deferred(reply, wait)
    if (
        name == "MailFromDomainNotVerified"
        or (name in _REJECTED and _NOT_VERIFIED.search(text))
        or (name == "AccessDenied" and ":identity/" in text)
    ):
        return AccountFault(reply, wait, scope="sender")
    if name in _OF_THE_ACCOUNT or (name in _REJECTED and _STOPPED.search(text)):
        return AccountFault(reply, wait)
    return by_status(answer, code)


def _code(answer: Answer) -> str:
    """The error's name: of the header, or of the body, without what is around it (``a#Name:http://…``)."""
    found: Any = answer.headers.get("x-amzn-ErrorType") or answer.at("__type") or answer.at("code")
    return as_code(str(found or "").partition(":")[0].rpartition("#")[2])


def _short(code: str) -> str:
    return code.removesuffix("Exception")
