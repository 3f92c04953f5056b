"""The Django app: its checks and its command."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from sendonce.django.system_checks import check_schema, check_settings


class SendonceConfig(AppConfig):
    """``"sendonce.django"`` in ``INSTALLED_APPS``."""

    name = "sendonce.django"
    label = "sendonce"
    verbose_name = "Sendonce"

    def ready(self) -> None:
        """Have ``manage.py check`` look; ``check --database default`` and ``migrate`` look at the schema too."""
        checks.register(check_settings)
        checks.register(check_schema, checks.Tags.database)
