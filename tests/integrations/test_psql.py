"""The example of docs/sql.md, by the real ``psql``."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.embedded.binaries import postgres_programs

if TYPE_CHECKING:
    from tests.integrations.conftest import Witness

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")


def test_the_example_runs_in_psql(witness: Witness, tmp_path: Path) -> None:
    psql = postgres_programs(None) / "psql"
    if not psql.exists():
        pytest.skip("psql is not in the wheel")
    script, command = (re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)[0] for kind in ("sql", "sh"))
    program, *arguments = shlex.split(command)
    assert program == "psql"
    assert "$DATABASE_URL" in arguments
    (tmp_path / "order.sql").write_text(script)
    done = subprocess.run(
        [psql, *(witness.url if one == "$DATABASE_URL" else one for one in arguments), "--set", "ON_ERROR_STOP=1"],
        cwd=tmp_path,
        env={**os.environ, "PSQLRC": os.devnull},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\bcreated\b.*\bpending\b", done.stdout)
    assert done.stdout.rstrip().endswith("COMMIT")
    assert witness.committed() == ["order-4712-confirmation"]
