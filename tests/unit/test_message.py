"""What a mail accepts, what it refuses, and that a refusal names the field and never shows the value."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any, get_args, get_type_hints
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sendonce
import sendonce.transport
from sendonce.errors import InvalidEmail
from sendonce.message import CONTENT_LIMIT, MAX_RECIPIENTS, Address, Attachment, OutgoingEmail
from sendonce.policy import RetryPolicy

SECRET = "hunter2"
BERLIN = ZoneInfo("Europe/Berlin")


def mail(**fields: Any) -> OutgoingEmail:
    return OutgoingEmail(
        **{"key": "order-1", "sender": "Shop <shop@example.com>", "to": "ann@example.org", "text": "Hi"} | fields
    )


def refused(**fields: Any) -> InvalidEmail:
    with pytest.raises(InvalidEmail) as caught:
        mail(**fields)
    return caught.value


def test_a_plain_mail() -> None:
    email = OutgoingEmail(
        key="order-1",
        sender="Shop <shop@example.com>",
        to=["ann@example.org", Address(email="b@example.org")],
        html="x",
    )
    assert email.sender == Address(email="shop@example.com", name="Shop")
    assert email.recipients() == ("ann@example.org", "b@example.org")
    assert (email.account, email.lane, email.text, email.html) == ("default", "default", None, "x")


@pytest.mark.parametrize(
    ("written", "name", "email"),
    [
        ("ann@example.org", "", "ann@example.org"),
        ("  ann@example.org ", "", "ann@example.org"),
        ("<ann@example.org>", "", "ann@example.org"),
        ("Ann <ann@example.org>", "Ann", "ann@example.org"),
        ('"Ann, \\"B\\"" <ann@example.org>', 'Ann, "B"', "ann@example.org"),
        ("Ann <the one> <ann@example.org>", "Ann <the one>", "ann@example.org"),
        ('"john doe"@example.org', "", '"john doe"@example.org'),
        ("Пётр <пётр@пример.рф>", "Пётр", "пётр@пример.рф"),
    ],
)
def test_address_strings(written: str, name: str, email: str) -> None:
    assert Address.parse(written) == Address(email=email, name=name)


@pytest.mark.parametrize(
    ("email", "mailbox"),
    [
        ("Ann@EXAMPLE.Org", "Ann@example.org"),
        ("ann@BÜCHER.example", "ann@xn--bcher-kva.example"),
        ("ann@straße.example", "ann@xn--strae-oqa.example"),  # IDNA 2003 would make it strasse
        ("пётр@example.org", "пётр@example.org"),
        ("ann@localhost", "ann@localhost"),
    ],
)
def test_mailbox_has_its_domain_in_lower_case_a_labels(email: str, mailbox: str) -> None:
    assert Address(email=email).mailbox == mailbox


@pytest.mark.parametrize(
    "email",
    [
        "",
        "ann",
        "@example.org",
        "ann@",
        "ann@example.org@",
        "a b@example.org",
        ".ann@example.org",
        "ann.@example.org",
        "a..b@example.org",
        "ann@example..org",
        "ann@-example.org",
        "ann@example.org.",
        "ann@exa_mple.org",
        "ann@[192.0.2.1]",
        "ann@exa mple.org",
        "ann@\u2028.example",
        "a\u00a0b@example.org",
        "a\u0085b@example.org",
        "ann\n@example.org",
        "ann@example.org\n",
        "ann\x00@example.org",
        "\ud800@example.org",
        '"a"b@example.org',
        "a" * 65 + "@example.org",
        "ann@" + "a" * 64 + ".org",
        "a" * 60 + "@" + ".".join(["a" * 60] * 4),
        "é" * 33 + "@example.org",
    ],
)
def test_mailboxes_that_are_refused(email: str) -> None:
    with pytest.raises(InvalidEmail) as caught:
        Address(email=email)
    assert caught.value.field == "email"
    assert refused(to=[Address(email="b@example.org"), {"email": email}]).field == "to"


def test_longest_mailbox() -> None:
    local, domain = "a" * 64, ".".join(["b" * 63, "b" * 63, "b" * 61])
    assert len(Address(email=f"{local}@{domain}").mailbox) == 254
    with pytest.raises(InvalidEmail):
        Address(email=f"{local}@{domain}b")


def test_an_envelope_holds_every_mailbox_once() -> None:
    email = mail(
        to="Ann <ann@example.org>", cc=["ann@EXAMPLE.org", "c@example.org"], bcc=["ann@example.org", "Ann@example.org"]
    )
    assert email.recipients() == ("ann@example.org", "c@example.org", "Ann@example.org")
    assert email.cc[0].email == "ann@EXAMPLE.org"  # headers show what was written


def test_number_of_recipients() -> None:
    many = [f"r{n}@example.org" for n in range(MAX_RECIPIENTS)]
    assert len(mail(to=many, cc=many).recipients()) == MAX_RECIPIENTS
    assert refused(to=many, bcc="one.more@example.org").field == "to"
    assert refused(to=()).field == "to"
    assert mail(to=(), bcc="ann@example.org").recipients() == ("ann@example.org",)


BREAKS = ["\r", "\n", "\r\n", "\x00", "\x0b", "\x0c", "\x1c", "\x7f", "\u0085", "\u2028", "\u2029", "\ud83d"]
HIDDEN = [
    "=?utf-8?q?=0ABcc:_x=40example.net?=",
    "=?UTF-8?Q?a=0D?=",
    "=?utf-8?b?Cg==?=",
    "=?utf-8*en?b?Cg?=",
    "=?utf-7?q?+AAo-?=",
    "=?nonsense?q?=0a?=",
    "=?utf-8?q?=00?=",
    "=?utf-8?q?=E2=80=A8?=",
    "=?utf-8?q?=?utf-8?b?Cg==?= ?=",
    "=?utf-8?q?=3D=3Futf-8=3Fb=3FCg=3D=3D=3F=3D?=",
]


@pytest.mark.parametrize("bad", BREAKS + HIDDEN)
def test_no_line_break_gets_into_a_header(bad: str) -> None:
    for text in (bad, f"Hello {bad} world"):
        assert refused(subject=text).field == "subject"
        assert refused(sender={"email": "a@example.org", "name": text}).field == "sender"
        assert refused(to=[{"email": "a@example.org", "name": text}]).field == "to"
        assert refused(headers={"X-Order": text}).field == "headers"
        assert refused(headers={f"X-{text}": "4711"}).field == "headers"
        assert refused(requested_by=text).field == "requested_by"
        assert refused(template=text, text=None).field == "template"
        with pytest.raises(InvalidEmail) as caught:
            Attachment(filename=text, content=b"")
        assert caught.value.field == "filename"
        with pytest.raises(InvalidEmail):
            Attachment(filename="x", content=b"", content_id=text)
        with pytest.raises(InvalidEmail):
            Attachment(filename="x", content=b"", content_type=f"text/plain{text}")


@pytest.mark.parametrize(
    "text", ["=?utf-8?q?caf=C3=A9?=", "a\tb", "=?", "1 =? 2 ?= 3", "🎉 Danke", "x" * 989, "я" * 273]
)
def test_subjects_that_are_taken(text: str) -> None:
    assert mail(subject=text).subject == text


@pytest.mark.parametrize("text", ["x" * 990, "я" * 600])
def test_subjects_that_fill_more_than_a_line(text: str) -> None:
    assert refused(subject=text).field == "subject"


@pytest.mark.parametrize(
    "name",
    [
        *("From", "TO", "cc", "Bcc", "Resent-Bcc", "resent-from", "Subject", "Date", "Message-ID", "Mime-Version"),
        *("Sender", "Content-Type", "content-id", "Reply-To", "Return-Path", "Received", "DKIM-Signature"),
        *("bcc ", "bcc:", "X Y", "X:Y", "Größe", ""),
    ],
)
def test_headers_that_are_ours_or_none(name: str) -> None:
    assert refused(headers={name: "x"}).field == "headers"


def test_headers_that_are_taken() -> None:
    url = "<https://news.example.com/u/" + "0" * 96 + "?m=42>"
    headers = {"List-Unsubscribe": url, "Auto-Submitted": "auto-generated", "X-Long": "x" * 990}
    assert mail(headers=headers).headers == headers
    assert refused(headers={"X-Long": "x" * 991}).field == "headers"
    assert refused(headers={"X-A": "1", "x-a": "2"}).field == "headers"
    # No encoded words may stand there (RFC 2047 5), so nothing could carry it.
    assert refused(headers={"List-Id": "Bücher <books.example.org>"}).field == "headers"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", ""),
        ("key", "a b"),
        ("key", "k\n"),
        ("key", "k" * 101),
        ("key", "schlüssel"),
        ("key", 7),
        ("account", "Default"),
        ("account", ""),
        ("lane", "l" * 51),
        ("sender", None),
        ("sender", ["a@example.org"]),
        ("envelope_sender", "nobody"),
        ("to", 5),
        ("to", "a@example.org, b@example.org"),
        ("to", [None]),
        ("subject", b"bytes"),
        ("text", "a\x00b"),
        ("html", "\udfff"),
        ("text", 1),
        ("template", "t"),
        ("parameters", {"a": 1}),
        ("headers", ["X-A"]),
        ("headers", {"X-A": 1}),
        ("attachments", ["file.txt"]),
        ("attachments", 5),
        ("send_after", 1893456000),
        ("send_after", "soon"),
        ("send_after", "2030-01-01T00:00:00"),
        ("send_after", datetime(2030, 1, 1)),  # noqa: DTZ001 (naive on purpose)
        ("expires_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))),
        ("requested_by", "x" * 201),
        ("fairness_key", "x" * 101),
        ("fairness_key", ""),
        ("retry", {"delays": ["x"]}),
        ("retry", {"max_tries": 3}),
        ("retry", {"max_attempts": 0}),
        ("retry", 3),
        ("unknown", "resent"),
        ("priority", 1),
    ],
)
def test_a_refusal_names_the_field(field: str, value: object) -> None:
    assert refused(**{field: value}).field == field


@pytest.mark.parametrize("missing", ["key", "sender", "to", "text"])
def test_what_a_mail_needs(missing: str) -> None:
    fields: dict[str, Any] = {"key": "k", "sender": "a@example.org", "to": "b@example.org", "text": "x"}
    del fields[missing]
    with pytest.raises(InvalidEmail) as caught:
        OutgoingEmail(**fields)
    assert caught.value.field == missing


@pytest.mark.parametrize(
    "fields",
    [
        {"key": SECRET + " "},
        {"to": f"{SECRET}@"},
        {"to": [{"email": "a@example.org", "name": SECRET + "\n"}]},
        {"subject": SECRET + "\n"},
        {"text": SECRET + "\x00"},
        {"headers": {f"X {SECRET}": "x"}},
        {"headers": {"X-A": SECRET + "\n"}},
        {"parameters": {SECRET + "\x00": 1}},
        {"unknown": SECRET},
        {"retry": {SECRET: 1}},
        {"retry": {"base": SECRET}},
        {"send_after": SECRET},
        {f"{SECRET}@example.org": 1},
        {"to": [{"email": "a@example.org", f"{SECRET}@example.org": 1}]},
    ],
)
def test_a_refusal_never_shows_the_value(fields: dict[str, Any]) -> None:
    error: BaseException | None = refused(**fields)
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_refusal_says_what_to_change() -> None:
    assert str(refused(subject="a\n")) == "subject: must be one line without control characters"
    assert str(refused(to=["a@example.org", "b"])) == "to: address 2: must be a mailbox, local-part@domain"
    assert str(refused(unknown="x")) == "unknown: must be 'hold' or 'resend'"


def test_repr_shows_no_personal_data() -> None:
    email = mail(
        subject=SECRET, text=SECRET, to=f"{SECRET}@example.org", attachments=[Attachment(filename=SECRET, content=b"x")]
    )
    assert "order-1" in repr(email)
    for shown in (repr(email), str(email), repr(email.to), str(email.to[0]), repr(email.attachments)):
        assert SECRET not in shown


def test_an_empty_part_is_left_out() -> None:
    email = mail(text="", html="<p>x</p>")
    assert email.text is None
    assert refused(text="", html="").field == "text"
    assert mail(text="", template="welcome", parameters={}).parameters is None
    assert mail(text=None, attachments=[Attachment(filename="a", content=b"")]).attachments


def test_expiry_comes_after_the_first_try() -> None:
    now = datetime.now(UTC)
    assert refused(send_after=now, expires_at=now).field == "expires_at"
    assert mail(send_after=now, expires_at=now + timedelta(seconds=1)).send_after == now


def test_wall_time_becomes_an_instant_at_once() -> None:
    # 02:30 on the night the clocks go back is there twice, on the night they go forward not at all.
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    assert mail(send_after=twice).send_after == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert mail(send_after=twice.replace(fold=1)).send_after == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    never = mail(send_after=datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)).send_after
    assert never == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert never.tzinfo is UTC
    assert mail(send_after="2030-01-31T09:00:00+01:00").send_after == datetime(2030, 1, 31, 8, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        1e16,
        10**100,
        b"x",
        {1: 2},
        {"a": {None: 1}},
        object(),
        "\x00",
        ["\ud800"],
        {"\x00": 1},
    ],
)
def test_parameters_are_json_that_can_be_stored(value: object) -> None:
    assert refused(text=None, template="t", parameters={"value": value}).field == "parameters"


def test_parameters_are_copied() -> None:
    given: dict[str, Any] = {"items": [1], "colour": Colour.RED, "pair": (1, 2)}
    email = mail(text=None, template="t", parameters=given)
    given["items"].append(2)
    assert email.parameters == {"items": [1], "colour": "red", "pair": [1, 2]}
    assert type(email.parameters["colour"]) is str
    nested: Any = {}
    for _ in range(60):
        nested = {"a": nested}
    assert refused(text=None, template="t", parameters=nested).field == "parameters"


def test_size_after_base64() -> None:
    fits = CONTENT_LIMIT // 78 * 57 - len("Hi")
    big = Attachment(filename="a", content=b"x" * fits)
    assert mail(attachments=[big]).attachments == (big,)
    assert refused(attachments=[big, Attachment(filename="b", content=b"x")]).field == "attachments"
    assert refused(text="x" * (CONTENT_LIMIT // 78 * 57 + 1)).field == "text"


@pytest.mark.parametrize(
    "fields",
    [
        {"filename": ""},
        {"filename": "x" * 256},
        {"filename": "a\tb"},
        {"content": "text"},
        {"content_type": "pdf"},
        {"content_type": "message/rfc822"},
        {"content_type": "Multipart/mixed"},
        {"inline": True},
        {"inline": "yes", "content_id": "logo"},
        {"content_id": "<logo>"},
        {"size": 1},
    ],
)
def test_attachments_that_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEmail):
        Attachment(**{"filename": "a.pdf", "content": b"x"} | fields)


def test_attachments_that_are_taken() -> None:
    calendar = "text/calendar; method=REQUEST; charset=utf-8"
    assert Attachment(filename='ü";/.ics', content=b"", content_type=calendar).content_type == calendar
    logo = Attachment(filename="logo.png", content=b"x", inline=True, content_id="logo@shop.example")
    assert logo.content_id == "logo@shop.example"


def test_envelope_sender() -> None:
    assert mail().envelope_sender is None
    assert mail(envelope_sender="").envelope_sender == ""
    assert mail(envelope_sender="Bounce@BÜCHER.example").envelope_sender == "Bounce@xn--bcher-kva.example"


def test_a_copy_is_checked() -> None:
    copy = mail().model_copy(update={"key": "order-2"})
    assert (copy.key, copy.text) == ("order-2", "Hi")
    with pytest.raises(InvalidEmail):
        mail().model_copy(update={"key": "order 2"})


def test_stored_form_comes_back_equal() -> None:
    email = mail(
        cc="пётр@пример.рф",
        envelope_sender="",
        headers={"X-A": "1"},
        attachments=[Attachment(filename="a", content=b"\x00")],
        send_after=datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
        retry=RetryPolicy(delays=(1, 2), jitter=0),
        unknown="resend",
        requested_by="shop",
    )
    stored = json.loads(json.dumps(email.to_json()))
    assert OutgoingEmail.from_json(stored, email.attachments) == email
    rows = [attachment.model_dump() for attachment in email.attachments]
    assert OutgoingEmail.from_json(stored, rows) == email
    assert OutgoingEmail.from_json(stored) != email


def test_stored_form_is_checked_again() -> None:
    stored = mail().to_json()
    for field, value in {"to": [], "key": "a b", "priority": 1, "attachments": []}.items():
        with pytest.raises(InvalidEmail) as caught:
            OutgoingEmail.from_json(stored | {field: value})
        assert caught.value.field == field
    with pytest.raises(InvalidEmail) as caught:
        OutgoingEmail.from_json(stored, [{"filename": "", "content": b""}])
    assert caught.value.field == "attachments"


@given(st.text(max_size=60))
def test_any_address_string_is_taken_or_refused(text: str) -> None:
    try:
        address = Address.parse(text)
    except InvalidEmail:
        return
    assert Address(email=address.email, name=address.name) == address
    local, _, domain = address.mailbox.rpartition("@")
    assert local == address.email.rpartition("@")[0]
    assert domain.isascii()
    assert domain == domain.lower()


@given(st.text(max_size=30), st.sampled_from("qb"), st.text(max_size=10))
def test_any_encoded_word_is_taken_or_refused(body: str, encoding: str, charset: str) -> None:
    # Suppressed is the refusal alone: any other exception is a failure.
    with contextlib.suppress(InvalidEmail):
        mail(subject=f"=?{charset}?{encoding}?{body}?=")


FRESH = """
import sys, sendonce
heavy = {"httpx", "aiosmtplib", "psycopg", "sqlalchemy", "temporalio", "pydantic", "alembic"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
sendonce.OutgoingEmail, sendonce.RetryPolicy, sendonce.InvalidEmail, sendonce.enqueue
heavy -= {"pydantic", "psycopg"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert set(sendonce.__all__) <= set(dir(sendonce))
print(" ".join(sendonce.__all__))
for name in sendonce.__all__:
    getattr(sendonce, name)
try:
    sendonce.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""


def test_public_names() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", FRESH], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [
        "Address",
        "Attachment",
        "BackgroundStarter",
        "CancelOutcome",
        "Cancelled",
        "ConfigurationError",
        "Enqueued",
        "EventKind",
        "Final",
        "IdempotencyConflict",
        "InvalidEmail",
        "LanePolicy",
        "LoopStarter",
        "MailStatus",
        "NoSuchEmail",
        "OutgoingEmail",
        "RecipientStage",
        "RetryPolicy",
        "SendonceError",
        "SignalWorkflow",
        "Stage",
        "StoreNotReady",
        "TakenEvent",
        "Template",
        "TemplateFault",
        "Templates",
        "WaitTimeout",
        "cancel",
        "enqueue",
        "enqueue_many",
        "start_now",
        "status",
        "take_events",
        "take_finals",
        "unsubscribe_headers",
        "wait",
    ]


def _of_ours(hint: Any) -> set[type]:
    if isinstance(hint, type) and not get_args(hint):
        return {hint} if hint.__module__.startswith("sendonce.") else set()
    return {found for inner in get_args(hint) for found in _of_ours(inner)}


@pytest.mark.parametrize("module", [sendonce, sendonce.transport])
def test_what_public_objects_hold_is_public_too(module: Any) -> None:
    """So that it can be compared with, and named in an annotation."""
    public = {getattr(one, name) for one in (sendonce, module) for name in one.__all__}
    objects = [one for one in public if isinstance(one, type)]
    held = {one.__name__: found for one in objects if (found := _held(one) - public)}
    assert held == {}
    assert len(objects) > 20


def _held(one: type) -> set[type]:
    return {found for hint in get_type_hints(one).values() for found in _of_ours(hint)}
