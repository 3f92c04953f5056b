"""Messages that others built wrongly, from the row to the relay's mailbox."""

from __future__ import annotations

import base64
from email.message import EmailMessage
from email.policy import SMTP
from typing import TYPE_CHECKING, Any

import psycopg

from sendonce import InvalidEmail, OutgoingEmail, enqueue, unsubscribe_headers
from sendonce.testing import smtp_misbehaviour

if TYPE_CHECKING:
    from sendonce.testing.mailbox import StoredMail
    from tests.cases.conftest import Office

URL = f"https://news.example.com/u/{'0123456789abcdef' * 6}?m=42"


async def deliver(office: Office, *mails: dict[str, Any]) -> list[StoredMail]:
    """Send them all; what arrived, in the order asked for."""
    async with office.worker():
        keys = [await office.enqueue(f"m{number}", **fields) for number, fields in enumerate(mails)]
        for key in keys:
            await office.until_stage(key, "sent")
    arrived = {mail.headers["x-number"]: mail for mail in office.relay.mailbox.mails()}
    assert len(arrived) == len(mails) == len(office.relay.mailbox.mails())
    return [arrived[str(number)] for number in range(len(mails))]


def numbered(*mails: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**m, "headers": {"X-Number": str(n), **m.get("headers", {})}} for n, m in enumerate(mails)]


async def test_long_urls_and_ids_stay_whole_in_one_line(office: Office) -> None:
    long_id = f"<{'a' * 90}@example.org>"
    headers = {**unsubscribe_headers(URL), "In-Reply-To": long_id, "References": long_id}
    [arrived] = await deliver(office, *numbered({"headers": headers}))
    for name, value in headers.items():
        assert f"\r\n{name}: {value}\r\n".encode() in arrived.content


async def test_a_line_break_that_hides_in_an_encoded_word_is_refused_at_intake(office: Office) -> None:
    hidden = "Hello =?utf-8?q?=0ABcc:_x=40example.net?= world"
    with psycopg.connect(office.database_url) as connection:
        for bad in (hidden, "Hello\n", "a\x00b", "a\u2028b", "a\x0bb", "=?utf-8?b?YQ0KQmNjOiB4?="):
            for field in ("subject", "sender", "headers", "to"):
                value: Any = {"sender": f"{bad} <a@example.org>", "headers": {"X-Note": bad}}.get(field, bad)
                value = f"{bad} <a@example.org>" if field == "to" else value
                usual: dict[str, Any] = {"key": "k", "sender": "a@example.org", "to": "b@example.org", "text": "x"}
                refusal = None
                try:
                    enqueue(connection, OutgoingEmail(**{**usual, field: value}))
                except InvalidEmail as error:
                    refusal = error
                assert refusal is not None
                assert refusal.field == field
        assert connection.execute("SELECT count(*) FROM sendonce.email_key").fetchone() == (0,)


async def test_what_another_language_smuggles_past_the_intake_is_refused_before_it_is_rendered(office: Office) -> None:
    async with office.worker():
        key = await office.enqueue(subject="Hello =?utf-8?q?=0ABcc:_x=40example.net?= world")
        found = await office.until_stage(key, "failed")
    assert (found["last_enhanced"], office.relay.mailbox.copies()) == ("invalid:subject", 0)


async def test_nobody_sees_the_blind_recipients(office: Office) -> None:
    made = EmailMessage(policy=SMTP)
    made["From"], made["To"], made["X-Number"] = "shop@example.com", "ann@example.org", "1"
    made["Bcc"] = "h1@example.org, h2@example.org"
    made["Resent-Bcc"] = "h2@example.org"
    made.set_content("Hi.\n")
    ready = OutgoingEmail.from_mime(
        bytes(made), key="raw", recipients=["ann@example.org", "h1@example.org", "h2@example.org"]
    )
    [file] = ready.files()
    async with office.worker():
        keys = [
            await office.enqueue("object", bcc=["h1@example.org", "h2@example.org"], headers={"X-Number": "0"}),
            await office.enqueue(
                "bytes",
                [{**file, "content": base64.b64encode(file["content"]).decode()}],
                text=None, subject=None, to=[], bcc=["ann@example.org", "h1@example.org", "h2@example.org"], mime=True,
            ),
        ]  # fmt: skip
        for key in keys:
            await office.until_stage(key, "sent")
    for mail in office.relay.mailbox.mails():
        assert mail.recipients == ("ann@example.org", "h1@example.org", "h2@example.org")
        assert b"h1@" not in mail.content
        assert b"bcc" not in mail.content.lower()
    assert {mail.headers["x-number"] for mail in office.relay.mailbox.mails()} == {"0", "1"}


async def test_a_person_who_is_named_twice_gets_one_copy(office: Office) -> None:
    named = {"to": ["Ann <ann@example.org>"], "cc": ["ann@EXAMPLE.org"], "bcc": ["ann@example.org", "Ann@example.org"]}
    [arrived] = await deliver(office, *numbered(named))
    # Domains are compared without case, local parts as they are (RFC 5321 2.4).
    assert arrived.recipients == ("ann@example.org", "Ann@example.org")
    assert arrived.headers["to"] == "Ann <ann@example.org>"
    assert arrived.headers["cc"] == "ann@EXAMPLE.org"


async def test_a_long_subject_is_the_same_at_the_second_attempt(office: Office) -> None:
    office.relay.script.add(smtp_misbehaviour.refuse_message(451, "4.3.0 later", times=2))
    subjects = ["abcd efgh " * 20, "Привет, мир " * 10, "🎉 e\u0301 ﷺ"]
    arrived = await deliver(office, *numbered(*({"subject": one.strip()} for one in subjects)))
    assert [mail.parsed()["Subject"] for mail in arrived] == [one.strip() for one in subjects]
    assert b"Subject: " + subjects[0].strip().encode() + b"\r\n" in arrived[0].content
    counts = await office.rows("SELECT attempts FROM sendonce.email")
    assert sum(row["attempts"] for row in counts) == 5
    # Emoji survive the store's tables too.
    [row] = await office.rows(
        "SELECT content ->> 'subject' AS subject FROM sendonce.email_content WHERE content ->> 'subject' LIKE '🎉%'"
    )
    assert row["subject"] == subjects[2]


async def test_lines_that_are_too_long_or_begin_with_a_dot_arrive_unchanged(office: Office) -> None:
    texts = ["x" * 2500 + "\nend\n", ".\n..x\n...\n", "a\nb\rc\r\nd\n", "From me\n--\n-- \n"]
    arrived = await deliver(office, *numbered(*({"text": text} for text in texts)))
    for mail, text in zip(arrived, texts, strict=True):
        assert max(map(len, mail.content.split(b"\r\n"))) <= 998
        assert b"\n" not in mail.content.replace(b"\r\n", b"")
        body = mail.parsed().get_content().replace("\r\n", "\n")
        assert body == text.replace("\r\n", "\n").replace("\r", "\n")
    assert arrived[0].parsed()["Content-Transfer-Encoding"] == "quoted-printable"


async def test_names_of_files_arrive_unchanged(office: Office) -> None:
    names = ["Rechnung №7.pdf", 'a "b"; c.pdf', "a/b\\c.txt", "%41'.txt", "semi;colon=1.txt"]
    files = [{"filename": name, "content": base64.b64encode(name.encode()).decode()} for name in names]
    async with office.worker():
        key = await office.enqueue(files=files)
        await office.until_stage(key, "sent")
    [mail] = office.relay.mailbox.mails()
    found = {part.get_filename(): part.get_content() for part in mail.parsed().iter_attachments()}
    assert found == {name: name.encode() for name in names}


async def test_an_empty_part_is_left_out(office: Office) -> None:
    arrived = await deliver(office, *numbered({"text": "", "html": "<p>Hi</p>"}, {"text": "Hi", "html": ""}))
    assert [mail.parsed().get_content_type() for mail in arrived] == ["text/html", "text/plain"]
