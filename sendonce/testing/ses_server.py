"""Amazon SES's API (version 2) on loopback, as documented: https://docs.aws.amazon.com/ses/latest/APIReference-V2/

``POST /v2/email/outbound-emails`` with raw MIME and a signature that is checked; errors by ``x-amzn-ErrorType``; no
idempotency keys and no look-up. It takes the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import base64
import email
import email.policy
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sendonce.testing.aws_signature import flaw
from sendonce.testing.http_misbehaviour import HttpRule
from sendonce.testing.http_request import HttpAnswer, HttpRequest, Posted, mailbox_of
from sendonce.testing.http_server import HttpServer
from sendonce.testing.mailbox import Mailbox

_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")


def ses_error(status: int, name: str, message: str = "refused") -> HttpAnswer:
    """An error as SES writes it."""
    return status, json.dumps({"message": message}).encode(), (("x-amzn-ErrorType", f"{name}:http://internal.test/"),)


class SesServer(HttpServer):
    """The server; its attributes may be set at any time."""

    path = "/v2/email/outbound-emails"
    id_prefix = "0100"
    secrets: dict[str, str] | None = None
    """Secret keys by access key id; None: any signature of the right form will do."""
    region = "eu-central-1"
    now: Callable[[], datetime] = staticmethod(lambda: datetime.now(UTC))
    """What the times in signatures are compared with."""
    session_token: str | None = None
    """The token that has to come with the credentials; None: none is looked for."""
    verified: frozenset[str] | None = None
    """Mailboxes and domains that are verified; None: all. From has to be one."""
    in_sandbox = False
    """Whether recipients have to be verified too."""
    configuration_sets = frozenset({"transactional"})

    def __init__(self, mailbox: Mailbox | None = None, *rules: HttpRule, **options: Any) -> None:
        """As :class:`~sendonce.testing.http_server.HttpServer`."""
        super().__init__(mailbox, *rules, **options)

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By signature."""
        found = flaw(request, self.secrets, region=self.region, service="ses", now=self.now())
        if found is not None:
            return ses_error(403, f"{found}Exception", "The request could not be authenticated.")
        if self.session_token is not None and request.headers.get("x-amz-security-token") != self.session_token:
            return ses_error(403, "ExpiredTokenException", "The security token included in the request is expired")
        return None

    def other(self, request: HttpRequest) -> HttpAnswer:  # noqa: ARG002 - whatever it is
        """No other endpoint is played."""
        return ses_error(404, "UnknownOperationException")

    def key_of(self, request: HttpRequest) -> str:  # noqa: ARG002 - whatever it holds
        """SES keeps no keys."""
        return ""

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """A message with a From that is verified, 1 to 50 recipients, tags of their alphabet, a set that exists."""
        try:
            content = json.loads(request.body)
            data = base64.b64decode(content["Content"]["Raw"]["Data"], validate=True)
            lists = content["Destination"]
            named = tuple(
                mailbox_of(one) for field in ("To", "Cc", "Bcc") for one in lists.get(f"{field}Addresses", [])
            )
            tags = [tag[half] for tag in content.get("EmailTags", []) for half in ("Name", "Value")]
            message = email.message_from_bytes(data, policy=email.policy.default)
            sender = mailbox_of(str(message["From"]))
        except (ValueError, AttributeError, TypeError, KeyError):
            return ses_error(400, "BadRequestException", "Missing final '@domain'")
        if not 0 < len(named) <= 50 or [] in lists.values() or not all(map(_TAG.fullmatch, tags)):
            return ses_error(400, "BadRequestException", "Recipient count or tag is not valid")
        if content.get("ConfigurationSetName", "transactional") not in self.configuration_sets:
            return ses_error(404, "NotFoundException", "Configuration set does not exist.")
        forwarded = content.get("FeedbackForwardingEmailAddress")
        checked = [sender, *([forwarded] if forwarded else []), *(named if self.in_sandbox else ())]
        if bad := [one for one in checked if not self._is_verified(one)]:
            text = f"Email address is not verified. The following identities failed the check: {', '.join(bad)}"
            return ses_error(400, "MessageRejected", text)
        fields = {name.lower(): str(value) for name, value in message.items()}
        return Posted(sender, named, content, fields, f"<{len(self.mailbox.mails())}@amazonses.test>")

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - others show more of it
        """An id."""
        return 200, json.dumps({"MessageId": provider_id}).encode()

    def _is_verified(self, mailbox: str) -> bool:
        return self.verified is None or bool({mailbox, mailbox.rpartition("@")[2]} & self.verified)
