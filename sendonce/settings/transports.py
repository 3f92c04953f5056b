"""Which transports an account may name: the ones that come along, and those other packages register."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel

from sendonce.errors import ConfigurationError

GROUP = "sendonce.transports"
"""The entry point group in which other packages register a transport: a class that is made from its settings, with
its pydantic model of them as the class attribute ``settings_model``."""

_BUILT_IN = ("smtp", "http")


def find(name: str) -> tuple[type[Any], type[BaseModel]]:
    """The transport's class and the model of its settings. Raises ConfigurationError for an unknown name."""
    # Imported where needed: a command that sends nothing loads no mail or HTTP client.
    if name == "smtp":
        from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport

        return SmtpTransport, SmtpSettings
    if name == "http":
        from sendonce.activities.transports.http import GatewaySettings, GatewayTransport

        return GatewayTransport, GatewaySettings
    registered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in registered:
        known = ", ".join([*_BUILT_IN, *sorted(set(registered) - set(_BUILT_IN))])
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
