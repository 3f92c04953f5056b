"""``doctor`` of a whole installation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from sendonce.cli import installation
from sendonce.store import continuity
from sendonce.testing.smtp_server import SmtpServer
from tests.cli.test_stable import members

if TYPE_CHECKING:
    from pathlib import Path

    from sendonce.embedded import EmbeddedTemporal
    from tests.conftest import Result, Run

STEPS = [
    "versions",
    "store",
    "clock",
    "durable",
    "schema",
    "transactions",
    "continuity",
    "listen",
    "workers",
    "alarms",
    "temporal",
    "temporal clock",
]


@pytest.fixture
def examine(run: Run, tmp_path: Path, temporal: EmbeddedTemporal) -> Any:
    async def examine(url: str, *options: str, target: str = temporal.target) -> Result:
        async with SmtpServer() as server:
            (tmp_path / "sendonce.toml").write_text(
                f'[accounts.shop]\ntransport = "smtp"\nhost = "127.0.0.1"\nport = {server.port}\ntls = "none"\n'
            )
            return await asyncio.to_thread(
                run, "doctor", *options, SENDONCE_DATABASE_URL=url, SENDONCE_TEMPORAL_ADDRESS=target
            )

    return examine


async def test_all_is_in_order(examine: Any, database_url: str) -> None:
    found = await examine(database_url, "--json")
    assert found.code == 0, found.out
    ours = {row["step"]: row for row in found.objects if row["account"] is None}
    assert list(ours)[: len(STEPS)] == STEPS
    assert {row["status"] for name, row in ours.items() if name in STEPS} <= {"ok", "warn"}
    assert [row["status"] for name, row in ours.items() if name in ("clock", "temporal clock", "listen")] == ["ok"] * 3
    assert ours["store"]["details"]["server"][:2].isdigit()
    assert ours["temporal"]["details"]["server"]
    assert {row["account"] for row in found.objects} == {None, "shop"}
    assert {frozenset(row) for row in found.objects} == {frozenset(members()["`doctor`"])}


async def test_it_fits_80_columns(examine: Any, database_url: str) -> None:
    out = (await examine(database_url)).out
    assert "\naccount shop\n" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


async def test_what_stands_still_is_said(examine: Any, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            'SELECT sendonce.enqueue(\'{"key": "k", "sender": "a@x.example", "to": "b@y.example",'
            ' "text": "t", "lane": "bulk"}\')'
        )
        connection.execute("INSERT INTO sendonce.hold (scope, name, actor, why) VALUES ('lane', 'bulk', 'ops', 'x')")
        connection.execute("UPDATE sendonce.installation SET notify = false")
    rows = {row["step"]: row for row in (await examine(database_url, "--json")).objects}
    assert rows["listen"]["status"] == "skip"
    assert rows["workers"]["status"] == "warn"
    assert "mail waits in bulk" in rows["workers"]["what"]
    assert (rows["alarms"]["status"], rows["alarms"]["details"]["holds"]) == ("warn", 1)


async def test_a_halted_store_is_said_and_what_lets_it_go_on(examine: Any, database_url: str) -> None:
    before = {row["step"]: row for row in (await examine(database_url, "--json")).objects}["continuity"]
    assert (before["status"], before["what"]) == ("ok", "not halted; standbys: none")
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        assert await continuity.halt(connection, continuity.OTHER_TIMELINE)
    found = await examine(database_url, "--json")
    halted = {row["step"]: row for row in found.objects}["continuity"]
    assert (found.code, halted["status"]) == (1, "fail")
    assert "a standby was promoted, or a backup was restored" in halted["what"]
    assert "sendonce reconcile --after-restore" in halted["fix"]
    assert halted["details"]["halted_why"] == "other_timeline"


async def test_an_old_transaction_is_said(examine: Any, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "OLD_TRANSACTION", 0.05)
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT pg_sleep(0.1)")
        step = {row["step"]: row for row in (await examine(database_url, "--json")).objects}["transactions"]
    assert (step["status"], "has been open for" in step["what"]) == ("warn", True)
    assert step["details"]["oldest"] >= 0.1


async def test_what_is_away_fails_and_the_rest_is_looked_at(
    examine: Any, empty_database_url: str, free_port: int
) -> None:
    found = await examine(empty_database_url, "--json", target=f"127.0.0.1:{free_port}")
    rows = {row["step"]: row for row in found.objects}
    assert found.code == 1
    assert (rows["schema"]["status"], rows["schema"]["fix"]) == ("fail", "run 'sendonce migrate', with this release")
    assert rows["temporal"]["status"] == "fail"
    # In words, and not as the SDK's debugging output.
    assert rows["temporal"]["what"] == (
        f"127.0.0.1:{free_port}, namespace default: tcp connect error: Connection refused"
    )
    assert rows["mail"]["status"] == "ok"
    gone = f"postgresql://shop:horse-battery@127.0.0.1:{free_port}/shop"
    away = await examine(gone, "--json", target=f"127.0.0.1:{free_port}")
    (store,) = (row for row in away.objects if row["step"] == "store")
    assert store["status"] == "fail"
    assert "Connection refused; Is the server running" in store["what"]
    assert "horse-battery" not in away.out + away.err


def test_clocks_that_differ_are_said() -> None:
    assert installation._clock("clock", "the database", 0.4).status == "ok"
    ahead = installation._clock("clock", "the database", 7.5)
    assert (ahead.status, ahead.what) == ("warn", "the clock of the database is 7.5 s ahead of this host's")
    assert "7.5 s behind" in installation._clock("clock", "the database", -7.5).what


async def test_the_test_mail_needs_an_account_and_a_sender(examine: Any, database_url: str) -> None:
    assert (await examine(database_url, "--from", "a@example.org")).code == 2
    without = await examine(database_url, "--to", "ann@example.org")
    assert (without.code, "give --from" in without.err) == (2, True)
    sent = await examine(database_url, "--to", "ann@example.org", "--from", "shop@example.org", "--json")
    assert sent.objects[-1]["step"] == "send"
    assert sent.objects[-1]["status"] == "ok"
