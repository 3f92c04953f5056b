"""Mailgun: https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks. The body holds
``signature.timestamp``, ``.token`` and ``.signature``, the hex of HMAC-SHA256 over timestamp and token under the
webhook signing key.

**The signature does not cover the event.** Whoever has seen one request could send other events under its signature, so
a token is good for one body: the same body again is Mailgun's own retry. Tokens are remembered by the process that saw
them, up to :data:`TOKENS`. Mailgun retries for eight hours and does not say that it signs anew: twelve are allowed.

Event types (https://documentation.mailgun.com/docs/mailgun/user-manual/events/events):

====================================================================  ================
event                                                                 kind
====================================================================  ================
``accepted``                                                          ``accepted``
``delivered``                                                         ``delivered``
``failed``, severity ``temporary``                                    ``delayed``
``failed``, severity ``permanent``, reason ``bounce``                 ``bounced``
\\- its bounce-type is ``soft``                                        ``soft_bounced``
``failed``, severity ``permanent``, reason ``suppress-…``             ``dropped``
``failed``, severity ``permanent``, any other reason                  ``soft_bounced``
``rejected``                                                          ``dropped``
``complained``                                                        ``complained``
others                                                                nothing
====================================================================  ================
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import ClassVar

from sendonce.events import EventKind
from sendonce.webhooks.reading import Node, bracketed, build, digest, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Receiver, Rejected, Taken, needed
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import fresh, mac, same

TOKENS = 100_000
"""Tokens that are remembered, some 20 MB; the oldest is forgotten first."""

KINDS = {
    "accepted": EventKind.ACCEPTED,
    "delivered": EventKind.DELIVERED,
    "rejected": EventKind.DROPPED,
    "complained": EventKind.COMPLAINED,
}


class MailgunWebhook(Receiver):
    """``secret``: the account's HTTP webhook signing key."""

    name: ClassVar[str] = "mailgun"
    tolerance: ClassVar[float] = 12 * 3600.0

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigurationError when the secret is missing."""
        super().__init__(settings)
        self._secrets = needed(settings, self.name, "the HTTP webhook signing key")
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        signature = Node.parse(delivery.body)["signature"]
        timestamp, token, given = (signature[name].text for name in ("timestamp", "token", "signature"))
        if not token or not given:
            raise Rejected("no signature")
        fresh(timestamp, delivery.now, self.seconds)
        if not same(given, [mac(secret, f"{timestamp}{token}".encode()).hex() for secret in self._secrets]):
            raise Rejected("wrong signature")
        body = hashlib.sha256(delivery.body).digest()
        if self._bodies.setdefault(token, body) != body:
            raise Rejected("the token was used for another body")
        if len(self._bodies) > TOKENS:
            self._bodies.popitem(last=False)

    async def read(self, delivery: Delivery) -> Taken:
        """One event, or none."""
        data = Node.parse(delivery.body)["event-data"]
        kind = _failed(data) if data["event"].text == "failed" else KINDS.get(data["event"].text)
        recipient = mailbox(data["recipient"].text)
        # A rejected mail went to nobody; every other event is about one recipient.
        if kind is None or not (recipient or kind is EventKind.DROPPED):
            return Taken()
        message_id = bracketed(data["message"]["headers"]["message-id"].text)
        status = data["delivery-status"]
        said = status["message"].text or status["description"].text or data["reject"]["reason"].text
        return Taken(
            (
                build(
                    self.source,
                    # An id is unique for a day only.
                    digest(data["id"].text, data["timestamp"].text or str(data["timestamp"].number)),
                    kind,
                    at=data["timestamp"].moment,
                    email_id=own_id(data["user-variables"]),
                    provider_id=message_id,
                    message_id=message_id,
                    recipient=recipient,
                    reply=smtp_reply(said, status["code"].text, status["enhanced-code"].text),
                ),
            )
        )


def _failed(data: Node) -> EventKind:
    if data["severity"].text != "permanent":
        return EventKind.DELAYED
    reason = data["reason"].text
    if reason.startswith("suppress-"):
        return EventKind.DROPPED
    hard = reason == "bounce" and data["delivery-status"]["bounce-type"].text != "soft"
    return EventKind.BOUNCED if hard else EventKind.SOFT_BOUNCED
