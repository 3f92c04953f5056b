"""AhaSend: https://ahasend.com/docs/integrations/webhooks, signed as Standard Webhooks are: HMAC-SHA256, in base64,
over ``webhook-id.webhook-timestamp.body``. Unlike elsewhere the key is the whole secret as it is shown, prefix
included, and is not base64-decoded (https://ahasend.com/docs/api-reference/webhooks/security).

Event types (https://ahasend.com/docs/api-reference/webhooks):

===============================  ================
type                             kind
===============================  ================
``message.reception``            ``accepted``
``message.delivered``            ``delivered``
``message.transient_error``      ``delayed``
``message.failed``               ``bounced``
``message.bounced``              ``bounced``
``message.suppressed``           ``dropped``
others                           nothing
===============================  ================

AhaSend documents ``message.failed`` as a hard bounce. Its events carry no tags or metadata of ours, and it has no event
for complaints.
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.events import EventKind
from sendonce.webhooks.reading import Node, bracketed, build, mailbox
from sendonce.webhooks.receiver import Delivery, Receiver, Taken, needed
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import standard_webhook

KINDS = {
    "message.reception": EventKind.ACCEPTED,
    "message.delivered": EventKind.DELIVERED,
    "message.transient_error": EventKind.DELAYED,
    "message.failed": EventKind.BOUNCED,
    "message.bounced": EventKind.BOUNCED,
    "message.suppressed": EventKind.DROPPED,
}


class AhaSendWebhook(Receiver):
    """``secret``: the webhook's secret."""

    name: ClassVar[str] = "ahasend"

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigurationError when the secret is missing."""
        super().__init__(settings)
        self._keys = [secret.encode() for secret in needed(settings, self.name, "the webhook's secret")]

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        standard_webhook("webhook", delivery, self._keys, self.seconds)

    async def read(self, delivery: Delivery) -> Taken:
        """One event, or none."""
        event = Node.parse(delivery.body)
        kind = KINDS.get(event["type"].text)
        data = event["data"]
        recipient = mailbox(data["recipient"].text)
        if kind is None or not recipient:
            return Taken()
        return Taken(
            (
                build(
                    self.source,
                    delivery.headers.get("webhook-id", ""),
                    kind,
                    at=event["timestamp"].moment,
                    provider_id=data["id"].text,
                    message_id=bracketed(data["message_id_header"].text),
                    recipient=recipient,
                ),
            )
        )
