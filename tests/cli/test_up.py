"""``sendonce up``: a whole installation in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sendonce.embedded import ChildProcess
from sendonce.testing.mailbox import Mailbox

COMMAND = [sys.executable, "-m", "sendonce"]


def up(folder: Path, log: Path, *options: str) -> tuple[ChildProcess, dict[str, Any]]:
    """Start it, and return what it says when it is ready."""
    process = ChildProcess([*COMMAND, "up", "--data", str(folder), "--json", *options], env=dict(os.environ), log=log)
    while True:
        lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        if lines:
            told: dict[str, Any] = json.loads(lines[-1])
            return process, told
        assert process.running, log.read_text()
        try:
            process.wait(0.1)
        except TimeoutError:
            continue


def enqueue(url: str, key: str, **fields: str) -> None:
    message = {"key": key, "sender": "a@x.example", "to": ["b@y.example"], "subject": "s", "text": "t"} | fields
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT status FROM sendonce.enqueue(%s::jsonb)", [json.dumps(message)]).fetchone()
    assert row == ("created",)


def until_stage(url: str, key: str, stage: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute("SELECT stage FROM sendonce.email WHERE key = %s", [key]).fetchone()
            if row == (stage,):
                return


@pytest.mark.timeout(150)
def test_up_delivers_to_its_sink_and_keeps_everything(tmp_path: Path) -> None:
    folder = tmp_path / "installation"
    first, told = up(folder, tmp_path / "first.log")
    with first:
        assert Path(told["settings"]).stat().st_mode & 0o077 == 0
        enqueue(told["database_url"], "k1")
        until_stage(told["database_url"], "k1", "sent")
        again = subprocess.run([*COMMAND, "up", "--data", folder], capture_output=True, text=True, check=False)
        assert again.returncode == 2
        assert "another server runs in" in again.stderr
        first.terminate()
        assert first.wait(60) == 0
    assert Mailbox(folder / "mailbox").copies("b@y.example") == 1

    settings = tmp_path / "sendonce.toml"
    settings.write_text('[accounts.shop]\ntransport = "smtp"\nhost = "mail.example.com"\n')
    second, told = up(folder, tmp_path / "second.log", "--config", str(settings))
    with second:
        listed = subprocess.run(
            [*COMMAND, "list", "--config", told["settings"], "--json"], capture_output=True, text=True, check=True
        )
        assert [json.loads(line)["key"] for line in listed.stdout.splitlines()] == ["k1"]
        # An account of other settings delivers to the sink too.
        enqueue(told["database_url"], "k2", account="shop")
        until_stage(told["database_url"], "k2", "sent")
        second.terminate()
        assert second.wait(60) == 0
    assert Mailbox(folder / "mailbox").copies("b@y.example") == 2
