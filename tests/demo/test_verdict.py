"""The demo's judge finds every way in which the promise can be broken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sendonce.demo.play import Played
from sendonce.demo.show import conclude
from sendonce.demo.verdict import Planned, Row, judge

PLAIN = Planned("k", ("a@x.example",))
BOTH = Planned("k", ("a@x.example", "b@x.example"), refused=frozenset({"b@x.example"}))
GONE = Planned("k", ("a@x.example",), rolled_back=True)
DOUBT = Planned("k", ("a@x.example",), uncertain=True)


def row(stage: str, *alarms: str) -> Row:
    return Row("k", "default", "default", stage, 1, "250", alarms)


@pytest.mark.parametrize(
    ("plan", "found", "copies"),
    [
        (PLAIN, row("sent"), {"a@x.example": 1}),
        (BOTH, row("sent"), {"a@x.example": 1}),
        (GONE, None, {}),
        (DOUBT, row("unknown", "unknown"), {"a@x.example": 1}),
        (DOUBT, row("unknown", "unknown"), {}),
        (Planned("k", ("b@x.example",), refused=frozenset({"b@x.example"})), row("failed"), {}),
    ],
)
def test_a_kept_promise_has_no_fault(plan: Planned, found: Row | None, copies: dict[str, int]) -> None:
    verdict = judge([plan], {} if found is None else {"k": found}, copies)
    assert verdict.faults == []
    assert (verdict.duplicates, verdict.lost) == (0, 0)


@pytest.mark.parametrize(
    ("plan", "found", "copies", "fault"),
    [
        (PLAIN, row("sent"), {"a@x.example": 2}, "2 copies for one recipient"),
        (PLAIN, row("sent"), {}, "no copy for a recipient"),
        (PLAIN, row("pending"), {"a@x.example": 1}, "stage pending, expected sent"),
        (PLAIN, None, {}, "committed, and there is no row"),
        (BOTH, row("sent"), {"a@x.example": 1, "b@x.example": 1}, "a refused recipient got a copy"),
        (GONE, None, {"a@x.example": 1}, "its transaction was rolled back, and it was sent"),
        (GONE, row("sent"), {}, "its transaction was rolled back, and there is a row"),
        (DOUBT, row("unknown"), {"a@x.example": 1}, "unknown without an alarm"),
        (DOUBT, row("sent"), {"a@x.example": 1}, "stage sent, and it could not be known"),
        (DOUBT, row("unknown", "unknown"), {"a@x.example": 2}, "2 copies for one recipient"),
    ],
)
def test_a_broken_promise_is_named(plan: Planned, found: Row | None, copies: dict[str, int], fault: str) -> None:
    verdict = judge([plan], {} if found is None else {"k": found}, copies)
    assert f"k: {fault}" in verdict.faults


def test_duplicates_and_losses_are_counted_by_recipient() -> None:
    plans = [Planned("one", ("a", "b", "c")), Planned("two", ("d",))]
    rows = {"one": Row("one", "x", "y", "sent", 1, ""), "two": Row("two", "x", "y", "sent", 1, "")}
    verdict = judge(plans, rows, {"a": 3, "b": 1})
    assert (verdict.duplicates, verdict.lost, verdict.placed) == (2, 2, 2)


@pytest.mark.parametrize("width", [80, 100, 128])
def test_what_is_shown_fits_the_terminal_and_breaks_no_word(width: int) -> None:
    plans = [
        Planned("order-0022", ("a",), uncertain=True, story="SMTP: killed between accepted and marked"),
        Planned("login-0092", ("b",), story="login code in the middle of the newsletters"),
    ]
    rows = {
        "order-0022": Row("order-0022", "default", "default", "unknown", 1, "", ("unknown",)),
        "login-0092": Row("login-0092", "default", "critical", "sent", 1, "250 2.0.0"),
    }
    console = Console(file=io.StringIO(), width=width)
    conclude(console, Played(judge(plans, rows, {"a": 1, "b": 1}), 3, 0.7, 60.0))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    said = " ".join(shown.replace("│", " ").split())
    for words in ("order-0022", "login-0092", "critical", "no answer", "said so, alarm", "250 2.0.0", "newsletters"):
        assert words in said
