"""``stats``: what it counts, and that it reads no more than it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.store import stats

if TYPE_CHECKING:
    from tests.cli.conftest import Seed
    from tests.conftest import Run

NOW = datetime.now(UTC)


def sent(seed: Seed, key: str, took: float, attempts: int = 1, **more: Any) -> None:
    at = NOW - timedelta(minutes=30)
    seed.update(
        seed.mail(key, **more),
        stage="sent",
        attempts=attempts,
        created_at=at,
        final_at=at + timedelta(seconds=took),
        next_attempt_at=None,
    )


@pytest.fixture
def mails(seed: Seed) -> None:
    for n in range(8):
        sent(seed, f"s{n}", 0.4)
    sent(seed, "second", 40.0, attempts=2)
    sent(seed, "third", 400.0, attempts=3)
    sent(seed, "bulk", 2.0, lane="bulk", account="news")
    seed.update(seed.mail("dead"), stage="dead", attempts=5, next_attempt_at=None)
    seed.update(seed.mail("old"), created_at=NOW - timedelta(days=3), stage="failed", attempts=1)
    seed.mail("waits")
    seed.update(seed.mail("retries"), started_at=NOW, attempts=1, next_attempt_at=NOW + timedelta(hours=1))
    seed.update(seed.mail("silent"), started_at=NOW, attempts=1, stage="unknown", next_attempt_at=None)


@pytest.mark.usefixtures("mails")
def test_the_numbers(look: Run) -> None:
    [found] = look("stats", "--json").objects
    assert found.keys() == {
        "since",
        "outstanding",
        "outstanding_complete",
        "ended",
        "accounts",
        "latency",
        "history_complete",
    }
    assert [(one["stage"], one["lane"], one["account"], one["count"], one["due"]) for one in found["outstanding"]] == [
        ("pending", "default", "default", 2, 1),
        ("unknown", "default", "default", 1, 0),
    ]
    assert found["ended"] == {"sent": 11, "pending": 2, "dead": 1, "unknown": 1}
    default, news = found["accounts"]
    assert (default["account"], default["mails"], default["sent"], default["tried"], default["first_try"]) == (
        "default",
        14,
        10,
        13,
        8,
    )
    assert default["by_attempt"] == {"1": 8, "2": 1, "3": 1}
    assert (news["account"], news["sent"]) == ("news", 1)
    bulk, usual = found["latency"]
    assert (bulk["lane"], bulk["sent"], bulk["p99"]) == ("bulk", 1, 2.0)
    assert (usual["sent"], round(usual["p50"], 1), round(usual["worst"])) == (10, 0.4, 400)
    assert usual["histogram"] == [0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 1, 0]
    assert (found["outstanding_complete"], found["history_complete"]) == (True, True)


@pytest.mark.usefixtures("mails")
def test_people_see_charts_in_80_columns(look: Run) -> None:
    out = look("stats", "--since", "2h").out
    assert "█" in out
    assert "Outstanding: 3 mails" in out
    assert "attempt 3" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert "Enqueued since" in look("stats", "--since", "2999-01-01").out


@pytest.mark.usefixtures("mails")
def test_no_more_rows_are_read_than_it_says(seed: Seed, look: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "CAP", 2)
    [found] = look("stats", "--json").objects
    assert sum(found["ended"].values()) == 2
    assert (found["outstanding_complete"], found["history_complete"]) == (False, False)
    assert "or more" in look("stats").out
    # Each of the parts has an index that holds nothing else.
    with seed.connection.transaction():
        seed.connection.execute("SET LOCAL enable_seqscan = off")
        for part in stats._PARTS:
            query = "EXPLAIN " + stats._OUTSTANDING.format(part=part)
            plan = str(seed.connection.execute(query.encode(), {"cap": 2}).fetchall())
            assert "ix_email_" in plan, plan
            assert "Seq Scan" not in plan
            assert "Filter" not in plan.replace("Filter: (next_attempt_at", "")
