"""A transport in a few lines, for those who have one API call to make; the full contract is ``base.Transport``.

What is pinned is the request's body and, beside it, the mail it was made from: ``send`` sees the same at every attempt.
What came of an attempt stands in :mod:`sendonce.activities.transports.simple_attempt`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from sendonce.activities.transports.base import Asked, Capability, Gate, Job, Mail, Question, Recipient, Rendering
from sendonce.activities.transports.json_fields import groups
from sendonce.activities.transports.mime import render_mime
from sendonce.activities.transports.simple_attempt import STOP_SECONDS, Attempt
from sendonce.activities.transports.simple_contract import (
    PermanentError,
    RetryLater,
    SendError,
    SimpleMail,
    SimpleSettings,
    id_of,
)
from sendonce.errors import ConfigurationError, InvalidEmail
from sendonce.message import OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Refused, Reply

__all__ = ["SimpleTransport"]

MAIL = "Sendonce-Mail"
"""The pinned field that holds what the request was made from."""
CLOSE_SECONDS = 5.0
"""How long closing waits for attempts whose connections are still being closed."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
_Settings = TypeVar("_Settings", bound=SimpleSettings)


class SimpleTransport(ABC, Generic[_Settings]):
    """One account at a provider; write ``name``, ``capability`` and :meth:`send`, the rest where it is needed.

    The worker has committed that the mail is about to be offered when ``send`` is called. From then on the mail is
    *unknown* unless ``send`` returns, or raises one of the exceptions that say what is known. Everything runs on the
    worker's event loop: a library that blocks belongs into ``asyncio.to_thread``.
    """

    settings_model: ClassVar[type[SimpleSettings]] = SimpleSettings
    """The model of this transport's settings."""
    gives_id: ClassVar[bool] = True
    """Whether the provider gives each mail an id. True: a success without one counts as none, so that an error page
    taken for an answer, or a forgotten ``return``, loses no mail."""

    def __init__(self, settings: _Settings) -> None:
        """Raises ConfigurationError, naming everything that is wrong, for a class that does not keep the contract."""
        self.settings = settings
        self._attempts: dict[asyncio.Task[None], Attempt] = {}
        if wrong := _wrong(self):
            raise ConfigurationError(f"{type(self).__name__}: {'; '.join(wrong)}")

    @property
    @abstractmethod
    def name(self) -> str:
        """The provider's name, 1 to 40 of lower-case letters, digits, ``_``, ``.`` and ``-``. It must stay: mail that
        was offered under another name is never replayed. Write ``name = "…"``."""

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """What the provider documents. ``Capability()``: it keeps no keys, cannot be asked, and answers for all
        recipients at once; then nothing is replayed. Write ``capability = Capability(…)``."""

    @property
    def key_window(self) -> float | None:
        """How long, in seconds from the first offer, the provider documents that it knows ``idempotency_key`` and
        answers the same request without sending a second mail. None, the default: an unanswered mail is never sent
        again by itself. Needs ``capability.key``."""
        return None

    @abstractmethod
    async def send(self, mail: SimpleMail) -> str | int | Mapping[str, str | int | SendError | None] | None:
        """Make the call, once, and return the provider's id, a text or a number; None where it gives none.

        Or, for a provider that answers by recipient (``capability.per_recipient``), a mapping from each mailbox of
        ``mail.recipients`` to its id or to an exception of the contract, not raised.

        Called once per attempt, for at most the lane's ``answer_seconds``; then the mail is unknown and the call is
        cancelled. One that is cut before its time, as the worker ends, can still return an id; nothing else counts.
        """

    def request(self, mail: SimpleMail) -> bytes:
        """The request's body, to be pinned: ``send`` gets it as ``mail.body``, at every attempt the same.

        ``mail.body`` is the MIME message here, which is what this returns by default. Pure: the same mail, the same
        bytes; no secrets. Called in a thread. Raises PermanentError for content that the provider can never carry.
        """
        return mail.body

    def prepare(self, mail: SimpleMail) -> AbstractAsyncContextManager[Any]:  # noqa: ARG002
        """What comes before the offer, such as connecting; what it yields is ``mail.prepared`` in ``send``.

        An asynchronous context manager (``contextlib.asynccontextmanager``), left when ``send`` has ended. What it
        raises costs no mail: a failed connection is tried again, and a fault of the code waits and counts no attempt.
        It must write nothing that can lead to acceptance. By default there is nothing to prepare.
        """
        return nullcontext()

    async def ask(
        self,
        question: Question,  # noqa: ARG002
    ) -> str | int | Mapping[str, str | int | PermanentError | None] | None:
        """Ask the provider what became of an offer that was not answered; reads only. Needs ``capability.look_up``.

        Returns its id for the mail; or what became of it by mailbox, where a PermanentError says that it was refused;
        or None when nothing is found, which proves nothing. Raises whatever it likes when there is no usable answer,
        RetryLater among it: never a proof. Look for what was ours (``question.provider_key``), and read it back from
        what was found.
        """
        return None

    async def close(self) -> None:
        """Close what is open. Idempotent. A class that overrides it calls ``await super().close()``."""
        for seconds in (CLOSE_SECONDS, STOP_SECONDS):
            if self._attempts:
                _, left = await asyncio.wait(set(self._attempts), timeout=seconds)
                for task in left:
                    self._attempts[task].cut()

    # What follows is the full contract: see sendonce.activities.transports.base.Transport.

    @property
    def identity(self) -> str:
        """``name:scope``."""
        return f"{self.name}:{self.settings.scope}"

    @property
    def settings_digest(self) -> str:
        """From the settings."""
        return self.settings.digest()

    def slot(self, generation: int) -> str:
        """Each generation has a request of its own, as it may name its recipients; and so has each identity."""
        return f"request:{generation}:{hashlib.sha256(self.identity.encode()).hexdigest()[:12]}"

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        head = _head(mail, recipients)
        made = _simple(head, Rendering(render_mime(mail)), recipients, provider_key, _envelope_sender(mail.content))
        try:
            body = self.request(made)
        except PermanentError as error:
            raise InvalidEmail(error.reply.enhanced or "content", error.reply.text) from None
        return Rendering(body, headers=((MAIL, head),))

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        head = dict(job.rendering.headers)[MAIL]
        mail = await asyncio.to_thread(
            _simple,
            head,
            job.rendering,
            job.recipients,
            job.provider_key,
            job.envelope_sender,
            job.answer_seconds,
        )
        attempt = Attempt(self, job, gate, mail, prepare_seconds=self.settings.prepare_seconds)
        self._attempts[attempt.task] = attempt
        attempt.task.add_done_callback(self._attempts.pop)
        return await attempt.result()

    async def look_up(self, question: Question) -> dict[int, Accepted | Refused]:
        """See :class:`~sendonce.activities.transports.base.LooksUp`."""
        try:
            found = await self.ask(question)
        except SendError as error:
            why = error.reply.enhanced or str(error.reply.code or "")
            raise Asked(why, error.after if isinstance(error, RetryLater) else None) from None
        if not isinstance(found, Mapping):
            found = {recipient.mailbox: found for recipient in question.recipients}
        by_mailbox = {mailbox.casefold(): one for mailbox, one in found.items()}
        known: dict[int, Accepted | Refused] = {}
        for recipient in question.recipients:
            one = by_mailbox.get(recipient.mailbox.casefold())
            if isinstance(one, PermanentError):
                known[recipient.ordinal] = Refused(one.reply)
            elif (provider_id := id_of(one)) is not None:
                known[recipient.ordinal] = Accepted(Reply(), provider_id)
        return known


def _head(mail: Mail, recipients: tuple[Recipient, ...]) -> str:
    """The mail as JSON, its lists narrowed to this envelope: the same row, the same text."""
    envelope = groups(mail.content, recipients)
    narrowed = mail.content.model_copy(update={"to": envelope.to, "cc": envelope.cc, "bcc": envelope.bcc})
    head = {
        "email_id": mail.email_id,
        "key": mail.key,
        "account": mail.account,
        "message_id": mail.message_id,
        "created_at": mail.created_at.isoformat(),
        "content": narrowed.to_json(),
        "files": [{**file, "content": base64.b64encode(file["content"]).decode()} for file in narrowed.files()],
    }
    return json.dumps(head, ensure_ascii=False, separators=(",", ":"))


def _simple(
    head: str,
    rendering: Rendering,
    recipients: tuple[Recipient, ...],
    provider_key: str,
    envelope_sender: str,
    answer_seconds: float = 0.0,
) -> SimpleMail:
    read = json.loads(head)
    files = [{**file, "content": base64.b64decode(file["content"])} for file in read["files"]]
    return SimpleMail(
        email_id=read["email_id"],
        key=read["key"],
        account=read["account"],
        message_id=read["message_id"],
        created_at=datetime.fromisoformat(read["created_at"]),
        idempotency_key=provider_key,
        content=OutgoingEmail.from_json(read["content"], files),
        envelope_sender=envelope_sender,
        recipients=tuple(recipient.mailbox for recipient in recipients),
        body=rendering.body,
        answer_seconds=answer_seconds,
    )


def _envelope_sender(content: OutgoingEmail) -> str:
    return content.sender.mailbox if content.envelope_sender is None else content.envelope_sender


def _wrong(made: SimpleTransport[Any]) -> list[str]:
    """What this class does not keep of the contract, in words that say what to write."""
    cls, capability = type(made), made.capability
    model: Any = cls.settings_model
    found = [
        f"{method} must be a coroutine: write async def {method}(self, …)"
        for method in ("send", "ask")
        if not inspect.iscoroutinefunction(getattr(cls, method))
    ]
    if not _NAME.fullmatch(str(made.name)):
        found.append("name must be 1 to 40 of lower-case letters, digits, '_', '.' and '-'")
    if inspect.iscoroutinefunction(cls.request):
        found.append("request must be a plain function: it makes bytes and does nothing else")
    if inspect.iscoroutinefunction(cls.prepare) or inspect.isasyncgenfunction(cls.prepare):
        found.append("prepare must return a context manager: put @contextlib.asynccontextmanager before it")
    if not issubclass(model, SimpleSettings) or model.model_config["extra"] != "forbid":
        found.append("settings_model must be a subclass of SimpleSettings that forbids unknown keys")
    if type(capability) is not Capability:
        found.append("capability must be a Capability: write capability = Capability(), or what the provider documents")
    elif made.key_window is not None and (not capability.key or capability.key_assumed):
        found.append("key_window needs a capability.key that the provider documents: without one nothing is replayed")
    elif bool(capability.look_up) != (cls.ask is not SimpleTransport.ask):
        found.append("ask and capability.look_up go together: write both or neither")
    return found
