"""One attempt by hand, without a store: for trying a transport alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from sendonce.activities.transports.base import Fenced, Job, Mail, Recipient, Transport
from sendonce.message import OutgoingEmail

CREATED_AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
"""When every mail made here was asked for."""


class RecordingGate:
    """A gate that notes what a transport does with it, and refuses when told to."""

    def __init__(
        self,
        *,
        refuse: Exception | None = None,
        too_late: bool = False,
        on_begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``refuse`` is raised by begin; ``too_late`` makes :meth:`offered` raise Fenced; ``on_begin`` is awaited in
        begin.
        """
        self.begun: list[tuple[int, ...]] = []
        """The ordinals of each begin."""
        self.offers = 0
        self.on_begin = on_begin
        self._refuse, self._too_late = refuse, too_late

    async def begin(self, offered: tuple[int, ...]) -> None:
        """See :class:`~sendonce.activities.transports.base.Gate`."""
        self.begun.append(offered)
        if self.on_begin is not None:
            await self.on_begin()
        if self._refuse is not None:
            raise self._refuse

    def offered(self) -> None:
        """See :class:`~sendonce.activities.transports.base.Gate`."""
        if self._too_late:
            raise Fenced
        self.offers += 1


def make_mail(content: OutgoingEmail) -> Mail:
    """The mail as a store would hand it out; its ids follow from its key."""
    return Mail(
        email_id=f"id-{content.key}",
        key=content.key,
        account=content.account,
        message_id=f"<{content.key}@sendonce.test>",
        created_at=CREATED_AT,
        content=content,
    )


def make_job(
    transport: Transport,
    content: OutgoingEmail,
    *,
    provider_key: str | None = None,
    answer_seconds: float = 20.0,
    ordinals: tuple[int, ...] | None = None,
) -> Job:
    """Render ``content`` for its recipients, or for those with ``ordinals``; the provider key is the mail's own."""
    everyone = tuple(Recipient(ordinal, mailbox) for ordinal, mailbox in enumerate(content.recipients()))
    recipients = everyone if ordinals is None else tuple(everyone[ordinal] for ordinal in ordinals)
    key = provider_key or content.key
    return Job(
        rendering=transport.render(make_mail(content), recipients, key),
        envelope_sender=content.envelope_sender if content.envelope_sender is not None else content.sender.mailbox,
        recipients=recipients,
        provider_key=key,
        answer_seconds=answer_seconds,
    )
