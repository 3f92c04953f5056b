"""``pause``, ``resume`` and ``accounts``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from tests.cli.conftest import Seed
    from tests.conftest import Run

BECAUSE = ("--because", "a bad link")


@pytest.mark.parametrize("scope", ["lane", "template", "tenant", "account"])
def test_mail_is_put_on_hold_and_let_go(seed: Seed, look: Run, scope: str) -> None:
    assert look("pause", f"--{scope}", "news").code == 2
    done = look("pause", f"--{scope}", "news", *BECAUSE, "--actor", "Eve", "--json")
    assert (done.code, done.objects) == (0, [{"scope": scope, "name": "news", "done": True}])
    again = look("pause", f"--{scope}", "news", *BECAUSE)
    assert (again.code, again.err) == (1, f"sendonce: {scope} news: on hold already\n")
    [hold] = look("pause", "--json").objects
    assert hold.keys() == {"scope", "name", "since", "actor", "why"}
    assert (hold["why"], hold["actor"].startswith("Eve (")) == ("a bad link", True)
    assert "1 hold\n" in look("pause").out
    assert look("resume", f"--{scope}", "news", "--json").objects == [{"scope": scope, "name": "news", "done": True}]
    assert look("resume", f"--{scope}", "news").code == 1
    assert look("pause", "--json").objects == []
    assert seed.value("SELECT ended_by IS NOT NULL FROM sendonce.hold")


def test_a_name_is_needed(look: Run) -> None:
    assert look("resume").code == 2
    assert look("pause", "--lane", "", *BECAUSE).code == 2


def test_accounts_say_how_they_stand(seed: Seed, look: Run) -> None:
    for account in ("default", "bulk", "codes"):
        seed.mail(f"{account}-1", account=account)
    seed.connection.execute(
        "INSERT INTO sendonce.account (name, settings_digest, paused_at, pause_why, probe_at)"
        " VALUES ('bulk', 'digest-of-settings', now(), '535 5.7.8', now())"
    )
    alarm = seed.value(
        "INSERT INTO sendonce.alarm (kind, account, detail)"
        " VALUES ('account_paused', 'bulk', '535 5.7.8 (settings digest-of-se)') RETURNING id"
    )
    assert look("accounts", "pause", "codes", *BECAUSE).code == 0
    rows = {row["account"]: row for row in look("accounts", "--json").objects}
    assert rows.keys() == {"default", "bulk", "codes"}
    assert rows["bulk"].keys() == {"account", "state", "pauses", "hold"}
    assert {name: row["state"] for name, row in rows.items()} == {
        "default": "works",
        "bulk": "paused",
        "codes": "on_hold",
    }
    assert rows["bulk"]["pauses"][0]["why"] == "535 5.7.8"
    assert rows["codes"]["hold"]["why"] == "a bad link"
    out = look("accounts").out
    assert "3 accounts" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert look("accounts", "resume", "bulk").code == 0
    assert look("accounts", "resume", "codes").code == 0
    assert {row["state"] for row in look("accounts", "--json").objects} == {"works"}
    assert seed.value("SELECT closes FROM sendonce.alarm WHERE closes IS NOT NULL") == alarm
    assert look("accounts", "resume", "default").code == 1


def test_addresses_that_people_wrote_are_masked(seed: Seed, look: Run) -> None:
    """Whoever acts may be named, and may name others, by an address; and the list of alarms goes into tickets."""
    seed.mail("k1")
    alarm = str(seed.alarm("dead"))
    names = ("--actor", "bob.ray@example.net")
    assert look("accounts", "pause", "default", "--because", "ask ann.lee@example.org", *names).code == 0
    assert look("alarms", "ack", alarm, *names).code == 0
    note = "INSERT INTO sendonce.suppression (account, mailbox, reason, source, actor) VALUES (%s, %s, %s, %s, %s)"
    seed.connection.execute(note, ["default", "x@example.org", "manual", "operator", "bob.ray@example.net"])
    for command in (("accounts",), ("alarms", "--acknowledged", "--each"), ("suppressions", "list")):
        for form in ((), ("--json",)):
            shown = look(*command, *form)
            assert (shown.code, "b***@e***.net" in shown.out) == (0, True), shown
            assert "bob.ray" not in shown.out
            assert "ann.lee" not in shown.out


def test_a_role_without_rights_is_told_in_one_line(seed: Seed, run: Run, database_url: str) -> None:
    """Exit code 1 would say that the answer is no."""
    role = "r" + uuid.uuid4().hex[:10]
    seed.connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA sendonce TO {role}")
    url = make_conninfo(database_url, options=f"-c role={role}")
    try:
        for command in (("list", "--to", "ann.lee@example.org"), ("pause",), ("retry", "k1")):
            found = run(*command, SENDONCE_DATABASE_URL=url)
            assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
            assert "permission denied" in found.err
            assert "sendonce grants" in found.err
            assert "ann.lee" not in found.err
    finally:
        seed.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
