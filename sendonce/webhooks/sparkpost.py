"""SparkPost: https://developers.sparkpost.com/api/webhooks/. Nothing is signed; a webhook may send a user and a
password, or a token.

Event types (https://support.sparkpost.com/docs/tech-resources/webhook-event-reference), and a bounce's class
(https://support.sparkpost.com/docs/deliverability/bounce-classification-codes):

==============================================================================  ================
type                                                                            kind
==============================================================================  ================
``injection``                                                                   ``accepted``
``delay``                                                                       ``delayed``
``delivery``                                                                    ``delivered``
``bounce``, ``out_of_band``: 10, 30                                             ``bounced``
``bounce``, ``out_of_band``: 25 (policies of SparkPost)                         ``dropped``
``bounce``, ``out_of_band``: 60, 80, 90, 100 (replies of people and machines)   nothing
``bounce``, ``out_of_band``: any other class                                    ``soft_bounced``
``policy_rejection``, ``generation_failure``, ``generation_rejection``          ``dropped``
``spam_complaint``                                                              ``complained``
others                                                                          nothing
==============================================================================  ================
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.events import Event, EventKind
from sendonce.webhooks.reading import Node, build, digest, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Taken
from sendonce.webhooks.unsigned import UnsignedReceiver

KINDS = {
    "injection": EventKind.ACCEPTED,
    "delay": EventKind.DELAYED,
    "delivery": EventKind.DELIVERED,
    "bounce": EventKind.BOUNCED,
    "out_of_band": EventKind.BOUNCED,
    "policy_rejection": EventKind.DROPPED,
    "generation_failure": EventKind.DROPPED,
    "generation_rejection": EventKind.DROPPED,
    "spam_complaint": EventKind.COMPLAINED,
}
CLASSES = {
    "10": EventKind.BOUNCED,
    "30": EventKind.BOUNCED,
    "25": EventKind.DROPPED,
    "60": None,
    "80": None,
    "90": None,
    "100": None,
}


class SparkPostWebhook(UnsignedReceiver):
    """See :class:`~sendonce.webhooks.unsigned.UnsignedReceiver`."""

    name: ClassVar[str] = "sparkpost"

    async def read(self, delivery: Delivery) -> Taken:
        """As many events as can be read."""
        found = []
        for element in Node.parse(delivery.body).each:
            # {"msys": {"message_event": {…}}}; a ping has an empty msys.
            for value in element["msys"].members.values():
                event = self._event(Node(value))
                if event:
                    found.append(event)
        return Taken(tuple(found))

    def _event(self, event: Node) -> Event | None:
        kind = KINDS.get(event["type"].text)
        if kind is EventKind.BOUNCED:
            kind = CLASSES.get(event["bounce_class"].text, EventKind.SOFT_BOUNCED)
        recipient = mailbox(event.first("raw_rcpt_to", "rcpt_to").text)
        if kind is None or not recipient:
            return None
        transmission = event["transmission_id"].text
        return build(
            self.source,
            event["event_id"].text or digest(event["type"].text, transmission, recipient, event["timestamp"].text),
            kind,
            at=event["timestamp"].moment,
            email_id=own_id(event["rcpt_meta"]),
            provider_id=transmission,
            recipient=recipient,
            reply=smtp_reply(event.first("raw_reason", "reason").text, event["error_code"].text),
        )
