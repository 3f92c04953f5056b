"""A command's exit code is what Compose and Kubernetes wait for: the SDK's threads may not change it."""

from __future__ import annotations

import subprocess
import sys

import pytest

TALKED_TO_TEMPORAL = """
import atexit, sys
import temporalio.client
from sendonce.cli import process
atexit.register(print, "taken down")
sys.argv = ["sendonce", *sys.argv[1:]]
process()
"""


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("no-such-command", 2)])
def test_a_process_that_talked_to_temporal_leaves_without_being_taken_down(argument: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TALKED_TO_TEMPORAL, argument], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    # What was said has been said: both streams are pipes here, whose text is kept back until it is flushed.
    assert ("sendonce" in done.stdout) if code == 0 else ("no-such-command" in done.stderr)
    assert "taken down" not in done.stdout


def test_one_that_did_not_ends_as_any_other() -> None:
    source = TALKED_TO_TEMPORAL.replace("import temporalio.client", "")
    done = subprocess.run([sys.executable, "-c", source, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("taken down\n")
