"""SMTP against servers that people run: Exim, Postfix, OpenSMTPD (`make mta`)."""

from __future__ import annotations

import email
import smtplib
import uuid
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sendonce.activities.transports.base import Job
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.message import OutgoingEmail
from sendonce.outcome import Outcome
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.certificate import self_signed

if TYPE_CHECKING:
    from tests.mta.conftest import Mta

pytestmark = pytest.mark.mta


def job(mta: Mta, key: str, to: str = "inbox", **content: Any) -> Job:
    mail = OutgoingEmail(key=key, sender="shop@mta.test", to=f"{to}@mta.test", **{"text": "t", **content})
    return make_job(SmtpTransport(settings(mta)), mail)


def settings(mta: Mta, **changes: Any) -> SmtpSettings:
    return SmtpSettings(**{"host": "127.0.0.1", "port": mta.port, "tls": "none", **changes})


async def send(mta: Mta, work: Job, **changes: Any) -> Outcome:
    transport = SmtpTransport(settings(mta, **changes))
    try:
        return (await transport.transmit(work, RecordingGate())).outcomes[0]
    finally:
        await transport.close()


async def arrived_once(mta: Mta, key: str, body: bytes) -> None:
    """Whatever was on its way before a second mail is there when that one is."""
    assert mta.wait_for("inbox", f"<{key}@").endswith(body.replace(b"\r\n", b"\n"))
    assert (await send(mta, job(mta, f"after-{key}"))).kind == "accepted"
    mta.wait_for("inbox", f"<after-{key}@")
    assert len(mta.mails("inbox", f"<{key}@")) == 1


async def test_a_mail_lands_once_and_as_sent(mta: Mta) -> None:
    work = job(mta, "dots", subject="Größe ✓", text=".\n..\n.dot\n\nFrom here on\n\n.\nend")
    assert b"\r\n.\r\n..\r\n.dot\r\n" in work.rendering.body
    assert (await send(mta, work)).kind == "accepted"
    await arrived_once(mta, "dots", work.rendering.body)


async def test_dots_and_8_bit_in_body_and_header_survive(mta: Mta) -> None:
    work = job(mta, "eight")
    body = "Message-ID: <eight@mta.test>\r\nFrom: shop@mta.test\r\nDate: Sat, 31 Jan 2026 12:00:00 +0000\r\n"
    body += "Subject: Größe ✓\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n.\r\n..\r\n.grüße\r\n\r\n.\r\n"
    work = replace(work, rendering=replace(work.rendering, body=body.encode()))
    outcome = await send(mta, work)
    with smtplib.SMTP("127.0.0.1", mta.port) as client:
        client.ehlo()
        knows_utf8 = client.has_extn("smtputf8")
    if knows_utf8:
        assert outcome.kind == "accepted"
        await arrived_once(mta, "eight", body.encode())
    else:
        assert (outcome.kind, outcome.reply.enhanced) == ("refused", "5.6.7")


async def test_an_unknown_user_is_refused(mta: Mta) -> None:
    outcome = await send(mta, job(mta, "unknown", to="nobody-here"))
    assert (outcome.kind, outcome.reply.code) == ("refused", 550)


async def test_a_mail_over_the_size_limit_is_refused(mta: Mta) -> None:
    outcome = await send(mta, job(mta, "big", text="0123456789\n" * (mta.size_limit // 10)))
    assert (outcome.kind, outcome.reply.code) == ("refused", 552)
    assert str(mta.size_limit) in outcome.reply.text


async def test_a_greylisted_mail_is_deferred(mta: Mta) -> None:
    outcome = await send(mta, job(mta, "grey", to="grey"))
    assert outcome.kind == "deferred"
    assert outcome.reply.code in (450, 451)


async def test_starttls_with_its_certificate_and_not_with_another(mta: Mta, tmp_path: Path) -> None:
    if mta.no_tls:
        pytest.skip(mta.no_tls)
    work, other = job(mta, "tls"), self_signed(tmp_path, "IP:127.0.0.1")
    assert (await send(mta, work, tls="starttls", ca_file=other.file)).kind == "account_fault"
    assert (await send(mta, work, tls="starttls", ca_file=mta.certificate.file)).kind == "accepted"
    await arrived_once(mta, "tls", work.rendering.body)


async def test_a_log_in_after_starttls(mta: Mta) -> None:
    if mta.no_log_in:
        pytest.skip(mta.no_log_in)
    account = {"tls": "starttls", "ca_file": mta.certificate.file, "username": mta.user}
    assert (await send(mta, job(mta, "login"), **account, password=mta.password)).kind == "accepted"
    outcome = await send(mta, job(mta, "wrong"), **account, password="wrong")
    assert (outcome.kind, outcome.reply.code) == ("account_fault", 535)


async def test_a_bounce_names_the_mail(mta: Mta) -> None:
    envelope_id = str(uuid.uuid4())
    work = replace(job(mta, "bounced", to="failing"), envelope_id=envelope_id)
    assert (await send(mta, work)).kind == "accepted"
    bounce = email.message_from_bytes(mta.wait_for("shop", "<bounced@"))
    report = next(part for part in bounce.walk() if part.get_content_type() == "message/delivery-status")
    message, recipient = cast("list[Message]", report.get_payload())
    # Exim writes the field's name its own way, and the id as it came: an id must need no xtext encoding (RFC 3461 4).
    assert message["Original-Envelope-Id"] == (envelope_id if mta.returns_envelope_id else None)
    assert (recipient["Action"], recipient["Status"][0]) == ("failed", "5")
    assert recipient["Final-Recipient"].endswith("failing@mta.test")
