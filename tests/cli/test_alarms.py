"""``alarms``: in groups, one by one, and taking note of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Seed
    from tests.conftest import Run

MEMBERS = {
    "id",
    "at",
    "kind",
    "email_id",
    "key",
    "account",
    "detail",
    "delivered_at",
    "closed",
    "acknowledged_at",
    "acknowledged_by",
}


def test_the_open_ones_newest_first(seed: Seed, look: Run) -> None:
    email_id = seed.mail("order-4711")
    closed = seed.alarm("unknown", email_id)
    seed.alarm("unknown", email_id, closes=closed)
    first, second = seed.alarm("dead", email_id), seed.alarm("account_paused")
    result = look("alarms", "--json")
    assert result.code == 0, result.err
    assert result.objects[0].keys() == MEMBERS
    assert [(row["id"], row["kind"], row["key"]) for row in result.objects] == [
        (second, "account_paused", None),
        (first, "dead", "order-4711"),
    ]
    assert [row["id"] for row in look("alarms", "--json", "--limit", "1").objects] == [second]
    assert [row["id"] for row in look("alarms", "--json", "--kind", "dead").objects] == [first]
    assert look("alarms", "--json", "--account", "other").objects == []
    out = look("alarms", "--each").out
    assert "2 open alarms" in out
    assert "order-4711" in out
    assert "1 open alarm\n" in look("alarms", "--each", "--kind", "dead").out


def test_an_outage_of_many_mails_is_one_line(seed: Seed, look: Run) -> None:
    email_id = seed.mail("last")
    seed.connection.execute(
        "INSERT INTO sendonce.alarm (kind, account, detail)"
        " SELECT 'unknown', 'default', 'offered and unanswered: held' FROM generate_series(1, 2000)"
    )
    seed.connection.execute(
        "INSERT INTO sendonce.alarm (kind, account, detail, email_id)"
        " VALUES ('unknown', 'default', 'offered and unanswered: held', %s)",
        [email_id],
    )
    seed.alarm("account_paused")
    lines = look("alarms").out.splitlines()
    assert lines[0] == "2002 open alarms"
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == ["2002", "1", "2001"]
    assert lines[4].endswith("unknown         default  last")
    assert len(lines) <= 8


def test_taking_note_of_some(seed: Seed, look: Run) -> None:
    ids = [seed.alarm("dead") for _ in range(3)]
    other = seed.alarm("held")
    done = look("alarms", "ack", str(ids[0]), "--note", "asked the provider", "--actor", "Eve", "--json")
    assert (done.code, done.objects) == (0, [{"acknowledged": 1}])
    assert {row["id"] for row in look("alarms", "--json").objects} == {*ids[1:], other}
    again = look("alarms", "ack", str(ids[0]))
    assert (again.code, again.out) == (1, "")
    # Still open: nothing has ended it.
    [noted] = [row for row in look("alarms", "--acknowledged", "--json").objects if row["id"] == ids[0]]
    assert (noted["closed"], noted["acknowledged_by"].startswith("Eve (")) == (False, True)
    assert look("alarms", "ack", "--kind", "dead", "--json").objects == [{"dry_run": True, "matching": 2}]
    assert len(look("alarms", "--json").objects) == 3
    assert look("alarms", "ack", "--kind", "dead", "--yes").out == "took note of 2 alarms\n"
    assert [row["id"] for row in look("alarms", "--json").objects] == [other]
    assert look("alarms", "ack").code == 2
