"""Mailjet: https://dev.mailjet.com/email/guides/webhooks/. Nothing is signed; the URL may hold a user and a password.

Event types; ``error_related_to`` and ``error`` as in the table of errors there:

=======================================================================  ================
event                                                                    kind
=======================================================================  ================
``sent``                                                                 ``delivered``
``bounce``, hard_bounce, related to ``recipient`` or ``domain``          ``bounced``
``bounce``, not hard_bounce, error ``greylisted``                        ``delayed``
``bounce`` otherwise                                                     ``soft_bounced``
``blocked``                                                              ``dropped``
``spam``                                                                 ``complained``
others                                                                   nothing
=======================================================================  ================

``sent`` means that the recipient's server took it. Events have no ids. "Group events" sends arrays of them.
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.events import Event, EventKind
from sendonce.webhooks.reading import Node, build, digest, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Taken
from sendonce.webhooks.unsigned import UnsignedReceiver

KINDS = {
    "sent": EventKind.DELIVERED,
    "bounce": EventKind.BOUNCED,
    "blocked": EventKind.DROPPED,
    "spam": EventKind.COMPLAINED,
}
_OF_THE_ADDRESS = {"recipient", "domain", ""}


class MailjetWebhook(UnsignedReceiver):
    """See :class:`~sendonce.webhooks.unsigned.UnsignedReceiver`."""

    name: ClassVar[str] = "mailjet"

    async def read(self, delivery: Delivery) -> Taken:
        """As many events as can be read."""
        events = (self._event(node) for node in Node.parse(delivery.body).each)
        return Taken(tuple(event for event in events if event))

    def _event(self, event: Node) -> Event | None:
        kind = KINDS.get(event["event"].text)
        recipient = mailbox(event["email"].text)
        if kind is None or not recipient:
            return None
        if kind is EventKind.BOUNCED:
            kind = _bounce(event)
        message_id = event["MessageID"].text
        return build(
            self.source,
            digest(event["event"].text, message_id, recipient, event["time"].text),
            kind,
            at=event["time"].moment,
            email_id=own_id(event["Payload"], event["CustomID"]),
            provider_id=message_id,
            recipient=recipient,
            reply=smtp_reply(event["smtp_reply"].text or event["comment"].text or event["error"].text),
        )


def _bounce(event: Node) -> EventKind:
    if event["hard_bounce"].value is True:
        return EventKind.BOUNCED if event["error_related_to"].text in _OF_THE_ADDRESS else EventKind.SOFT_BOUNCED
    return EventKind.DELAYED if event["error"].text == "greylisted" else EventKind.SOFT_BOUNCED
