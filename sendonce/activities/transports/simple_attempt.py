"""One attempt by a simple transport, made so that whatever its author's code does, it is known what is known.

The author's code runs in a task of its own. It cannot hold the attempt beyond the answer timer, even when it swallows
its cancellation; and the outcome is handed over before its connection is closed.

==============================================  =====================================================
what happened                                   outcome
==============================================  =====================================================
``prepare``: no connection, out of time         ``NotOffered``, counted
``prepare``: certificate not verified           ``AccountFault``
``prepare``: an exception of the contract       what it says; ``MaybeTaken`` is ``NotOffered`` here
``prepare``: any other exception                raised: a fault of ours, nothing was offered, not counted
``send`` returned the provider's id             ``Accepted``
``send`` returned no id                         ``Unanswered``, unless the provider gives none (``gives_id``)
``send`` returned who was answered what         by recipient; who is missing is ``Unanswered``
``send``: an exception of the contract          what it says
``send``: any other exception, out of time      ``Unanswered``
``send``, after it was told to stop             ids count, of whomever it returns one for; nothing else does: its code
                                                was interrupted, the provider said nothing
==============================================  =====================================================

The first word counts: out of time, that is ``Unanswered``, and an id that comes after it is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol

from sendonce.activities.transports.base import Gate, Job, Recipient
from sendonce.activities.transports.http_answer import NO_ID
from sendonce.activities.transports.simple_contract import SendError, SimpleMail, id_of, place_of
from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    NotOffered,
    Outcome,
    Reply,
    Unanswered,
    same_for_all,
)

logger = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long an attempt that is cut waits for its author's code to end."""
LEAVE_SECONDS = 5.0
"""How long leaving ``prepare`` may take; nobody waits for it but :meth:`Attempt.task`."""

_OF_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


class Hooks(Protocol):
    """What the author has written."""

    @property
    def gives_id(self) -> bool: ...

    def prepare(self, mail: SimpleMail) -> AbstractAsyncContextManager[Any]: ...

    async def send(self, mail: SimpleMail) -> str | int | Mapping[str, str | int | SendError | None] | None: ...


class Attempt:
    """One job. ``task`` may outlive :meth:`result`, to close what is open; it never fails."""

    def __init__(self, hooks: Hooks, job: Job, gate: Gate, mail: SimpleMail, *, prepare_seconds: float) -> None:
        """Starts it."""
        self._hooks, self._job, self._gate = hooks, job, gate
        self._prepare_seconds = prepare_seconds
        self._ordinals = tuple(recipient.ordinal for recipient in job.recipients)
        self._known = asyncio.Event()
        self._result: AttemptResult | None = None
        self._error: BaseException | None = None
        self._beginning = self._offered = self._stopped = False
        self.task = asyncio.create_task(self._run(mail), name=f"send {job.provider_key}")
        # Also of one that was cancelled before its first step.
        self.task.add_done_callback(lambda _: self._known.set())

    async def result(self) -> AttemptResult:
        """What came of it. Raises what the gate raised, ``CancelledError``, and what is a fault of the author's."""
        try:
            await self._known.wait()
        except asyncio.CancelledError:
            if not self._known.is_set():
                await self._stop()
        if self._result is not None:
            return self._result
        raise self._error or asyncio.CancelledError

    def cut(self) -> None:
        """Tell the author's code to stop. Whoever cancels the task has to do it by this."""
        self._stopped = True
        self.task.cancel()

    async def _stop(self) -> None:
        """End the author's code. Begin is waited for, however long: it says whether the mail may be offered."""
        self.cut()
        loop = asyncio.get_running_loop()
        end = loop.time() + STOP_SECONDS
        while not self._known.is_set() and (self._beginning or loop.time() < end):
            left = None if self._beginning else end - loop.time()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({self.task}, timeout=left)

    async def _run(self, mail: SimpleMail) -> None:
        try:
            await self._prepared(mail)
        except asyncio.CancelledError as cancelled:
            if self._stopped:
                self._error = cancelled
            elif self._offered:
                self._settle(Unanswered(Reply(text="the call was cancelled from within")))
            else:
                # Nobody cancelled the attempt: the author's code did, and is at fault.
                self._error = RuntimeError("prepare was cancelled from within")
        except Exception as error:
            self._error = error

    async def _prepared(self, mail: SimpleMail) -> None:
        try:
            context = self._hooks.prepare(mail)
            async with asyncio.timeout(self._prepare_seconds):
                prepared = await context.__aenter__()
        except Exception as error:
            self._check_stopped()
            outcome = _not_offered(error, self._job.recipients)
            if outcome is None:
                raise
            self._settle(outcome)
            return
        try:
            await self._offer(replace(mail, prepared=prepared))
        finally:
            await self._leave(context)

    async def _offer(self, mail: SimpleMail) -> None:
        self._check_stopped()
        self._beginning = True
        try:
            await self._gate.begin(self._ordinals)
        finally:
            self._beginning = False
        self._gate.offered()
        self._offered = True
        timer = asyncio.get_running_loop().call_later(self._job.answer_seconds, self._out_of_time)
        try:
            said: object = await self._hooks.send(mail)
        except Exception as error:
            self._check_stopped()
            if isinstance(error, SendError):
                self._settle(error.outcomes(self._job.recipients))
            else:
                self._settle(self._unanswered(f"send raised {place_of(error)}"))
        else:
            if self._stopped:
                said = _ids(said)
            self._settle(self._said(said))
        finally:
            timer.cancel()

    def _check_stopped(self) -> None:
        """The author's code may have swallowed its cancellation, or have taken it for an answer."""
        if self._stopped:
            raise asyncio.CancelledError

    async def _leave(self, context: AbstractAsyncContextManager[Any]) -> None:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await context.__aexit__(None, None, None)
        except Exception as error:
            logger.warning("leaving prepare failed: key=%s %s", self._job.provider_key, place_of(error))

    def _out_of_time(self) -> None:
        self._settle(Unanswered(Reply(text="no answer in time")))
        self.cut()

    def _settle(self, outcome: Outcome | dict[int, Outcome]) -> None:
        """The first word counts."""
        if self._known.is_set():
            return
        if isinstance(outcome, dict):
            self._result = AttemptResult(outcome)
        else:
            self._result = same_for_all(self._ordinals, outcome)
        self._known.set()

    def _said(self, said: object) -> Outcome | dict[int, Outcome]:
        if not isinstance(said, Mapping):
            return self._answered(said)
        by_mailbox = {str(mailbox).casefold(): one for mailbox, one in said.items()}
        why = "was told to stop, and has no id for" if self._stopped else "did not say what became of"
        return {
            recipient.ordinal: self._answered(by_mailbox[recipient.mailbox.casefold()])
            if recipient.mailbox.casefold() in by_mailbox
            else self._unanswered(f"send {why} a recipient")
            for recipient in self._job.recipients
        }

    def _answered(self, one: object) -> Outcome:
        if isinstance(one, SendError):
            return one.outcome
        if one in (None, ""):
            if not self._hooks.gives_id:
                return Accepted(Reply())
            return self._unanswered("send returned no id; set gives_id = False if the provider gives none", NO_ID)
        if (provider_id := id_of(one)) is not None:
            return Accepted(Reply(), provider_id)
        return self._unanswered(f"send returned {type(one).__name__}, which is no id", NO_ID)

    def _unanswered(self, why: str, code: str = "") -> Outcome:
        logger.error("%s: key=%s; the mail is unknown", why, self._job.provider_key)
        return Unanswered(Reply(enhanced=code, text=why))


def _ids(said: object) -> object:
    """What interrupted code has returned, as far as it counts. Raises CancelledError where nothing does."""
    if isinstance(said, Mapping):
        said = {mailbox: one for mailbox, one in said.items() if id_of(one) is not None}
        if said:
            return said
    elif id_of(said) is not None:
        return said
    raise asyncio.CancelledError


def _not_offered(error: Exception, recipients: tuple[Recipient, ...]) -> Outcome | dict[int, Outcome] | None:
    """What it means that ``prepare`` raised this; None: it is a fault of the author's."""
    if isinstance(error, SendError):
        # Nothing was offered: a silence is none yet.
        said = error.outcomes(recipients).items()
        return {o: NotOffered(one.reply) if isinstance(one, Unanswered) else one for o, one in said}
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return AccountFault(Reply(enhanced="certificate", text="TLS: the certificate cannot be verified"))
    if any(isinstance(cause, OSError) and not isinstance(cause, _OF_FILES) for cause in causes):
        return NotOffered(Reply(text=f"prepare: {place_of(error)}"))
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
