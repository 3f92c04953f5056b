"""Twilio SendGrid's signed Event Webhook:
https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features.
``X-Twilio-Email-Event-Webhook-Signature`` is the base64 of an ECDSA signature (P-256, SHA-256) over the value of
``X-Twilio-Email-Event-Webhook-Timestamp`` followed by the body. SendGrid retries for 24 hours and does not say that it
signs anew: 25 are allowed.

Event types (https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event):

======================================  ================
event                                   kind
======================================  ================
``processed``                           ``accepted``
``deferred``                            ``delayed``
``delivered``                           ``delivered``
``bounce``, type ``bounce``             ``bounced``
``bounce``, type ``blocked`` or other   ``soft_bounced``
``dropped``                             ``dropped``
``spamreport``                          ``complained``
others                                  nothing
======================================  ================

Custom arguments come back as members of the event. ``sg_message_id`` begins with what ``X-Message-Id`` was.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, ClassVar

from sendonce.errors import ConfigurationError
from sendonce.events import Event, EventKind
from sendonce.webhooks.reading import Node, build, digest, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Receiver, Rejected, Taken, needed
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import decoded, fresh

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

KINDS = {
    "processed": EventKind.ACCEPTED,
    "deferred": EventKind.DELAYED,
    "delivered": EventKind.DELIVERED,
    "bounce": EventKind.BOUNCED,
    "dropped": EventKind.DROPPED,
    "spamreport": EventKind.COMPLAINED,
}
_HEADER = "x-twilio-email-event-webhook-"
_WHAT = "the verification key of the signed event webhook, as SendGrid shows it"
_AFTER_ID = re.compile(r"\.(?:filter|recvd)")


class SendGridWebhook(Receiver):
    """``secret``: the verification key, which is public."""

    name: ClassVar[str] = "sendgrid"
    tolerance: ClassVar[float] = 25 * 3600.0

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigurationError for a key that is missing or none."""
        super().__init__(settings)
        self._keys = [_public_key(secret) for secret in needed(settings, self.name, _WHAT)]

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        signature = decoded(delivery.headers.get(f"{_HEADER}signature", ""))
        timestamp = delivery.headers.get(f"{_HEADER}timestamp", "")
        if not signature:
            raise Rejected("no signature")
        fresh(timestamp, delivery.now, self.seconds)
        for key in self._keys:
            try:
                key.verify(signature, timestamp.encode() + delivery.body, ECDSA(SHA256()))
            except InvalidSignature:
                continue
            return
        raise Rejected("wrong signature")

    async def read(self, delivery: Delivery) -> Taken:
        """As many events as can be read."""
        events = (self._event(node) for node in Node.parse(delivery.body).each)
        return Taken(tuple(event for event in events if event))

    def _event(self, event: Node) -> Event | None:
        kind = KINDS.get(event["event"].text)
        recipient = mailbox(event["email"].text)
        if kind is None or not recipient:
            return None
        if kind is EventKind.BOUNCED and event["type"].text != "bounce":
            kind = EventKind.SOFT_BOUNCED
        message_id = event["sg_message_id"].text
        return build(
            self.source,
            event["sg_event_id"].text or digest(event["event"].text, message_id, recipient, event["timestamp"].text),
            kind,
            at=event["timestamp"].moment,
            email_id=own_id(event),
            provider_id=_AFTER_ID.split(message_id)[0],
            recipient=recipient,
            reply=smtp_reply(event.first("response", "reason").text, enhanced=event["status"].text),
        )


def _public_key(text: str) -> EllipticCurvePublicKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_der_public_key
    except ImportError:
        raise ConfigurationError("webhook of sendgrid: install the extra: pip install 'sendonce[webhooks]'") from None
    bare = "".join(re.sub(r"-----[A-Z ]+-----", "", text).split())
    try:
        key = load_der_public_key(base64.b64decode(bare, validate=True))
    except ValueError:
        key = None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ConfigurationError(f"webhook of sendgrid: secret is no public key on P-256; write {_WHAT}")
    return key
