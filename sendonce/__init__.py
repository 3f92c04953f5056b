"""Transactional e-mail from a database row to exactly one message: the public names, and nothing else.

``import sendonce`` alone loads no driver, no HTTP or SMTP client and no Temporal: a name brings in what it needs when
it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sendonce.background import BackgroundStarter, LoopStarter
    from sendonce.errors import (
        ConfigurationError,
        IdempotencyConflict,
        InvalidEmail,
        NoSuchEmail,
        SendonceError,
        StoreNotReady,
        TemplateFault,
        WaitTimeout,
    )
    from sendonce.events import EventKind
    from sendonce.final import Final, SignalWorkflow
    from sendonce.headers import unsubscribe_headers
    from sendonce.message import Address, Attachment, OutgoingEmail
    from sendonce.policy import LanePolicy, RetryPolicy
    from sendonce.stages import RecipientStage, Stage
    from sendonce.starter import start_now
    from sendonce.store.asking import Cancelled, CancelOutcome, MailStatus, cancel, status
    from sendonce.store.finals import take_finals
    from sendonce.store.intake import Enqueued, enqueue, enqueue_many
    from sendonce.store.taking import TakenEvent, take_events
    from sendonce.store.waiting import wait
    from sendonce.template import Template
    from sendonce.templates import Templates

__all__ = [
    "Address",
    "Attachment",
    "BackgroundStarter",
    "CancelOutcome",
    "Cancelled",
    "ConfigurationError",
    "Enqueued",
    "EventKind",
    "Final",
    "IdempotencyConflict",
    "InvalidEmail",
    "LanePolicy",
    "LoopStarter",
    "MailStatus",
    "NoSuchEmail",
    "OutgoingEmail",
    "RecipientStage",
    "RetryPolicy",
    "SendonceError",
    "SignalWorkflow",
    "Stage",
    "StoreNotReady",
    "TakenEvent",
    "Template",
    "TemplateFault",
    "Templates",
    "WaitTimeout",
    "cancel",
    "enqueue",
    "enqueue_many",
    "start_now",
    "status",
    "take_events",
    "take_finals",
    "unsubscribe_headers",
    "wait",
]

_HOMES = {
    "sendonce.background": ("BackgroundStarter", "LoopStarter"),
    "sendonce.errors": (
        "ConfigurationError",
        "IdempotencyConflict",
        "InvalidEmail",
        "NoSuchEmail",
        "SendonceError",
        "StoreNotReady",
        "TemplateFault",
        "WaitTimeout",
    ),
    "sendonce.events": ("EventKind",),
    "sendonce.final": ("Final", "SignalWorkflow"),
    "sendonce.headers": ("unsubscribe_headers",),
    "sendonce.message": ("Address", "Attachment", "OutgoingEmail"),
    "sendonce.policy": ("LanePolicy", "RetryPolicy"),
    "sendonce.stages": ("RecipientStage", "Stage"),
    "sendonce.starter": ("start_now",),
    "sendonce.store.finals": ("take_finals",),
    "sendonce.store.asking": ("CancelOutcome", "Cancelled", "MailStatus", "cancel", "status"),
    "sendonce.store.intake": ("Enqueued", "enqueue", "enqueue_many"),
    "sendonce.store.taking": ("TakenEvent", "take_events"),
    "sendonce.store.waiting": ("wait",),
    "sendonce.template": ("Template",),
    "sendonce.templates": ("Templates",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # with it, type checkers would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'sendonce' has no attribute {name!r}")
        found = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = found  # once; later uses do not come here
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
