"""``sendonce up``: a whole installation in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sendonce.embedded import ChildProcess
from sendonce.testing.mailbox import Mailbox

COMMAND = [sys.executable, "-m", "sendonce"]


def up(folder: Path, log: Path, elsewhere: str, *options: str) -> tuple[ChildProcess, dict[str, Any]]:
    """Start it, and return what it says when it is ready. ``elsewhere``: a database that the environment names."""
    # Of the person who runs it; none of it may reach the installation.
    theirs = {
        "SENDONCE_DATABASE_URL": elsewhere,
        "SENDONCE_TEMPORAL_ADDRESS": "127.0.0.1:1",
        "TEMPORAL_NAMESPACE": "elsewhere",
        "TEMPORAL_API_KEY": "secret",
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | theirs
    process = ChildProcess([*COMMAND, "up", "--data", str(folder), "--json", *options], env=environment, log=log)
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
            time.sleep(0.05)


def still_running(folder: Path) -> list[str]:
    """The command lines of processes that name the folder, or work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text().replace("\0", " ")
            if str(folder) in line or (process / "cwd").readlink().is_relative_to(folder):
                found.append(line)
        except OSError:
            continue
    return found


@pytest.mark.timeout(150)
def test_up_delivers_to_its_sink_and_keeps_everything(tmp_path: Path, database_url: str) -> None:
    enqueue(database_url, "not-ours")
    folder = tmp_path / "installation"
    first, told = up(folder, tmp_path / "first.log", database_url)
    with first:
        assert still_running(folder) != []
        assert Path(told["settings"]).stat().st_mode & 0o077 == 0
        enqueue(told["database_url"], "k1")
        until_stage(told["database_url"], "k1", "sent")
        # To be read and copied: no quote within the quotes, no line that is long for what it says.
        assert told["first_mail"].count("'") == 2
        said = told["first_mail"].replace(told["database_url"], "")
        assert max(map(len, said.splitlines()[1:])) < 80
        subprocess.run(told["first_mail"], shell=True, check=True)
        until_stage(told["database_url"], "first", "sent")
        again = subprocess.run([*COMMAND, "up", "--data", folder], capture_output=True, text=True, check=False)
        assert again.returncode == 2
        assert "another server runs in" in again.stderr
        first.terminate()
        assert first.wait(60) == 0
    assert Mailbox(folder / "mailbox").copies("b@y.example") == 1

    settings = tmp_path / "sendonce.toml"
    # No secret of these settings is there.
    settings.write_text(
        '[store]\ndatabase_url_env = "NOT_SET"\n[templates]\nfolder = "templates"\n'
        '[accounts.shop]\ntransport = "smtp"\nhost = "mail.example.com"\nusername = "u"\npassword_env = "NOT_SET"\n'
    )
    (tmp_path / "templates" / "news").mkdir(parents=True)
    (tmp_path / "templates" / "news" / "subject.txt").write_text("News")
    (tmp_path / "templates" / "news" / "body.txt").write_text("Hello.")
    ports = {name: told[name] for name in ("temporal", "ui", "smtp")}
    second, told = up(folder, tmp_path / "second.log", database_url, "--config", str(settings))
    with second:
        listed = subprocess.run(
            [*COMMAND, "list", "--config", told["settings"], "--json"], capture_output=True, text=True, check=True
        )
        assert [json.loads(line)["key"] for line in listed.stdout.splitlines()] == ["first", "k1"]
        # Bookmarks and settings stay right.
        assert {name: told[name] for name in ports} == ports
        # An account of other settings delivers to the sink too, and their templates are used.
        enqueue(told["database_url"], "k2", account="shop", template="news", subject="", text="")
        until_stage(told["database_url"], "k2", "sent")
        second.terminate()
        assert second.wait(60) == 0
    assert still_running(folder) == []
    assert Mailbox(folder / "mailbox").copies("b@y.example") == 2
    assert Mailbox(folder / "mailbox").copies("ann@example.org") == 1
    until_stage(database_url, "not-ours", "pending")


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_up_ends_with_the_reason_when_a_server_dies(tmp_path: Path) -> None:
    folder = tmp_path / "installation"
    log = tmp_path / "up.log"
    process, _ = up(folder, log, "postgresql://nowhere.invalid/x")
    with process:
        postmaster = int((folder / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        assert process.wait(60) == 2
    assert "PostgreSQL ended by itself" in log.read_text()


def test_up_tells_what_the_disk_refuses(tmp_path: Path) -> None:
    folder, log = tmp_path / "installation", tmp_path / "up.log"
    folder.mkdir()
    (folder / "mailbox").write_text("in the way")
    with ChildProcess([*COMMAND, "up", "--data", str(folder)], log=log) as process:
        assert process.wait(60) == 2
    said = " ".join(log.read_text().split())
    assert "mailbox" in said
    assert "make room or name another --data" in said
    assert "Traceback" not in said
