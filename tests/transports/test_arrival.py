"""What arrives at a real server is what was asked for, field by field; or it was refused by name before anything left.

Read with parts of the standard library that were not used to write it, and compared character by character.
"""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
import re
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from email.message import EmailMessage, Message
from email.utils import collapse_rfc2231_value, getaddresses
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from sendonce import Attachment, InvalidEmail, OutgoingEmail, unsubscribe_headers
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.outcome import Accepted
from sendonce.testing.attempt import CREATED_AT, RecordingGate, make_job
from sendonce.testing.mailbox import StoredMail
from sendonce.testing.smtp_server import SmtpServer

SCRIPTS = [
    "Grüße aus Köln", "Привет, мир", "こんにちは世界", "안녕하세요", "你好，世界", "مرحبا بالعالم", "שלום עולם",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "Γειά σου", "\U0001f469\u200d\U0001f467 🇦🇹 🎉", "ﬁ ﷺ e\u0301 é", "=?utf-8?q?plain?=",
    "=?", "?=", "a_b=20", '"quoted" \\ (c) <d>, e; f:', "  two  spaces ", "\ttab\t", "x" * 90, "x" * 300, "я" * 60,
    "a b " * 60, "\u200b\u2060\ufeff", "\u202eright\u202c", "€", "",
]  # fmt: skip
TAME = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=30)
WILD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
LINE = st.tuples(st.lists(st.sampled_from(SCRIPTS) | TAME, max_size=3).map(" ".join), st.integers(0, 60)).flatmap(
    lambda drawn: WILD if drawn[1] == 60 else st.just(drawn[0])
)
ODD_LINES = [".", "..", ".x", "From me", "--", "-- ", " ", "=", "=3D", "x" * 998, "x" * 999, "ж" * 700]
TEXT = st.lists(LINE | st.sampled_from(ODD_LINES), min_size=1, max_size=6).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\r"]).map(lambda end: end.join(lines))
)
LOCALS = st.sampled_from(["ann", "Ann", "a+b", "o'neil", '"john doe"', '"a\\"b"', '"a@b"', "x" * 64, "пётр", "用户"])
DOMAINS = st.sampled_from(
    ["example.org", "EXAMPLE.org", "bücher.example", "straße.example", "пример.рф", "xn--bcher-kva.example"]
)
ADDRESS = st.builds(lambda a, b, name: {"email": f"{a}@{b}", "name": name}, LOCALS, DOMAINS, LINE)
SOME = st.lists(ADDRESS, min_size=1, max_size=4)
NAME = LINE.map(lambda name: name.replace("	", "")[:80] or "n")
FILE = st.builds(
    lambda name, content, kind: {"filename": name, "content": content, **kind},
    NAME | st.sampled_from(["a.txt", 'R "№ 7"; ä/b.pdf', "..", "a\\b", "%41.txt", "x'y", "utf-8''z", "я" * 120]),
    st.binary(max_size=200) | st.just(b"\r\n.\r\n\x00" * 40),
    st.sampled_from(
        [{}, {"content_type": "text/csv; charset=utf-8"},
         {"content_type": "image/png", "inline": True, "content_id": "a@b"},
         {"content_type": 'text/calendar; method=REQUEST; x="a b"', "alternative": True}]
    ),
)  # fmt: skip
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "X-Note": LINE,
        "X-" + "Long" * 20: LINE,
        "References": st.lists(st.integers(1, 10**30).map(lambda n: f"<{n}@example.org>"), max_size=12).map(" ".join),
        "In-Reply-To": st.just(f"<{'i' * 90}@example.org>"),
        "Auto-Submitted": st.just("no"),
    },
)
UNSUBSCRIBE = st.sampled_from([{}, unsubscribe_headers(f"https://news.example.com/u/{'0123456789abcdef' * 6}?m=42")])
MAIL = st.fixed_dictionaries(
    {"sender": ADDRESS, "to": SOME, "text": TEXT, "headers": st.builds(lambda a, b: {**a, **b}, HEADERS, UNSUBSCRIBE)},
    optional={
        "cc": SOME, "bcc": SOME, "reply_to": SOME, "subject": LINE, "html": TEXT,
        "attachments": st.lists(FILE, max_size=3),
    },
)  # fmt: skip


class Post:
    """A relay, a transport towards it, and a loop of their own: hypothesis runs synchronous tests."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.server = SmtpServer()
        self.run(self.server.start())
        self.transport = SmtpTransport(SmtpSettings(host="127.0.0.1", port=self.server.port, tls="none"))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def send(self, content: OutgoingEmail) -> StoredMail:
        job = make_job(self.transport, content)
        result = self.run(self.transport.transmit(job, RecordingGate()))
        assert all(isinstance(outcome, Accepted) for outcome in result.outcomes.values()), result
        return self.server.mailbox.mails()[-1]

    def close(self) -> None:
        self.run(self.transport.close())
        self.run(self.server.close())
        self.runner.close()


@contextmanager
def post() -> Iterator[Post]:
    made = Post()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def relay() -> Iterator[Post]:
    with post() as made:
        yield made


def whitespace(text: str) -> str:
    """A reader may see any white space at a fold; nothing else may differ."""
    return re.sub(r"[ \t]+", " ", text)


def lines(text: str) -> str:
    return re.sub(r"\r\n|\r|\n", "\n", text)


def compare(content: OutgoingEmail, stored: StoredMail) -> None:
    data = stored.content
    head = data.partition(b"\r\n\r\n")[0]
    assert all(len(line) <= 998 for line in data.split(b"\r\n"))
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)|\x00", data)
    assert not re.search(rb"(?im)^[a-z-]*bcc", head)
    assert stored.recipients == content.recipients()
    # The body is ASCII; the header section is UTF-8 where a mailbox is (RFC 6532).
    message = email.message_from_string(data.decode(), policy=email.policy.SMTPUTF8)
    assert isinstance(message, EmailMessage)
    assert all(not part.defects for part in message.walk())
    names = [name for name in message.keys() if name not in ("Content-Type", "Content-Transfer-Encoding")]  # noqa: SIM118
    groups = {"From": (content.sender,), "To": content.to, "Cc": content.cc, "Reply-To": content.reply_to}
    expected = [name for name, group in groups.items() if group]
    if not content.to and not content.cc:
        expected.append("To")
    assert names == [*expected, "Subject", "Date", "Message-ID", *content.sent_headers, "MIME-Version"]
    assert message["Subject"] == content.subject
    assert message["Date"].datetime == CREATED_AT
    for name, group in groups.items():
        found = message[name].addresses if group else ()
        assert names_in(data, name) == [one.name for one in group]
        for one, asked in zip(found, group, strict=True):
            local, _, domain = asked.email.rpartition("@")
            assert f"{one.addr_spec.rpartition('@')[0]}@{one.domain.lower()}" in {
                asked.mailbox, f"{local}@{domain.lower()}"
            }  # fmt: skip
    for name, value in content.sent_headers.items():
        assert whitespace(message[name]).strip() == whitespace(value).strip()
        if name.startswith("List-"):
            assert f"{name}: {value}\r\n".encode() in data
    compare_body(content, message, email.message_from_bytes(data))


def names_in(data: bytes, field: str) -> list[str]:
    """The display names of a field. The policies' reader puts spaces between encoded words of a name (gh-92081)."""
    plain = email.message_from_string(data.decode())
    value = re.sub(r"\r?\n(?=[ \t])", "", plain.get(field, ""))
    return [decoded(shown) for shown, spec in getaddresses([value]) if spec]


def decoded(phrase: str) -> str:
    """RFC 2047 by the letter: white space between two encoded words is no part of the text."""
    joined = re.sub(r"(?<=\?=)[ \t]+(?==\?utf-8\?b\?)", "", phrase)
    return re.sub(r"=\?utf-8\?b\?([A-Za-z0-9+/=]+)\?=", lambda word: base64.b64decode(word[1]).decode(), joined)


def compare_body(content: OutgoingEmail, message: EmailMessage, plain: Message) -> None:
    leaves = [part for part in message.walk() if not part.is_multipart()]
    bodies = [part for part in leaves if part.get_content_disposition() is None]
    texts = {part.get_content_type(): part for part in bodies if part.get_content_maintype() == "text"}
    for kind, asked in (("text/plain", content.text), ("text/html", content.html)):
        if asked:
            arrived = lines(texts[kind].get_content())
            # The final line end of a text is not its writer's to choose.
            assert arrived in (lines(asked), lines(asked) + "\n")
        elif kind == "text/html" or content.html or any(one.alternative for one in content.attachments):
            assert kind not in texts
    files = [one for one in content.attachments if not one.alternative]
    arrived_files = [part for part in leaves if part.get_content_disposition() is not None]
    inline_first = sorted(files, key=lambda one: not (one.inline and bool(content.html)))
    # get_filename() would strip them.
    names = [part.get_param("filename", header="content-disposition") for part in plain.walk()]
    assert [collapse_rfc2231_value(name) for name in names if name is not None] == [
        one.filename for one in inline_first
    ]
    assert [part.get_payload(decode=True) for part in arrived_files] == [one.content for one in inline_first]
    for part, one in zip(arrived_files, inline_first, strict=True):
        assert part.get_content_type() == one.content_type.partition(";")[0]
        assert part["Content-ID"] == (f"<{one.content_id}>" if one.content_id else None)
    forms = [part for part in bodies if part.get_content_type() == "text/calendar"]
    asked_forms = [one for one in content.attachments if one.alternative]
    assert [part.get_payload(decode=True) for part in forms] == [one.content for one in asked_forms]
    assert all(part.get_param("method") == "REQUEST" and part.get_param("x") == "a b" for part in forms)


def arrives(relay: Post, fields: dict[str, Any]) -> None:
    fields["attachments"] = [made for one in fields.get("attachments", []) if (made := attachment(one))]
    try:
        content = OutgoingEmail(key="k", **fields)
    except InvalidEmail as refusal:
        event(f"refused: {refusal.field}")
        named = refusal.field in {*fields, "to"}
    else:
        event("sent")
        named = True
        compare(content, relay.send(content))
    assert named


def attachment(fields: dict[str, Any]) -> Attachment | None:
    try:
        return Attachment(**fields)
    except InvalidEmail:
        return None


PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.timeout(300)
@settings(max_examples=300, deadline=None, phases=PHASES, suppress_health_check=QUIET)
@given(fields=MAIL)
def test_hundreds_of_mails_arrive_as_asked_for(relay: Post, fields: dict[str, Any]) -> None:
    arrives(relay, fields)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=4000, deadline=None, phases=PHASES, suppress_health_check=QUIET)
@given(fields=MAIL)
def test_thousands_of_mails_arrive_as_asked_for(relay: Post, fields: dict[str, Any]) -> None:
    arrives(relay, fields)


def test_ready_made_mail_arrives_byte_by_byte(relay: Post) -> None:
    made = EmailMessage(policy=email.policy.SMTP)
    made["From"], made["To"], made["Bcc"], made["Subject"] = "a@example.org", "b@example.org", "c@example.org", "Grüße"
    made.set_content("Zażółć\n.\n..x\n")
    made.add_alternative("<p>Zażółć</p>", subtype="html", cte="base64")
    content = OutgoingEmail.from_mime(bytes(made), key="ready")
    stored = relay.send(content)
    assert stored.recipients == ("b@example.org", "c@example.org")
    date = b"Date: Sat, 31 Jan 2026 12:00:00 +0000\r\n"
    del made["Bcc"]
    assert stored.content == date + b"Message-ID: <ready@sendonce.test>\r\n" + bytes(made)
    own = b"From: a@example.org\r\nTo: b@example.org\r\nMessage-ID: <own@x>\r\n\r\nHi\r\n"
    own = date + own
    assert relay.send(OutgoingEmail.from_mime(own, key="own")).content == own
