"""``resolve`` and ``suppressions``: what is refused, what is shown first, what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

BECAUSE = ("--because", "the relay's log shows it")


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as made:
        yield made


@pytest.fixture
def unknown(connection: psycopg.Connection[Any]) -> None:
    """A mail ``k1`` that was offered and not answered."""
    message = {"key": "k1", "sender": "shop@example.org", "to": ["ann.lee@example.org"], "text": "Hi."}
    row = connection.execute("SELECT email_id FROM sendonce.enqueue(%s)", [json.dumps(message)]).fetchone()
    assert row is not None
    connection.execute(
        "INSERT INTO sendonce.attempt (id, email_id, number, generation, account, mode, worker, claimed_at, begun_at,"
        " offered, ended_at) VALUES (gen_random_uuid(), %s, 1, 1, 'default', 'send', 'w', now(), now(), '{0}', now())",
        row,
    )
    connection.execute(
        "UPDATE sendonce.email SET stage = 'unknown', claims = 1, unknown_since = now() - interval '1 hour',"
        " close_at = now() + interval '7 days', generation_open = true, answer_by = now(), next_attempt_at = NULL"
    )
    connection.execute("UPDATE sendonce.recipient SET stage = 'unanswered'")


def stage(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT stage FROM sendonce.email WHERE key = 'k1'").fetchone()
    assert row is not None
    return str(row[0])


def here(database_url: str) -> dict[str, str]:
    return {"SENDONCE_DATABASE_URL": database_url}


@pytest.mark.usefixtures("unknown")
def test_a_decision_is_taken_after_the_evidence_is_shown_and_kept(
    run: Run, database_url: str, connection: psycopg.Connection[Any]
) -> None:
    done = run("resolve", "k1", "--sent", *BECAUSE, **here(database_url))
    assert (done.code, done.err) == (0, "")
    assert done.out.index("attempts made") < done.out.index("k1: sent, recorded")
    assert "ann.lee" not in done.out
    assert stage(connection) == "sent"
    kept = connection.execute("SELECT cause, because FROM sendonce.transition WHERE because IS NOT NULL").fetchall()
    assert kept == [("operator:sent", BECAUSE[1])]
    shown = run("show", "k1", "--json", **here(database_url)).objects[0]
    assert [row["because"] for row in shown["transitions"] if row["because"]] == [BECAUSE[1]]
    again = run("resolve", "k1", "--sent", *BECAUSE, "--json", **here(database_url))
    assert again.code == 1
    assert (again.objects[0]["done"], again.objects[0]["why"]) == (
        False,
        "it is not unknown: there is nothing to decide",
    )


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(("decision", "expected"), [("--not-sent", "pending"), ("--resend", "unknown")])
def test_the_other_decisions(
    run: Run, database_url: str, connection: psycopg.Connection[Any], decision: str, expected: str
) -> None:
    assert run("resolve", "k1", decision, *BECAUSE, **here(database_url)).code == 0
    assert stage(connection) == expected
    assert connection.execute("SELECT count(*) FROM sendonce.wake").fetchone() == (1,)


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("k1", "--sent"), "give --because"),
        (("k1", *BECAUSE), "give one of --sent"),
        (("k1", "--sent", "--resend", *BECAUSE), "give one of --sent"),
        (("--sent", *BECAUSE), "name the mails by their keys, or give --all"),
        (("k1", "--all", "--sent", *BECAUSE), "name the mails by their keys, or give --all"),
        (("k1", "--sent", "--because", "  "), "give --because"),
    ],
)
def test_half_a_decision_is_none(
    run: Run, database_url: str, connection: psycopg.Connection[Any], arguments: tuple[str, ...], says: str
) -> None:
    found = run("resolve", *arguments, **here(database_url))
    assert found.code == 2
    assert says in found.err
    assert stage(connection) == "unknown"


def test_a_mail_that_is_not_there(run: Run, database_url: str) -> None:
    found = run("resolve", "k9", "--sent", *BECAUSE, **here(database_url))
    assert found.code == 1
    assert "no mail with key 'k9'" in found.err


def settings(folder: Path, transport: str) -> None:
    (folder / "sendonce.toml").write_text(f"[accounts.default]\n{transport}\n", encoding="utf-8")


SMTP = 'transport = "smtp"\nhost = "127.0.0.1"\ntls = "none"'
POSTMARK = 'transport = "postmark"\napi_key = "t"'


@pytest.mark.usefixtures("unknown")
def test_many_are_decided_about_only_when_that_is_said(
    run: Run, database_url: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    settings(tmp_path, SMTP)
    dry = run("resolve", "--all", "--not-sent", *BECAUSE, "--json", **here(database_url))
    assert (dry.code, [(row["key"], row["done"], row["why"]) for row in dry.objects]) == (
        0,
        [("k1", False, "dry run: give --yes")],
    )
    assert stage(connection) == "unknown"
    young = run(
        "resolve", "--all", "--older-than", "90", "--not-sent", *BECAUSE, "--yes", "--json", **here(database_url)
    )
    assert (young.code, young.objects, stage(connection)) == (0, [], "unknown")
    done = run("resolve", "--all", "--older-than", "30", "--not-sent", *BECAUSE, "--yes", **here(database_url))
    assert (done.code, stage(connection)) == (0, "pending")


@pytest.mark.usefixtures("unknown")
def test_a_provider_that_can_be_asked_is_asked_first(
    run: Run, database_url: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    settings(tmp_path, POSTMARK)
    found = run("resolve", "--all", "--resend", *BECAUSE, "--yes", "--json", **here(database_url))
    assert [row["why"] for row in found.objects] == ["its provider has not been asked yet: wait for the look-up"]
    assert stage(connection) == "unknown"
    connection.execute("UPDATE sendonce.email SET look_ups = 1")
    assert run("resolve", "--all", "--not-sent", *BECAUSE, "--yes", **here(database_url)).code == 0
    assert stage(connection) == "pending"


def test_a_suppression_list(run: Run, database_url: str) -> None:
    where = here(database_url)
    assert run("suppressions", "add", "Ann.Lee@BÜCHER.example", "--because", "asked by phone", **where).out == "added\n"
    assert run("suppressions", "add", "ann.lee@bücher.example", **where).out == "it is on the list already\n"
    [row] = run("suppressions", "list", "--json", **where).objects
    assert (row["account"], row["reason"], row["note"]) == ("default", "manual", "asked by phone")
    assert "ann.lee" not in row["mailbox"]
    [shown] = run("suppressions", "list", "--json", "--reveal", **where).objects
    assert shown["mailbox"] == "ann.lee@xn--bcher-kva.example"
    assert run("suppressions", "list", "--account", "other", "--json", **where).objects == []
    assert run("suppressions", "remove", "ann.lee@bücher.example", **where).out == "removed\n"
    gone = run("suppressions", "remove", "ann.lee@bücher.example", **where)
    assert (gone.code, gone.err) == (1, "sendonce: it is not on the list\n")
    wrong = run("suppressions", "add", "nobody", **where)
    assert wrong.code == 2
    assert "must be a mailbox" in wrong.err
