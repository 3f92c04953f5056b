"""Which transports an account may name: the ones that come along, and those other packages register."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel

from sendonce.errors import ConfigurationError

GROUP = "sendonce.transports"
"""The entry point group in which other packages register a transport: a class that is made from its settings, with
its pydantic model of them as the class attribute ``settings_model``."""

BUILT_IN: dict[str, tuple[str, str, str]] = {
    "smtp": ("sendonce.activities.transports.smtp", "SmtpTransport", "SmtpSettings"),
    "http": ("sendonce.activities.transports.http", "GatewayTransport", "GatewaySettings"),
    "resend": ("sendonce.activities.transports.resend", "ResendTransport", "ResendSettings"),
    "postmark": ("sendonce.activities.transports.postmark", "PostmarkTransport", "PostmarkSettings"),
    "brevo": ("sendonce.activities.transports.brevo", "BrevoTransport", "BrevoSettings"),
    "ses": ("sendonce.activities.transports.ses", "SesTransport", "SesSettings"),
    "sendgrid": ("sendonce.activities.transports.sendgrid", "SendGridTransport", "SendGridSettings"),
    "mailgun": ("sendonce.activities.transports.mailgun", "MailgunTransport", "MailgunSettings"),
    "sparkpost": ("sendonce.activities.transports.sparkpost", "SparkPostTransport", "SparkPostSettings"),
    "lettermint": ("sendonce.activities.transports.lettermint", "LettermintTransport", "LettermintSettings"),
    "ahasend": ("sendonce.activities.transports.ahasend", "AhaSendTransport", "AhaSendSettings"),
    "mailjet": ("sendonce.activities.transports.mailjet", "MailjetTransport", "MailjetSettings"),
    "azure": ("sendonce.activities.transports.azure", "AzureTransport", "AzureSettings"),
}
"""Those that come along: module, class, and model of the settings, by the name that an account gives."""
"""Module, class and settings of each."""


def find(name: str) -> tuple[type[Any], type[BaseModel]]:
    """The transport's class and the model of its settings. Raises ConfigurationError for an unknown name."""
    if name in BUILT_IN:
        # Imported where needed: a command that sends nothing loads no mail or HTTP client.
        place, transport, settings = BUILT_IN[name]
        module = import_module(place)
        return getattr(module, transport), getattr(module, settings)
    registered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in registered:
        known = ", ".join([*BUILT_IN, *sorted(set(registered) - set(BUILT_IN))])
        raise ConfigurationError(f"there is no transport {name!r}; known are {known}")
    try:
        factory = registered[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{registered[name].value} cannot be loaded ({type(error).__name__}); its package must be repaired"
        ) from None
    model = getattr(factory, "settings_model", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigurationError(f"{registered[name].value} has no settings_model; its package must be repaired")
    return factory, model
