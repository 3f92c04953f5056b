"""Whatever is accepted can be stored and comes back equal; whatever is not is refused by name before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, timedelta, timezone
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from sendonce import Attachment, InvalidEmail, OutgoingEmail, RetryPolicy, enqueue

# Any text at all: controls, surrogates, separators and encoded words among it.
WILD = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["=?utf-8?q?a=0Ab?=", "a\x00b", "\ud800", "🎉", "я" * 300]
)
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20)
DOMAINS = st.sampled_from(
    ["example.org", "EXAMPLE.org", "bücher.example", "пример.рф", "straße.example"] * 4 + ["ex_ample.org"]
)
LOCALS = st.sampled_from(["ann", "Ann", "a+b", "пётр", '"john doe"', '"a\\"b"'] * 4 + ["a..b"])
ADDRESSES = st.builds(lambda a, b, name: {"email": f"{a}@{b}", "name": name}, LOCALS, DOMAINS, NAMES) | st.builds(
    lambda a, b: f"Ann <{a}@{b}>", LOCALS, DOMAINS
)
SOME = st.lists(ADDRESSES, min_size=1, max_size=3)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([1e15, 1e16, 1e23, 1e300, 5e-324, -0.0, 10**99, 10**100])
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
INSTANTS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5, minutes=-30)), None]))
FILES = st.fixed_dictionaries(
    {"filename": NAMES | st.just("a.txt") | WILD, "content": st.binary(max_size=50)},
    optional={
        "content_type": st.sampled_from(["text/plain", "text/plain; charset=utf-8", "pdf"]),
        "content_id": st.just("logo") | WILD,
        "alternative": st.booleans(),
    },
)
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "account": st.sampled_from(["other", "Other"]),
    "lane": st.sampled_from(["bulk", "critical", ""]),
    "envelope_sender": st.just("") | st.builds(lambda a, b: f"{a}@{b}", LOCALS, DOMAINS),
    "cc": SOME,
    "bcc": SOME,
    "reply_to": SOME,
    "subject": WILD,
    "text": WILD,
    "html": WILD,
    "headers": st.dictionaries(st.sampled_from(["X-A", "x-a", "List-Unsubscribe", "Bcc"]) | WILD, WILD, max_size=2),
    "attachments": st.lists(FILES, max_size=2),
    "send_after": INSTANTS,
    "expires_at": INSTANTS,
    "requested_by": WILD,
    "fairness_key": st.sampled_from(["tenant-1", "a b", ""]),
    "retry": st.builds(RetryPolicy, base=st.floats(1, 1000), delays=st.lists(st.floats(0.25, 9), max_size=2)),
    "unknown": st.sampled_from(["hold", "resend"]),
}
BODY = st.fixed_dictionaries({"text": st.just("Hi")}) | st.fixed_dictionaries(
    {"template": WILD | st.just("welcome"), "parameters": st.dictionaries(st.text(max_size=5), JSON, max_size=3)}
)
# A few of the optional fields at a time: with all of them, hardly any mail would be accepted.
EXTRAS = st.lists(st.sampled_from(sorted(OPTIONAL)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: OPTIONAL[name] for name in names})
)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url) as connection:
        yield connection


def read(connection: psycopg.Connection[Any]) -> OutgoingEmail:
    with connection.cursor(row_factory=dict_row) as cursor:
        content = cursor.execute("SELECT content FROM sendonce.email_content").fetchall()[0]["content"]
        files = cursor.execute(
            "SELECT filename, content, content_type, content_id, inline, alternative FROM sendonce.attachment"
            " ORDER BY ordinal"
        ).fetchall()
    return OutgoingEmail.from_json(content, files)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(to=SOME, sender=ADDRESSES, body=BODY, extras=EXTRAS)
def test_accepted_is_stored_and_refused_is_named(
    connection: psycopg.Connection[Any], to: list[Any], sender: Any, body: dict[str, Any], extras: dict[str, Any]
) -> None:
    fields = {"key": "k", "sender": sender, "to": to} | body | extras
    try:
        files = [Attachment(**file) for file in extras.get("attachments", [])]
        email = OutgoingEmail(**fields | {"attachments": files})
    except InvalidEmail as error:
        event(f"refused: {error.field}")
        named = error.field in {"text", *fields} or error.field in ("filename", "content_type", "content_id")
    else:
        event("accepted")
        done = enqueue(connection, email)
        named = done.created
        assert read(connection) == email
        assert enqueue(connection, email) == done.__class__(
            done.id, "k", email.account, email.lane, created=False, stage=done.stage, template=email.template
        )
        mailboxes = connection.execute("SELECT mailbox FROM sendonce.recipient ORDER BY ordinal").fetchall()
        assert tuple(mailbox for (mailbox,) in mailboxes) == email.recipients()
    assert named
    assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.rollback()
