"""The folder that the documentation shows is the folder that is there, and it is in order."""

from __future__ import annotations

import re
from pathlib import Path

from sendonce.templates import Templates

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "templates"


def test_the_page_shows_every_file_as_it_is() -> None:
    page = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^`([\w./-]+)`:\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    files = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert shown == files


def test_the_folder_is_in_order() -> None:
    templates = Templates(FOLDER)
    assert templates.check() == []
    made = templates.render("order_confirmation", templates.sample("order_confirmation"), "de-AT")
    assert made.subject == "Ihre Bestellung 4711"
    assert "[Wo ist meine Bestellung?](https://bookstore.example/orders/4711)" in made.text
