"""The shop on a database of each test's own, and a browser to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from bookstore.web import app
from sendonce.testing import KitSettings


@pytest.fixture
def sendonce_settings() -> KitSettings:
    """The lanes and templates of the shop."""
    return KitSettings.load(Path(__file__).parents[1] / "sendonce.toml")


@pytest.fixture
def browser(sendonce_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Starts and ends the shop."""
    monkeypatch.setenv("DATABASE_URL", sendonce_database_url)
    with TestClient(app) as client:
        yield client
