"""The site: it is built without a warning, has every page, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mkdocs.config import load_config

if TYPE_CHECKING:
    from tests.docs.conftest import Page

OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PUBLIC = {
    "docs/reference/sendonce.md": "sendonce",
    "docs/reference/testing.md": "sendonce.testing",
    "docs/reference/transport.md": "sendonce.transport",
    "docs/reference/workflow.md": "sendonce.workflow",
}


def leaves(nav: Any) -> Iterator[str]:
    for entry in nav:
        inside = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from [inside] if isinstance(inside, str) else leaves(inside)


def test_every_page_is_in_the_navigation_once(pages: dict[str, Page], root: Path) -> None:
    expected = [OUTSIDE.get(name, name.removeprefix("docs/")) for name in pages if name != "README.md"]
    assert sorted(leaves(load_config(str(root / "mkdocs.yml")).nav)) == sorted(expected)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_every_public_name(name: str, pages: dict[str, Page]) -> None:
    module = PUBLIC[name]
    shown = re.findall(r"^::: (\S+)$", pages[name].text, re.M)
    assert sorted(shown) == sorted(f"{module}.{public}" for public in importlib.import_module(module).__all__)


def test_it_is_built_without_the_network_and_needs_none(root: Path, tmp_path: Path) -> None:
    # A proxy that nobody answers at.
    closed = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=root,
        env={**os.environ, **closed, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    # What a browser fetches by itself; links that a reader follows are another matter.
    assert re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*(?:href|src)=[\"']?(?:https?:)?//[^>]*>", text) == []
    styles = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles) == []
    # The theme would fetch a library for such a diagram.
    assert 'class="mermaid"' not in text
    # Docstrings are shown, and their roles are resolved.
    reference = (tmp_path / "site" / "reference" / "sendonce.html").read_text(encoding="utf-8")
    assert "it is sent once that commits" in reference
    assert re.findall(r":(?:class|func|meth|mod|attr|data):", text) == []
