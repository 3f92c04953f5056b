"""The bookstore: its own tests, its templates, its README, and the one command that runs everything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from sendonce.embedded import ChildProcess

if TYPE_CHECKING:
    from tests.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
BOOKSTORE = EXAMPLES / "bookstore"
COMMAND = [sys.executable, "-m", "bookstore"]


def test_its_own_tests_pass(postgres_url: str) -> None:
    arguments = ["-q", "-p", "no:cacheprovider", f"--sendonce-database-url={postgres_url}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=BOOKSTORE,
        capture_output=True,
        text=True,
        timeout=85,
        check=False,
    )
    written = (BOOKSTORE / "tests" / "test_shop.py").read_text(encoding="utf-8").count("\ndef test_")
    assert f"\n{written} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "bookstore":
            del sys.modules[name]


def test_its_templates_are_whole(importable: None, run: Run) -> None:
    settings = str(BOOKSTORE / "sendonce.toml")
    checked = run("templates", "check", "--config", settings, DATABASE_URL="postgresql://not.asked.example/shop")
    assert (checked.code, checked.err) == (0, "")


def test_its_readme_shows_what_it_runs() -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (BOOKSTORE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    sources = [path.read_text(encoding="utf-8") for path in BOOKSTORE.rglob("*.py")]
    shown = [text for language, text in blocks if language == "python"]
    assert shown
    indented = [[textwrap.indent(text, deep) for deep in ("", " " * 4)] for text in shown]
    assert [forms for forms in indented if not any(one in source for one in forms for source in sources)] == []
    assert [text for language, text in blocks if language != "python"] == ["make example\n"]


def test_its_readme_names_files_that_are_there() -> None:
    named = re.findall(r"`([\w/]+(?:\.\w+|/))`", (BOOKSTORE / "README.md").read_text(encoding="utf-8"))
    assert "shop.py" in named
    assert [name for name in named if not (BOOKSTORE / name).exists()] == []


@pytest.mark.slow
def test_the_check_orders_a_book_and_shows_its_mail(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--check"],
        cwd=EXAMPLES,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=85,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "-confirmation: sent after 1 attempt(s)" in done.stdout
    assert done.stdout.count("To: ann@example.org\nSubject: Your order: Emma\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "tmp"
    folder.mkdir()
    with ChildProcess(COMMAND, cwd=EXAMPLES, env={**os.environ, "TMPDIR": str(folder)}, log=log) as example:
        while "Ctrl-C ends everything" not in log.read_text(encoding="utf-8"):
            assert example.running, log.read_text(encoding="utf-8")
            try:
                example.wait(0.1)
            except TimeoutError:
                continue
        said = log.read_text(encoding="utf-8")
        for name in ("The shop", "Temporal's UI"):
            (address,) = re.findall(rf"^{name} +(http://\S+)$", said, re.M)
            assert httpx.get(address, follow_redirects=True).status_code == 200
        example.signal(signal.SIGINT)
        assert example.wait(60) == 0, log.read_text(encoding="utf-8")
    assert list(folder.iterdir()) == []
