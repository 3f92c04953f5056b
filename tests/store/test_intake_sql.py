"""``sendonce.enqueue`` as other languages call it: plain SQL, a status instead of an exception."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from importlib import resources
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from sendonce import Attachment, OutgoingEmail, enqueue
from sendonce.embedded import clean_environment
from sendonce.embedded.binaries import postgres_programs

FILE = {"filename": "a.txt", "content": "aGk="}


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url) as connection:
        yield connection


def call(connection: psycopg.Connection[Any], message: object, attachments: object = ()) -> tuple[str, Any, Any]:
    found = connection.execute(
        "SELECT * FROM sendonce.enqueue(%s, %s)",
        [Jsonb(message), Jsonb(list(attachments) if isinstance(attachments, tuple) else attachments)],
    ).fetchall()
    ((status, email_id, stage),) = found
    return status, email_id, stage


def message(**fields: Any) -> dict[str, Any]:
    return {"key": "k", "sender": "shop@example.com", "to": "ann@example.org", "text": "Hi"} | fields


def test_the_example_in_psql(database_url: str) -> None:
    source = (resources.files("sendonce.store") / "migrations/versions/0001_enqueue.sql").read_text()
    found = re.search(r"In psql:\n--\n((?:--   .*\n)+)", source)
    assert found
    example = re.sub("(?m)^--   ", "", found[1])
    for status in ("created", "exists"):
        ran = subprocess.run(
            [postgres_programs(None) / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", database_url],
            input=example,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert [line.split("|")[0] for line in ran.stdout.splitlines()] == ["BEGIN", status, "COMMIT"]
    with psycopg.connect(database_url) as connection:
        ((content, filename, body),) = connection.execute(
            "SELECT c.content, a.filename, a.content"
            " FROM sendonce.email_content c JOIN sendonce.attachment a USING (email_id)"
        ).fetchall()
    email = OutgoingEmail.from_json(content, [{"filename": filename, "content": body}])
    assert (email.sender.name, email.recipients(), body) == ("Bookstore", ("ann@example.org",), b"Thank you.")


SAME = [
    (message(), {}),
    (
        message(sender='"Shop, \\"A\\"" <shop@example.com>', to=["Ann <ann@example.org>", {"email": "b@example.org"}]),
        {"sender": '"Shop, \\"A\\"" <shop@example.com>', "to": ["Ann <ann@example.org>", "b@example.org"]},
    ),
    (
        message(cc=None, bcc=[], reply_to=[], subject="", html="", template=None, headers={}, parameters=None),
        {"cc": (), "html": "", "headers": {}},
    ),
    (
        message(text=None, template="t", parameters={"b": [1, None, "ü"], "a": {"x": 1.5}}),
        {"text": None, "template": "t", "parameters": {"a": {"x": 1.5}, "b": [1, None, "ü"]}},
    ),
    (message(envelope_sender="Bounce@EXAMPLE.org"), {"envelope_sender": "Bounce@example.ORG"}),
    (message(envelope_sender=""), {"envelope_sender": ""}),
    (message(text="", template="t", parameters={}), {"text": None, "template": "t"}),
    (
        message(cc={"email": "x@bücher.example", "name": None, "mailbox": "x@xn--bcher-kva.example"}),
        {"cc": "x@bücher.example"},
    ),
    (message(lane="bulk", send_after="2030-01-01 09:00+01", unknown="hold", retry={"base": 1}), {}),
    (message(headers={"X-B": "1", "X-A": "2"}), {"headers": {"X-A": "2", "X-B": "1"}}),
]


@pytest.mark.parametrize(("raw", "fields"), SAME)
def test_same_content_from_sql_and_from_python(
    connection: psycopg.Connection[Any], raw: dict[str, Any], fields: dict[str, Any]
) -> None:
    file = Attachment(filename="a", content=b"\x00\x01")
    encoded = {"filename": "a", "content": base64.b64encode(file.content).decode()}
    email = OutgoingEmail(**{**message(), **fields, "attachments": [file]})
    status, email_id, stage = call(connection, raw, [encoded])
    assert (status, stage) == ("created", "pending")
    there = enqueue(connection, email)
    assert (there.id, there.created) == (email_id, False)
    mailboxes = connection.execute("SELECT mailbox FROM sendonce.recipient ORDER BY ordinal").fetchall()
    assert tuple(mailbox for (mailbox,) in mailboxes) == email.recipients()
    # And the other way round.
    second = email.model_copy(update={"key": "k2"})
    assert call(connection, raw | {"key": "k2"}, [encoded])[0] == "created"
    assert enqueue(connection, second).created is False


def test_a_conflict_is_a_status(connection: psycopg.Connection[Any]) -> None:
    _, email_id, _ = call(connection, message())
    assert call(connection, message()) == ("exists", email_id, "pending")
    assert call(connection, message(text="Other")) == ("conflict", email_id, "pending")
    assert call(connection, message(key="k2"))[0] == "created"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", None),
        ("key", ""),
        ("key", "a b"),
        ("key", "k\n"),
        ("key", "k" * 101),
        ("key", 1),
        ("account", "A"),
        ("lane", ""),
        ("sender", None),
        ("sender", []),
        ("sender", "nobody"),
        ("sender", {"email": "a@example.org", "nmae": "A"}),
        ("sender", {"email": 1}),
        ("sender", "A\n <a@example.org>"),
        ("envelope_sender", "nobody"),
        ("to", []),
        ("to", 5),
        ("to", ["a@example.org", None]),
        ("to", "a@bücher.example"),
        ("to", "a@\u212aing.example"),  # the Kelvin sign, which Unicode's lower case makes a k
        ("to", "a@example.org\n"),
        ("to", {"email": "a@bücher.example", "mailbox": "b@xn--bcher-kva.example"}),
        ("to", "a" * 65 + "@example.org"),
        ("to", "a@" + ".".join(["b" * 60] * 5)),
        ("to", [f"r{n}@example.org" for n in range(1001)]),
        ("cc", "nobody"),
        ("bcc", "nobody"),
        ("reply_to", "nobody"),
        ("subject", "a\nb"),
        ("subject", "a\u2028b"),
        ("subject", "x" * 990),
        ("subject", []),
        ("text", ""),
        ("text", {}),
        ("text", "x" * (20 * 1024 * 1024)),
        ("template", "t"),
        ("parameters", {"a": 1}),
        ("parameters", []),
        ("headers", {"Bcc": "x"}),
        ("headers", {"Resent-Bcc": "x"}),
        ("headers", {"X Y": "x"}),
        ("headers", {"X-A": 1}),
        ("headers", {"X-A": "a\rb"}),
        ("send_after", "2030-01-01T00:00:00"),
        ("send_after", "2030-13-01T00:00:00Z"),
        ("send_after", "infinity"),
        ("send_after", 1893456000),
        ("expires_at", "tomorrow"),
        ("unknown", "resent"),
        ("retry", "often"),
        ("requested_by", "a\nb"),
        ("fairness_key", ""),
        ("fairness_key", "a b"),
        ("priority", 1),
        ("attachments", []),
    ],
)
def test_an_invalid_field_is_named(connection: psycopg.Connection[Any], field: str, value: object) -> None:
    assert call(connection, message(**{field: value})) == (f"invalid:{field}", None, None)
    assert connection.execute("SELECT count(*) FROM sendonce.email_key").fetchone() == (0,)
    assert call(connection, message())[0] == "created"


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {},
        ["text"],
        [{}],
        [FILE | {"content": "???"}],
        [FILE | {"content": None}],
        [FILE | {"filename": ""}],
        [FILE | {"filename": "a\nb"}],
        [FILE | {"content_type": 1}],
        [FILE | {"content_type": "text/plain\r\nBcc: x"}],
        [FILE | {"content_id": []}],
        [FILE | {"inline": "yes"}],
        [FILE | {"size": 1}],
        [FILE, FILE | {"content": base64.b64encode(bytes(19 * 1024 * 1024)).decode()}],
    ],
)
def test_invalid_attachments(connection: psycopg.Connection[Any], wrong: object) -> None:
    assert call(connection, message(), wrong) == ("invalid:attachments", None, None)
    assert call(connection, message(), [FILE])[0] == "created"


@pytest.mark.parametrize("wrong", [None, "text", [], 5])
def test_a_message_is_an_object(connection: psycopg.Connection[Any], wrong: object) -> None:
    assert call(connection, wrong)[0] == "invalid:message"
    assert connection.execute("SELECT status FROM sendonce.enqueue(NULL)").fetchone() == ("invalid:message",)


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


UNREADABLE = [
    *[("parameters", f'{{"a": {value}}}') for value in ("1" + "0" * 5000, "-1" + "0" * 100, "1e100000", "1e100")],
    *[("parameters", f'{{"a": {nested(levels)}}}') for levels in (50, 990, 5000)],
    ("retry", '{"max_attempts": 1' + "0" * 5000 + "}"),
    *[("retry", f'{{"{member}": "1"}}') for member in ("delays", "base", "factor", "cap", "jitter", "max_attempts")],
    *[("retry", f'{{"delays": {value}}}') for value in ("[0]", "[1, null]", '["1"]', "[604801]", "{}", "[[1]]")],
    *[("retry", f'{{"max_attempts": {value}}}') for value in ("0", "1001", "5.0", "true", "null")],
    *[
        ("retry", f"{{{member}}}")
        for member in ('"max_age": 0.9', '"jitter": 2', '"factor": 0', '"cap": 604801', '"a": 1')
    ],
    *[("send_after", f'"2030-01-01T{time}Z"') for time in ("24:00:00", "23:59:60", "12:60")],
    *[("expires_at", f'"2030-01-01T{time}Z"') for time in ("24:00:00", "23:59:60", "12:60")],
]


@pytest.mark.parametrize(("field", "value"), UNREADABLE, ids=lambda text: text[:30])
def test_what_no_worker_could_read_is_refused(connection: psycopg.Connection[Any], field: str, value: str) -> None:
    """jsonb and timestamptz take more than other languages do."""
    mail = f'{{"key": "k", "sender": "a@example.com", "to": "b@example.org", "template": "t", "{field}": {value}}}'
    found = connection.execute("SELECT status FROM sendonce.enqueue(%s::jsonb)", [mail]).fetchone()
    assert found == (f"invalid:{field}",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parameters", f'{{"a": {nested(49)}}}'),
        ("parameters", '{"a": ' + "9" * 100 + ', "b": -1e99, "c": 1e-400, "d": "' + "1" * 5000 + '"}'),
        ("retry", "{}"),
        ("retry", '{"delays": [], "base": 0.25, "factor": 100, "cap": 604800, "jitter": 0, "max_attempts": 1000}'),
        ("retry", '{"delays": [0.25, 604800], "max_attempts": 1, "max_age": 31536000, "jitter": 1.0, "factor": 1}'),
        ("send_after", '"2030-01-01T23:59:59.123456789+15:59"'),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_just_within_the_bounds_is_read_by_a_worker(
    connection: psycopg.Connection[Any], field: str, value: str
) -> None:
    mail = f'{{"key": "k", "sender": "a@example.com", "to": "b@example.org", "template": "t", "{field}": {value}}}'
    found = connection.execute("SELECT status FROM sendonce.enqueue(%s::jsonb)", [mail]).fetchone()
    assert found == ("created",)
    ((content,),) = connection.execute("SELECT content FROM sendonce.email_content").fetchall()
    assert getattr(OutgoingEmail.from_json(content), field) is not None or value == "{}"


def test_an_unknown_member_that_may_be_personal_is_not_shown(connection: psycopg.Connection[Any]) -> None:
    assert call(connection, message(**{"ann@example.org": 1}))[0] == "invalid:message"


def test_expiry_before_the_first_try(connection: psycopg.Connection[Any]) -> None:
    times = {"send_after": "2030-01-01T09:00:00+01:00", "expires_at": "2030-01-01T08:00:00Z"}
    assert call(connection, message(**times))[0] == "invalid:expires_at"
    assert call(connection, message(**times | {"expires_at": "2030-01-01T08:00:00.000001Z"}))[0] == "created"


def test_instants_do_not_depend_on_the_session(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    connection.execute("SET DateStyle = 'SQL, DMY'")
    call(connection, message(send_after="2030-02-01T09:00:00+01:00"))
    found = connection.execute("SELECT send_after = '2030-02-01T08:00:00Z' FROM sendonce.email").fetchone()
    assert found == (True,)


def test_a_hostile_search_path_changes_nothing(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$")
    connection.execute("CREATE TABLE public.email_key (trap integer)")
    connection.execute("SET LOCAL search_path = public, pg_catalog, sendonce")
    assert call(connection, message(to="Ann@EXAMPLE.org"))[0] == "created"
    assert connection.execute("SELECT mailbox FROM sendonce.recipient").fetchone() == ("Ann@example.org",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | st.text("a@.b \n<>\"'\\é", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["email", "name", "x"]), inner),
    max_leaves=5,
)
FIELDS = [
    *("key", "account", "lane", "sender", "envelope_sender", "to", "cc", "bcc", "reply_to", "subject", "text", "html"),
    *(
        "template",
        "parameters",
        "headers",
        "send_after",
        "expires_at",
        "requested_by",
        "fairness_key",
        "retry",
        "unknown",
    ),
    "other",
]
FILES = st.dictionaries(st.sampled_from(["filename", "content", "content_type", "content_id", "inline", "x"]), JSON)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
    whole=st.none() | JSON,
    files=st.just([]) | st.lists(FILES | JSON, max_size=2) | JSON,
)
def test_nothing_raises(
    connection: psycopg.Connection[Any], fields: dict[str, Any], whole: object, files: object
) -> None:
    status, email_id, _ = call(connection, whole if whole is not None else message(**fields), files)
    assert (email_id is not None) == (status in ("created", "exists", "conflict"))
    assert status in ("created", "exists", "conflict") or status[:8] == "invalid:"
    connection.rollback()


@pytest.mark.parametrize("instant", ["9999-12-31T23:59:59-12:00", "9999-12-31T00:00:00Z", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("member", ["send_after", "expires_at"])
def test_instants_that_no_language_can_read_are_refused(
    connection: psycopg.Connection[Any], member: str, instant: str
) -> None:
    assert call(connection, message(**{member: instant}))[0] == f"invalid:{member}"
