"""Resend: https://resend.com/docs/webhooks/introduction, signed by Svix
(https://docs.svix.com/receiving/verifying-payloads/how-manual): HMAC-SHA256, in base64, over
``svix-id.svix-timestamp.body``, under what follows ``whsec_`` in the signing secret, base64-decoded. Each try is signed
anew.

Event types (https://resend.com/docs/webhooks/event-types; bounces as at Amazon SES,
https://resend.com/docs/dashboard/emails/email-bounces):

=================================================  ================
type                                               kind
=================================================  ================
``email.sent``                                     ``accepted``
``email.delivered``                                ``delivered``
``email.delivery_delayed``                         ``delayed``
``email.bounced``, bounce.type ``Permanent``       ``bounced``
\\- its subType ``Suppressed`` and the like         ``dropped``
``email.bounced``, any other bounce.type           ``soft_bounced``
``email.suppressed``, ``email.failed``             ``dropped``
``email.complained``                               ``complained``
others                                             nothing
=================================================  ================

``data.to`` is documented as the recipients concerned. Where it names several, whom exactly is not said, and nobody is
called bounced for another: such an event is ``accepted``, for the mail as a whole.
"""

from __future__ import annotations

from typing import ClassVar

from sendonce.errors import ConfigurationError
from sendonce.events import EventKind
from sendonce.outcome import Reply
from sendonce.webhooks.reading import Node, build, mailbox, own_id, smtp_reply
from sendonce.webhooks.receiver import Delivery, Receiver, Taken, needed
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import decoded, standard_webhook

KINDS = {
    "email.sent": EventKind.ACCEPTED,
    "email.delivered": EventKind.DELIVERED,
    "email.delivery_delayed": EventKind.DELAYED,
    "email.bounced": EventKind.BOUNCED,
    "email.suppressed": EventKind.DROPPED,
    "email.failed": EventKind.DROPPED,
    "email.complained": EventKind.COMPLAINED,
}
_WHAT = "the webhook's signing secret, which begins with whsec_"


class ResendWebhook(Receiver):
    """``secret``: the webhook's signing secret."""

    name: ClassVar[str] = "resend"

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigurationError for a secret that is missing or none of Svix's."""
        super().__init__(settings)
        keys = [decoded(secret.removeprefix("whsec_")) for secret in needed(settings, self.name, _WHAT)]
        self._keys = [key for key in keys if key]
        if len(self._keys) < len(keys):
            raise ConfigurationError(f"webhook of {self.name}: a secret is no base64; write {_WHAT}")

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        standard_webhook("svix", delivery, self._keys, self.seconds)

    async def read(self, delivery: Delivery) -> Taken:
        """One event, or none."""
        event = Node.parse(delivery.body)
        kind = KINDS.get(event["type"].text)
        if kind is None:
            return Taken()
        data = event["data"]
        bounce = data["bounce"]
        if kind is EventKind.BOUNCED:
            kind = _bounce(bounce)
        to = [mailbox(one.text) for one in data["to"].each]
        if len(to) > 1:
            kind = EventKind.ACCEPTED
        said = "\n".join(one.text for one in bounce["diagnosticCode"].each) or bounce["message"].text
        return Taken(
            (
                build(
                    self.source,
                    delivery.headers.get("svix-id", ""),
                    kind,
                    at=event["created_at"].moment,
                    email_id=own_id(data["tags"]),
                    provider_id=data["email_id"].text,
                    recipient=to[0] if len(to) == 1 else "",
                    reply=smtp_reply(said) if said else Reply(),
                ),
            )
        )


def _bounce(bounce: Node) -> EventKind:
    if bounce["type"].text != "Permanent":
        return EventKind.SOFT_BOUNCED
    return EventKind.DROPPED if "suppress" in bounce["subType"].text.lower() else EventKind.BOUNCED
