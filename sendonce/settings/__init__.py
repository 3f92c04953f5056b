"""Settings: ``sendonce.toml`` and the environment, read once by an entry point into one typed object.

The file is ``--config``, else ``SENDONCE_CONFIG``, else ``./sendonce.toml`` if there is one. Everything has a default
but the accounts. Unset means that the driver decides: PostgreSQL by libpq's variables (``PGHOST`` …), Temporal by the
SDK's own environment configuration (``TEMPORAL_ADDRESS`` …, or its ``temporal.toml``).

Wherever a key takes a secret, ``<key>_env = "NAME"`` reads it from that variable and ``<key>_file = "PATH"`` from that
file (relative to the settings file; one line end at its end is dropped). In a table of secrets, such as an HTTP
account's headers, the value may be ``{ env = "NAME" }`` or ``{ file = "PATH" }``, with a ``prefix = "Bearer "``.

TOML has no null: in an account, ``false`` says none for a key that has a default and may be unset.

Secrets are never shown: not by ``repr``, and not in an error.
"""

from sendonce.settings.compose import build_transports, build_worker_config, temporal_connection, warnings
from sendonce.settings.loading import load
from sendonce.settings.model import Settings

__all__ = ["Settings", "build_transports", "build_worker_config", "load", "temporal_connection", "warnings"]
