"""What ``manage.py check`` looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core import checks
from django.db import connections
from django.db.utils import OperationalError

from sendonce import ConfigurationError
from sendonce.django.options import load


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """``SENDONCE`` can be read, and its database is PostgreSQL through psycopg 3. Connects to nothing."""
    try:
        options = load()
        options.rule()
    except ConfigurationError as error:
        return [checks.Error(str(error), id="sendonce.E001")]
    connection = connections[options.database]
    if connection.vendor != "postgresql":
        return [
            checks.Error(
                f"Database {options.database!r} is {connection.vendor}, and mail is enqueued in PostgreSQL.",
                hint="Name the alias of a PostgreSQL database in SENDONCE['DATABASE'].",
                id="sendonce.E002",
            )
        ]
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if not is_psycopg3:
        return [
            checks.Error(
                "Django uses psycopg2, and Sendonce enqueues through psycopg 3.",
                hint="pip install 'psycopg[binary]': Django uses it where it is installed.",
                id="sendonce.E003",
            )
        ]
    return []


def check_schema(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """The schema is in the database. A warning: ``manage.py migrate`` stops at errors, and it may come first."""
    try:
        alias = load().database
    except ConfigurationError:
        return []  # said above
    connection = connections[alias]
    if alias not in (databases or ()) or connection.vendor != "postgresql":
        return []
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('sendonce.email_key')")
            (found,) = cursor.fetchone()
    except OperationalError:
        return [
            checks.Warning(f"Database {alias!r} cannot be reached: its schema was not looked at.", id="sendonce.W002")
        ]
    if found is None:
        hint = "Run 'manage.py sendonce_migrate', or 'sendonce migrate'."
        return [checks.Warning(f"Database {alias!r} has no schema 'sendonce'.", hint=hint, id="sendonce.W001")]
    return []
