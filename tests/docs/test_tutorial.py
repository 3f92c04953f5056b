"""The tutorial is followed as it stands, in one shell: its files are written, its commands run, and what it says that
one sees is seen."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.embedded import ChildProcess, free_port

if TYPE_CHECKING:
    from tests.docs.conftest import Block, Page

PAGE = "docs/tutorial.md"
INSTALL, UP, KILL = "1. Install", "2. Start everything", "5. Kill it in the middle"
DONE, FAILED = "-- done", "-- failed"
PATIENCE = 60.0

_FILE = re.compile(r"`([\w./]+)`:\n\n```\w+\n$")
"""What stands before a block that is a file."""
_LOOKS = re.compile(r"sendonce (list|show|alarms)\b")
"""Commands that may be repeated until they show what the page says."""


class Shell:
    """One bash in which the page's commands run one after the other: variables and jobs stay."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._say(f"trap \"echo '{FAILED}'\" EXIT")

    def run(self, script: str) -> str:
        """What it printed. A command that fails fails the test."""
        self._say(f"set -e\n{script}\nset +e\necho '{DONE}'")
        assert self._process.stdout is not None
        printed = ""
        for line in self._process.stdout:
            if line.strip() in (DONE, FAILED):
                assert line.strip() == DONE, f"{script}\nfailed:\n{printed}"
                return printed
            printed += line
        raise AssertionError(f"{script}\nended the shell:\n{printed}")

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End the shell, and what the page left running in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=30)


@pytest.fixture
def shell(tmp_path: Path, postgres_url: str) -> Iterator[Shell]:
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SENDONCE_TEST_DATABASE_URL": postgres_url,  # else step 7 starts a server of its own
        "COLUMNS": "80",
    }
    shell = Shell(tmp_path, os.environ | variables)
    yield shell
    shell.close()


def parts(page: Page) -> dict[str, list[Block]]:
    """The page's blocks by the heading (of level 2) that they stand under."""
    starts = [
        (page.text.count("\n", 0, match.start()), match[1]) for match in re.finditer(r"^## (.+)$", page.text, re.M)
    ]
    found: dict[str, list[Block]] = {heading: [] for _, heading in starts}
    for block in page.blocks():
        found[[heading for line, heading in starts if line < block.line][-1]].append(block)
    return found


def file_of(page: Page, block: Block) -> str | None:
    """The name of the file that the block is, if the line above it says so."""
    before = "".join(page.text.splitlines(keepends=True)[: block.line - 1])
    named = _FILE.search(before)
    return named[1] if named else None


def shown(printed: str, expected: str) -> bool:
    """Whether every line of ``expected`` is there, in order; ``…`` stands for anything."""
    lines = [".*".join(map(re.escape, line.split("…"))) for line in expected.split("\n") if line.strip()]
    squeezed = re.sub(r"[ \t]+", " ", printed)
    return re.search(r"[\s\S]*?".join(re.sub(r"(\\ )+", r"\\ ", line) for line in lines), squeezed) is not None


def follow(page: Page, blocks: list[Block], shell: Shell, folder: Path, port: int) -> None:
    printed, look = "", ""
    for block in blocks:
        name = file_of(page, block)
        if name is not None:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text.replace("2525", str(port)), encoding="utf-8")
        elif block.language == "sh":
            printed = shell.run(block.text.replace("2525", str(port)))
            last = block.text.splitlines()[-1]
            look = last if _LOOKS.match(last) else ""
        elif block.language == "text":
            end = time.monotonic() + PATIENCE
            while not shown(printed, block.text):
                where = f"{PAGE}:{block.line}: expected\n{block.text}\nand saw\n{printed}"
                assert look, where
                assert time.monotonic() < end, where
                printed = shell.run(look)
        else:
            raise AssertionError(f"{PAGE}:{block.line}: name the file in the line above")


def run_tutorial(page: Page, shell: Shell, folder: Path, *without: str) -> None:
    sections = parts(page)
    command, says = sections.pop(UP)
    log = folder / "up.log"
    program, *arguments = command.text.split()
    log.touch()
    with ChildProcess([Path(sys.executable).with_name(program), *arguments], cwd=folder, log=log) as up:
        last = says.text.splitlines()[-1]
        while last not in log.read_text():
            assert up.running, log.read_text()
            try:
                up.wait(0.1)
            except TimeoutError:
                continue
        assert shown(log.read_text(), says.text), log.read_text()
        for heading, blocks in sections.items():
            if heading not in (INSTALL, *without):
                follow(page, blocks, shell, folder, free_port())
        up.terminate()
        assert up.wait(60) == 0


@pytest.mark.timeout(150)
def test_it_can_be_followed(pages: dict[str, Page], shell: Shell, tmp_path: Path) -> None:
    run_tutorial(pages[PAGE], shell, tmp_path, KILL)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_can_be_followed_with_its_kills(pages: dict[str, Page], shell: Shell, tmp_path: Path) -> None:
    run_tutorial(pages[PAGE], shell, tmp_path)
    assert len(list((tmp_path / "slow-mailbox" / "new").glob("*.eml"))) == 2
