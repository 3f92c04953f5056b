"""What a test may set: who plays the providers, the lanes, the templates."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendonce.policy import DEFAULT_LANES, LanePolicy

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport
    from sendonce.templates import Templates


@dataclass(frozen=True)
class KitSettings:
    """The installation that a test plays. Override the fixture ``sendonce_settings`` to return another one."""

    accounts: Mapping[str, str | Transport] = field(default_factory=lambda: {"default": "smtp"})
    """By account name, the provider that is played: ``smtp``, ``http`` (the JSON gateway), ``resend``, ``postmark`` or
    ``brevo``; or a transport of your own, which is used as it is."""
    lanes: Mapping[str, LanePolicy] = field(default_factory=lambda: DEFAULT_LANES)
    """By name. Default: the lanes that every installation has."""
    templates: Path | str | None = None
    """The folder of templates. None: mail that names a template waits, with an alarm."""
    default_locale: str | None = None
    """The language of templates without one in their names."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of :class:`~sendonce.worker_config.WorkerConfig`, such as ``fallbacks`` or ``breaker_mails``."""

    @classmethod
    def load(cls, path: Path | str, **changes: Any) -> KitSettings:
        """Lanes, templates and names of accounts from a ``sendonce.toml``; no secret is read, and no variable.

        An account's provider is played if it can be, and else the gateway is. ``changes`` replace fields. Raises
        :class:`~sendonce.errors.ConfigurationError` for a file of which a worker would refuse these parts.
        """
        from sendonce import settings
        from sendonce.testing.kit.playing import KINDS

        found = settings.outline(Path(path))
        named = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("accounts", {})
        accounts = {
            name: kind if (kind := str(account.get("transport"))) in KINDS else "http"
            for name, account in named.items()
        }
        fallbacks = {name: account["fallback"] for name, account in named.items() if "fallback" in account}
        fields: dict[str, Any] = {
            "accounts": accounts or {"default": "smtp"},
            "lanes": found.lanes,
            "templates": found.templates.folder,
            "default_locale": found.templates.default_locale,
            "options": {"fallbacks": fallbacks, "breaker_mails": found.worker.breaker_mails},
        }
        return cls(**{**fields, **changes})

    def library(self) -> Templates | None:
        """The templates. Raises ConfigurationError when the folder is not there."""
        if self.templates is None:
            return None
        from sendonce.templates import Templates

        return Templates(Path(self.templates), self.default_locale)
