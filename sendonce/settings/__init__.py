"""Settings: ``sendonce.toml`` and the environment, read once by an entry point into one typed object.

The file is ``--config``, else ``SENDONCE_CONFIG``, else ``./sendonce.toml`` if there is one. Everything has a default
but the accounts. Unset means that the driver decides: PostgreSQL by libpq's variables (``PGHOST`` …), Temporal by the
SDK's own environment configuration (``TEMPORAL_ADDRESS`` …, or its ``temporal.toml``).

Wherever a key takes a secret, ``<key>_env = "NAME"`` reads it from that variable and ``<key>_file = "PATH"`` from that
file (relative to the settings file; one line end at its end is dropped). In a table of secrets, such as an HTTP
account's headers, the value may be ``{ env = "NAME" }`` or ``{ file = "PATH" }``, with a ``prefix = "Bearer "``.

TOML has no null: in an account, ``false`` says none for a key that has a default and may be unset.

Secrets are never shown: not by ``repr``, and not in an error.

A name brings in what it needs when it is first used: the command line starts without pydantic and a driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sendonce.settings.compose import build_transports, build_worker_config, temporal_connection, warnings
    from sendonce.settings.loading import load, outline
    from sendonce.settings.model import Outline, Settings

__all__ = [
    "Outline",
    "Settings",
    "build_transports",
    "build_worker_config",
    "load",
    "outline",
    "temporal_connection",
    "warnings",
]

_HOMES = {
    "sendonce.settings.compose": ("build_transports", "build_worker_config", "temporal_connection", "warnings"),
    "sendonce.settings.loading": ("load", "outline"),
    "sendonce.settings.model": ("Outline", "Settings"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sendonce.settings' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found  # once; later uses do not come here
    return found
