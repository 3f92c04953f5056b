"""The package is typed for those who use it: mypy and pyright find what is wrong, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSUMER = ROOT / "tests" / "consumer"


def test_it_says_that_it_is_typed() -> None:
    assert resources.files("sendonce").joinpath("py.typed").is_file()


# Without a cache mypy reads every dependency; `make check` has it read the same file.
@pytest.mark.parametrize("checker", [pytest.param("mypy", marks=pytest.mark.slow), "pyright"])
def test_a_consumer_is_understood_and_its_mistakes_are_found(checker: str, tmp_path: Path) -> None:
    """A comment that ignores an error where there is none is an error too: each wrong line must be found."""
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(CONSUMER)],
                "extraPaths": [str(ROOT)],
                "typeCheckingMode": "strict",
                "enableTypeIgnoreComments": False,
                "reportUnnecessaryTypeIgnoreComment": "error",
            }
        )
    )
    commands = {
        "mypy": ["-m", "mypy", "--strict", "--config-file=", "--python-version=3.11", "--cache-dir", str(tmp_path)],
        "pyright": ["-m", "basedpyright", "-p", str(settings), "--pythonpath", sys.executable],
    }
    arguments = [*commands[checker], *([] if checker == "pyright" else [str(CONSUMER / "typed.py")])]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
