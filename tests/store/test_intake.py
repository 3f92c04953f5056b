"""Intake through psycopg: one key, one mail, inside the caller's transaction, whatever others do meanwhile."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from sendonce import (
    Attachment,
    ConfigurationError,
    Enqueued,
    IdempotencyConflict,
    OutgoingEmail,
    RetryPolicy,
    StoreNotReady,
    enqueue,
    enqueue_many,
)
from sendonce.message import CONTENT_LIMIT
from sendonce.stages import Stage
from sendonce.store import intake

Connect = Callable[[], psycopg.Connection[Any]]


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    """Opens connections to this test's database and closes them at its end."""
    opened: list[psycopg.Connection[Any]] = []

    def one() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(database_url))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    return connect()


def mail(key: str = "order-1", **fields: Any) -> OutgoingEmail:
    return OutgoingEmail(
        **{"key": key, "sender": "Shop <shop@example.com>", "to": "Ann <ann@example.org>", "text": "Hi"} | fields
    )


def rows(connection: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode()).fetchall()


def count(connection: psycopg.Connection[Any], table: str) -> int:
    return int(rows(connection, f"SELECT count(*) AS n FROM sendonce.{table}")[0]["n"])


def test_what_is_written(connection: psycopg.Connection[Any]) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    email = mail(
        lane="bulk",
        sender="Shop <shop@BÜCHER.example>",
        to=["Ann <ann@example.org>", "b@example.org"],
        cc="ann@EXAMPLE.org",
        bcc="пётр@пример.рф",
        attachments=[Attachment(filename="a.txt", content=b"\x00\xff", content_id="a", inline=True)],
        send_after=due,
        expires_at=due + timedelta(days=1),
        retry=RetryPolicy(delays=(1,)),
        unknown="resend",
        requested_by="checkout",
    )
    done = enqueue(connection, email)
    assert done == Enqueued(done.id, "order-1", "default", "bulk", created=True, stage=Stage.PENDING)

    (row,) = rows(connection, "SELECT * FROM sendonce.email")
    assert (row["id"], row["lane"], row["stage"], row["open_ordinals"]) == (done.id, "bulk", "pending", [0, 1, 2])
    assert (row["send_after"], row["next_attempt_at"], row["expires_at"]) == (due, due, due + timedelta(days=1))
    assert (row["unknown_policy"], row["started_at"], row["attempts"]) == ("resend", None, 0)
    assert RetryPolicy.from_json(row["retry"]) == email.retry

    recipients = rows(connection, "SELECT ordinal, mailbox, stage FROM sendonce.recipient ORDER BY ordinal")
    assert [(r["ordinal"], r["mailbox"], r["stage"]) for r in recipients] == [
        (ordinal, mailbox, "outstanding") for ordinal, mailbox in enumerate(email.recipients())
    ]
    (content,) = rows(connection, "SELECT * FROM sendonce.email_content")
    assert content["message_id"] == f"<{done.id}@xn--bcher-kva.example>"
    assert content["requested_by"] == "checkout"
    files = rows(connection, "SELECT filename, content, content_type, content_id, inline FROM sendonce.attachment")
    assert OutgoingEmail.from_json(content["content"], files) == email

    (logged,) = rows(connection, "SELECT from_stage, to_stage, cause, actor, attempt_id FROM sendonce.transition")
    assert list(logged.values()) == [None, "pending", "enqueued", "checkout", None]


def test_due_at_once_without_send_after(connection: psycopg.Connection[Any]) -> None:
    enqueue(connection, mail())
    enqueue(connection, mail("order-2", send_after=datetime(2020, 1, 1, tzinfo=UTC)))
    assert [r["due"] for r in rows(connection, "SELECT next_attempt_at = created_at AS due FROM sendonce.email")] == [
        True,
        True,
    ]
    assert {r["actor"] for r in rows(connection, "SELECT actor FROM sendonce.transition")} == {"postgres"}


def test_same_key_and_content_is_the_same_mail(connection: psycopg.Connection[Any]) -> None:
    first = enqueue(connection, mail(attachments=[Attachment(filename="a", content=b"1")]))
    connection.execute("UPDATE sendonce.email SET stage = 'claimed'")
    again = enqueue(
        connection,
        mail(
            attachments=[Attachment(filename="a", content=b"1")],
            lane="bulk",
            send_after=datetime.now(UTC),
            expires_at=datetime(2100, 1, 1, tzinfo=UTC),
            retry=RetryPolicy(),
            unknown="resend",
            requested_by="somebody else",
            fairness_key="tenant-1",
        ),
    )
    assert (again.id, again.created, again.stage) == (first.id, False, Stage.CLAIMED)
    assert [count(connection, t) for t in ("email", "email_key", "recipient", "attachment", "transition")] == [1] * 5


@pytest.mark.parametrize(
    "changed",
    [
        {"sender": "Shop <shop@example.net>"},
        {"sender": "Store <shop@example.com>"},
        {"envelope_sender": ""},
        {"to": "ann@example.org"},
        {"cc": "b@example.org"},
        {"bcc": "b@example.org"},
        {"reply_to": "b@example.org"},
        {"subject": "Your order"},
        {"text": "Hi!"},
        {"html": "Hi"},
        {"text": None, "template": "hi"},
        {"headers": {"X-A": "1"}},
        {"attachments": [Attachment(filename="a", content=b"1")]},
    ],
)
def test_same_key_and_other_content_is_a_conflict(connection: psycopg.Connection[Any], changed: dict[str, Any]) -> None:
    enqueue(connection, mail())
    with pytest.raises(IdempotencyConflict) as caught:
        enqueue(connection, mail(**changed))
    assert (caught.value.account, caught.value.key) == ("default", "order-1")
    # The transaction is still usable, and only the first mail is in it.
    enqueue(connection, mail("order-2"))
    connection.commit()
    assert (count(connection, "email"), count(connection, "email_key")) == (2, 2)


@pytest.mark.parametrize(
    "changed",
    [{"content": b"2"}, {"filename": "b"}, {"content_type": "text/plain"}, {"content_id": "a"}],
)
def test_attachments_are_content(connection: psycopg.Connection[Any], changed: dict[str, Any]) -> None:
    file = Attachment(filename="a", content=b"1")
    enqueue(connection, mail(attachments=[file]))
    with pytest.raises(IdempotencyConflict):
        enqueue(connection, mail(attachments=[file.model_copy(update=changed)]))


def test_parameters_are_content(connection: psycopg.Connection[Any]) -> None:
    first = enqueue(connection, mail(text=None, template="t", parameters={"a": 1, "b": [None, 1.5]}))
    again = enqueue(connection, mail(text=None, template="t", parameters={"b": [None, 1.5], "a": 1}))
    assert again.id == first.id
    with pytest.raises(IdempotencyConflict):
        enqueue(connection, mail(text=None, template="t", parameters={"a": 1, "b": [1.5]}))


def test_accounts_have_keys_of_their_own(connection: psycopg.Connection[Any]) -> None:
    assert enqueue(connection, mail()).id != enqueue(connection, mail(account="other")).id


def test_rollback_leaves_nothing(connection: psycopg.Connection[Any]) -> None:
    enqueue(connection, mail(attachments=[Attachment(filename="a", content=b"1")]))
    connection.rollback()
    tables = ("email_key", "email", "email_content", "recipient", "attachment", "transition")
    assert [count(connection, table) for table in tables] == [0] * 6
    assert enqueue(connection, mail()).created


def test_savepoints(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        kept = enqueue(connection, mail("kept"))
        with connection.transaction(force_rollback=True):
            enqueue(connection, mail("dropped"))
        assert not enqueue(connection, mail("kept")).created
    assert [r["id"] for r in rows(connection, "SELECT id FROM sendonce.email")] == [kept.id]


def waits_for_a_lock(connection: psycopg.Connection[Any], observer: psycopg.Connection[Any]) -> None:
    """Return once the statement that ``connection`` executes in another thread waits for a lock."""
    for _ in range(10_000):
        found = observer.execute(
            "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", [connection.info.backend_pid]
        ).fetchone()
        observer.rollback()
        if found and found[0]:
            return
        threading.Event().wait(0.002)
    raise AssertionError("it does not wait")


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """A thread for a call that waits for this one."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_concurrent_duplicate_waits_for_the_first(
    connect: Connect, beside: ThreadPoolExecutor, first_commits: bool
) -> None:
    one, two, observer = connect(), connect(), connect()
    first = enqueue(one, mail())
    pending: Future[Enqueued] = beside.submit(enqueue, two, mail())
    waits_for_a_lock(two, observer)
    assert not pending.done()
    if first_commits:
        one.commit()
        second = pending.result(30)
        assert (second.id, second.created) == (first.id, False)
    else:
        one.rollback()
        second = pending.result(30)
        assert second.id != first.id
        assert second.created
    two.commit()
    assert [r["id"] for r in rows(observer, "SELECT id FROM sendonce.email")] == [second.id]


def test_a_concurrent_duplicate_with_other_content(connect: Connect, beside: ThreadPoolExecutor) -> None:
    one, two, observer = connect(), connect(), connect()
    enqueue(one, mail())
    pending: Future[Enqueued] = beside.submit(enqueue, two, mail(text="Other"))
    waits_for_a_lock(two, observer)
    one.commit()
    with pytest.raises(IdempotencyConflict):
        pending.result(30)
    assert enqueue(two, mail("order-2")).created


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_concurrent_duplicate_is_a_serialization_failure(connect: Connect, level: IsolationLevel) -> None:
    one, two = connect(), connect()
    two.isolation_level = level
    two.execute("SELECT 1")  # takes the snapshot
    first = enqueue(one, mail())
    one.commit()
    with pytest.raises(psycopg.errors.SerializationFailure) as caught:
        enqueue(two, mail())
    assert caught.value.sqlstate == "40001"
    two.rollback()
    assert enqueue(two, mail()).id == first.id


def test_crossing_keys_do_not_deadlock(connect: Connect, beside: ThreadPoolExecutor) -> None:
    one, two, observer = connect(), connect(), connect()
    # Caught between its two keys: whoever locks "b" first and wants "a" then would complete a deadlock.
    enqueue(one, mail("a"))
    pending: Future[list[Enqueued]] = beside.submit(enqueue_many, two, [mail("b"), mail("a")])
    waits_for_a_lock(two, observer)
    enqueue(one, mail("b"))
    one.commit()
    done = pending.result(30)
    assert [(d.key, d.created) for d in done] == [("b", False), ("a", False)]


def test_crossing_keys_one_by_one_deadlock(connect: Connect, beside: ThreadPoolExecutor) -> None:
    """What enqueue_many is for: the same keys by enqueue, in opposite order."""
    one, two, observer = connect(), connect(), connect()
    enqueue(one, mail("a"))
    enqueue(two, mail("b"))
    pending: Future[Enqueued] = beside.submit(enqueue, two, mail("a"))
    waits_for_a_lock(two, observer)

    def complete() -> None:
        try:
            enqueue(one, mail("b"))
        finally:
            one.rollback()
            pending.result(30)

    with pytest.raises(psycopg.errors.DeadlockDetected):  # in the one or in the other
        complete()


def test_many_come_back_in_the_order_of_the_caller(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "CHUNK_MAILS", 7)
    keys = [f"k{n * 37 % 100}" for n in range(100)]
    there = enqueue(connection, mail("k5"))
    done = enqueue_many(connection, (mail(key) for key in [*keys, "k0"]))
    assert [d.key for d in done] == [*keys, "k0"]
    assert [d.key for d in done if not d.created] == ["k5", "k0"]
    assert done[keys.index("k5")].id == there.id
    assert done[-1].id == done[keys.index("k0")].id
    stored = {r["key"]: r["id"] for r in rows(connection, "SELECT key, id FROM sendonce.email")}
    assert {d.key: d.id for d in done} == stored
    assert enqueue_many(connection, []) == []


def test_many_are_all_or_none(connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "CHUNK_MAILS", 2)
    enqueue(connection, mail("m"))
    with pytest.raises(IdempotencyConflict) as caught:
        enqueue_many(connection, [mail("z"), mail("m", text="Other"), mail("a"), mail("b")])
    assert caught.value.key == "m"
    connection.commit()
    assert [r["key"] for r in rows(connection, "SELECT key FROM sendonce.email_key")] == ["m"]


def test_large_attachments(connection: psycopg.Connection[Any]) -> None:
    content = bytes(range(256)) * 4096
    files = [Attachment(filename=f"{n}.bin", content=content) for n in range(3)]
    done = enqueue_many(connection, [mail(f"k{n}", attachments=files) for n in range(4)])
    assert all(d.created for d in done)
    assert {bytes(r["content"]) for r in rows(connection, "SELECT content FROM sendonce.attachment")} == {content}


def test_a_key_outlives_its_mail(connection: psycopg.Connection[Any]) -> None:
    first = enqueue(connection, mail())
    connection.execute("UPDATE sendonce.email_content SET content = '{}'")
    connection.execute("DELETE FROM sendonce.recipient")
    assert enqueue(connection, mail()).id == first.id
    connection.execute("DELETE FROM sendonce.email")
    again = enqueue(connection, mail())
    assert (again.id, again.created, again.stage) == (first.id, False, None)
    with pytest.raises(IdempotencyConflict):
        enqueue(connection, mail(text="Other"))
    assert count(connection, "email") == 0


@pytest.mark.parametrize(
    ("asked", "installed", "sent"), [(True, True, 1), (False, True, 0), (True, False, 0), (False, False, 0)]
)
def test_notify(connect: Connect, asked: bool, installed: bool, sent: int) -> None:
    listener, caller = connect(), connect()
    listener.autocommit = True
    listener.execute("LISTEN sendonce")
    caller.execute("UPDATE sendonce.installation SET notify = %s", [installed])
    enqueue(caller, mail(lane="bulk"), notify=asked)
    caller.commit()
    listener.execute("SELECT 1")  # what was sent before this is delivered with its answer
    got = list(listener.notifies(timeout=0))
    assert [(n.channel, n.payload) for n in got] == [("sendonce", "bulk")] * sent


def test_an_existing_mail_notifies_nobody(connect: Connect) -> None:
    listener, caller = connect(), connect()
    enqueue(caller, mail())
    caller.commit()
    listener.autocommit = True
    listener.execute("LISTEN sendonce")
    enqueue(caller, mail())
    caller.commit()
    listener.execute("SELECT 1")
    assert list(listener.notifies(timeout=0)) == []


def test_prepared_transactions_need_notify_off(connection: psycopg.Connection[Any]) -> None:
    enqueue(connection, mail("with"))
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        connection.execute("PREPARE TRANSACTION 'one'")
    connection.rollback()
    enqueue(connection, mail("without"), notify=False)
    connection.execute("PREPARE TRANSACTION 'two'")
    connection.rollback()
    connection.autocommit = True
    connection.execute("COMMIT PREPARED 'two'")
    assert [r["key"] for r in rows(connection, "SELECT key FROM sendonce.email")] == ["without"]


def test_autocommit_needs_a_transaction(connection: psycopg.Connection[Any]) -> None:
    connection.autocommit = True
    with pytest.raises(ConfigurationError, match="autocommit"):
        enqueue(connection, mail())
    with connection.transaction():
        assert enqueue(connection, mail()).created
    with connection.pipeline(), connection.transaction():
        assert not enqueue(connection, mail()).created
    assert count(connection, "email") == 1


def test_the_connection_is_left_in_its_transaction(connect: Connect) -> None:
    connection, observer = connect(), connect()
    enqueue(connection, mail("one"))
    enqueue_many(connection, [mail("two"), mail("three")])
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert count(observer, "email") == 0
    connection.commit()
    observer.rollback()
    assert count(observer, "email") == 3


def test_a_database_without_the_schema(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        with pytest.raises(StoreNotReady, match="sendonce migrate"):
            enqueue(connection, mail())
        connection.rollback()
        connection.execute("CREATE SCHEMA sendonce")
        with pytest.raises(StoreNotReady, match="sendonce migrate"):
            enqueue(connection, mail())


def test_what_else_is_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(TypeError, match=r"not builtins\.str"):
        enqueue("postgresql://", mail())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="OutgoingEmail, not dict"):
        enqueue(connection, {"key": "x"})  # type: ignore[call-overload]


def test_no_personal_data_in_exceptions(connect: Connect) -> None:
    one, two = connect(), connect()
    two.isolation_level = IsolationLevel.SERIALIZABLE
    two.execute("SELECT 1")
    enqueue(one, mail())
    one.commit()
    for call, expected in (
        (lambda: enqueue(two, mail()), psycopg.errors.SerializationFailure),
        (lambda: enqueue(one, mail(to="secret@example.org")), IdempotencyConflict),
        (lambda: enqueue_many(one, [mail("x"), mail(to="secret@example.org")]), IdempotencyConflict),
    ):
        with pytest.raises(expected) as caught:
            call()
        shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=False).format())
        diagnosis = getattr(caught.value, "diag", None)
        shown += str([getattr(diagnosis, name, "") for name in ("message_detail", "context", "internal_query")])
        assert "ann@example.org" not in shown
        assert "secret@example.org" not in shown.replace('to="secret@example.org"', "")


def test_a_ready_made_message_is_stored_as_one_file(connection: psycopg.Connection[Any]) -> None:
    data = b"From: shop@example.org\nTo: ann@example.org\nBcc: h@example.org\nMessage-ID: <own@example.org>\n\nHi\n"
    email = OutgoingEmail.from_mime(data, key="ready")
    assert enqueue(connection, email).created
    assert not enqueue(connection, email).created
    [content] = rows(connection, "SELECT message_id, content FROM sendonce.email_content")
    files = rows(
        connection, "SELECT filename, content_type, content_id, inline, alternative, content FROM sendonce.attachment"
    )
    assert content["message_id"] == "<own@example.org>"
    assert files[0]["content"] == data.replace(b"Bcc: h@example.org\n", b"").replace(b"\n", b"\r\n")
    assert OutgoingEmail.from_json(content["content"], files) == email
    assert [r["mailbox"] for r in rows(connection, "SELECT mailbox FROM sendonce.recipient ORDER BY ordinal")] == [
        "ann@example.org",
        "h@example.org",
    ]
    with pytest.raises(IdempotencyConflict):
        enqueue(connection, OutgoingEmail.from_mime(data + b"more\n", key="ready"))


def test_the_size_of_ready_made_mime_is_its_own(connection: psycopg.Connection[Any]) -> None:
    head = b"From: shop@example.org\r\nTo: ann@example.org\r\n\r\n"
    data = head + (b"x" * 76 + b"\r\n") * (CONTENT_LIMIT // 78)
    assert enqueue(connection, OutgoingEmail.from_mime(data[:CONTENT_LIMIT], key="large")).created


@pytest.mark.parametrize(
    ("members", "files", "wrong"),
    [
        ({"mime": True}, 0, "mime"),
        ({"mime": True}, 2, "mime"),
        ({"mime": True, "text": "x"}, 1, "mime"),
        ({"mime": True, "headers": {"X-A": "1"}}, 1, "mime"),
        ({"mime": "yes"}, 1, "mime"),
        ({"mime": True, "message_id": "own"}, 1, "message_id"),
        ({"text": "x", "message_id": "<a@b>"}, 0, "message_id"),
    ],
)
def test_ready_made_messages_that_other_languages_get_wrong(
    connection: psycopg.Connection[Any], members: dict[str, Any], files: int, wrong: str
) -> None:
    message = {"key": "k", "sender": "a@example.org", "to": "b@example.org", **members}
    file = {"filename": "message.eml", "content": "eA=="}
    row = connection.execute(
        "SELECT status FROM sendonce.enqueue(%s, %s)", [json.dumps(message), json.dumps([file] * files)]
    ).fetchone()
    assert row == (f"invalid:{wrong}",)
