"""docs/django.md as a project of its own: its blocks are the files, and a process that runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from sendonce.django.options import Options

PAGE = (Path(__file__).parents[2] / "docs" / "django.md").read_text(encoding="utf-8")

SETTINGS = """
SECRET_KEY = "not secret"
INSTALLED_APPS = ["shop.apps.ShopConfig"]
DEFAULT_FROM_EMAIL = "Bookstore <shop@bookstore.example>"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", **{database!r}}}}}
"""

FILES = {
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    email = models.EmailField()
""",
    "shop/apps.py": """
from django.apps import AppConfig

class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        from shop.testing import connect
        connect(self)
""",
}

PROGRAM = """
import django
django.setup()
from django.core.mail import send_mail
from django.core.management import call_command
from shop.models import Order
from shop.views import place_order

call_command("check")
call_command("migrate", run_syncdb=True, verbosity=0)
call_command("check", databases=["default"])
place_order(Order(email="ann@example.org"))
send_mail("Reset", "https://bookstore.example/reset/MQ/c6-x/", None, ["ann@example.org"])

from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT key FROM sendonce.email ORDER BY key")
    for key, in cursor.fetchall():
        print(key)
"""


def test_its_project_runs(empty_database_url: str, tmp_path: Path) -> None:
    settings, view, rule, testing = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    parts = conninfo_to_dict(empty_database_url)
    database = {
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "PASSWORD": parts.get("password", ""),
        "HOST": parts["host"],
        "PORT": str(parts["port"]),
    }
    (tmp_path / "shop").mkdir()
    blocks = {"shop/views.py": view, "shop/mail.py": rule, "shop/testing.py": testing}
    for name, text in {**FILES, **blocks, "settings.py": SETTINGS.format(database=database) + settings}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *_, order, reset = done.stdout.splitlines()
    assert order == "order-1-confirmation"
    assert re.fullmatch(r"reset-[0-9a-f]{32}", reset)


def test_its_table_has_every_member_and_default() -> None:
    rows = re.findall(r"^\| `([A-Z]+)` \| (\S+) \|", PAGE, re.M)
    assert rows == [
        (one.name.upper(), "none" if one.default is None else f'`"{one.default}"`') for one in fields(Options)
    ]
