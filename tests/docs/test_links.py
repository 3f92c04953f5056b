"""Links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.docs.conftest import Page


def test_links_lead_to_files_and_headings(page: Page, pages: dict[str, Page], root: Path) -> None:
    broken = []
    for link in page.links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        known = pages.get(target.relative_to(root).as_posix())
        if not target.exists() or (anchor and (known is None or anchor not in known.anchors)):
            broken.append(link)
    assert broken == []


def test_the_first_page_leads_to_every_page(pages: dict[str, Page]) -> None:
    linked = {link.partition("#")[0] for link in pages["docs/index.md"].links}
    # Providers have a page of their own that leads to theirs.
    linked |= {link for link in pages["docs/providers.md"].links if link.startswith("providers/")}
    assert {name for name in pages if name.startswith("docs/")} - {"docs/index.md"} <= {
        f"docs/{link}" for link in linked
    }


def test_files_that_are_named_exist(page: Page, root: Path) -> None:
    named = re.findall(r"`((?:sendonce|tests)/[\w/.]+?)(?:::\w+)?`", page.text)
    assert [name for name in named if not (root / name).exists()] == []
