"""Replies and broken lines that others misread, from the relay to the store's tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.policy import RetryPolicy
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.certificate import self_signed
from sendonce.testing.script import Rule
from sendonce.testing.smtp_misbehaviour import SmtpAct, SmtpRule
from sendonce.testing.smtp_server import SmtpServer

if TYPE_CHECKING:
    from pathlib import Path

    from sendonce.policy import LanePolicy
    from tests.cases.conftest import Office

Lane = Callable[..., "LanePolicy"]


async def recipients(office: Office, key: str) -> dict[str, dict[str, Any]]:
    rows = await office.rows(
        "SELECT r.* FROM sendonce.recipient r JOIN sendonce.email e ON e.id = r.email_id WHERE e.key = %s", [key]
    )
    return {row["mailbox"].partition("@")[0]: row for row in rows}


def copies(office: Office, name: str) -> int:
    return sum(mail.recipients.count(f"{name}@example.org") for mail in office.relay.mailbox.mails())


@pytest.mark.parametrize("at", ["connect", "mail", "rcpt", "data", "dot"])
async def test_421_anywhere_is_tried_again(office: Office, at: str) -> None:
    office.relay.script.add(bad.shut_down(at, times=1))
    async with office.worker():
        key = await office.enqueue()
        found = await office.until_stage(key, "sent")
    assert (found["attempts"], office.relay.mailbox.copies()) == (2, 1)


@pytest.mark.parametrize(
    ("code", "text"), [(452, "4.5.3 enough"), (452, "enough"), (552, "enough"), (552, "5.5.3 enough")]
)
async def test_whom_the_relay_does_not_take_at_once_gets_the_mail_in_a_further_transaction(
    office: Office, code: int, text: str
) -> None:
    office.relay.script.add(bad.too_many_recipients(2, code, text))
    names = ["a", "b", "c", "d", "e"]
    async with office.worker():
        key = await office.enqueue(to=[f"{name}@example.org" for name in names])
        found = await office.until_stage(key, "sent")
    assert [copies(office, name) for name in names] == [1] * 5
    assert [len(mail.recipients) for mail in office.relay.mailbox.mails()] == [2, 2, 1]
    # What the relay's limit costs is no attempt of the mail's.
    assert found["attempts"] == 1


async def test_every_recipient_is_judged_alone_and_the_next_envelope_is_who_is_left(office: Office) -> None:
    office.relay.script.add(
        bad.reject_mailbox("b@example.org"),
        Rule("rcpt", SmtpAct(b"451 4.3.0 later\r\n"), 1, lambda one: one == "c@example.org"),
    )
    async with office.worker():
        key = await office.enqueue(to=["a@example.org", "b@example.org", "c@example.org"])
        found = await office.until_stage(key, "sent")
    assert found["partial"]
    assert [mail.recipients for mail in office.relay.mailbox.mails()] == [("a@example.org",), ("c@example.org",)]
    rows = await recipients(office, key)
    assert {name: row["stage"] for name, row in rows.items()} == {"a": "accepted", "b": "refused", "c": "accepted"}
    assert (rows["b"]["code"], rows["b"]["enhanced"]) == (550, "5.1.1")
    # b was named once: what is refused for good is not asked again.
    assert sum(b"b@example.org" in line for session in office.relay.sessions for line in session.commands) == 1


async def test_everybody_refused_for_a_reason_of_their_own(office: Office) -> None:
    office.relay.script.add(
        bad.reject_mailbox("a@example.org", 550, "5.1.1 nobody"), bad.reject_mailbox("b@example.org", 552, "5.2.2 full")
    )
    async with office.worker():
        key = await office.enqueue(to=["a@example.org", "b@example.org"])
        await office.until_stage(key, "failed")
    rows = await recipients(office, key)
    assert {name: row["enhanced"] for name, row in rows.items()} == {"a": "5.1.1", "b": "5.2.2"}
    assert office.relay.mailbox.copies() == 0


async def test_a_reply_in_no_charset_refuses_once_and_is_stored(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    office.relay.script.add(bad.not_utf8())
    async with office.worker():
        key = await office.enqueue()
        found = await office.until_stage(key, "failed")
    assert found["attempts"] == 1
    [row] = (await recipients(office, key)).values()
    assert (row["stage"], row["code"], row["enhanced"]) == ("refused", 550, "5.1.1")
    assert row["reply_text"]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("rule", "enhanced"),
    [(bad.answer("mail", 550, "5.0.0 no"), "5.0.0"), (bad.refuse_message(554, "5.6.0 not wanted"), "5.6.0")],
)
async def test_a_refusal_at_any_command_is_for_good(office: Office, rule: SmtpRule, enhanced: str) -> None:
    office.relay.script.add(rule)
    async with office.worker():
        key = await office.enqueue()
        found = await office.until_stage(key, "failed")
    assert (found["attempts"], found["last_enhanced"]) == (1, enhanced)


async def test_reply_lines_of_different_codes_are_the_last_ones_and_end_the_line(office: Office) -> None:
    office.relay.script.add(bad.answer_raw("rcpt", b"250-go on\r\n550 5.1.1 no\r\n", times=1))
    async with office.worker():
        first = await office.enqueue("a")
        await office.until_stage(first, "failed")
        second = await office.enqueue("b")
        await office.until_stage(second, "sent")
    assert len(office.relay.sessions) == 2


@pytest.mark.parametrize("at", ["mail", "rcpt"])
async def test_greylisting_is_spaced_wherever_it_comes(office: Office, lane: Lane, at: str) -> None:
    office.relay.script.add(bad.answer(at, 451, "4.7.1 greylisted, try again", times=2))
    # The retry policy would take an hour.
    hour = RetryPolicy(delays=(3600,), jitter=0, max_attempts=5)
    async with office.worker(lane(greylist_delays=(0.25, 0.5), retry=hour)):
        key = await office.enqueue()
        found = await office.until_stage(key, "sent")
    assert found["attempts"] == 3
    attempts = await office.attempts(key)
    gaps = [(later["claimed_at"] - before["ended_at"]).total_seconds() for before, later in pairwise(attempts)]
    assert [gap >= delay for gap, delay in zip(gaps, (0.25, 0.5), strict=True)] == [True, True]


async def test_a_time_out_leaves_the_next_mail_alone(office: Office) -> None:
    release = asyncio.Event()
    office.relay.script.add(bad.late_reply(release, times=1))
    relay = SmtpSettings(host="127.0.0.1", port=office.relay.port, tls="none", pool={"max_connections": 1})
    async with office.worker(transports={"default": SmtpTransport(relay)}):
        first = await office.enqueue("a", to=["a@example.org"])
        await office.until_stage(first, "unknown")
        second = await office.enqueue("b", to=["b@example.org"])
        release.set()
        found = await office.until_stage(second, "sent")
    [mail] = [mail for mail in office.relay.mailbox.mails() if mail.recipients == ("b@example.org",)]
    # Its own reply, not the late one to the first mail.
    assert (await recipients(office, second))["b"]["provider_id"] == mail.provider_id
    assert (found["attempts"], copies(office, "a"), copies(office, "b")) == (1, 1, 1)


async def test_without_starttls_nothing_is_said_in_clear_and_the_mail_waits(
    office: Office, tmp_path: Path, lane: Lane
) -> None:
    certificate = self_signed(tmp_path / "certificate", "IP:127.0.0.1")
    stripped = SmtpServer(credentials={"shop": "hunter2-secret"})
    await stripped.start()
    settings: dict[str, Any] = {"ca_file": certificate.file, "username": "shop", "password": "hunter2-secret"}
    account = SmtpTransport(SmtpSettings(host="127.0.0.1", port=stripped.port, **settings))
    try:
        async with office.worker(transports={"default": account}):
            key = await office.enqueue()
            await office.until_row("SELECT 1 FROM sendonce.alarm WHERE kind = 'account_paused'")
            found = await office.email(key)
        assert (found["stage"], found["attempts"]) == ("pending", 0)
        assert {line.split()[0] for session in stripped.sessions for line in session.commands} <= {b"EHLO", b"QUIT"}
    finally:
        await stripped.close()


async def test_a_relay_that_comes_up_late_gets_the_mail(office: Office, lane: Lane) -> None:
    late = SmtpServer(office.relay.mailbox)
    await late.start()
    port = late.port
    await late.close()
    accounts = {
        "default": SmtpTransport(SmtpSettings(host="127.0.0.1", port=port, tls="none")),
        "nowhere": SmtpTransport(SmtpSettings(host="nowhere.invalid", tls="none")),
    }
    retry = RetryPolicy(delays=(0.25,), jitter=0, max_attempts=100)
    async with office.worker(lane(retry=retry), transports=accounts, breaker_mails=1000):
        key, lost = await office.enqueue(), await office.enqueue("dns", account="nowhere")
        for one in (key, lost):
            await office.until_row("SELECT 1 FROM sendonce.email WHERE key = %s AND attempts >= 2", [one])
        again = SmtpServer(office.relay.mailbox, port=port)
        await again.start()
        try:
            await office.until_stage(key, "sent")
        finally:
            await again.close()
        # A name that does not resolve says nothing about the recipient.
        assert (await office.email(lost))["stage"] in ("pending", "claimed")
        assert [row["stage"] for row in (await recipients(office, lost)).values()] == ["outstanding"]
    assert office.relay.mailbox.copies() == 1
