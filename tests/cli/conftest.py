"""Running the real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Standard output as one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def sendonce() -> Path:
    """The installed command."""
    return Path(sys.executable).with_name("sendonce")


@pytest.fixture
def run(tmp_path: Path, sendonce: Path) -> Run:
    """Run ``sendonce`` with these arguments, variables and standard input, in an empty folder."""

    def run(*arguments: str, standard_input: str = "", **variables: str) -> Result:
        done = subprocess.run(
            [sendonce, *arguments],
            input=standard_input,
            env=os.environ | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run
