"""Whose webhooks are known. A provider's module is imported when an account names it."""

from __future__ import annotations

from importlib import import_module

from sendonce.errors import ConfigurationError
from sendonce.webhooks.receiver import Receiver
from sendonce.webhooks.settings import WebhookSettings

_CLASSES = {
    "ahasend": "AhaSendWebhook",
    "azure": "AzureWebhook",
    "brevo": "BrevoWebhook",
    "lettermint": "LettermintWebhook",
    "mailgun": "MailgunWebhook",
    "mailjet": "MailjetWebhook",
    "postmark": "PostmarkWebhook",
    "resend": "ResendWebhook",
    "sendgrid": "SendGridWebhook",
    "ses": "SesWebhook",
    "sparkpost": "SparkPostWebhook",
}

PROVIDERS = tuple(sorted(_CLASSES))
"""The names that ``provider`` and ``transport`` may have."""


def make_receiver(transport: str, settings: WebhookSettings) -> Receiver:
    """The receiver for an account that sends by ``transport``.

    Raises :class:`~sendonce.errors.ConfigurationError` for a provider without webhooks, and for settings that cannot
    work.
    """
    provider = settings.provider or transport
    if provider not in _CLASSES:
        raise ConfigurationError(
            f"there is no webhook of {provider!r}; known are {', '.join(PROVIDERS)}. "
            'Where mail goes to one of them by SMTP, write provider = "…"'
        )
    receiver: type[Receiver] = getattr(import_module(f"sendonce.webhooks.{provider}"), _CLASSES[provider])
    return receiver(settings)
