"""``erase``: what it says, what it refuses, and that it can be repeated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from sendonce.store import erasure, texts

if TYPE_CHECKING:
    from tests.conftest import Run

ANN = "ann.lee@example.org"


@pytest.fixture
def here(database_url: str) -> dict[str, str]:
    """One mail in flight, and a suppression of the same person."""
    message = {"key": "k1", "sender": "shop@example.org", "to": [ANN], "text": f"Hi {ANN}."}
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT FROM sendonce.enqueue(%s)", [json.dumps(message)])
        connection.execute(
            "INSERT INTO sendonce.suppression (account, mailbox, reason, source, actor)"
            " VALUES ('default', %s, 'manual', 'operator', 'me')",
            [ANN],
        )
    return {"SENDONCE_DATABASE_URL": database_url}


def test_a_dry_run_a_run_and_another_one(run: Run, here: dict[str, str], standing_in: Any) -> None:
    before = standing_in(ANN)
    dry = run("erase", "--recipient", "Ann.Lee@EXAMPLE.org", "--dry-run", "--json", **here)
    assert (dry.code, dry.err) == (0, "")
    assert dry.objects[0] == {
        "dry_run": True,
        "mails": 0,
        "contents": 0,
        "withdrawn": 1,
        "waiting": 1,
        "events": 0,
        "suppressions": 1,
        "texts": 0,
    }
    assert standing_in(ANN) == before
    done = run("erase", "--recipient", "Ann.Lee@EXAMPLE.org", "--because", "ticket 7", **here)
    assert (done.code, done.err) == (0, "")
    assert "      1  mails in flight that are not sent to the person any more" in done.out
    assert "ann" not in done.out.lower()
    assert standing_in(ANN) == set()
    again = run("erase", "--recipient", ANN, "--json", **here)
    assert set(again.objects[0].values()) == {False}
    shown = run("show", "k1", **here)
    assert "(erased)" in shown.out
    assert "cancelled" in shown.out
    listed = run("suppressions", "list", "--mailbox", ANN, "--json", **here)
    assert [row["mailbox"] for row in listed.objects] == ["(erased)"]


def test_what_is_pending_can_be_kept(run: Run, here: dict[str, str]) -> None:
    done = run("erase", "--recipient", ANN, "--keep-pending", "--json", **here).objects[0]
    assert (done["withdrawn"], done["waiting"]) == (0, 1)
    assert run("list", "--json", **here).objects[0]["stage"] == "pending"


def test_what_cannot_be_meant_is_refused_without_a_trace(run: Run, here: dict[str, str], standing_in: Any) -> None:
    before = standing_in(ANN)
    named = run("erase", "--recipient", ANN, "--because", f"{ANN.upper()} asked", **here)
    assert (named.code, named.out) == (2, "")
    assert "--because names the address" in named.err
    assert "ann.lee" not in named.err.lower()
    assert run("erase", "--recipient", "ann", **here).code == 2
    assert run("erase", **here).code == 2
    assert standing_in(ANN) == before


def test_who_is_waited_for_too_long_is_said(
    run: Run, here: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (texts, erasure):
        monkeypatch.setattr(module, "LOCK_TIMEOUT_MS", 10)
    with psycopg.connect(database_url) as holder:
        holder.execute("UPDATE sendonce.transition SET because = %s", [ANN])
        holder.commit()
        holder.execute("SELECT FROM sendonce.transition FOR UPDATE")
        done = run("erase", "--recipient", ANN, **here)
    assert done.code == 1
    assert "run this again" in done.err
    assert run("erase", "--recipient", ANN, **here).code == 0
