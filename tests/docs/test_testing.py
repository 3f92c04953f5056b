"""The page about the test kit: its examples run as a user's tests, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from sendonce.testing import Arrivals, Arrived, EnqueuedMail, KitSettings, Outbox, Provider, Sendonce, plugin

if TYPE_CHECKING:
    from tests.docs.conftest import Page

PAGE = "docs/testing.md"


def test_the_examples_pass(pages: dict[str, Page], tmp_path: Path, postgres_url: str) -> None:
    blocks = pages[PAGE].blocks("python")
    for block in blocks:
        name = re.match(r"# ((?:conftest|test_\w+)\.py)\n", block.text)
        assert name, f"{PAGE}:{block.line}: begin with a comment that names the file"
        (tmp_path / name[1]).write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-q"),
            *("-W", "ignore::pytest.PytestDeprecationWarning", "-c", os.devnull),
            *(f"--rootdir={tmp_path}", f"--sendonce-database-url={postgres_url}"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert f"{sum(block.text.count('def test_') for block in blocks)} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def named(pages: dict[str, Page], heading: str) -> str:
    return pages[PAGE].section(heading)


def test_the_tables_name_every_fixture_and_verb(pages: dict[str, Page]) -> None:
    fixtures = {name for name in vars(plugin) if name.startswith("sendonce")}
    assert {row["fixture"] for row in pages[PAGE].table("Fixtures")} == fixtures
    places = {
        "Verbs": {*public(Sendonce), "database_url", "mailbox", "providers", "patience"} - {"settings", "close"},
        "The provider": public(Provider) - {"start", "close", "keep_time", "advance"} | {"server"},
        "The mailbox": public(Arrivals) - {"add"} | {field.name for field in fields(Arrived)} | {"links", "link"},
        "The outbox": public(Outbox) - {"count", "index"} | public(EnqueuedMail) - {"filled", "attachments"},
        "Settings": {field.name for field in fields(KitSettings)} | {"load"},
    }
    for heading, names in places.items():
        shown = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", named(pages, heading)))))
        assert names <= shown, f"{heading}: {sorted(names - shown)}"


def public(kind: type) -> set[str]:
    return {
        name for base in kind.__mro__[:-1] if "sendonce" in base.__module__ for name in vars(base) if name[0] != "_"
    }
