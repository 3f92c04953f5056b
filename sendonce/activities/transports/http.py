"""A mail gateway that takes JSON over HTTP: one request per attempt, answered for all recipients at once.

What an answer means stands in :mod:`sendonce.activities.transports.http_replies`, what no answer means in
:mod:`sendonce.activities.transports.http_client`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sendonce.activities.transports.base import Capability, Mail, Recipient, Rendering
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.http_replies import classify
from sendonce.activities.transports.http_settings import GatewaySettings
from sendonce.activities.transports.http_transport import HttpTransport
from sendonce.activities.transports.json_template import fill_template
from sendonce.outcome import AttemptResult, same_for_all

__all__ = ["GatewaySettings", "GatewayTransport"]


class GatewayTransport(HttpTransport):
    """One gateway account."""

    def __init__(self, settings: GatewaySettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """See :class:`~sendonce.activities.transports.http_transport.HttpTransport`."""
        super().__init__(settings, settings.url, now=now)
        self.settings = settings

    @property
    def capability(self) -> Capability:
        """What the settings say of the gateway."""
        if self.settings.key_header is None:
            return Capability()
        return Capability(key=f"header {self.settings.key_header}", replay="as the gateway's settings say")

    @property
    def key_window(self) -> float | None:
        """From the settings, in seconds."""
        return self.settings.key_window

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets."""
        body = fill_template(self.settings.body, mail, recipients, provider_key)
        return Rendering(body, "POST", self.settings.url, (("Content-Type", "application/json"),))

    def secrets(self, provider_key: str) -> dict[str, str]:
        """The headers of the settings, and the key."""
        headers = {name: value.get_secret_value() for name, value in self.settings.headers.items()}
        if self.settings.key_header is not None:
            headers[self.settings.key_header] = provider_key
        return headers

    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """The same for everybody."""
        return same_for_all(tuple(r.ordinal for r in recipients), classify(answer, self.settings))
