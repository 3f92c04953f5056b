"""Amazon SES through SNS: https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html and
https://docs.aws.amazon.com/ses/latest/dg/notification-contents.html. Both forms are read. Who wrote is found out in
:mod:`~sendonce.webhooks.sns`; only messages of the topics in the settings are taken. SNS retries for an hour with the
first signature: two are allowed. Raw message delivery must be off, for it has no signature.

Event types:

=========================================================================  ================
eventType, notificationType                                                kind
=========================================================================  ================
``Send``                                                                   ``accepted``
``DeliveryDelay``                                                          ``delayed``
``Delivery``                                                               ``delivered``
``Bounce``, ``Permanent``                                                  ``bounced``
\\- bounceSubType ``Suppressed``, ``OnAccountSuppressionList``,             ``dropped``
``OnTenantSuppressionList``, ``UnsubscribedRecipient``
``Bounce``, ``Transient`` or ``Undetermined``                              ``soft_bounced``
``Complaint``                                                              ``complained``
\\- complaintSubType ``OnAccountSuppressionList``                           ``dropped``
\\- complaintFeedbackType ``not-spam``; several complainedRecipients        ``accepted``
``Reject``, ``Rendering Failure``                                          ``dropped``
others                                                                     nothing
=========================================================================  ================

Several ``complainedRecipients`` are those who *may* have complained: nobody is called a complainer for another.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

import httpx

from sendonce.errors import ConfigurationError
from sendonce.events import Event, EventKind
from sendonce.outcome import Reply
from sendonce.webhooks.reading import Node, build, mailbox, numbered, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Receiver, Rejected, Taken
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import fresh
from sendonce.webhooks.sns import Amazon

KINDS = {
    "Send": (EventKind.ACCEPTED, "send", ""),
    "DeliveryDelay": (EventKind.DELAYED, "deliveryDelay", "delayedRecipients"),
    "Delivery": (EventKind.DELIVERED, "delivery", "recipients"),
    "Bounce": (EventKind.BOUNCED, "bounce", "bouncedRecipients"),
    "Complaint": (EventKind.COMPLAINED, "complaint", "complainedRecipients"),
    "Reject": (EventKind.DROPPED, "reject", ""),
    "Rendering Failure": (EventKind.DROPPED, "failure", ""),
}
"""The kind, the member that tells more, and its list of recipients; without one it is about the whole mail."""

_NOT_TRIED = {"Suppressed", "OnAccountSuppressionList", "OnTenantSuppressionList", "UnsubscribedRecipient"}


class SesWebhook(Receiver):
    """``topics``: the ARNs of the SNS topics. There is no secret."""

    name: ClassVar[str] = "ses"
    tolerance: ClassVar[float] = 2 * 3600.0

    def __init__(self, settings: WebhookSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` as in :class:`~sendonce.webhooks.sns.Amazon`. Raises ConfigurationError without topics."""
        super().__init__(settings)
        if not settings.topics:
            raise ConfigurationError(
                "webhook of ses: topics is missing; write the ARNs of the SNS topics that it is subscribed to"
            )
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise ConfigurationError("webhook of ses: install the extra: pip install 'sendonce[webhooks]'") from None
        self._topics = frozenset(settings.topics)
        self._amazon = Amazon(transport)

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        message = Node.parse(delivery.body)
        if message["TopicArn"].text not in self._topics:
            raise Rejected("not a message of the topics in the settings")
        moment = message["Timestamp"].moment
        fresh(str(int(moment.timestamp())) if moment and moment.year > 1970 else "", delivery.now, self.seconds)
        await self._amazon.check(message, datetime.fromtimestamp(delivery.now, UTC))

    async def read(self, delivery: Delivery) -> Taken:
        """The events, one for each recipient. A subscription is confirmed."""
        message = Node.parse(delivery.body)
        kind = message["Type"].text
        if kind == "SubscriptionConfirmation":
            await self._amazon.confirm(message)
        # storable() would cut the message, which is a document of its own.
        text = message["Message"].value
        if kind != "Notification" or not isinstance(text, str):
            return Taken()
        return Taken(numbered(self._events(message["MessageId"].text, Node.parse(text))))

    def _events(self, event_id: str, event: Node) -> list[Event]:
        found = KINDS.get(event.first("eventType", "notificationType").text)
        if found is None:
            return []
        kind, member, listed = found
        mail, more = event["mail"], event[member]
        recipients = more[listed].each if listed else []
        if kind is EventKind.BOUNCED:
            kind = _bounce(more)
        elif kind is EventKind.COMPLAINED:
            kind = _complaint(more, len(recipients))
        if not recipients:
            if listed:
                # It is about somebody, and does not say whom.
                kind = EventKind.ACCEPTED
            recipients = [Node()]
        return [
            build(
                self.source,
                event_id,
                kind,
                at=more["timestamp"].moment or mail["timestamp"].moment,
                email_id=own_id(mail["tags"], mail["headers"]),
                provider_id=mail["messageId"].text,
                recipient=mailbox(recipient["emailAddress"].text or recipient.text),
                reply=_reply(more, recipient),
            )
            for recipient in recipients
        ]


def _bounce(bounce: Node) -> EventKind:
    if bounce["bounceType"].text != "Permanent":
        return EventKind.SOFT_BOUNCED
    return EventKind.DROPPED if bounce["bounceSubType"].text in _NOT_TRIED else EventKind.BOUNCED


def _complaint(complaint: Node, recipients: int) -> EventKind:
    if complaint["complaintSubType"].text in _NOT_TRIED:
        return EventKind.DROPPED
    one = recipients == 1 and complaint["complaintFeedbackType"].text != "not-spam"
    return EventKind.COMPLAINED if one else EventKind.ACCEPTED


def _reply(more: Node, recipient: Node) -> Reply:
    said = recipient["diagnosticCode"].text or more["smtpResponse"].text or more.first("reason", "errorMessage").text
    return smtp_reply(said, enhanced=recipient["status"].text)
