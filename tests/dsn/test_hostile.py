"""Whatever comes in: nothing raises, nothing takes long, and what comes out can be stored."""

from __future__ import annotations

import base64
import quopri
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.dsn import parts
from sendonce.dsn.parse import CANDIDATES, RECIPIENTS, Notification, parse
from sendonce.dsn.proof import Proof
from sendonce.dsn.reader import read

SAMPLES = [path.read_bytes() for path in sorted((Path(__file__).parent / "samples").glob("*.eml"))]
PROOF = Proof([b"a key of enough octets"])

REPORT = b"""Content-Type: multipart/report; report-type=delivery-status; boundary=b

--b
Content-Type: message/delivery-status
%s
%s
--b--
"""


def report(body: bytes, fields: bytes = b"") -> Notification:
    found = parse(REPORT % (fields, body))
    assert found is not None
    return found


def check(mail: bytes) -> None:
    reading = read(mail, PROOF, ["a@b"])
    assert reading.events == ()
    for one in reading.unproven:
        event = one.event
        for text in (event.event_id, event.message_id, event.recipient, event.reply.text, event.reply.enhanced):
            # PostgreSQL takes neither NUL nor lone surrogates.
            assert not re.search("[\x00-\x08\ud800-\udfff]", text)
        assert len(event.event_id) <= 200
        assert len(event.recipient) <= 320
        assert len(event.reply.text) <= 1000
        assert len(event.reply.enhanced) <= 100
        assert event.at is None or event.at.tzinfo is not None


@given(st.binary(max_size=4000))
def test_any_octets(mail: bytes) -> None:
    check(mail)


@given(st.binary(max_size=2000), st.sampled_from([b"", b"Content-Transfer-Encoding: base64\n", b"X: \xff\n"]))
def test_any_octets_as_a_report(body: bytes, fields: bytes) -> None:
    check(REPORT % (fields, body))


FIELD = st.sampled_from(
    [b"Final-Recipient", b"Original-Recipient", b"Action", b"Status", b"Diagnostic-Code", b"Last-Attempt-Date", b"X"]
)
VALUE = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [b"failed", b"rfc822; a@b", rb"utf-8; \x{110000}@\x{0}", b"rfc822; +00@+FF", b"5.1.1", b"smtp; 550"]
    ),
    st.sampled_from([b"Thu, 32 Foo 99999 99:99:99 +9999", b"1 Jan 0001 00:00:00 +2359", b"31 Dec 9999 23:59:59 -2359"]),
)


@given(st.lists(st.tuples(FIELD, st.sampled_from([b":", b": ", b" :", b""]), VALUE, st.sampled_from([b"\n", b"\n\n"]))))
def test_any_fields(lines: list[tuple[bytes, ...]]) -> None:
    check(REPORT % (b"", b"".join(b"".join(line) for line in lines)))


@given(st.randoms(use_true_random=False), st.integers(1, 20))
def test_damaged_notifications(chance: random.Random, changes: int) -> None:
    mail = bytearray(chance.choice(SAMPLES))
    for _ in range(changes):
        place, length = chance.randrange(len(mail) + 1), chance.choice([0, 1, 10, 300])
        mail[place : place + length] = chance.choice([b"", b"\x00", b"\n", b"\r", b"\xff\xfe", b'"', b"--", b": "])
    check(bytes(mail))


@pytest.mark.parametrize("cut", range(0, 4000, 97))
def test_notifications_that_break_off(cut: int) -> None:
    for mail in SAMPLES:
        check(mail[:cut])


# Bounds -------------------------------------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    opening = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (i, i) for i in range(levels))
    return opening + b"Content-Type: message/delivery-status\n\nFinal-Recipient: rfc822; a@b\nAction: failed\n"


def test_deep_nesting_is_not_followed() -> None:
    assert parse(nested(parts.DEPTH)) is not None
    assert parse(nested(parts.DEPTH + 1)) is None
    assert parse(nested(20_000)) is None


def test_only_the_first_parts_are_looked_at() -> None:
    status = b"--b\nContent-Type: message/delivery-status\n\nFinal-Recipient: rfc822; a@b\nAction: failed\n"
    for other, found in ((parts.PARTS - 2, True), (parts.PARTS - 1, False), (200_000, False)):
        mail = b"Content-Type: multipart/report; boundary=b\n\n" + b"--b\n\n\n" * other + status
        assert (parse(mail) is not None) is found


def test_what_comes_after_the_limit_is_not_looked_at() -> None:
    body = b"Final-Recipient: rfc822; a@b\nAction: failed\n"
    # The whole of a large mail is returned: the report comes before it.
    large = REPORT % (b"", body) + b"--b\nContent-Type: message/rfc822\n\n" + b"x" * 20_000_000
    assert parse(large.replace(b"--b--\n", b"", 1)) is not None
    assert parse(b"X: " + b"x" * parts.LIMIT + b"\n" + REPORT % (b"", body)) is None


def test_recipients_are_bounded_and_so_are_addresses() -> None:
    body = b"".join(b"Final-Recipient: rfc822; a%d@b\nAction: failed\n\n" % number for number in range(2000))
    assert len(report(body).recipients) == RECIPIENTS
    mail = b"To: " + b", ".join(b"a%d@b" % n for n in range(500)) + b"\n" + REPORT % (b"", body)
    found = parse(mail)
    assert found is not None
    assert len(found.addresses) == CANDIDATES


@pytest.mark.parametrize(
    "mail",
    [
        b"Content-Type: multipart/mixed; boundary=" + b'"' * 100_000,
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n" * 300_000,
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b" + b" " * 1_000_000,
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b" + b" " * 1000 + b"x\n--b" * 200_000,
        b"Content-Type: multipart/mixed" + b"; boundary" * 100_000,
        b"Content-Type: multipart/mixed" + b'; boundary="\\' * 100_000,
        REPORT % (b"", b"\n \n" * 300_000),
        REPORT % (b"", b"Action: failed\n" + b" " * 1_000_000),
        REPORT % (b"", b"Action: failed\nFinal-Recipient: rfc822; a@b\n" + b" (x" * 300_000),
        REPORT % (b"", b"Action: failed\nDiagnostic-Code: smtp; " + b"5" * 1_000_000),
        REPORT % (b"", b"Action: failed\nLast-Attempt-Date: " + b"1 " * 500_000),
        REPORT % (b"Content-Transfer-Encoding: quoted-printable", b"=" * 1_000_000),
        b"a" * 1_000_000 + b": x\n\n",
        b": \n" * 300_000,
        b"To: " + b"<" * 1_000_000 + b"\n" + REPORT % (b"", b"Action: failed\n"),
    ],
    ids=range(15),
)
def test_what_is_made_to_take_long_does_not(mail: bytes) -> None:
    # A quadratic search in any of these would run into the time-out of the test.
    check(mail)


# Strange, and read all the same -------------------------------------------------------------------------------------

BODY = b"Reporting-MTA: dns; mx.example\n\nFinal-Recipient: rfc822; a@example.org\nAction: failed\nStatus: 5.1.1\n"


@pytest.mark.parametrize(
    "body",
    [
        BODY.replace(b"\n\n", b"\n"),
        BODY.replace(b"\n\n", b"\n \t\n\n\n"),
        b"\n\n" + BODY,
        b"This is the report.\n no field: at all\n" + BODY,
        BODY.replace(b"Action: failed", b"ACTION : Failed (user unknown)"),
        BODY.replace(b"rfc822; a@", b"\n rfc822;\n\ta@"),
        BODY.replace(b"5.1.1", b"5.1.1 (bad destination mailbox address)"),
        BODY.replace(b"dns; mx.example", b"dns; \xff\xfe"),
    ],
)
def test_reports_that_are_badly_written(body: bytes) -> None:
    (found,) = report(body).recipients
    assert (found.action, found.recipient, found.status) == ("failed", "a@example.org", "5.1.1")


@pytest.mark.parametrize(
    ("encoding", "encoded"), [(b"Base64", base64.encodebytes(BODY)), (b"quoted-printable", quopri.encodestring(BODY))]
)
def test_reports_that_are_encoded(encoding: bytes, encoded: bytes) -> None:
    (found,) = report(encoded, b"Content-Transfer-Encoding: " + encoding + b"\n").recipients
    assert found.recipient == "a@example.org"


def test_groups_without_empty_lines_are_told_apart() -> None:
    body = BODY + b"Final-Recipient: rfc822; b@example.org\nAction: delayed\nStatus: 4.4.1\n"
    assert [(one.recipient, one.action) for one in report(body).recipients] == [
        ("a@example.org", "failed"),
        ("b@example.org", "delayed"),
    ]


def test_a_second_action_for_a_recipient_is_nobodys() -> None:
    (found, other) = report(BODY.replace(b"Action: failed", b"Action: delayed\nAction: failed")).recipients
    assert (found.recipient, found.action, other.recipient) == ("a@example.org", "delayed", "")


def test_a_line_that_mbox_adds_before_the_header_does_no_harm() -> None:
    assert parse(b"From MAILER-DAEMON Thu Mar 12 10:15:31 2026\n" + REPORT % (b"", BODY)) is not None


def test_text_that_is_not_utf_8_is_shown_and_no_mailbox_of_ours() -> None:
    (found,) = report(BODY.replace(b"a@example.org", b"\xe4@example.org")).recipients
    assert found.recipient == r"\xe4@example.org"
    utf16 = REPORT % (b"", BODY.decode().encode("utf-16"))
    assert parse(utf16) is None
