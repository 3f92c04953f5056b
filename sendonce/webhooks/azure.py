"""Azure Communication Services through Event Grid:
https://learn.microsoft.com/azure/event-grid/communication-services-email-events. Nothing is signed; a shared secret
stands in the endpoint's query or in a header that the subscription sends along
(https://learn.microsoft.com/azure/event-grid/delivery-properties).

An endpoint must show that it wants the events: in Event Grid's schema by answering with the ``validationCode``
(https://learn.microsoft.com/azure/event-grid/end-point-validation-event-grid-events-schema), in the CloudEvents schema
by answering OPTIONS (https://learn.microsoft.com/azure/event-grid/end-point-validation-cloud-events-schema). Both are
answered for who has the secret only.

``data.status`` of ``Microsoft.Communication.EmailDeliveryReportReceived``:

===========================================  ================
status                                       kind
===========================================  ================
``Delivered``                                ``delivered``
``Expanded`` (a distribution list)           ``accepted``
``Bounced``                                  ``bounced``
``Suppressed``                               ``dropped``
``FilteredSpam``, ``Quarantined``,           ``soft_bounced``
``Failed``
others                                       nothing
===========================================  ================

``data.messageId`` is the id of the operation.
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.events import Event, EventKind
from sendonce.webhooks.reading import Node, bracketed, build, mailbox, smtp_reply
from sendonce.webhooks.receiver import Delivery, Taken
from sendonce.webhooks.unsigned import UnsignedReceiver

STATUSES = {
    "delivered": EventKind.DELIVERED,
    "expanded": EventKind.ACCEPTED,
    "bounced": EventKind.BOUNCED,
    "suppressed": EventKind.DROPPED,
    "filteredspam": EventKind.SOFT_BOUNCED,
    "quarantined": EventKind.SOFT_BOUNCED,
    "failed": EventKind.SOFT_BOUNCED,
}
_REPORT = "Microsoft.Communication.EmailDeliveryReportReceived"
_VALIDATION = "Microsoft.EventGrid.SubscriptionValidationEvent"


class AzureWebhook(UnsignedReceiver):
    """See :class:`~sendonce.webhooks.unsigned.UnsignedReceiver`; the secret may stand in the query too."""

    name: ClassVar[str] = "azure"
    in_query: ClassVar[bool] = True

    async def read(self, delivery: Delivery) -> Taken:
        """As many events as can be read, or the answer to a handshake."""
        found = []
        for event in Node.parse(delivery.body).each:
            kind = event.first("eventType", "type").text
            code = event["data"]["validationCode"].text
            if kind == _VALIDATION and code:
                return Taken(content={"validationResponse": code})
            if kind == _REPORT:
                found.append(self._event(event))
        return Taken(tuple(event for event in found if event))

    def _event(self, event: Node) -> Event | None:
        data = event["data"]
        kind = STATUSES.get(data["status"].text.lower())
        recipient = mailbox(data["recipient"].text)
        if kind is None or not recipient or not event["id"].text:
            return None
        return build(
            self.source,
            event["id"].text,
            kind,
            at=data.first("deliveryAttemptTimestamp", "deliveryAttemptTimeStamp").moment
            or event.first("eventTime", "time").moment,
            provider_id=data["messageId"].text,
            message_id=bracketed(data["internetMessageId"].text),
            recipient=recipient,
            reply=smtp_reply(data["deliveryStatusDetails"]["statusMessage"].text),
        )
