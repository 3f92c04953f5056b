"""What all commands share: usage errors, the settings file, masks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.cli.base import CHECK_STORE, NO_SETTINGS, ORDER
from sendonce.cli.output import cell, mask, mask_addresses

if TYPE_CHECKING:
    from tests.conftest import Run


def test_version_and_help(run_process: Run) -> None:
    assert run_process("--version").out == f"sendonce {version('sendonce')}\n"
    result = run_process("--help")
    assert result.code == 0
    out = result.out
    assert [name for name in ("migrate", "list", "show", "alarms", "worker", "starter") if name not in out] == []
    assert "Exit codes: 0 done" in out


HEAVY = {"alembic", "httpx", "idna", "jinja2", "psycopg", "pydantic", "rich.console", "sqlalchemy", "temporalio"}
NEEDED: dict[str, set[str]] = {
    "--version": set(),
    "--help": set(),
    "dsn --once": {"pydantic"},  # typer's own wish
    "suppressions list": {"idna", "psycopg", "pydantic"},
    "list": {"idna", "psycopg", "pydantic", "sqlalchemy"},
}

PROGRAM = """
import sys
from sendonce.cli import main
for line in sys.stdin:
    sys.argv = ["sendonce", *line.split()]
    try:
        main()
    except SystemExit:
        print("loaded", *sys.modules)
"""


@pytest.mark.parametrize(
    "needed",
    [
        # One process runs them all in this order: each has what those before it loaded.
        NEEDED,
        # It starts again after every crash.
        {"worker": {"idna", "psycopg", "pydantic", "temporalio"}},
    ],
)
def test_a_command_loads_only_what_it_needs(needed: dict[str, set[str]], free_port: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(needed),
        env=os.environ | {"SENDONCE_DATABASE_URL": f"postgresql://127.0.0.1:{free_port}/shop"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = [HEAVY & set(line.split()) for line in done.stdout.splitlines() if line.startswith("loaded ")]
    found = dict(zip(needed, loaded, strict=True))
    assert {name: found[name] - needed[name] for name in needed if found[name] - needed[name]} == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lst",), "No such command"),
        (("list", "--stage", "sending"), "--stage"),
        (("list", "--limit", "0"), "--limit"),
        (("show",), "Missing argument"),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments, TERM="dumb", COLUMNS="200")
    assert (result.code, result.out) == (2, "")
    assert words in result.err


@pytest.mark.parametrize("arguments", [("show", "\udcff"), ("list", "--tenant", "\udcff"), ("cancel", "k\udcff")])
def test_an_argument_that_is_no_text_is_wrong_usage(
    run_process: Run, database_url: str, arguments: tuple[str, ...]
) -> None:
    result = run_process(*arguments, SENDONCE_DATABASE_URL=database_url)
    assert (result.code, result.out) == (2, "")
    assert result.err == "sendonce: an argument is not valid UTF-8 text; check it, and the terminal's encoding\n"


def test_wrong_settings_are_exit_code_2_and_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sendonce.toml").write_text("[worker]\nlease = 3\n", encoding="utf-8")
    result = run("list")
    assert (result.code, result.out) == (2, "")
    assert result.err == "sendonce: sendonce.toml: [worker] unknown key 'lease'; did you mean 'lease_seconds'?\n"


def test_the_settings_file_is_named_by_option_or_variable(run: Run, tmp_path: Path) -> None:
    for arguments, variables in ((("--config", "elsewhere.toml"), {}), ((), {"SENDONCE_CONFIG": "elsewhere.toml"})):
        result = run("alarms", *arguments, **variables)
        assert result.code == 2
        assert result.err.startswith("sendonce: elsewhere.toml: cannot be read: ")


@pytest.mark.parametrize(
    ("mailbox", "masked"),
    [
        ("ann@example.org", "a***@e***.org"),
        ("ann@mail.example.co.uk", "a***@m***.uk"),
        ('"a b@c"@example.org', '"***@e***.org'),
        ("ann@localhost", "a***@l***"),
        ("ann@[127.0.0.1]", "a***@[***"),
        ("@", "***@***"),
    ],
)
def test_a_mask_shows_first_letters_and_the_top_level_domain(mailbox: str, masked: str) -> None:
    assert mask(mailbox) == masked


def test_addresses_within_text_are_masked() -> None:
    text = "moved by <ann@example.org>, (bob@mail.example.com) and dora@[10.0.0.1]"
    assert mask_addresses(text) == "moved by <a***@e***.org>, (b***@m***.com) and d***@[***"
    assert mask_addresses("w1 at host-7, sent") == "w1 at host-7, sent"


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_no_text_prints_a_control_character(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in cell(text))


def test_help_lists_the_commands_as_the_documentation_does_and_cuts_nothing_off(run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([\w-]+)` \|", page.partition("## Commands")[2].partition("\n\n```")[0], re.M)
    listed = run("--help").out.partition("Commands:\n")[2]
    assert re.findall(r"^  (\w[\w-]*)", listed, re.M) == documented
    for command in ([], ["alarms"], ["accounts"], ["suppressions"], ["templates"]):
        out = run(*command, "--help").out
        assert "...\n" not in out.partition("Commands:")[2]
        assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", ORDER)
def test_options_are_named_after_what_they_take(run: Run, command: str) -> None:
    """Not after Python's types."""
    options = run(command, "--help").out.partition("Options:")[2]
    assert re.findall(r"^  --[\w-]+ +<.*", options, re.M) == []


def test_who_forgot_the_settings_is_told_so(run: Run, tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("SENDONCE_CONFIG", "SENDONCE_DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGSERVICE"), "")
    away = {"PGPORT": "1", "PGSSLMODE": "disable"}
    found = run("list", **nowhere, **away)
    assert found.code == 3
    assert found.err.endswith(f"; {NO_SETTINGS}\n")
    assert NO_SETTINGS in " ".join(run("doctor", "--json", **nowhere, **away).out.split())
    (tmp_path / "other.toml").write_text("")
    for option in (("--config", "other.toml"), ("--config=other.toml",)):
        assert run("list", *option, **nowhere, **away).err.endswith(f"; {CHECK_STORE}\n")
    assert run("list", **{**nowhere, "PGHOST": "127.0.0.1"}, **away).err.endswith(f"; {CHECK_STORE}\n")
    (tmp_path / "sendonce.toml").write_text("")
    assert run("list", **nowhere, **away).err.endswith(f"; {CHECK_STORE}\n")
