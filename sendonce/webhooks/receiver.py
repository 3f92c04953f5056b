"""What a provider's module gives: who wrote a delivery, and which events are in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sendonce.errors import ConfigurationError
from sendonce.events import Event
from sendonce.webhooks.settings import WebhookSettings


class Rejected(Exception):
    """It was not written by the provider, or not now. ``why`` is a fixed text of ours and fit for the log."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotNow(Exception):
    """Who wrote it cannot be found out at present; the provider is to try again. ``why`` as in :class:`Rejected`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request as it came. Nothing of it is shown."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    """By lower-case names."""
    now: float
    """When it came, in Unix seconds."""
    path_secret: str = field(default="", repr=False)
    """What follows the account's name in the path."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Taken:
    """What is in a delivery, and what the provider wants to hear."""

    events: tuple[Event, ...] = ()
    content: dict[str, Any] | None = None
    """A JSON body for the answer; None: an empty one."""


class Receiver(ABC):
    """One account's webhook. ``verify`` comes first; ``read`` is called for what it let pass, and never raises for
    what the body holds."""

    name: ClassVar[str]
    """The provider, as in ``transport = "…"``."""
    tolerance: ClassVar[float] = 300.0
    """How old a signature may be, in seconds, unless the settings say otherwise."""
    asks_for_password: ClassVar[bool] = False
    """Whether a 401 invites the provider to send a user and a password (RFC 7617)."""

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises :class:`~sendonce.errors.ConfigurationError` for settings that cannot work."""
        self.seconds = self.tolerance if settings.tolerance_seconds is None else settings.tolerance_seconds

    @property
    def source(self) -> str:
        """The ``source`` of its events."""
        return f"webhook:{self.name}"

    @abstractmethod
    async def verify(self, delivery: Delivery) -> None:
        """Return if the provider wrote it. Raises :class:`Rejected` and :class:`NotNow`."""

    @abstractmethod
    async def read(self, delivery: Delivery) -> Taken:
        """The events in an authentic delivery; what cannot be read is left out. Raises :class:`NotNow`."""


def needed(settings: WebhookSettings, provider: str, what: str, *, at_least: int = 1) -> tuple[str, ...]:
    """The secrets. Raises ConfigurationError when there is none, or one that is shorter than ``at_least``."""
    if settings.secret is None:
        raise ConfigurationError(f"webhook of {provider}: secret is missing; write {what}")
    if min(map(len, settings.secrets)) < at_least:
        raise ConfigurationError(f"webhook of {provider}: a secret has less than {at_least} characters; write {what}")
    return settings.secrets
