"""One SMTP transaction: sender, recipients, body, begin, final dot, and what each reply means for whom."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from aiosmtplib import SMTPException, SMTPResponse

from sendonce.activities.transports.aside import aside
from sendonce.activities.transports.base import Gate, Job, Recipient
from sendonce.activities.transports.smtp_connection import STRAY, LineLost, SmtpLine, reason
from sendonce.activities.transports.smtp_replies import OUT_OF_STEP, queue_id, refusal, too_many
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
)

_BLOCK = 64 * 1024
_GROUP = 100
"""Recipients whose commands are written in one go; with more of them each command waits for its reply."""
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DOT = re.compile(rb"(?m)^\.")
_NEEDS_UTF8 = "5.6.7"  # RFC 6531 4.2: the relay does not carry internationalised mail
_NEEDS_7BIT = "5.6.3"  # RFC 3463 3.7: conversion required but not supported
_BAD_MAILBOX = "5.1.3"
_TOO_BIG = "5.3.4"


class Transaction:
    """One job over one line."""

    def __init__(self, line: SmtpLine, job: Job, gate: Gate) -> None:
        self.line, self.job, self.gate = line, job, gate
        self.settings = line.settings
        self.timeouts = line.settings.timeouts
        self.settled: dict[int, Outcome] = {}
        self.begun = False
        self._turned_away = False
        self._grouped = False

    @property
    def spent(self) -> bool:
        """True when it came to nothing because of the connection: nothing was begun, and the server has had enough."""
        return not self.begun and (self._turned_away or not self.line.usable)

    def rest(self, outcome: Outcome) -> AttemptResult:
        """Everyone who is not settled yet gets this outcome."""
        for recipient in self.job.recipients:
            self.settled.setdefault(recipient.ordinal, outcome)
        return AttemptResult(self.settled)

    async def run(self) -> AttemptResult:
        """Raises what the gate raises, and CancelledError; the line is to be dropped then."""
        mime = self.job.rendering.body
        body = await aside(len(mime), lambda: wire(mime))
        parameters = self.check(len(body))
        pending = [r for r in self.job.recipients if r.ordinal not in self.settled]
        if not pending:
            return AttemptResult(self.settled)
        try:
            accepted = await self.introduce(parameters, pending)
        except LineLost as lost:
            return self.rest(NotOffered(lost.reply))
        if not accepted:
            return AttemptResult(self.settled)
        return self.rest(await self.send(accepted, body))

    async def introduce(self, parameters: list[bytes], pending: list[Recipient]) -> tuple[int, ...]:
        """MAIL, RCPT for each, DATA; returns the ordinals accepted, none when the transaction cannot go on."""
        sender = b" ".join([b"MAIL FROM:<%s>" % self.job.envelope_sender.encode(), *parameters])
        self._grouped = self.settings.pipelining and "pipelining" in self.line.extensions and len(pending) <= _GROUP
        if self._grouped:
            self.line.write_group(sender, *map(self.path, pending), b"DATA")
        reply = await self.reply_to(sender, self.timeouts.mail)
        if not 200 <= reply.code <= 299:
            judged = self.judged(reply, "mail")
            # Greylisting is about the sender and wants to be waited for; anything else may be about the connection.
            greylisted = isinstance(judged, Deferred) and judged.greylisted
            self._turned_away = 400 <= reply.code <= 499 and not greylisted
            self.rest(judged or self.out_of_place(reply))
            await self.end_group(len(pending))
            return ()
        self.line.open_transaction = True
        accepted = await self.name_recipients(pending)
        if not accepted:
            return ()
        reply = await self.reply_to(b"DATA", self.timeouts.data)
        if self._grouped:
            self.line.protocol.end_group()
        if reply.code != 354:
            self.rest(self.judged(reply, "data") or self.out_of_place(reply))
            return ()
        return accepted

    async def reply_to(self, command: bytes, timeout: float) -> Reply:
        """Send it and read its reply; of a group that was written already, read the next one."""
        if self._grouped:
            return await self.line.next_reply(timeout)
        return await self.line.command(command, timeout=timeout)

    async def end_group(self, recipients: int) -> None:
        """Read what is left of the group: so many recipients' replies, and DATA's.

        A server may take DATA although it took nobody (RFC 2920 3.1): a dot alone ends that, and offers nobody
        anything. One that refused the sender and took a recipient all the same gets no dot: it might deliver.
        """
        if not self._grouped:
            return
        try:
            replies = [await self.line.next_reply(self.timeouts.rcpt, refused=True) for _ in range(recipients)]
            reply = await self.line.next_reply(self.timeouts.data, refused=True)
            self.line.protocol.end_group()
            if reply.code == 354 and any(200 <= r.code <= 299 for r in replies):
                self.line.abort()
            elif reply.code == 354:
                await self.line.command(b".", timeout=self.timeouts.data)
                self.line.open_transaction = True
        except LineLost:
            # Closed by now; what was said before stands.
            pass

    def judged(self, reply: Reply, at: str) -> Outcome | None:
        return refusal(reply, at, self.settings.account_faults)

    def out_of_place(self, reply: Reply) -> NotOffered:
        """A 2xx or 3xx that is no answer to what was said: the pairing is lost."""
        self.line.abort()
        return NotOffered(reply)

    def check(self, octets: int) -> list[bytes]:
        """The parameters of MAIL; settles the recipients that this server cannot be given."""
        body, offers = self.job.rendering.body, self.line.extensions
        parameters = []
        if "size" in offers:
            parameters.append(b"SIZE=%d" % octets)
            limit = int(offers["size"]) if offers["size"].isdecimal() else 0
            if 0 < limit < octets:
                text = f"the message has {octets} octets and the relay takes {limit} (RFC 1870)"
                self.rest(Refused(Reply(552, _TOO_BIG, text)))
        utf8_needed = False
        internationalised = not (self.job.envelope_sender.isascii() and body.partition(b"\r\n\r\n")[0].isascii())
        for recipient in self.job.recipients:
            if not _is_path(recipient.mailbox):
                text = "the mailbox cannot be written in RCPT TO"
                self.settled.setdefault(recipient.ordinal, Refused(Reply(553, _BAD_MAILBOX, text)))
            elif internationalised or not recipient.mailbox.isascii():
                if "smtputf8" in offers:
                    utf8_needed = True
                else:
                    text = "the relay does not offer SMTPUTF8 (RFC 6531)"
                    self.settled.setdefault(recipient.ordinal, Refused(Reply(553, _NEEDS_UTF8, text)))
        if not body.isascii():
            parameters.append(b"BODY=8BITMIME")
            if "8bitmime" not in offers and not body.partition(b"\r\n\r\n")[2].isascii():
                text = "the message holds 8-bit text and the relay does not offer 8BITMIME (RFC 6152)"
                self.rest(Refused(Reply(554, _NEEDS_7BIT, text)))
        if utf8_needed:
            parameters.append(b"SMTPUTF8")
        if self.wants_dsn:
            parameters += [b"RET=HDRS", b"ENVID=" + _xtext(self.job.envelope_id)]
        return parameters

    @property
    def wants_dsn(self) -> bool:
        """Bounces are asked for where somebody gets them, and where they can name the mail (RFC 3461)."""
        wanted = self.settings.dsn and "dsn" in self.line.extensions
        return wanted and bool(self.job.envelope_id) and bool(self.job.envelope_sender)

    def path(self, recipient: Recipient) -> bytes:
        """The command that names this recipient."""
        command = b"RCPT TO:<%s>" % recipient.mailbox.encode()
        if not self.wants_dsn:
            return command
        command += b" NOTIFY=FAILURE,DELAY"
        # Addresses outside ASCII have an address type of their own (RFC 6533 3), which few servers know.
        return command + b" ORCPT=rfc822;" + _xtext(recipient.mailbox) if recipient.mailbox.isascii() else command

    async def name_recipients(self, pending: list[Recipient]) -> tuple[int, ...]:
        """RCPT for each; returns the ordinals accepted, none when the transaction cannot go on."""
        replies: list[tuple[int, Reply]] = []
        for recipient in pending:
            try:
                reply = await self.reply_to(self.path(recipient), self.timeouts.rcpt)
            except LineLost:
                self.settle_refused(replies)
                raise
            if 300 <= reply.code <= 399:
                self.settle_refused(replies)
                self.rest(self.out_of_place(reply))
                return ()
            outcome = self.judged(reply, "rcpt")
            if outcome is not None and (reply.code in (421, *OUT_OF_STEP) or isinstance(outcome, AccountFault)):
                self.settle_refused(replies)
                self.rest(outcome)
                if self._grouped:
                    # Others may have been taken, and DATA with them: not to be gone on with.
                    self.line.abort()
                return ()
            replies.append((recipient.ordinal, reply))
        accepted = self.settle_refused(replies)
        if not accepted:
            await self.end_group(0)
        return accepted

    def settle_refused(self, replies: list[tuple[int, Reply]]) -> tuple[int, ...]:
        accepted = tuple(ordinal for ordinal, reply in replies if reply.code <= 299)
        for ordinal, reply in replies:
            outcome = self.judged(reply, "rcpt")
            if too_many(reply, others_accepted=bool(accepted)):
                outcome = Deferred(reply, beyond_limit=True)
            if outcome is not None:
                self.settled[ordinal] = outcome
        return accepted

    async def send(self, accepted: tuple[int, ...], body: bytes) -> Outcome:
        """The body, begin, the final dot and its reply: one outcome for all who were accepted at RCPT."""
        protocol = self.line.protocol
        if protocol.stray:
            return NotOffered(self.line.lost(STRAY).reply)
        # Armed before the dot, so that an early refusal or a cut is seen before anything is offered.
        reply = asyncio.ensure_future(protocol.read_response(timeout=None))
        paired = False
        try:
            early = await self.write_body(body, reply)
            if early is None:
                self.begun = True
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

    async def write_body(self, body: bytes, reply: asyncio.Future[SMTPResponse]) -> Outcome | None:
        """Write the body without its final dot and wait until it has left; an outcome when that ended early."""
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
            if self.line.protocol.stray:
                return NotOffered(self.line.lost(STRAY).reply)
            return None if self.line.protocol.is_connected else NotOffered(Reply(text="the connection was lost"))
        try:
            found = self.line.checked(await reply)
        except (SMTPException, ConnectionError) as error:
            return NotOffered(Reply(text=reason(error)))
        except LineLost as lost:
            return NotOffered(lost.reply)
        return self.judged(found, "dot") or self.out_of_place(found)

    async def answer(self, reply: asyncio.Future[SMTPResponse]) -> Outcome:
        """The reply to the final dot."""
        try:
            async with asyncio.timeout(self.job.answer_seconds):
                found = self.line.checked(await asyncio.shield(reply))
        except (SMTPException, OSError) as error:
            return Unanswered(Reply(text=f"after the final dot: {reason(error)}"))
        except LineLost as lost:
            return Unanswered(lost.reply)
        self.line.open_transaction = False
        if found.code <= 299:
            return Accepted(found, queue_id(found.text))
        return self.judged(found, "dot") or Unanswered(found)


def wire(mime: bytes) -> bytes:
    """The message as it goes on the wire: CRLF line ends, dots stuffed (RFC 5321 4.5.2), no terminator."""
    lines = _LINE_END.sub(b"\r\n", mime)
    return _DOT.sub(b"..", lines if lines.endswith(b"\r\n") else lines + b"\r\n")


def _xtext(text: str) -> bytes:
    """RFC 3461 4: printable ASCII, and everything else, ``+`` and ``=`` as ``+XX``."""
    return re.sub(rb"[^!-*,-<>-~]", lambda found: b"+%02X" % found[0][0], text.encode())


def _blocks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), _BLOCK):
        yield body[start : start + _BLOCK]


def _is_path(mailbox: str) -> bool:
    """True when it can stand between angle brackets: a local part, a domain, and nothing that would end the path."""
    local, _, domain = mailbox.rpartition("@")
    if not local or not domain or not mailbox.isprintable() or re.search(r"[<>\s]", domain):
        return False
    return re.fullmatch(r'"(?:[^"\\]|\\.)*"', local) is not None or re.search(r'[<>\s"]', local) is None
