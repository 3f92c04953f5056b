"""Postmark: https://postmarkapp.com/developer/webhooks/webhooks-overview. Nothing is signed; the URL may hold a user
and a password, and headers can be added.

Record types, and a bounce's ``Type`` (https://postmarkapp.com/developer/api/bounce-api#bounce-types):

==============================================================================  ================
RecordType                                                                      kind
==============================================================================  ================
``Delivery``                                                                    ``delivered``
``Bounce``: ``HardBounce``, ``BadEmailAddress``                                 ``bounced``
``Bounce``: ``Transient``                                                       ``delayed``
``Bounce``: ``SoftBounce``, ``DnsError``, ``SpamNotification``, ``Blocked``,    ``soft_bounced``
``DMARCPolicy``, ``VirusNotification``, ``Unknown``
``Bounce``: ``ManuallyDeactivated``, ``SMTPApiError``,                          ``dropped``
``TemplateRenderingFailed``
``Bounce``: ``SpamComplaint``; ``SpamComplaint``                                ``complained``
others, such as automatic replies                                               nothing
==============================================================================  ================

``SpamNotification`` is the word of a filter, not of a person. Of ``SubscriptionChange`` nothing is read: bounces and
complaints have records of their own.
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.events import EventKind
from sendonce.webhooks.reading import Node, build, digest, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Taken
from sendonce.webhooks.unsigned import UnsignedReceiver

BOUNCES = {
    "HardBounce": EventKind.BOUNCED,
    "BadEmailAddress": EventKind.BOUNCED,
    "Transient": EventKind.DELAYED,
    "SoftBounce": EventKind.SOFT_BOUNCED,
    "DnsError": EventKind.SOFT_BOUNCED,
    "SpamNotification": EventKind.SOFT_BOUNCED,
    "Blocked": EventKind.SOFT_BOUNCED,
    "DMARCPolicy": EventKind.SOFT_BOUNCED,
    "VirusNotification": EventKind.SOFT_BOUNCED,
    "Unknown": EventKind.SOFT_BOUNCED,
    "ManuallyDeactivated": EventKind.DROPPED,
    "SMTPApiError": EventKind.DROPPED,
    "TemplateRenderingFailed": EventKind.DROPPED,
    "SpamComplaint": EventKind.COMPLAINED,
}


class PostmarkWebhook(UnsignedReceiver):
    """See :class:`~sendonce.webhooks.unsigned.UnsignedReceiver`."""

    name: ClassVar[str] = "postmark"

    async def read(self, delivery: Delivery) -> Taken:
        """One event, or none."""
        record = Node.parse(delivery.body)
        kinds = {
            "Delivery": EventKind.DELIVERED,
            "Bounce": BOUNCES.get(record["Type"].text),
            "SpamComplaint": EventKind.COMPLAINED,
        }
        kind = kinds.get(record["RecordType"].text)
        recipient = mailbox(record.first("Recipient", "Email").text)
        if kind is None or not recipient:
            return Taken()
        message_id = record["MessageID"].text
        moment = record.first("DeliveredAt", "BouncedAt")
        # A bounce has a number of its own, a delivery has none; a number may first be Transient and HardBounce later.
        told_apart = (record["RecordType"].text, record["Type"].text, record["ID"].text)
        return Taken(
            (
                build(
                    self.source,
                    digest(*told_apart, message_id, recipient, moment.text),
                    kind,
                    at=moment.moment,
                    email_id=own_id(record["Metadata"]),
                    provider_id=message_id,
                    recipient=recipient,
                    reply=smtp_reply(record.first("Details", "Description").text),
                ),
            )
        )
