"""SMTP (RFC 5321): one transaction per attempt, judged per recipient and by phase.

=============================================  ======================================================
what happened                                  outcome
=============================================  ======================================================
no connection, no name, greeting or AUTH 4xx   ``NotOffered`` for all
greeting or EHLO 5xx, no STARTTLS, bad         ``AccountFault`` for all
certificate, AUTH 5xx, 530 534 535 538
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

from dataclasses import replace

from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.activities.transports.mime import render_mime
from sendonce.activities.transports.smtp_connection import NoLine
from sendonce.activities.transports.smtp_pool import SmtpPool
from sendonce.activities.transports.smtp_settings import SmtpPoolSettings, SmtpSettings, SmtpTimeouts
from sendonce.activities.transports.smtp_tls import client_context
from sendonce.activities.transports.smtp_token import token_source
from sendonce.activities.transports.smtp_transaction import Transaction
from sendonce.dsn.proof import return_path
from sendonce.outcome import AttemptResult, same_for_all

__all__ = ["SmtpPoolSettings", "SmtpSettings", "SmtpTimeouts", "SmtpTransport"]


class SmtpTransport:
    """One SMTP account, with a pool of connections."""

    renders_quickly = True
    """A rendering of a small mail takes less than the way to a thread and back."""

    capability = Capability(keeps_message_id=True, takes_mime=True, per_recipient=True, together=True)

    def __init__(self, settings: SmtpSettings) -> None:
        """Raises OSError, naming the setting, when a certificate or key cannot be read."""
        self.settings = settings
        self._pool = SmtpPool(settings, client_context(settings), token_source(settings))

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
        """See :class:`~sendonce.activities.transports.base.Transport`.

        What a used connection fails with before anything is offered says nothing about the mail: servers close idle
        connections and limit what one may send. The mail goes over a fresh one at once.
        """
        if self.settings.bounces_to and job.own_return_path and job.envelope_id:
            job = replace(job, envelope_sender=return_path(job.envelope_id, self.settings.bounces_to))
        fresh = False
        while True:
            try:
                line = await self._pool.take(fresh=fresh, urgent=job.urgent)
            except NoLine as error:
                return same_for_all(tuple(r.ordinal for r in job.recipients), error.outcome)
            transaction = Transaction(line, job, gate)
            try:
                result = await transaction.run()
            except BaseException:
                self._pool.drop(line)
                raise
            fresh = line.mails > 0 and transaction.spent
            # The outcome is recorded first; nobody waits for what the pool does with the connection.
            self._pool.give(line)
            if not fresh:
                return result

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await self._pool.close()
