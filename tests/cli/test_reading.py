"""``list``, ``show`` and ``alarms`` over a database with a few mails in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

if TYPE_CHECKING:
    from tests.conftest import Result, Run

LIST_MEMBERS = {
    "id",
    "key",
    "account",
    "lane",
    "stage",
    "partial",
    "maybe_accepted",
    "attempts",
    "created_at",
    "next_attempt_at",
    "final_at",
    "held_why",
    "last_code",
    "last_enhanced",
}
SHOW_MEMBERS = LIST_MEMBERS | {
    "forgotten",
    "send_after",
    "expires_at",
    "unknown_since",
    "cancel_requested_at",
    "generation",
    "message_id",
    "subject",
    "requested_by",
    "recipients",
    "attempts_made",
    "transitions",
    "evidence",
    "events",
    "alarms",
}
PERSONAL = ("ann.lee", "bob.ray", "Parcel for Ann", "mailbox of ann", "desk.clerk")


class Seed:
    """Writes rows as the intake and the worker would."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def mail(self, key: str, **more: Any) -> UUID:
        message = {
            "key": key,
            "sender": "Shop <shop@example.org>",
            "to": ["Ann <ann.lee@example.org>"],
            "subject": "Parcel for Ann",
            "text": "On its way.",
            "requested_by": "desk.clerk@shop.example",
            **more,
        }
        row = self.connection.execute("SELECT status, email_id FROM sendonce.enqueue(%s)", [json.dumps(message)])
        status, email_id = row.fetchone() or ("", None)
        assert (status, type(email_id)) == ("created", UUID)
        return UUID(str(email_id))

    def update(self, email_id: UUID, **values: Any) -> None:
        for name, value in values.items():
            query = sql.SQL("UPDATE sendonce.email SET {} = %s WHERE id = %s").format(sql.Identifier(name))
            self.connection.execute(query, [value, email_id])

    def alarm(self, kind: str, email_id: UUID | None = None, closes: int | None = None) -> int:
        row = self.connection.execute(
            "INSERT INTO sendonce.alarm (kind, email_id, account, detail, closes)"
            " VALUES (%s, %s, 'default', '451 4.7.1', %s) RETURNING id",
            [kind, email_id, closes],
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def seed(database_url: str) -> Iterator[Seed]:
    seed = Seed(database_url)
    yield seed
    seed.connection.close()


@pytest.fixture
def look(run: Run, database_url: str) -> Run:
    def look(*arguments: str) -> Result:
        return run(*arguments, SENDONCE_DATABASE_URL=database_url)

    return look


# list -------------------------------------------------------------------------------------------------------------


def test_list_names_the_newest_first_and_no_more_than_asked(seed: Seed, look: Run) -> None:
    for key in ("one", "two", "three"):
        seed.mail(key)
    result = look("list", "--json", "--limit", "2")
    assert result.code == 0, result.err
    assert [row["key"] for row in result.objects] == ["three", "two"]


def test_list_in_json_has_stable_members_and_times_in_utc(seed: Seed, run: Run, database_url: str) -> None:
    email_id = seed.mail("one", send_after="2035-01-31T09:00:00+01:00")
    (row,) = run("list", "--json", SENDONCE_DATABASE_URL=database_url, PGTZ="America/New_York").objects
    assert row.keys() == LIST_MEMBERS
    assert (row["id"], row["account"], row["lane"], row["stage"]) == (str(email_id), "default", "default", "pending")
    assert row["next_attempt_at"] == "2035-01-31T08:00:00+00:00"
    assert datetime.fromisoformat(row["created_at"]).utcoffset() == timedelta(0)
    assert row["partial"] is False


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ((), {"a", "b", "c"}),
        (("--stage", "sent"), {"a"}),
        (("--stage", "sent", "--stage", "dead"), {"a", "b"}),
        (("--lane", "bulk"), {"b"}),
        (("--account", "other"), {"c"}),
        (("--lane", "bulk", "--account", "other"), set()),
    ],
)
def test_list_filters(seed: Seed, look: Run, options: tuple[str, ...], keys: set[str]) -> None:
    seed.update(seed.mail("a"), stage="sent")
    seed.update(seed.mail("b", lane="bulk"), stage="dead")
    seed.mail("c", account="other")
    result = look("list", "--json", *options)
    assert result.code == 0
    assert {row["key"] for row in result.objects} == keys


def test_list_for_people_is_a_table_that_says_what_is_odd(seed: Seed, look: Run) -> None:
    seed.update(seed.mail("order-4711-" + "x" * 60), stage="sent", partial=True, maybe_accepted=True)
    seed.update(seed.mail("order-4712"), held_why="asked by ann.lee@example.org")
    result = look("list")
    assert result.code == 0
    assert "2 mails" in result.out
    assert "order-4711-" + "x" * 60 in result.out
    assert "partial, may have been accepted" in result.out
    assert "held: asked by a***@e***.org" in result.out
    assert "ann.lee" not in look("list", "--json").out
    assert "--limit" not in result.out
    assert "there may be more: --limit" in look("list", "--limit", "2").out


def test_an_empty_list_is_no_error(look: Run) -> None:
    result = look("list", "--json")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert "0 mails" in look("list").out


# show -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def story(seed: Seed) -> UUID:
    """A mail to two recipients, tried twice: one accepted, one refused and then proved."""
    email_id = seed.mail("order-4711", cc=["bob.ray@mail.example.com"], headers={"X-Order": "4711"})
    first, second = uuid4(), uuid4()
    execute = seed.connection.execute
    for number, attempt, answers in (
        (1, first, {"0": {"kind": "deferred", "code": 451, "enhanced": "4.7.1", "text": "mailbox of ann"}}),
        (2, second, {"0": {"kind": "accepted", "code": 250}, "1": {"kind": "refused", "code": 550}}),
    ):
        execute(
            "INSERT INTO sendonce.attempt (id, email_id, number, generation, account, mode, worker, claimed_at,"
            " offered, answers, counted)"
            " VALUES (%s, %s, %s, %s, 'default', 'send', 'w1', sendonce.clock(), '{0,1}', %s, true)",
            [attempt, email_id, number, number, json.dumps(answers)],
        )
    execute(
        "UPDATE sendonce.recipient SET stage = 'refused', code = 550, enhanced = '5.1.1', attempt_id = %s,"
        " reply_text = 'no mailbox of ann, \x1b[31m' WHERE email_id = %s AND ordinal = 1",
        [second, email_id],
    )
    execute(
        "INSERT INTO sendonce.transition (email_id, from_stage, to_stage, cause, actor)"
        " VALUES (%s, 'pending', 'sent', 'accepted', 'ann.lee@example.org')",
        [email_id],
    )
    execute(
        "INSERT INTO sendonce.evidence (email_id, ordinal, accepted, generation, source, event_id, actor)"
        " VALUES (%s, 1, true, 2, 'webhook', 'evt-1', 'relay')",
        [email_id],
    )
    closed = seed.alarm("unknown", email_id)
    seed.alarm("unknown", email_id, closes=closed)
    seed.alarm("evidence", email_id)
    seed.update(email_id, stage="sent", partial=True, attempts=2, generation=2, last_code=550)
    seed.update(email_id, held_why="asked by bob.ray@mail.example.com")
    return email_id


def test_show_tells_the_whole_story_in_order(story: UUID, look: Run) -> None:
    result = look("show", "order-4711", "--json")
    assert result.code == 0, result.err
    (mail,) = result.objects
    assert mail.keys() == SHOW_MEMBERS
    assert (mail["id"], mail["stage"], mail["partial"], mail["attempts"]) == (str(story), "sent", True, 2)
    assert [(r["ordinal"], r["stage"], r["code"]) for r in mail["recipients"]] == [
        (0, "outstanding", None),
        (1, "refused", 550),
    ]
    assert [(a["number"], a["generation"], a["offered"]) for a in mail["attempts_made"]] == [
        (1, 1, [0, 1]),
        (2, 2, [0, 1]),
    ]
    assert mail["attempts_made"][0]["answers"]["0"]["code"] == 451
    assert [t["to_stage"] for t in mail["transitions"]] == ["pending", "sent"]
    assert [(e["ordinal"], e["source"], e["event_id"]) for e in mail["evidence"]] == [(1, "webhook", "evt-1")]
    assert [(a["kind"], a["closed"], a["key"]) for a in mail["alarms"]] == [
        ("unknown", True, "order-4711"),
        ("evidence", False, "order-4711"),
    ]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_show_masks_what_is_personal(story: UUID, look: Run, options: tuple[str, ...]) -> None:
    out = look("show", "order-4711", *options).out
    assert [word for word in PERSONAL if word in out] == []
    assert "a***@e***.org" in out
    assert "b***@m***.com" in out
    assert "5.1.1" in out


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_show_reveals_what_is_personal_when_asked(story: UUID, look: Run, options: tuple[str, ...]) -> None:
    out = look("show", "order-4711", "--reveal", *options).out
    assert [word for word in PERSONAL if word not in out] == []
    assert "***" not in out


def test_a_servers_reply_cannot_steer_the_terminal(story: UUID, look: Run) -> None:
    out = look("show", "order-4711", "--reveal").out
    assert "no mailbox of ann, ?[31m" in out
    assert "\x1b" not in out


def test_show_looks_in_the_account_that_is_named(seed: Seed, look: Run) -> None:
    seed.mail("same", account="other")
    assert look("show", "same").code == 1
    assert look("show", "same", "--account", "other", "--json").objects[0]["account"] == "other"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_show_of_an_unknown_key_is_exit_code_1_and_one_line(look: Run, options: tuple[str, ...]) -> None:
    result = look("show", "nothing", *options)
    assert (result.code, result.out) == (1, "")
    assert result.err == "sendonce: no mail with key 'nothing' in account 'default'\n"


def test_show_of_a_mail_that_retention_emptied_says_that_the_key_stays_taken(seed: Seed, look: Run) -> None:
    email_id = seed.mail("old")
    seed.connection.execute("DELETE FROM sendonce.email WHERE id = %s", [email_id])
    (mail,) = look("show", "old", "--json").objects
    assert mail.keys() == {"forgotten", "id", "key", "account", "created_at"}
    assert (mail["forgotten"], mail["id"]) == (True, str(email_id))
    assert "its key stays taken" in look("show", "old").out


def test_show_of_a_mail_whose_content_is_gone_still_tells_its_stages(seed: Seed, look: Run) -> None:
    email_id = seed.mail("emptied")
    seed.connection.execute("DELETE FROM sendonce.email_content WHERE email_id = %s", [email_id])
    (mail,) = look("show", "emptied", "--reveal", "--json").objects
    assert (mail["stage"], mail["subject"], mail["message_id"]) == ("pending", None, None)


# alarms -----------------------------------------------------------------------------------------------------------


def test_alarms_lists_the_open_ones_newest_first(seed: Seed, look: Run) -> None:
    email_id = seed.mail("order-4711")
    closed = seed.alarm("unknown", email_id)
    seed.alarm("unknown", email_id, closes=closed)
    first, second = seed.alarm("dead", email_id), seed.alarm("account_paused")
    result = look("alarms", "--json")
    assert result.code == 0, result.err
    assert [(row["id"], row["kind"], row["key"]) for row in result.objects] == [
        (second, "account_paused", None),
        (first, "dead", "order-4711"),
    ]
    assert [row["id"] for row in look("alarms", "--json", "--limit", "1").objects] == [second]
    out = look("alarms").out
    assert "2 open alarms" in out
    assert "order-4711" in out


# what a command cannot read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("list",), ("show", "key"), ("alarms",)])
def test_a_database_without_the_schema_is_exit_code_3_and_says_what_to_run(
    run: Run, empty_database_url: str, command: tuple[str, ...]
) -> None:
    result = run(*command, SENDONCE_DATABASE_URL=empty_database_url)
    assert (result.code, result.out) == (3, "")
    assert result.err == "sendonce: the schema 'sendonce' is missing or too old: run 'sendonce migrate'\n"


@pytest.mark.parametrize("command", [("list",), ("show", "key"), ("alarms",), ("migrate",)])
def test_a_database_that_is_away_is_exit_code_3_and_one_line_without_the_password(
    run: Run, free_port: int, command: tuple[str, ...]
) -> None:
    result = run(*command, SENDONCE_DATABASE_URL=f"postgresql://shop:horse-battery@127.0.0.1:{free_port}/shop")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("sendonce: the database cannot be reached: ")
    assert result.err.count("\n") == 1
    assert "horse-battery" not in result.err
