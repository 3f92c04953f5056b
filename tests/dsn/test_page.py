"""What docs/dsn.md says is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from sendonce.dsn.lmtp import LmtpLimits
from sendonce.dsn.parse import ACTIONS, RecipientReport
from sendonce.dsn.parts import LIMIT
from sendonce.dsn.proof import looks_proven
from sendonce.dsn.reader import kind
from sendonce.dsn.run import EX_TEMPFAIL, lmtp_address
from sendonce.events import EventKind

PAGE = (Path(__file__).parents[2] / "docs" / "dsn.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """The cells of the table that begins with this row, without code marks."""
    table = PAGE.partition(header)[2].partition("\n\n")[0]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_events() -> None:
    found = {}
    for actions, status, event, suppresses in rows("| action | status | event | suppresses the address |"):
        assert EventKind(event).suppresses is (suppresses == "yes")
        found.update({(action, status[:5]): event for action in actions.split(", ")})
    assert {action for action, _ in found} == ACTIONS
    assert {key: value for key, value in found.items() if key[0] != "failed"} == {
        (action, "any"): kind(RecipientReport(action)).value for action in ACTIONS - {"failed"}
    }


def test_the_limits() -> None:
    limits = LmtpLimits()
    assert [int(re.findall(r"\d+", value)[0]) for _, value in rows("| limit | value |")] == [
        limits.connections,
        limits.recipients,
        limits.octets // 2**20,
        limits.command_seconds,
        limits.data_seconds,
        limits.record_seconds,
    ]
    assert LIMIT == 2**20
    assert f"with {EX_TEMPFAIL} when" in PAGE


def test_the_examples() -> None:
    assert all(looks_proven(form) for _, form, _ in rows("| way | form | works with |"))
    for address in re.findall(r"--lmtp ([^`]+)`", PAGE):
        lmtp_address(address)
