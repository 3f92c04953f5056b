"""The demo itself, as people run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sendonce.embedded import ChildProcess

COMMAND = [sys.executable, "-m", "sendonce", "demo"]


@pytest.mark.timeout(240)
def test_the_demo_accounts_for_every_mail(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    picture = tmp_path / "demo.svg"
    # Somebody's own Temporal profile has no say in it.
    home = tmp_path_factory.mktemp("home")
    profile = home / ".config" / "temporalio" / "temporal.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text(
        '[profile.default]\naddress = "temporal.example.com:7233"\nnamespace = "elsewhere"\napi_key = "k"\n'
    )
    done = subprocess.run(
        [*COMMAND, "--json", "--mails", "30", "--svg", picture],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["placed"] == 60
    assert (told["rolled_back"], told["failed"], told["unknown"], told["dead"]) == (5, 1, 2, 0)
    assert told["sent"] == told["placed"] - 3
    assert (told["duplicates"], told["lost"], told["kills"]) == (0, 0, 3)
    assert told["login_code_seconds"] > 0
    assert told["seconds"] > 0
    assert "Every mail is accounted for." in done.stderr
    assert picture.read_text().startswith("<svg")
    assert list(tmp_path.iterdir()) == [picture], "the demo left something behind"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [(), ("--keep",)])
@pytest.mark.slow
def test_an_interrupted_demo_stops_everything(tmp_path: Path, options: tuple[str, ...]) -> None:
    log = tmp_path / "demo.log"
    folder = tmp_path / "t"
    folder.mkdir()
    with ChildProcess([*COMMAND, *options], env={**os.environ, "TMPDIR": str(folder)}, log=log) as demo:
        while "orders come in" not in log.read_text():
            assert demo.running, log.read_text()
            try:
                demo.wait(0.1)
            except TimeoutError:
                continue
        demo.signal(signal.SIGINT)
        assert demo.wait(60) == 1
    assert "interrupted; everything is stopped" in log.read_text()
    assert "waiting until every mail has ended" not in log.read_text()
    assert list(folder.iterdir()) == []
