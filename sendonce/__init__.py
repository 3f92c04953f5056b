"""Transactional e-mail from a database row to exactly one message: the public names, and nothing else.

``import sendonce`` alone loads no driver, no HTTP or SMTP client and no Temporal: a name brings in what it needs when
it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sendonce.errors import (
        ConfigurationError,
        IdempotencyConflict,
        InvalidEmail,
        NoSuchEmail,
        SendonceError,
        StoreNotReady,
        TemplateFault,
    )
    from sendonce.events import EventKind
    from sendonce.headers import unsubscribe_headers
    from sendonce.message import Address, Attachment, OutgoingEmail
    from sendonce.policy import LanePolicy, RetryPolicy
    from sendonce.starter import start_now
    from sendonce.store.intake import Enqueued, enqueue, enqueue_many
    from sendonce.store.taking import TakenEvent, take_events
    from sendonce.templates import Templates

__all__ = [
    "Address",
    "Attachment",
    "ConfigurationError",
    "Enqueued",
    "EventKind",
    "IdempotencyConflict",
    "InvalidEmail",
    "LanePolicy",
    "NoSuchEmail",
    "OutgoingEmail",
    "RetryPolicy",
    "SendonceError",
    "StoreNotReady",
    "TakenEvent",
    "TemplateFault",
    "Templates",
    "enqueue",
    "enqueue_many",
    "start_now",
    "take_events",
    "unsubscribe_headers",
]

_HOMES = {
    "sendonce.errors": (
        "ConfigurationError",
        "IdempotencyConflict",
        "InvalidEmail",
        "NoSuchEmail",
        "SendonceError",
        "StoreNotReady",
        "TemplateFault",
    ),
    "sendonce.events": ("EventKind",),
    "sendonce.headers": ("unsubscribe_headers",),
    "sendonce.message": ("Address", "Attachment", "OutgoingEmail"),
    "sendonce.policy": ("LanePolicy", "RetryPolicy"),
    "sendonce.starter": ("start_now",),
    "sendonce.store.intake": ("Enqueued", "enqueue", "enqueue_many"),
    "sendonce.store.taking": ("TakenEvent", "take_events"),
    "sendonce.templates": ("Templates",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sendonce' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found  # once; later uses do not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
