"""A folder of templates to write into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    folder.mkdir()
    return folder


@pytest.fixture
def write(folder: Path) -> Write:
    """Write files of one template: ``write("order", subject="…", text="…", html="…")``, or any by ``files``."""

    def write(
        name: str,
        *,
        subject: str | None = None,
        text: str | None = None,
        html: str | None = None,
        sample: str | None = None,
        meta: str | None = None,
    ) -> Path:
        given = {
            "subject.txt": subject,
            "body.txt": text,
            "body.html": html,
            "sample.json": sample,
            "meta.toml": meta,
        }
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, content in given.items():
            if content is not None:
                (folder / name / file).write_text(content, encoding="utf-8")
        return folder / name

    return write
