"""Hooks of the site: anchors as GitHub spells them, and the pages and pictures that stand outside ``docs``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "bench/results/latest.svg": "latest.svg",
}
"""By its path in the repository, where in the site a file is that is not in ``docs``."""


def anchor(heading: str, separator: str = "-") -> str:
    """What ``#…`` calls this heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links are written so that they work on GitHub too."""
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Take in what stands outside."""
    for path, name in OUTSIDE.items():
        if name not in files.src_uris:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links to it lead to where it is in the site, and so do its own."""
    for path, name in OUTSIDE.items():
        markdown = markdown.replace(f"](../{path}", f"]({name}")
    return markdown.replace("](docs/", "](") if page.file.src_uri in OUTSIDE.values() else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name things as Sphinx does: ``:class:`~sendonce.errors.X```, of which X is to be read."""
    return re.sub(r":\w+:<code>(?:~[\w.]*\.)?([^<]+)</code>", r"<code>\1</code>", html)
