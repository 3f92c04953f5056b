"""Brevo: https://developers.brevo.com/docs/transactional-webhooks. Nothing is signed; a webhook may send a user and a
password, a token, or headers (https://developers.brevo.com/docs/secured-webhooks).

Event types:

======================================  ================
event                                   kind
======================================  ================
``request``                             ``accepted``
``deferred``                            ``delayed``
``delivered``                           ``delivered``
``soft_bounce``                         ``soft_bounced``
``hard_bounce``, ``invalid_email``      ``bounced``
``blocked``, ``error``                  ``dropped``
``spam``, ``complaint``                 ``complained``
others                                  nothing
======================================  ================

``id`` is the webhook's, not the event's. Of its times only ``ts_epoch`` (milliseconds) is always UTC. A webhook may be
set to send arrays of events.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from sendonce.events import Event, EventKind
from sendonce.webhooks.reading import Node, bracketed, build, digest, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Taken
from sendonce.webhooks.unsigned import UnsignedReceiver

KINDS = {
    "request": EventKind.ACCEPTED,
    "deferred": EventKind.DELAYED,
    "delivered": EventKind.DELIVERED,
    "soft_bounce": EventKind.SOFT_BOUNCED,
    "hard_bounce": EventKind.BOUNCED,
    "invalid_email": EventKind.BOUNCED,
    "blocked": EventKind.DROPPED,
    "error": EventKind.DROPPED,
    "spam": EventKind.COMPLAINED,
    "complaint": EventKind.COMPLAINED,
}


class BrevoWebhook(UnsignedReceiver):
    """See :class:`~sendonce.webhooks.unsigned.UnsignedReceiver`."""

    name: ClassVar[str] = "brevo"

    async def read(self, delivery: Delivery) -> Taken:
        """As many events as can be read."""
        events = (self._event(node) for node in Node.parse(delivery.body).each)
        return Taken(tuple(event for event in events if event))

    def _event(self, event: Node) -> Event | None:
        # The spelling differs between the documentation's examples and its table: hard_bounce, hardBounce.
        kind = KINDS.get(_snake(event["event"].text))
        recipient = mailbox(event["email"].text)
        if kind is None or not recipient:
            return None
        message_id = event.first("message-id", "messageId").text
        moment = event.first("ts_epoch", "ts_event", "ts")
        return build(
            self.source,
            digest(_snake(event["event"].text), message_id, recipient, moment.text),
            kind,
            at=_moment(moment),
            email_id=own_id(event["X-Mailin-custom"], event["tags"], event["tag"], event["headers"]),
            provider_id=message_id,
            message_id=bracketed(message_id),
            recipient=recipient,
            reply=smtp_reply(event["reason"].text),
        )


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _moment(node: Node) -> datetime | None:
    number = node.number
    if number is not None and 1e11 < number < 1e14:
        return datetime.fromtimestamp(number / 1000, UTC)
    return node.moment
