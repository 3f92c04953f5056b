"""An application's side: databases of its own, what is committed, and a witness of what is started and when."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import django
import psycopg
import pytest
from django.conf import settings
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sendonce import Enqueued

RULES = "shop_rules"
"""The name under which the project's module is imported: tests are no package."""


def _django() -> None:
    """Django is configured once for a process; each test gives it a database."""
    path = "sendonce.django.EmailBackend"
    backend = {"MAILERS": {"default": {"BACKEND": path}}} if django.VERSION >= (6, 1) else {"EMAIL_BACKEND": path}
    templates = Path(django.__file__).parent / "contrib" / "admin" / "templates"  # of the mail with a reset's link
    settings.configure(
        SECRET_KEY="not secret: nothing here is signed for others",
        DATABASES={
            "default": {"ENGINE": "django.db.backends.postgresql"},
            "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "sendonce.django"],
        **backend,
        DEFAULT_FROM_EMAIL="Bookstore <shop@example.com>",
        ROOT_URLCONF=RULES,
        ALLOWED_HOSTS=["*"],
        TEMPLATES=[
            {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "DIRS": [templates]}
        ],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
    spec = spec_from_file_location(RULES, Path(__file__).with_name("django_rules.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[RULES] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[RULES])


if not settings.configured:
    _django()


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def shop_url(database_url: str) -> str:
    """A database of an application. The numbers of its orders are compared when the transaction commits, not before."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "CREATE TABLE orders (id integer PRIMARY KEY, number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
    return database_url


@pytest.fixture
def engine(shop_url: str) -> Iterator[Engine]:
    engine = create_engine(sqlalchemy_url(shop_url))
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(shop_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(sqlalchemy_url(shop_url))
    yield engine
    await engine.dispose()


@dataclass
class Witness:
    """Somebody's starter. It looks, at the moment it is asked, whether others see the mail."""

    url: str
    started: list[str] = field(default_factory=list)
    too_early: list[str] = field(default_factory=list)

    def start(self, *mails: Enqueued) -> None:
        seen = self.committed()
        for one in mails:
            (self.started if one.key in seen else self.too_early).append(one.key)

    def take(self) -> list[str]:
        """What was started since the last call; nothing of it before it was committed."""
        assert self.too_early == []
        started, self.started = self.started, []
        return started

    def committed(self) -> list[str]:
        """The keys of the mails that others see."""
        with psycopg.connect(self.url) as connection:
            return [key for (key,) in connection.execute("SELECT key FROM sendonce.email ORDER BY key")]


@pytest.fixture
def witness(shop_url: str) -> Witness:
    return Witness(shop_url)
