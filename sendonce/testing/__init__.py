"""The test kit: a pytest plugin with an outbox, a playing provider, a mailbox, and hours that pass at once.

Beside it, servers that play mail providers on loopback, well-behaved or not, for ``sendonce up``, the demo and tests.
The names here are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sendonce.store.testing import clear, install
    from sendonce.testing.kit.arrivals import Arrivals, Arrived, ArrivedFile
    from sendonce.testing.kit.outbox import EnqueuedMail, Outbox, read_outbox
    from sendonce.testing.kit.provider import HttpProvider, Provider, SmtpProvider
    from sendonce.testing.kit.settings import KitSettings
    from sendonce.testing.kit.world import Sendonce

__all__ = [
    "Arrivals",
    "Arrived",
    "ArrivedFile",
    "EnqueuedMail",
    "HttpProvider",
    "KitSettings",
    "Outbox",
    "Provider",
    "Sendonce",
    "SmtpProvider",
    "clear",
    "install",
    "read_outbox",
]

_HOMES = {
    "sendonce.store.testing": ("clear", "install"),
    "sendonce.testing.kit.arrivals": ("Arrivals", "Arrived", "ArrivedFile"),
    "sendonce.testing.kit.outbox": ("EnqueuedMail", "Outbox", "read_outbox"),
    "sendonce.testing.kit.provider": ("HttpProvider", "Provider", "SmtpProvider"),
    "sendonce.testing.kit.settings": ("KitSettings",),
    "sendonce.testing.kit.world": ("Sendonce",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sendonce.testing' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found  # once; later uses do not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
