"""``retry``, ``cancel`` and ``requeue``, by keys and by filters; ``send-again``. Temporal is nowhere to be found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.cli import acting

if TYPE_CHECKING:
    from tests.cli.conftest import Seed
    from tests.conftest import Run

BECAUSE = ("--because", "the relay was down")
MEMBERS = {"key", "account", "operation", "done", "why", "stage"}
SOON = datetime.now(UTC) + timedelta(hours=1)


def log(seed: Seed, key: str) -> list[tuple[Any, ...]]:
    return seed.connection.execute(
        "SELECT t.cause, t.because FROM sendonce.transition t JOIN sendonce.email e ON e.id = t.email_id"
        " WHERE e.key = %s AND t.cause LIKE 'operator:%%' ORDER BY t.id",
        [key],
    ).fetchall()


def ended(seed: Seed, key: str, stage: str = "dead", **more: Any) -> None:
    email_id = seed.mail(key, **more)
    seed.connection.execute("UPDATE sendonce.recipient SET stage = 'deferred' WHERE email_id = %s", [email_id])
    seed.update(email_id, stage=stage, attempts=5, claims=5, next_attempt_at=None, final_at=datetime.now(UTC))


def test_a_mail_that_waits_is_tried_now(seed: Seed, look: Run) -> None:
    email_id = seed.mail("k1")
    seed.update(email_id, next_attempt_at=SOON, started_at=datetime.now(UTC), attempts=2)
    [row] = look("retry", "k1", *BECAUSE, "--json").objects
    assert row.keys() == MEMBERS
    assert (row["operation"], row["done"], row["why"], row["stage"]) == ("retry", True, None, "pending")
    assert seed.value("SELECT next_attempt_at <= sendonce.clock() FROM sendonce.email")
    assert seed.value("SELECT email_id FROM sendonce.wake") == email_id
    assert log(seed, "k1") == [("operator:retry_now", BECAUSE[1])]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"stage": "sent"}, "it is final"),
        ({"stage": "claimed"}, "under way"),
        ({"stage": "unknown"}, "resolve"),
        ({"held_why": "key_sent_before"}, "give --force"),
        ({"send_after": SOON}, "give --force"),
    ],
)
def test_what_cannot_be_retried_says_why(seed: Seed, look: Run, values: dict[str, Any], says: str) -> None:
    seed.update(seed.mail("k1"), next_attempt_at=SOON, **values)
    refused = look("retry", "k1")
    assert refused.code == 1
    assert says in refused.err
    assert log(seed, "k1") == []


@pytest.mark.parametrize("values", [{"held_why": "key_sent_before"}, {"send_after": SOON}])
def test_force_lifts_what_keeps_it(seed: Seed, look: Run, values: dict[str, Any]) -> None:
    email_id = seed.mail("k1")
    seed.update(email_id, next_attempt_at=SOON, **values)
    seed.alarm("held", email_id)
    assert look("retry", "k1", "--force").code == 0
    assert seed.value("SELECT held_why IS NULL AND next_attempt_at <= sendonce.clock() FROM sendonce.email")


def test_cancel_by_key(seed: Seed, look: Run) -> None:
    seed.mail("k1")
    assert look("cancel", "k1", *BECAUSE).out == "k1: cancelled; it is cancelled now\n"
    assert seed.value("SELECT count(*) FROM sendonce.wake") == 1
    assert seed.stage("k1") == "cancelled"
    again = look("cancel", "k1", "--json")
    assert (again.code, again.objects[0]["done"]) == (1, False)
    missing = look("cancel", "k9")
    assert (missing.code, missing.err) == (1, "sendonce: no mail with key 'k9' in account 'default'\n")


def test_cancel_by_filter_is_a_dry_run_first(seed: Seed, look: Run) -> None:
    for n in range(3):
        seed.mail(f"news-{n}", subject="", text="", template="news")
    seed.mail("order")
    seed.update(seed.mail("sent", subject="", text="", template="news"), stage="sent")
    [dry] = look("cancel", "--template", "news", "--json").objects
    assert dry == {"dry_run": True, "operation": "cancel", "matching": 3, "sample": ["news-2", "news-1", "news-0"]}
    said = look("cancel", "--template", "news").out
    assert "3 mails" in said
    assert "Nothing was done" in said
    assert seed.value("SELECT count(*) FROM sendonce.email WHERE stage = 'cancelled'") == 0
    assert look("cancel", "--template", "news", "--yes").code == 2
    done = look("cancel", "--template", "news", "--yes", *BECAUSE)
    assert (done.code, done.out) == (0, "3 mails: cancelled\n")
    assert seed.value("SELECT count(*) FROM sendonce.email WHERE stage = 'cancelled'") == 3
    assert (seed.stage("order"), seed.stage("sent")) == ("pending", "sent")
    assert log(seed, "news-0") == [("operator:cancel", BECAUSE[1])]


@pytest.mark.parametrize("command", ["cancel", "requeue"])
def test_nothing_is_chosen_by_accident(seed: Seed, look: Run, command: str) -> None:
    seed.mail("k1")
    assert look(command).code == 2
    assert look(command, "--yes", *BECAUSE).code == 2
    assert look(command, "k1", "--lane", "bulk").code == 2
    assert look(command, "k1", "--all").code == 2
    assert seed.stage("k1") == "pending"
    assert look(command, "--all", "--json").objects[0]["dry_run"] is True


def test_dead_letters_are_requeued_in_batches(seed: Seed, look: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "PAGE", 2)
    for n in range(5):
        ended(seed, f"k{n}")
    ended(seed, "refused", stage="failed")
    ended(seed, "doubtful")
    seed.connection.execute("UPDATE sendonce.email SET maybe_accepted = true WHERE key = 'doubtful'")
    assert look("requeue", "--lane", "default", "--json").objects[0]["matching"] == 6
    done = look("requeue", "--lane", "default", "--yes", *BECAUSE)
    assert (done.code, done.out) == (1, "5 mails: requeued\n")
    assert done.err.startswith("sendonce: 1 mail not: it may have been accepted")
    assert {seed.stage(f"k{n}") for n in range(5)} == {"pending"}
    assert (seed.stage("refused"), seed.stage("doubtful")) == ("failed", "dead")
    assert seed.value("SELECT attempts FROM sendonce.email WHERE key = 'k0'") == 0
    assert log(seed, "k0") == [("operator:requeue", BECAUSE[1])]
    [row] = look("requeue", "--stage", "failed", "--yes", *BECAUSE, "--json").objects
    assert (row["key"], row["done"], row["stage"]) == ("refused", True, "pending")
    assert look("requeue", "doubtful", "--force").code == 0


def test_what_cannot_be_requeued_says_why(seed: Seed, look: Run) -> None:
    seed.mail("waits")
    ended(seed, "late", expires_at="2999-01-01T00:00:00Z")
    seed.connection.execute("UPDATE sendonce.email SET expires_at = now() WHERE key = 'late'")
    ended(seed, "erased")
    seed.connection.execute("DELETE FROM sendonce.email_content WHERE content ->> 'key' = 'erased'")
    found = look("requeue", "waits", "late", "erased", "--json")
    assert found.code == 1
    assert [row["why"] for row in found.objects] == [
        "it is neither dead nor failed",
        "its deadline has passed",
        "its content has been erased",
    ]


# send-again -------------------------------------------------------------------------------------------------------


def test_a_mail_is_sent_again_to_a_corrected_address_and_both_say_so(seed: Seed, look: Run) -> None:
    ended(seed, "order", stage="failed", cc=["bob@example.com"], expires_at="2030-01-01T00:00:00Z", lane="critical")
    command = ("send-again", "order", "--new-key", "order-2", "--to", "ann.li@example.org")
    [row] = look(*command, "--json").objects
    assert row.keys() == {"key", "account", "id", "of", "created", "stage"}
    assert (row["key"], row["of"], row["created"], row["stage"]) == ("order-2", "order", True, "pending")
    [new] = look("show", "order-2", "--reveal", "--json").objects
    assert [one["mailbox"] for one in new["recipients"]] == ["ann.li@example.org"]
    assert (new["subject"], new["lane"], new["again_of"]) == ("Parcel for Ann", "critical", "order")
    [old] = look("show", "order", "--json").objects
    assert old["sent_again_as"] == ["order-2"]
    assert old["transitions"][-1]["cause"] == "sent_again:order-2"
    # The same once more is the same mail; other content is a conflict.
    assert look(*command, "--json").objects[0]["created"] is False
    conflict = look("send-again", "order", "--new-key", "order-2")
    assert conflict.code == 1
    assert "taken by a mail with other content" in conflict.err
    assert seed.value("SELECT count(*) FROM sendonce.email") == 2


def test_an_old_word_that_is_sent_again_replaces_no_newer_one(seed: Seed, look: Run) -> None:
    ended(seed, "old", topic="parcel-7")
    seed.mail("newer", topic="parcel-7")
    assert look("send-again", "old", "--new-key", "copy").code == 0
    assert seed.value("SELECT count(*) FROM sendonce.topic WHERE topic = 'parcel-7'") == 2
    assert seed.value("SELECT has_topic FROM sendonce.email WHERE key = 'copy'") is False


def test_sending_again_keeps_to_what_the_intake_checks(seed: Seed, look: Run) -> None:
    seed.mail("order")
    wrong = look("send-again", "order", "--new-key", "o2", "--to", "nobody")
    assert (wrong.code, wrong.out) == (2, "")
    assert "nobody" not in wrong.err
    assert look("send-again", "order", "--new-key", "no spaces").code == 2
    assert look("send-again", "order", "--new-key", "order").code == 2
    email_id = seed.value("SELECT id FROM sendonce.email WHERE key = 'order'")
    seed.connection.execute("DELETE FROM sendonce.email_content WHERE email_id = %s", [email_id])
    erased = look("send-again", "order", "--new-key", "o2")
    assert (erased.code, "its content has been erased" in erased.err) == (2, True)
    assert seed.value("SELECT count(*) FROM sendonce.email") == 1


def test_a_deadline_that_has_passed_is_left_out(seed: Seed, look: Run) -> None:
    email_id = seed.mail("order", expires_at="2999-01-01T00:00:00Z", template="order", subject="", text="")
    seed.connection.execute(
        'UPDATE sendonce.email_content SET content = content || \'{"expires_at": "2001-01-01T00:00:00Z"}\''
        " WHERE email_id = %s",
        [email_id],
    )
    assert look("send-again", "order", "--new-key", "o2").code == 0
    assert seed.value("SELECT expires_at IS NULL AND template = 'order' FROM sendonce.email WHERE key = 'o2'")
