"""What servers report, and what of it counts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from sendonce.dsn.parse import RecipientReport
from sendonce.dsn.proof import Proof
from sendonce.dsn.reader import Reading, decisive, kind, read
from sendonce.events import EventKind
from sendonce.outcome import Reply

if TYPE_CHECKING:
    from tests.dsn.conftest import Sample


def kinds(reading: Reading) -> dict[str, str]:
    return {event.recipient: event.kind for event in reading.events}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("postfix-failed", {"ann+books@example.org": "bounced", "bob@example.net": "soft_bounced"}),
        ("postfix-delayed", {"bob@example.net": "delayed"}),
        (
            "postfix-success",
            {"ann@example.org": "delivered", "bob@example.net": "accepted", "staff@shop.example": "accepted"},
        ),
        ("postfix-utf8", {"用户@例子.example": "bounced"}),
        ("exim-failed", {"ann+books@example.org": "bounced", "bob@example.net": "soft_bounced"}),
        ("exim-delayed", {"bob@example.net": "delayed"}),
        ("opensmtpd-failed", {"ann@example.org": "bounced"}),
        ("exchange-failed", {"ann@tenant.example": "bounced"}),
        ("gmail-failed", {"ann@forwarded.example": "bounced"}),
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_what_servers_write(
    sample: Sample, proof: Proof, email_id: UUID, name: str, expected: dict[str, str], line_end: bytes
) -> None:
    reading = read(sample(name).replace(b"\n", line_end), proof)
    assert kinds(reading) == expected
    assert reading.unproven == ()
    assert {(event.source, event.email_id) for event in reading.events} == {("dsn", str(email_id))}


def test_an_event_has_everything_that_the_notification_says(sample: Sample, proof: Proof, email_id: UUID) -> None:
    event = read(sample("postfix-failed"), proof).events[0]
    assert event.at == datetime(2026, 3, 12, 9, 15, 31, tzinfo=UTC)
    assert event.message_id == "<order-4711-confirmation@shop.example>"
    words = "550 5.1.1 <ann+books@example.org>: Recipient address rejected: User unknown"
    assert event.reply == Reply(550, "5.1.1", words)
    assert re.fullmatch("[0-9a-f]{64}", event.event_id)
    # Addresses are personal data.
    assert "ann" not in repr(event)


def test_the_time_is_that_of_the_last_attempt_where_it_is_said(sample: Sample, proof: Proof) -> None:
    (event,) = read(sample("gmail-failed"), proof).events
    assert event.at == datetime(2026, 3, 12, 9, 15, 32, tzinfo=UTC)
    assert event.message_id == "<order-4711-confirmation@shop.example>"


def test_the_same_notification_twice_is_the_same_events_and_another_word_is_another(
    sample: Sample, proof: Proof
) -> None:
    first, again = (read(sample("postfix-failed"), proof).events for _ in range(2))
    assert first == again
    # Sent again with other ids and at another time; what it says is the same.
    forwarded = (
        sample("postfix-failed").replace(b"4F1Qz52Tq3z9t", b"other").replace(b"10:15:31 +0100", b"11:00:00 +0100")
    )
    assert [event.event_id for event in read(forwarded, proof).events] == [event.event_id for event in first]
    changes = {
        b"Final-Recipient: rfc822; bob@": b"Final-Recipient: rfc822; rob@",
        b"Action: failed": b"Action: delayed",
        b"Status: 4.2.2": b"Status: 4.2.1",
        b"Reporting-MTA: dns; relay": b"Reporting-MTA: dns; mx",
        b"Arrival-Date: Thu, 12": b"Arrival-Date: Fri, 13",
    }
    without = sample("postfix-failed").replace(b"Original-Recipient: rfc822;bob@example.net\n", b"")
    ids = {read(without, proof).events[1].event_id}
    ids |= {read(without.replace(old, new), proof).events[1].event_id for old, new in changes.items()}
    assert len(ids) == 1 + len(changes)


# One recipient's word is about that recipient -----------------------------------------------------------------------


def test_a_late_word_about_one_recipient_is_an_event_about_nobody_else(sample: Sample, proof: Proof) -> None:
    (event,) = read(sample("postfix-delayed"), proof).events
    assert event.recipient == "bob@example.net"


def test_the_recipient_is_the_one_that_we_named(sample: Sample, proof: Proof) -> None:
    mail = sample("postfix-failed").replace(
        b"Final-Recipient: rfc822; bob@example.net", b"Final-Recipient: rfc822; b@elsewhere.example"
    )
    assert kinds(read(mail, proof))["bob@example.net"] == "soft_bounced"


def test_a_report_that_names_nobody_is_not_about_everybody(sample: Sample, proof: Proof) -> None:
    # Event.recipient == "" would mean all recipients.
    mail = sample("opensmtpd-failed").replace(b"rfc822; ann@example.org", b"x400; /CN=ann/")
    reading = read(mail, proof)
    assert reading.events == ()
    (unproven,) = reading.unproven
    assert (unproven.why, unproven.event.email_id) == ("no_recipient", "")


@pytest.mark.parametrize(
    ("field", "recipient"),
    [
        ("rfc822;a+2Bb@example.org", "a+2Bb@example.org"),  # Postfix has decoded it: this is a tag of 2Bb
        ("rfc822; <bob@example.net>", "bob@example.net"),
        ("RFC822 ;bob@example.net (Bob)", "bob@example.net"),
        ('rfc822; "bob builder"@example.net', '"bob builder"@example.net'),
        ("bob@example.net", "bob@example.net"),
        (r"utf-8; j\x{F6}rg@example.net", "jörg@example.net"),
        (r"utf-8; a\x{D800}@example.net", r"a\x{D800}@example.net"),
    ],
)
def test_how_addresses_are_written(sample: Sample, proof: Proof, field: str, recipient: str) -> None:
    mail = sample("postfix-failed").replace(b"rfc822;bob@example.net", field.encode())
    assert read(mail, proof).events[1].recipient == recipient


def test_exim_leaves_xtext_as_it_is_and_final_recipient_may_be_another(sample: Sample, proof: Proof) -> None:
    mail = sample("exim-failed").replace(b"rfc822;ann+books@", b"rfc822;books@")
    assert "ann+books@example.org" in kinds(read(mail, proof))


# Only failed is a bounce --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"status": "5.1.1"}, EventKind.BOUNCED),
        ({"status": "5.1.10"}, EventKind.BOUNCED),
        ({"status": "5.2.1"}, EventKind.BOUNCED),
        ({"status": "5.4.1"}, EventKind.BOUNCED),  # Exchange Online: no such recipient
        ({"status": "5.4.4"}, EventKind.BOUNCED),  # no such domain
        ({"status": "5.0.0"}, EventKind.BOUNCED),
        ({"status": "4.4.7"}, EventKind.SOFT_BOUNCED),
        ({"status": "4.2.2", "code": 550, "enhanced": "5.1.1"}, EventKind.SOFT_BOUNCED),
        ({"status": "5.2.2"}, EventKind.SOFT_BOUNCED),  # mailbox full
        ({"status": "5.4.7"}, EventKind.SOFT_BOUNCED),  # expired
        ({"status": "5.3.4"}, EventKind.SOFT_BOUNCED),  # too large
        ({"status": "5.6.0"}, EventKind.SOFT_BOUNCED),  # content
        ({"status": "5.7.1"}, EventKind.SOFT_BOUNCED),  # policy: their word on us, not on the address
        ({"status": "5.1.8"}, EventKind.SOFT_BOUNCED),  # our own domain
        ({"status": "2.0.0"}, EventKind.SOFT_BOUNCED),
        ({}, EventKind.SOFT_BOUNCED),
        # Where the status says nothing, the server's reply does.
        ({"status": "5.0.0", "code": 450}, EventKind.SOFT_BOUNCED),
        ({"status": "5.0.0", "code": 451, "enhanced": "4.7.1"}, EventKind.SOFT_BOUNCED),
        ({"status": "5.0.0", "code": 550, "enhanced": "5.7.1"}, EventKind.SOFT_BOUNCED),
        ({"status": "5.0.0", "code": 550, "enhanced": "5.1.1"}, EventKind.BOUNCED),
        ({"status": "5.0.0", "code": 450, "enhanced": "5.1.1"}, EventKind.SOFT_BOUNCED),  # the code wins
        ({"status": "4.0.0", "code": 550, "enhanced": "5.1.1"}, EventKind.SOFT_BOUNCED),
        ({"code": 550}, EventKind.BOUNCED),
    ],
)
def test_how_final_a_failure_is(report: dict[str, Any], expected: EventKind) -> None:
    assert kind(RecipientReport("failed", **report)) == expected


def test_what_exim_gave_up_without_a_reply_blames_no_address(sample: Sample, proof: Proof) -> None:
    # "retry timeout exceeded" is 5.0.0 as well: the address of a server that was away for days would be suppressed.
    mail = sample("exim-failed").replace(b"Diagnostic-Code: smtp; 550", b"X-Words: smtp; 550")
    assert set(kinds(read(mail, proof)).values()) == {"soft_bounced"}
    assert kinds(read(mail.replace(b"-eximdsn-", b"-other-"), proof))["ann+books@example.org"] == "bounced"


@pytest.mark.parametrize("status", ["5.1.1", "4.4.1", ""])
def test_no_other_action_is_a_bounce_whatever_its_status(status: str) -> None:
    found = {
        action: kind(RecipientReport(action, status)) for action in ("delayed", "delivered", "relayed", "expanded")
    }
    assert found == {
        "delayed": EventKind.DELAYED,
        "delivered": EventKind.DELIVERED,
        "relayed": EventKind.ACCEPTED,
        "expanded": EventKind.ACCEPTED,
    }
    assert not any(one.suppresses for one in found.values())


def test_the_status_that_decides_is_the_one_that_is_kept(sample: Sample, proof: Proof) -> None:
    ann, bob = read(sample("exim-failed"), proof).events
    assert (ann.reply.code, ann.reply.enhanced) == (550, "5.1.1")
    assert (bob.reply.code, bob.reply.enhanced) == (451, "4.7.1")
    assert decisive(RecipientReport("failed", "5.1.1", code=450)) == "5.1.1"


# Proofs -------------------------------------------------------------------------------------------------------------


def test_without_a_proof_it_is_nothing_but_somebodys_word(sample: Sample, proof: Proof) -> None:
    for name in ("postfix-failed", "opensmtpd-failed", "gmail-failed"):
        reading = read(sample(name, envelope_id="QQ314159", return_path="orders@shop.example"), proof)
        assert reading.events == ()
        assert {one.why for one in reading.unproven} == {"no_proof"}
        assert {one.event.email_id for one in reading.unproven} == {""}
        assert {one.event.message_id for one in reading.unproven} == {"<order-4711-confirmation@shop.example>"}


def test_a_forged_proof_is_none(sample: Sample, proof: Proof, email_id: UUID) -> None:
    right = proof.envelope_id(email_id)
    other = f"{UUID(int=1)}.{right.partition('.')[2]}"
    guessed = f"{email_id}.{'a' * 16}"
    foreign = Proof([b"a key of somebody else's, no less long"]).envelope_id(email_id)
    for envelope_id in (other, guessed, foreign):
        reading = read(sample("postfix-failed", envelope_id=envelope_id), proof)
        assert reading.events == ()
        assert {one.why for one in reading.unproven} == {"wrong_proof"}
        assert {one.event.email_id for one in reading.unproven} == {""}
    wrong = proof.return_path(email_id, "bounces@shop.example").replace("@", "x@")
    assert read(sample("opensmtpd-failed", return_path=wrong), proof).events == ()


def test_two_proofs_of_two_mails_prove_neither(sample: Sample, proof: Proof) -> None:
    elsewhere = proof.return_path(UUID(int=1), "bounces@shop.example")
    reading = read(sample("postfix-failed"), proof, [elsewhere])
    assert reading.events == ()
    assert {one.why for one in reading.unproven} == {"contradiction"}


def test_the_envelope_it_came_in_proves_too(sample: Sample, proof: Proof, return_path: str, email_id: UUID) -> None:
    bare = sample("opensmtpd-failed", return_path="bounces@shop.example")
    assert read(bare, proof).events == ()
    (event,) = read(bare, proof, [return_path]).events
    assert event.email_id == str(email_id)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"X-Postfix-Sender: rfc822; orders@shop.example", b"X-Postfix-Sender: rfc822; %s"),
        (b"Return-Path: <orders@shop.example>", b"Return-Path: <%s>"),
        (b"To: orders@shop.example", b"To: Bounces <%s>"),
        (b"Auto-Submitted:", b"X-Original-To: %s\nAuto-Submitted:"),
    ],
)
def test_where_a_return_path_is_found(
    sample: Sample, proof: Proof, return_path: str, email_id: UUID, old: bytes, new: bytes
) -> None:
    mail = sample("postfix-failed", envelope_id="none").replace(old, new.replace(b"%s", return_path.encode()))
    assert {event.email_id for event in read(mail, proof).events} == {str(email_id)}


def test_our_own_header_in_the_returned_mail_proves_too(sample: Sample, proof: Proof, email_id: UUID) -> None:
    mail = sample("opensmtpd-failed", return_path="orders@shop.example")
    own = b"From: Bookstore <orders@shop.example>\nX-Sendonce-Id: " + proof.envelope_id(email_id).encode()
    mail = mail.replace(b"From: Bookstore <orders@shop.example>", own)
    assert {event.email_id for event in read(mail, proof).events} == {str(email_id)}


def test_a_bounce_within_a_returned_mail_is_not_this_mails(sample: Sample, proof: Proof) -> None:
    inner = sample("postfix-failed")
    forwarded = b'Content-Type: multipart/mixed; boundary="out"\n\n--out\nContent-Type: message/rfc822\n\n%s\n--out--\n'
    assert read(forwarded % inner, proof) == Reading()


@pytest.mark.parametrize(
    "mail",
    [
        b"",
        b"From: ann@example.org\nSubject: Out of office\nAuto-Submitted: auto-replied\n\nAction: failed\n",
        b"Content-Type: message/disposition-notification\n\nFinal-Recipient: rfc822; a@example.org\nAction: failed\n",
        b"Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\n\n--b--\n",
        b"Content-Type: message/delivery-status\n\nFinal-Recipient: rfc822; a@example.org\nAction: bounced\n",
    ],
)
def test_what_is_no_notification_says_nothing(proof: Proof, return_path: str, mail: bytes) -> None:
    assert read(mail, proof, [return_path]) == Reading()
