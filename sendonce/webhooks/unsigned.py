"""Providers that sign nothing: a secret that only they and we know comes along with each request."""

from __future__ import annotations

from typing import ClassVar

from sendonce.webhooks.receiver import Delivery, Receiver, needed
from sendonce.webhooks.settings import WebhookSettings
from sendonce.webhooks.signatures import shared_secret

SHORTEST = 16
"""Characters of a shared secret: nothing else stands between anybody and the suppression list."""


class UnsignedReceiver(Receiver):
    """``secret``: one that you made up, in the URL's path, as a password, as a bearer token, or in a header.

    It says nothing about when a request was made, so there is no window: who sees one can repeat it, and its events are
    kept once.
    """

    asks_for_password: ClassVar[bool] = True
    in_query: ClassVar[bool] = False
    """Whether ``?secret=`` counts too."""

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigurationError for a secret that is missing or short."""
        super().__init__(settings)
        what = f"a random one of {SHORTEST} characters or more"
        self._secrets = needed(settings, self.name, what, at_least=SHORTEST)

    async def verify(self, delivery: Delivery) -> None:
        """See :class:`~sendonce.webhooks.receiver.Receiver`."""
        shared_secret(delivery, self._secrets, in_query=self.in_query)
