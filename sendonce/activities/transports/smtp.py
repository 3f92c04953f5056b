"""SMTP (RFC 5321): one transaction per attempt, judged per recipient and by phase.

=============================================  ======================================================
what happened                                  outcome
=============================================  ======================================================
no connection, no name, greeting 4xx           ``NotOffered`` for all
greeting or EHLO 5xx, no STARTTLS, bad         ``AccountFault`` for all
certificate, AUTH refused, 530 534 535 538
MAIL refused                                   4xx ``Deferred``, 5xx ``Refused`` for all
RCPT refused                                   4xx ``Deferred``, 5xx ``Refused`` for that recipient
too many recipients (452, 552)                 ``Deferred`` for those beyond the limit
421 at any command                             ``Deferred`` for those not settled before
no reply before the final dot                  ``NotOffered`` for those not settled before
DATA or body refused, reply to the dot         2xx ``Accepted``, 4xx ``Deferred``, 5xx ``Refused``
no reply to the final dot                      ``Unanswered``
=============================================  ======================================================
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from typing import Any

from aiosmtplib import SMTPException, SMTPResponse

from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.activities.transports.mime import render_mime
from sendonce.activities.transports.smtp_connection import STRAY, LineLost, NoLine, SmtpLine, open_line, reason
from sendonce.activities.transports.smtp_replies import queue_id, refusal, too_many
from sendonce.activities.transports.smtp_settings import SmtpSettings, SmtpTimeouts
from sendonce.outcome import (
    Accepted,
    AccountFault,
    AttemptResult,
    Deferred,
    NotOffered,
    Outcome,
    Refused,
    Reply,
    Unanswered,
    same_for_all,
)

__all__ = ["SmtpSettings", "SmtpTimeouts", "SmtpTransport"]

_BLOCK = 64 * 1024
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DOT = re.compile(rb"(?m)^\.")
_NEEDS_UTF8 = "5.6.7"  # RFC 6531 4.2: the relay does not carry internationalised mail
_BAD_MAILBOX = "5.1.3"


class SmtpTransport:
    """One SMTP account. Each attempt opens a connection of its own."""

    capability = Capability(keeps_message_id=True, per_recipient=True)

    def __init__(self, settings: SmtpSettings) -> None:
        """Raises OSError or ssl.SSLError when ``ca_file`` cannot be read."""
        self.settings = settings
        self._context = ssl.create_default_context(cafile=settings.ca_file)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._lines: set[SmtpLine] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def identity(self) -> str:
        """``smtp:host:port:username``."""
        return self.settings.identity()

    @property
    def settings_digest(self) -> str:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        return self.settings.digest()

    @property
    def key_window(self) -> None:
        """None: SMTP knows no idempotency keys."""
        return

    def slot(self, generation: int) -> str:  # noqa: ARG002
        """The same bytes for every envelope."""
        return "mime"

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:  # noqa: ARG002
        """The MIME message. Raises :class:`~sendonce.errors.InvalidEmail`."""
        return Rendering(render_mime(mail))

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        """See :class:`~sendonce.activities.transports.base.Transport`."""
        try:
            line = await open_line(self.settings, self._context)
        except NoLine as error:
            return same_for_all(tuple(r.ordinal for r in job.recipients), error.outcome)
        self._lines.add(line)
        try:
            result = await _Transaction(line, job, gate).run()
        except BaseException:
            self._lines.discard(line)
            line.abort()
            raise
        # The outcome is recorded first; nobody waits for the good-bye.
        task = asyncio.create_task(self._leave(line))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return result

    async def _leave(self, line: SmtpLine) -> None:
        try:
            await line.quit()
        finally:
            self._lines.discard(line)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        for task in list(self._leaving):
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for line in list(self._lines):
            line.abort()


class _Transaction:
    """One job over one line."""

    def __init__(self, line: SmtpLine, job: Job, gate: Gate) -> None:
        self.line, self.job, self.gate = line, job, gate
        self.timeouts = line.settings.timeouts
        self.settled: dict[int, Outcome] = {}

    def rest(self, outcome: Outcome) -> AttemptResult:
        """Everyone who is not settled yet gets this outcome."""
        for recipient in self.job.recipients:
            self.settled.setdefault(recipient.ordinal, outcome)
        return AttemptResult(self.settled)

    async def run(self) -> AttemptResult:
        parameters = self.check_encoding()
        if len(self.settled) == len(self.job.recipients):
            return AttemptResult(self.settled)
        try:
            reply = await self.line.command(b"MAIL", b"FROM:<%s>" % self.job.envelope_sender.encode(), *parameters,
                                            timeout=self.timeouts.mail)  # fmt: skip
            if not 200 <= reply.code <= 299:
                return self.rest(refusal(reply) or self.out_of_place(reply))
            accepted = await self.name_recipients()
            if not accepted:
                return AttemptResult(self.settled)
            reply = await self.line.command(b"DATA", timeout=self.timeouts.data)
            if reply.code != 354:
                return self.rest(refusal(reply) or self.out_of_place(reply))
        except LineLost as lost:
            return self.rest(NotOffered(lost.reply))
        return self.rest(await self.send(accepted))

    def out_of_place(self, reply: Reply) -> NotOffered:
        """A 2xx or 3xx that is no answer to what was said: the pairing is lost."""
        self.line.abort()
        return NotOffered(reply)

    def check_encoding(self) -> list[bytes]:
        """The parameters of MAIL; settles the recipients that this server cannot be given."""
        body, offers = self.job.rendering.body, self.line.extensions
        parameters = [b"SIZE=%d" % len(body)] if "size" in offers else []
        utf8_needed = False
        internationalised = not (self.job.envelope_sender.isascii() and body.partition(b"\r\n\r\n")[0].isascii())
        for recipient in self.job.recipients:
            if not _is_path(recipient.mailbox):
                text = "the mailbox cannot be written in RCPT TO"
                self.settled[recipient.ordinal] = Refused(Reply(553, _BAD_MAILBOX, text))
            elif internationalised or not recipient.mailbox.isascii():
                if "smtputf8" in offers:
                    utf8_needed = True
                else:
                    text = "the relay does not offer SMTPUTF8 (RFC 6531)"
                    self.settled[recipient.ordinal] = Refused(Reply(553, _NEEDS_UTF8, text))
        if not body.isascii() and "8bitmime" in offers:
            parameters.append(b"BODY=8BITMIME")
        if utf8_needed:
            parameters.append(b"SMTPUTF8")
        return parameters

    async def name_recipients(self) -> tuple[int, ...]:
        """RCPT for each; returns the ordinals accepted, none when the transaction cannot go on."""
        replies: list[tuple[int, Reply]] = []
        for recipient in self.job.recipients:
            if recipient.ordinal in self.settled:
                continue
            path = b"TO:<%s>" % recipient.mailbox.encode()
            try:
                reply = await self.line.command(b"RCPT", path, timeout=self.timeouts.rcpt)
            except LineLost:
                self.settle_refused(replies)
                raise
            if 300 <= reply.code <= 399:
                self.settle_refused(replies)
                self.rest(self.out_of_place(reply))
                return ()
            outcome = refusal(reply)
            if outcome is not None and (reply.code == 421 or isinstance(outcome, AccountFault)):
                self.settle_refused(replies)
                self.rest(outcome)
                return ()
            replies.append((recipient.ordinal, reply))
        return self.settle_refused(replies)

    def settle_refused(self, replies: list[tuple[int, Reply]]) -> tuple[int, ...]:
        accepted = tuple(ordinal for ordinal, reply in replies if reply.code <= 299)
        for ordinal, reply in replies:
            outcome = refusal(reply)
            if too_many(reply, others_accepted=bool(accepted)):
                outcome = Deferred(reply)
            if outcome is not None:
                self.settled[ordinal] = outcome
        return accepted

    async def send(self, accepted: tuple[int, ...]) -> Outcome:
        """The body, begin, the final dot and its reply: one outcome for all who were accepted at RCPT."""
        protocol = self.line.protocol
        if protocol.stray:
            return NotOffered(self.line.lost(STRAY).reply)
        # Armed before the dot, so that an early refusal or a cut is seen before anything is offered.
        reply = asyncio.ensure_future(protocol.read_response(timeout=None))
        paired = False
        try:
            early = await self.write_body(reply)
            if early is None:
                await self.gate.begin(accepted)
                early = await self.early(reply)
            if early is not None:
                return early
            self.gate.offered()
            protocol.write(b".\r\n")
            outcome = await self.answer(reply)
            paired = not isinstance(outcome, Unanswered) and outcome.reply.code != 421
            return outcome
        finally:
            if not paired:
                self.line.abort()
                reply.cancel()
                if reply.done() and not reply.cancelled():
                    # Looked at, so that asyncio does not report it as forgotten.
                    reply.exception()

    async def write_body(self, reply: asyncio.Future[SMTPResponse]) -> Outcome | None:
        """Write the body without its final dot and wait until it has left; an outcome when that ended early."""
        body = await asyncio.to_thread(wire, self.job.rendering.body)
        for block in _blocks(body):
            early = await self.early(reply)
            if early is not None:
                return early
            self.line.protocol.write(block)
            if not await self.drained(reply):
                return NotOffered(self.line.lost("the server stopped reading the message").reply)
        return await self.early(reply)

    async def drained(self, reply: asyncio.Future[SMTPResponse]) -> bool:
        """Wait until what was written has left, or a reply is there; False when neither happens in time."""
        drained = asyncio.ensure_future(self.line.protocol.drained())
        waiting: set[asyncio.Future[Any]] = {drained, reply}
        try:
            done, _ = await asyncio.wait(waiting, timeout=self.timeouts.block, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
        return bool(done)

    async def early(self, reply: asyncio.Future[SMTPResponse]) -> Outcome | None:
        """What a reply before the final dot means; None when there is none and the line is up."""
        if not (self.line.protocol.replied or reply.done()):
            return None if self.line.protocol.is_connected else NotOffered(Reply(text="the connection was lost"))
        try:
            found = self.line.checked(await reply)
        except (SMTPException, ConnectionError) as error:
            return NotOffered(Reply(text=reason(error)))
        except LineLost as lost:
            return NotOffered(lost.reply)
        return refusal(found) or self.out_of_place(found)

    async def answer(self, reply: asyncio.Future[SMTPResponse]) -> Outcome:
        """The reply to the final dot."""
        try:
            async with asyncio.timeout(self.job.answer_seconds):
                found = self.line.checked(await asyncio.shield(reply))
        except (SMTPException, OSError) as error:
            return Unanswered(Reply(text=f"after the final dot: {reason(error)}"))
        except LineLost as lost:
            return Unanswered(lost.reply)
        if found.code <= 299:
            return Accepted(found, queue_id(found.text))
        return refusal(found) or Unanswered(found)


def wire(mime: bytes) -> bytes:
    """The message as it goes on the wire: CRLF line ends, dots stuffed (RFC 5321 4.5.2), no terminator."""
    lines = _LINE_END.sub(b"\r\n", mime)
    return _DOT.sub(b"..", lines if lines.endswith(b"\r\n") else lines + b"\r\n")


def _blocks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), _BLOCK):
        yield body[start : start + _BLOCK]


def _is_path(mailbox: str) -> bool:
    """True when it can stand between angle brackets: a local part, a domain, and nothing that would end the path."""
    local, _, domain = mailbox.rpartition("@")
    if not local or not domain or not mailbox.isprintable() or re.search(r"[<>\s]", domain):
        return False
    return re.fullmatch(r'"(?:[^"\\]|\\.)*"', local) is not None or re.search(r'[<>\s"]', local) is None
