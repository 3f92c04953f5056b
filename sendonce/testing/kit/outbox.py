"""What was enqueued, whether or not it was ever delivered: the mails that a transaction sees, filled in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import psycopg

from sendonce.message import Address, Attachment, OutgoingEmail
from sendonce.store.testing import StoredMail, mails
from sendonce.testing.kit.clock import spoken

if TYPE_CHECKING:
    from sendonce.store.callers import AnyAsyncConnection, SyncConnection
    from sendonce.store.intake import Fills


class EnqueuedMail:
    """One mail. Subject, text and HTML are those of its template, if it names one and the templates are known."""

    def __init__(self, stored: StoredMail, templates: Fills | None) -> None:
        self._stored, self._templates = stored, templates

    @property
    def message(self) -> OutgoingEmail:
        """As it was enqueued."""
        return self._stored.message

    @cached_property
    def filled(self) -> OutgoingEmail:
        """With subject, text and HTML made from its template. Raises :class:`~sendonce.errors.TemplateFault`."""
        return self.message if self._templates is None else self._templates.fill(self.message)

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return self.message.key

    @property
    def account(self) -> str:
        """The account that sends it."""
        return self.message.account

    @property
    def lane(self) -> str:
        """The lane that it goes in."""
        return self.message.lane

    @property
    def sender(self) -> Address:
        """The From address."""
        return self.message.sender

    @property
    def recipients(self) -> tuple[str, ...]:
        """The mailboxes of To, Cc and Bcc."""
        return self.message.recipients()

    @property
    def subject(self) -> str:
        """Filled in."""
        return self.filled.subject

    @property
    def text(self) -> str:
        """The plain part, filled in; ``""`` when there is none."""
        return self.filled.text or ""

    @property
    def html(self) -> str:
        """The HTML part, filled in; ``""`` when there is none."""
        return self.filled.html or ""

    @property
    def template(self) -> str | None:
        """The name of its template."""
        return self.message.template

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What the template is filled with."""
        return self.message.parameters or {}

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Its files."""
        return tuple(self.message.attachments)

    @property
    def stage(self) -> str:
        """``pending`` until it is delivered."""
        return self._stored.stage

    def __str__(self) -> str:
        return story(self._stored)

    def __repr__(self) -> str:
        return f"<EnqueuedMail {self}>"


class Outbox(Sequence[EnqueuedMail]):
    """The mails, oldest first. What was rolled back is not among them."""

    def __init__(self, look: Callable[[], list[StoredMail]], templates: Fills | None = None) -> None:
        """``look`` is called again for every question."""
        self._look, self._templates = look, templates

    def all(self) -> list[EnqueuedMail]:
        """All of them, as they are now."""
        return [EnqueuedMail(stored, self._templates) for stored in self._look()]

    def find(self, to: str | None = None, *, key: str | None = None, template: str | None = None) -> list[EnqueuedMail]:
        """Those to this mailbox, with this key, made from this template."""
        return [
            mail
            for mail in self.all()
            if (to is None or to in mail.recipients)
            and (key is None or key == mail.key)
            and (template is None or template == mail.template)
        ]

    def one(self, to: str | None = None, *, key: str | None = None, template: str | None = None) -> EnqueuedMail:
        """The one mail that is like this. Fails when there is none, or several, and shows what there is."""
        __tracebackhide__ = True
        found = self.find(to, key=key, template=template)
        if len(found) == 1:
            return found[0]
        asked = [f"{name} {value!r}" for name, value in (("to", to), ("key", key), ("template", template)) if value]
        wanted = " ".join(["mail", *asked])
        raise AssertionError(f"{len(found)} instead of one {wanted}; {listed(found or self.all())}")

    def __len__(self) -> int:
        return len(self._look())

    @overload
    def __getitem__(self, index: int) -> EnqueuedMail: ...
    @overload
    def __getitem__(self, index: slice) -> list[EnqueuedMail]: ...
    def __getitem__(self, index: int | slice) -> EnqueuedMail | list[EnqueuedMail]:
        return self.all()[index]

    def __iter__(self) -> Iterator[EnqueuedMail]:
        return iter(self.all())

    def __repr__(self) -> str:
        return f"<Outbox: {listed(self.all())}>"


@overload
def read_outbox(connection: SyncConnection, templates: Fills | None = None) -> Outbox: ...
@overload
def read_outbox(connection: AnyAsyncConnection, templates: Fills | None = None) -> Awaitable[Outbox]: ...
def read_outbox(connection: Any, templates: Fills | None = None) -> Outbox | Awaitable[Outbox]:
    """What the transaction of ``connection`` has enqueued, or sees: for tests that roll back, and need no Temporal.

    ``connection`` is what :func:`sendonce.enqueue` takes; for an async one, await the result. ``templates`` fill the
    mails in. It is a look at one moment.
    """
    found = mails(connection)
    if isinstance(found, list):
        return Outbox(lambda: found, templates)
    return _later(found, templates)


async def _later(found: Awaitable[list[StoredMail]], templates: Fills | None) -> Outbox:
    stored = await found
    return Outbox(lambda: stored, templates)


def outbox_of(url: str, templates: Fills | None = None) -> Outbox:
    """What is committed in the database at ``url``, as it is whenever it is asked."""

    def look() -> list[StoredMail]:
        with psycopg.connect(url) as connection:
            return mails(connection)

    return Outbox(look, templates)


# For people ---------------------------------------------------------------------------------------------------------


def story(mail: StoredMail) -> str:
    """Where a mail stands, in a line: ``order-1 to ann@example.org: pending, due in 900 s, last reply 451 4.7.1``."""
    parts = [f"stage {mail.stage}"]
    if mail.due_in is not None and not mail.final:
        parts.append(f"due in {spoken(mail.due_in)}" if mail.due_in > 0 else "due now")
    if mail.held_why is not None:
        parts.append(f"held ({mail.held_why})")
    if mail.attempts:
        parts.append("1 attempt" if mail.attempts == 1 else f"{mail.attempts} attempts")
    if mail.last_reply:
        parts.append(f"last reply {mail.last_reply}")
    shown = f" by template {mail.message.template}" if mail.message.template else ""
    return f"{mail.message.key} to {', '.join(mail.message.recipients())}{shown}: {', '.join(parts)}"


def listed(found: Sequence[EnqueuedMail]) -> str:
    """What was enqueued, a line each."""
    return "enqueued:" + ("".join(f"\n  {mail}" for mail in found) or " nothing (was the transaction committed?)")
