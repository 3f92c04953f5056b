"""``list``, ``show`` and ``alarms`` over a database with a few mails in it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Seed
    from tests.conftest import Run

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
    "template",
    "tenant",
    "waits_for",
}
SHOW_MEMBERS = LIST_MEMBERS | {
    "forgotten",
    "send_after",
    "expires_at",
    "unknown_since",
    "cancel_requested_at",
    "content_erased_at",
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
    "again_of",
    "sent_again_as",
    "topic",
    "superseded_by",
    "header",
}
PERSONAL = ("ann.lee", "bob.ray", "Parcel for Ann", "mailbox of ann", "desk.clerk")


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
        ((), {"a", "b", "c", "d"}),
        (("--template", "news"), {"d"}),
        (("--tenant", "acme"), {"d"}),
        (("--to", "bob@EXAMPLE.com"), {"d"}),
        (("--since", "1h"), {"a", "b", "d"}),
        (("--since", "2001-01-01"), {"a", "b", "c", "d"}),
        (("--code", "550"), {"b"}),
        (("--code", "4xx", "--code", "5.1.1"), {"a", "b"}),
        (("--stage", "sent"), {"a"}),
        (("--stage", "sent", "--stage", "dead"), {"a", "b"}),
        (("--lane", "bulk"), {"b"}),
        (("--account", "other"), {"c"}),
        (("--lane", "bulk", "--account", "other"), set()),
    ],
)
def test_list_filters(seed: Seed, look: Run, options: tuple[str, ...], keys: set[str]) -> None:
    seed.update(seed.mail("a"), stage="sent", last_code=451)
    seed.update(seed.mail("b", lane="bulk"), stage="dead", last_code=550, last_enhanced="5.1.1")
    seed.update(seed.mail("c", account="other"), created_at=datetime.now(UTC) - timedelta(days=2))
    seed.mail("d", subject="", text="", template="news", fairness_key="acme", to=["bob@example.com"])
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
    assert "partial: not every recipient; may have been accepted" in result.out
    assert "held: asked by a***@e***.org" in result.out
    assert "ann.lee" not in look("list", "--json").out
    assert "--limit" not in result.out
    assert "There may be more: give --after" in look("list", "--limit", "2").out


def test_what_is_being_tried_is_not_called_due(seed: Seed, look: Run) -> None:
    for stage in ("pending", "claimed", "transmitting"):
        seed.update(seed.mail(stage), stage=stage, next_attempt_at=datetime.now(UTC) - timedelta(minutes=1))
    rows = {line.split()[0]: line for line in look("list").out.splitlines()[2:]}
    assert {stage: " due " in line for stage, line in rows.items()} == {
        "pending": True,
        "claimed": False,
        "transmitting": False,
    }


@pytest.mark.parametrize(
    "option", [("--since", "yesterday"), ("--code", "99"), ("--to", "nobody"), ("--watch", "--json")]
)
def test_an_option_that_means_nothing_is_refused(look: Run, option: tuple[str, ...]) -> None:
    result = look("list", *option)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("sendonce: --")


def test_pages_follow_each_other_whatever_comes_meanwhile(seed: Seed, look: Run) -> None:
    for n in range(5):
        seed.mail(f"k{n}")
    first = look("list", "--json", "--limit", "2").objects
    seed.mail("newer")
    second = look("list", "--json", "--limit", "2", "--after", first[-1]["id"]).objects
    third = look("list", "--json", "--limit", "2", "--after", second[-1]["id"]).objects
    assert [row["key"] for row in first + second + third] == ["k4", "k3", "k2", "k1", "k0"]
    seed.connection.execute("DELETE FROM sendonce.email WHERE id = %s", [first[-1]["id"]])
    gone = look("list", "--after", first[-1]["id"])
    assert (gone.code, gone.out) == (2, "")
    assert "start from the first page" in gone.err


def test_mail_of_an_account_that_is_paused_says_so(seed: Seed, look: Run) -> None:
    seed.mail("k1")
    seed.mail("other-domain", sender="shop@other.example")
    seed.update(seed.mail("ended"), stage="sent")
    for domain, why in (("", "401 invalid key of ann@example.org"), ("example.org", "403 not verified")):
        seed.connection.execute(
            "INSERT INTO sendonce.account (name, settings_digest, from_domain, paused_at, pause_why)"
            " VALUES ('default', 'd', %s, now(), %s)",
            [domain, why],
        )
    said = {row["key"]: row["waits_for"] for row in look("list", "--json").objects}
    assert said == {
        "k1": "account default is paused: 401 invalid key of a***@e***.org, 403 not verified",
        "other-domain": "account default is paused: 401 invalid key of a***@e***.org",
        "ended": None,
    }
    assert "account default is paused: 401" in " ".join(look("show", "k1").out.split())
    seed.connection.execute("UPDATE sendonce.account SET paused_at = NULL")
    assert [row["waits_for"] for row in look("list", "--json").objects] == [None] * 3


def test_mail_that_waits_says_for_what(seed: Seed, look: Run) -> None:
    waits = seed.mail("order", subject="", text="", template="order")
    seed.update(waits, held_since=datetime.now(UTC))
    seed.connection.execute(
        "INSERT INTO sendonce.alarm (kind, email_id, detail) VALUES ('held', %s, 'template order: order.txt:3: no x')",
        [waits],
    )
    seed.connection.execute(
        "INSERT INTO sendonce.hold (scope, name, actor, why) VALUES ('template', 'order', 'ops', 'bad link')"
    )
    seed.update(seed.mail("ended", subject="", text="", template="order"), stage="sent")
    [ended, row] = look("list", "--json").objects
    assert row["waits_for"] == "template order: order.txt:3: no x; on hold: template order"
    assert ended["waits_for"] is None
    assert "template order: order.txt:3: no x" in look("list").out
    assert "on hold: template order" in " ".join(look("show", "order").out.split())


def test_a_list_that_is_watched_goes_on_until_it_is_interrupted(seed: Seed, sendonce: Path, database_url: str) -> None:
    seed.mail("first")
    command = [str(sendonce), "list", "--watch", "--every", "0.2"]
    environment = os.environ | {"SENDONCE_DATABASE_URL": database_url, "PYTHONUNBUFFERED": "1"}
    # A run in the background ignores the signal, and so would its children.
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert any("first" in line for line in process.stdout)
        seed.mail("second")
        assert any("second" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0


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


def test_a_page_fits_80_columns(story: UUID, seed: Seed, look: Run) -> None:
    seed.update(seed.mail("order-4711-confirmation", lane="bulk", account="newsletters"), last_code=451)
    for command in (
        ("list",),
        ("list", "--limit", "1"),
        ("show", "order-4711"),
        ("show", "order-4711", "--reveal"),
        ("alarms",),
        ("alarms", "--each"),
    ):
        lines = look(*command).out.splitlines()
        assert len(lines) > 2
        assert [line for line in lines if len(line) > 80] == [], command


def test_show_says_what_an_unknown_waits_for(seed: Seed, look: Run) -> None:
    held, asked = seed.mail("held"), seed.mail("asked")
    seed.update(held, stage="unknown", next_attempt_at=None)
    seed.update(asked, stage="unknown")
    assert "waits for a late answer, a webhook or bounce, or a decision" in " ".join(look("show", "held").out.split())
    assert "waits for its next try, a late answer" in " ".join(look("show", "asked").out.split())
    assert "waits for" not in look("show", "held", "--json").out


def test_show_names_the_topic_and_what_took_the_mails_place(seed: Seed, look: Run) -> None:
    seed.update(seed.mail("reset-1", topic="reset:user-42"), stage="cancelled", superseded_by="reset-2")
    seed.mail("reset-2", topic="reset:user-42")
    out = look("show", "reset-1").out
    assert re.search(r"^  topic +reset:user-42$", out, re.MULTILINE), out
    assert re.search(r"^  superseded by +reset-2$", out, re.MULTILINE), out
    newest = look("show", "reset-2", "--json").objects[0]
    assert (newest["topic"], newest["superseded_by"]) == ("reset:user-42", None)
    assert "superseded" not in look("show", "reset-2").out


def test_show_looks_in_the_account_that_is_named(seed: Seed, look: Run) -> None:
    seed.mail("same", account="other")
    elsewhere = look("show", "same")
    assert elsewhere.code == 1
    assert elsewhere.err == (
        "sendonce: no mail with key 'same' in account 'default'; account 'other' has one: give --account other\n"
    )
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


def test_show_has_the_header_section_of_what_was_sent(seed: Seed, look: Run) -> None:
    email_id = seed.mail("sent")
    assert look("show", "sent", "--json").objects[0]["header"] is None
    seed.connection.execute(
        "INSERT INTO sendonce.pinned (email_id, slot, body, digest) VALUES (%s, 'mime', %s, '')",
        [
            email_id,
            b"To: Ann <ann.lee@example.org>\r\nContent-Type: text/plain;\r\n charset=utf-8\r\n\r\nOn its way.\r\n",
        ],
    )
    hidden = look("show", "sent", "--json").objects[0]["header"]
    assert hidden == [{"name": "To", "value": None}, {"name": "Content-Type", "value": "text/plain; charset=utf-8"}]
    shown = look("show", "sent", "--json", "--reveal").objects[0]["header"]
    assert shown[0] == {"name": "To", "value": "Ann <ann.lee@example.org>"}
    assert "To: (hidden)" in look("show", "sent").out


def test_a_message_is_written_to_a_file(seed: Seed, look: Run, tmp_path: Path) -> None:
    email_id = seed.mail("order")
    assert look("show", "order", "--eml", "order.eml").code == 0
    message = message_from_bytes((tmp_path / "order.eml").read_bytes())
    assert (message["Subject"], message["To"]) == ("Parcel for Ann", "Ann <ann.lee@example.org>")
    seed.connection.execute(
        "INSERT INTO sendonce.pinned (email_id, slot, body, digest) VALUES (%s, 'mime', 'as offered', '')", [email_id]
    )
    assert look("show", "order", "--eml", "order.eml").code == 0
    assert (tmp_path / "order.eml").read_bytes() == b"as offered"
    assert look("show", "order", "--eml", "missing/order.eml").code == 2
    seed.mail("templated", subject="", text="", template="news")
    refused = look("show", "templated", "--eml", "x.eml")
    assert refused.code == 2
    assert "has not been rendered" in refused.err
    seed.connection.execute("DELETE FROM sendonce.email_content WHERE email_id = %s", [email_id])
    erased = look("show", "order", "--eml", "x.eml")
    assert (erased.code, "its content has been erased" in erased.err) == (2, True)
    assert not (tmp_path / "x.eml").exists()


def test_who_had_what_revealed_is_kept(seed: Seed, look: Run) -> None:
    email_id = seed.mail("order")
    look("show", "order")
    look("suppressions", "list")
    assert seed.value("SELECT count(*) FROM sendonce.reveal") == 0
    look("show", "order", "--reveal", "--actor", "Eve")
    look("show", "order", "--eml", "order.eml")
    look("suppressions", "list", "--reveal")
    rows = seed.connection.execute("SELECT actor, command, email_id, key FROM sendonce.reveal ORDER BY id").fetchall()
    assert [row[1:] for row in rows] == [
        ("show", email_id, "order"),
        ("show --eml", email_id, "order"),
        ("suppressions list", None, None),
    ]
    assert rows[0][0].startswith("Eve (")
    assert f"({rows[1][0]})" in rows[0][0]


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
