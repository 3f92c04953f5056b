"""Lettermint over its HTTP API: https://lettermint.co/docs/api-reference/sending/send

Lettermint remembers an idempotency key for 24 hours from its first use, per project
(https://lettermint.co/docs/platform/emails/idempotency): the same request is answered with the first one's id, so an
unanswered mail is settled by asking again. With a team's API token it can be asked, too: each mail carries a digest of
its provider key as its tag, and the list of messages is filtered by that
(https://lettermint.co/docs/api-reference/team/message). How soon a mail is listed is not documented.

An error is ``{"error": code, "message": …}``, or the same inside ``error``; an older form has ``message`` alone. Only
few codes are documented, so the table goes by the status where nothing is said:

==============================================  ============================================================
answer                                          outcome
==============================================  ============================================================
2xx with a ``message_id``                       ``Accepted``
the same, its ``status`` is ``suppressed``,     ``Refused`` if it went to one recipient alone; of several, it is
``blocked`` or ``policy_rejected``              not said who is meant: ``Accepted``
2xx without ``message_id``                      ``Unanswered``: success is read from the body
409 422, ``invalid_idempot…`` or a message      ``Unanswered``, ``key_mismatch``: our fault, never a fresh key. It
about the idempotency key                       was 422 once, and is 409 now
any other 409                                   ``Unanswered``: still in progress; wait, then the same key again
400 ``invalid_idempot…``                        ``AccountFault``: no mail can change it
4xx ``DailyLimitExceeded`` and the like         ``AccountFault``: the quota is used up
403 422 about the domain or the field ``from``  ``AccountFault`` of the From domain
400 413 422                                     ``Refused``
401 402 403 404 405, 3xx, every other 4xx       ``AccountFault``: the token, its rights, or ``base_url``
429                                             ``Deferred`` as long as ``Retry-After`` says
408 421 425, 5xx                                ``Unanswered``
==============================================  ============================================================
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from pydantic import Field, SecretStr, field_validator

from sendonce.activities.transports.base import Asked, Capability, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.http_account import ProviderSettings, is_header_value
from sendonce.activities.transports.http_answer import Answer, as_code, by_status, key_mismatch, no_id
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_fields import all_shown, groups_with_to, in_base64, is_related, shown
from sendonce.message import OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Refused, Reply, same_for_all, storable

__all__ = ["LettermintSettings", "LettermintTransport", "classify"]

_NOT_SENT = frozenset({"suppressed", "blocked", "policy_rejected"})
_KEY = re.compile(r"invalid_idempot", re.I)
_QUOTA = re.compile(r"(?:daily|monthly)_?limit_?exceeded|quota", re.I)
_SENDER = re.compile(r"domain|sender", re.I)
_PAGE = 10
"""Messages asked for. One offer is one message; more than one is somebody's second offer."""


class LettermintSettings(ProviderSettings):
    """One Lettermint project. ``api_key`` is its sending token."""

    provider: ClassVar[str] = "lettermint"

    base_url: str = Field("https://api.lettermint.co/v1", max_length=300)
    """Where the API is, with its version."""
    key_window: float | None = Field(86400, gt=0, le=30 * 86400)
    """Seconds from the first offer for which Lettermint knows a key: 24 hours are documented. None: nothing is
    replayed."""
    team_token: SecretStr | None = None
    """The API token of the project's team, with which unanswered mail is looked for. A secret. None: it is not."""
    route: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,100}$")
    """The slug of the route that mails go through. None: the project's default one."""

    @field_validator("team_token")
    @classmethod
    def _sendable_too(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not is_header_value(token.get_secret_value()):
            raise ValueError("team_token: must be printable ASCII without spaces around it; was it copied whole?")
        return token


class LettermintTransport(HttpTransport):
    """One Lettermint project."""

    settings_model = LettermintSettings

    def __init__(
        self, settings: LettermintSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, f"{settings.base_url}/send", now=now)
        self.settings = settings

    @property
    def capability(self) -> Capability:
        """As documented, 2026-08; asking takes a team's token."""
        return Capability(
            webhook="deliveries, delays, bounces, complaints",
            key="header Idempotency-Key",
            replay="the first answer, with the same id",
            look_up="tag" if self.settings.team_token else "",
        )

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets. Raises :class:`~sendonce.errors.InvalidEmail` for several in Bcc alone."""
        content = mail.content
        envelope = groups_with_to(content, recipients)
        return self._post(
            {
                "route": self.settings.route,
                "from": shown(content.sender),
                "to": all_shown(envelope.to),
                "cc": all_shown(envelope.cc),
                "bcc": all_shown(envelope.bcc),
                "reply_to": all_shown(content.reply_to),
                "subject": content.subject,
                "html": content.html,
                "text": content.text if content.html else content.text or "",
                "headers": content.sent_headers,
                "attachments": _files(content),
                "metadata": {"sendonce_id": mail.email_id, "sendonce_key": mail.key},
                "tag": _offer(provider_key),
            }
        )

    def secrets(self, provider_key: str) -> dict[str, str]:
        """The project's token, and the idempotency key."""
        return {
            "x-lettermint-token": self.settings.api_key.get_secret_value(),
            "Idempotency-Key": provider_key,
        }

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer, alone=len(recipients) == 1))

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`.

        A message that is listed was taken as a whole: whom Lettermint leaves out of it, it reports itself.
        """
        if self.settings.team_token is None:
            raise Asked("no_team_token")
        offer = _offer(question.provider_key)
        query = urlencode({"filter[tag]": offer, "page[size]": _PAGE})
        token = {"Authorization": f"Bearer {self.settings.team_token.get_secret_value()}"}
        answer = await self._client.ask(f"{self.settings.base_url}/messages?{query}", token)
        # Pages come as an object with ``data``; the vendor's types allow a bare list as well.
        messages = answer.content.get("data") if isinstance(answer.content, dict) else answer.content
        if not isinstance(messages, list):
            raise Asked("not_a_list_of_messages")
        for message in messages:
            # Read back: a search that overlooked the filter would show somebody else's mail.
            if not isinstance(message, dict) or message.get("tag") != offer or not message.get("id"):
                continue
            found = Accepted(Reply(answer.status, "found"), storable(str(message["id"])))
            return {recipient.ordinal: found for recipient in question.recipients}
        return {}


def classify(answer: Answer, *, alone: bool = False) -> Outcome:
    """What an answer means for everybody who was offered, as in the table at the top. ``alone``: it is one."""
    code = as_code(answer.at("error.code") or answer.at("error"))
    if answer.ok:
        return _success(answer, alone=alone)
    if not 400 <= answer.status <= 499:
        return by_status(answer, code)
    if answer.status in (400, 409, 422) and (_KEY.search(code) or _about_the_key(answer)):
        return AccountFault(answer.reply(code)) if answer.status == 400 else key_mismatch(answer)
    if _QUOTA.search(code):
        return AccountFault(answer.reply(code), answer.retry_after)
    if answer.status in (403, 422) and (_SENDER.search(code) or _names_from(answer.content)):
        return AccountFault(answer.reply(code), answer.retry_after, scope="sender")
    return by_status(answer, code)


def _success(answer: Answer, *, alone: bool) -> Outcome:
    provider_id, status = answer.at("message_id"), as_code(answer.at("status"))
    if not provider_id:
        return no_id(answer, as_code(answer.at("error.code") or answer.at("error")))
    if alone and status in _NOT_SENT:
        return Refused(answer.reply(status))
    return Accepted(answer.reply(), storable(provider_id))


def _about_the_key(answer: Answer) -> bool:
    """Where no code tells it. A conflict that says nothing of a *different* request is one in progress."""
    message = (answer.at("message") or answer.at("error.message")).lower()
    return "idempotency key" in message and "different" in message


def _names_from(content: Any) -> bool:
    errors = content.get("errors") if isinstance(content, dict) else None
    return isinstance(errors, dict) and "from" in errors


def _offer(provider_key: str) -> str:
    """Provider keys are longer than a tag may be, and hold what it may not."""
    return hashlib.sha256(provider_key.encode()).hexdigest()


def _files(content: OutgoingEmail) -> list[dict[str, str]]:
    return [
        {"filename": file.filename, "content": in_base64(file), "content_type": file.content_type}
        | ({"content_id": file.content_id or ""} if is_related(file, content) else {})
        for file in content.attachments
    ]
