"""What programs rely on: the members of JSON objects, as the documentation lists them; and completion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from sendonce.cli import app

if TYPE_CHECKING:
    from tests.cli.conftest import Seed
    from tests.conftest import Run

BECAUSE = ("--because", "x")
HOLDS = "`pause`, `resume`, `accounts pause`, `accounts resume`"
PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def members() -> dict[str, set[str]]:
    """By what stands in the first column of the table."""
    table = PAGE.partition("\n## JSON\n")[2].partition("\n\nOne object")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    found = {name.strip(): set(re.findall(r"`(\w+)`", said)) for name, said in rows}
    found["`show`"] = (found["`show`"] - {"list"}) | found["`list`"]
    return found


CASES = [
    ("`list`", ("list",), 0),
    ("`show`", ("show", "k1"), 0),
    ("`stats`", ("stats",), 0),
    ("`alarms`", ("alarms",), 0),
    ("`alarms ack`", ("alarms", "ack", "1"), 0),
    ("`accounts`", ("accounts",), 0),
    ("`alarms ack` without `--yes`", ("alarms", "ack", "--kind", "dead"), 0),
    (HOLDS, ("pause", "--lane", "bulk", *BECAUSE), 0),
    (HOLDS, ("accounts", "pause", "default", *BECAUSE), 0),
    (HOLDS, ("accounts", "resume", "default"), 1),
    ("`pause` without options", ("pause",), 0),
    (HOLDS, ("resume", "--lane", "default"), 0),
    (HOLDS, ("resume", "--lane", "bulk"), 1),
    ("`retry`, `cancel`, `requeue`", ("retry", "k1"), 0),
    ("`retry`, `cancel`, `requeue`", ("cancel", "k1"), 0),
    ("`retry`, `cancel`, `requeue`", ("requeue", "k1"), 1),
    ("`cancel`, `requeue` without `--yes`", ("cancel", "--all"), 0),
    ("`cancel`, `requeue` without `--yes`", ("requeue", "--all"), 0),
    ("`resolve`", ("resolve", "k1", "--sent", *BECAUSE), 1),
    ("`send-again`", ("send-again", "k1", "--new-key", "k2"), 0),
    ("`suppressions list`", ("suppressions", "list"), 0),
    ("`suppressions add`, `suppressions remove`", ("suppressions", "add", "bob@example.org"), 0),
    ("`suppressions add`, `suppressions remove`", ("suppressions", "remove", "ann@example.org"), 0),
    ("`suppressions add`, `suppressions remove`", ("suppressions", "remove", "bob@example.org"), 1),
    ("`erase`", ("erase", "--recipient", "ann@example.org", *BECAUSE), 0),
    ("`migrate`", ("migrate",), 0),
    ("`grants`", ("grants", "--app", "shop"), 0),
    ("`new-installation`", ("new-installation", "--yes", *BECAUSE), 0),
]


@pytest.mark.parametrize(("row", "command", "code"), CASES, ids=[" ".join(case[1][:2]) for case in CASES])
def test_members_and_exit_codes_are_as_documented(
    seed: Seed, look: Run, row: str, command: tuple[str, ...], code: int
) -> None:
    seed.mail("k1")
    seed.alarm("dead")
    look("suppressions", "add", "ann@example.org")
    look("pause", "--lane", "default", *BECAUSE)
    found = look(*command, "--json")
    assert (found.code, found.err) == (code, "")
    assert [set(one) for one in found.objects] == [members()[row]] * len(found.objects)
    assert found.objects


def test_every_documented_row_is_tried() -> None:
    # In the tests of these commands, which start what they need.
    elsewhere = {
        "`reconcile --deep`",
        "`reconcile --after-restore`",
        "`doctor`",
        "`setup`",
        "`templates check`",
        "`templates preview`",
        "`up`",
        "`demo`",
    }
    assert members().keys() == {case[0] for case in CASES} | elsewhere


LOGS = {"worker", "starter", "webhooks", "dsn"}
"""Whose objects are records of the log."""


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its full name; a group that does something by itself is one too."""
    for name, command in group.commands.items():
        full = f"{path} {name}".strip()
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            yield full, command
        if inner is not None:
            yield from commands(command, full)


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_prints_json_and_is_in_the_table(name: str) -> None:
    command = COMMANDS[name]
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    if name in LOGS:
        return
    rows = {row for row in members() if any(said.split(" --")[0] == name for said in re.findall(r"`([^`]+)`", row))}
    assert rows, f"docs/cli.md, JSON, has no row for {name}"
    said = " ".join((command.help or "").split()).partition("JSON")[2]
    # `show` says that it has those of `list`.
    left_out = members()["`list`"] if name == "show" else set()
    missing = {member for row in rows for member in members()[row] - left_out if not re.search(rf"\b{member}\b", said)}
    assert missing == set(), f"--help of {name} does not name {missing}"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_options(run_process: Run, shell: str) -> None:
    script = run_process(_SENDONCE_COMPLETE=f"source_{shell}")
    assert script.code == 0
    assert f"complete_{shell}" in script.out
    if shell == "bash":
        asked = {"COMP_WORDS": "sendonce re", "COMP_CWORD": "1"}
    else:
        asked = {"_TYPER_COMPLETE_ARGS": "sendonce re"}
    found = run_process(_SENDONCE_COMPLETE=f"complete_{shell}", **asked)
    assert [name for name in ("retry", "requeue", "resume", "reconcile", "resolve") if name not in found.out] == []
    assert "migrate" not in found.out
