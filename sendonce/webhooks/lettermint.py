"""Lettermint: https://docs.lettermint.co/platform/webhooks/introduction. ``X-Lettermint-Signature: t=…,v1=…``, the hex
of HMAC-SHA256 over ``t.body`` under the signing secret (https://docs.lettermint.co/platform/webhooks/signed-webhooks).

Event types (https://docs.lettermint.co/platform/webhooks/events):

======================================================================  ================
event                                                                   kind
======================================================================  ================
``message.created``, ``message.sent``                                   ``accepted``
``message.delivered``                                                   ``delivered``
``message.soft_bounced``                                                ``soft_bounced``
``message.hard_bounced``                                                ``bounced``
``message.failed``, ``message.suppressed``, ``message.policy_rejected``  ``dropped``
``message.spam_complaint``                                              ``complained``
others                                                                  nothing
======================================================================  ================
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.events import EventKind
from sendonce.outcome import Reply
from sendonce.webhooks.reading import Node, build, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Receiver, Rejected, Taken, needed
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import fresh, mac, same

KINDS = {
    "message.created": EventKind.ACCEPTED,
    "message.sent": EventKind.ACCEPTED,
    "message.delivered": EventKind.DELIVERED,
    "message.soft_bounced": EventKind.SOFT_BOUNCED,
    "message.hard_bounced": EventKind.BOUNCED,
    "message.failed": EventKind.DROPPED,
    "message.suppressed": EventKind.DROPPED,
    "message.policy_rejected": EventKind.DROPPED,
    "message.spam_complaint": EventKind.COMPLAINED,
}


class LettermintWebhook(Receiver):
    """``secret``: the webhook's signing secret."""

    name: ClassVar[str] = "lettermint"

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigurationError when the secret is missing."""
        super().__init__(settings)
        self._secrets = needed(settings, self.name, "the webhook's signing secret")

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        header = delivery.headers.get("x-lettermint-signature", "")
        parts = dict(part.strip().split("=", 1) for part in header.split(",") if "=" in part)
        timestamp, given = parts.get("t", ""), parts.get("v1", "")
        if not given:
            raise Rejected("no signature")
        fresh(timestamp, delivery.now, self.seconds)
        message = timestamp.encode() + b"." + delivery.body
        if not same(given, [mac(secret, message).hex() for secret in self._secrets]):
            raise Rejected("wrong signature")

    async def read(self, delivery: Delivery) -> Taken:
        """One event, or none."""
        event = Node.parse(delivery.body)
        kind = KINDS.get(event["event"].text)
        if kind is None or not event["id"].text:
            return Taken()
        data = event["data"]
        said = data["response"]
        recipient = mailbox(data["recipient"].text)
        # Without one it is about the mail as a whole, which only says that it was taken.
        if not recipient and kind is not EventKind.DROPPED:
            kind = EventKind.ACCEPTED
        return Taken(
            (
                build(
                    self.source,
                    event["id"].text,
                    kind,
                    at=event.first("timestamp", "created_at").moment,
                    email_id=own_id(data["metadata"]),
                    provider_id=data["message_id"].text,
                    recipient=recipient,
                    reply=smtp_reply(said["content"].text, said["status_code"].text, said["enhanced_status_code"].text)
                    if said.members
                    else Reply(text=data["reason"].text),
                ),
            )
        )
