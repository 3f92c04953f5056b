"""What the transports over HTTP share: one request per attempt, its body made for exactly this envelope.

A provider adds how a mail is written for it (``render``), which headers are secret (``secrets``), and what its answers
mean (``classify``).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.http_client import HttpClient, same_origin
from sendonce.activities.transports.json_fields import json_bytes
from sendonce.outcome import AccountFault, AttemptResult, Outcome, Reply, same_for_all


class AccountSettings(Protocol):
    """What is needed of an account's settings here."""

    @property
    def ca_file(self) -> Path | None: ...

    @property
    def connect_seconds(self) -> float: ...

    def identity(self) -> str: ...

    def digest(self) -> str: ...


class HttpTransport(ABC):
    """One account that is reached over HTTP; see :class:`~sendonce.activities.transports.base.Transport`."""

    renders_quickly = True
    """A rendering of a small mail takes less than the way to a thread and back."""

    def __init__(
        self,
        settings: AccountSettings,
        url: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``url`` is where mails are posted; ``now`` is the clock that dates in ``Retry-After`` are compared with.

        Raises OSError or ssl.SSLError when ``ca_file`` cannot be read.
        """
        self._account = settings
        self._url = url
        self._slot = hashlib.sha256(url.encode()).hexdigest()[:12]
        self._client = HttpClient(ca_file=settings.ca_file, connect_seconds=settings.connect_seconds, now=now)

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """What the provider documents."""

    @property
    @abstractmethod
    def key_window(self) -> float | None:
        """Seconds for which the provider documents that it knows a key; None: it keeps none."""

    @property
    def identity(self) -> str:
        """From the settings."""
        return self._account.identity()

    @property
    def settings_digest(self) -> str:
        """From the settings."""
        return self._account.digest()

    def slot(self, generation: int) -> str:
        """The body names its recipients, so each generation has its own; and so has each URL.

        A request that was pinned for another address and never offered is made anew for this one.
        """
        return f"request:{generation}:{self._slot}"

    @abstractmethod
    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """The request without its secrets."""

    @abstractmethod
    def secrets(self, provider_key: str) -> Mapping[str, str]:
        """The headers that are not pinned: credentials, and the key where it travels in a header."""

    async def unpinned(self, job: Job) -> Mapping[str, str] | Outcome:
        """:meth:`secrets` for this job, or why there are none: a provider may have to fetch them, or sign the bytes."""
        return self.secrets(job.provider_key)

    @abstractmethod
    def classify(self, answer: Answer, recipients: tuple[Recipient, ...]) -> AttemptResult:
        """What an answer means for each of those who were offered. Pure."""

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        ordinals = tuple(recipient.ordinal for recipient in job.recipients)
        if not same_origin(job.rendering.url, self._url):
            text = "the request was pinned for another host, and these credentials are not for it: restore the URL"
            return same_for_all(ordinals, AccountFault(Reply(enhanced="url_changed", text=text)))
        headers = await self.unpinned(job)
        if not isinstance(headers, Mapping):
            return same_for_all(ordinals, headers)
        answer = await self._client.offer(job, gate, headers)
        if isinstance(answer, Answer):
            return self.classify(answer, job.recipients)
        return same_for_all(ordinals, answer)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await self._client.close()

    def _post(self, body: Mapping[str, Any]) -> Rendering:
        """A POST of ``body`` as JSON; members that are None, an empty list or an empty object are left out."""
        filled = {name: value for name, value in body.items() if value not in (None, [], {})}
        return Rendering(json_bytes(filled), "POST", self._url, (("Content-Type", "application/json"),))
