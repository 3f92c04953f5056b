"""``manage.py sendonce_migrate``: ``sendonce migrate`` with Django's own connection settings."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from psycopg.conninfo import make_conninfo

from sendonce import SendonceError
from sendonce.django.backend import driver
from sendonce.django.options import load
from sendonce.store.migrate import migrate


class Command(BaseCommand):
    """Bring the schema up to this release."""

    help = "Bring the schema 'sendonce' up to this release. Safe to repeat, and from several places at once."

    def add_arguments(self, parser: CommandParser) -> None:
        """``--database``."""
        parser.add_argument("--database", help="The alias; SENDONCE['DATABASE'] by default.")

    def handle(self, *_: Any, **options: Any) -> None:
        """On a connection of its own: a test that wraps itself in a transaction does not undo it."""
        try:
            alias = options["database"] or load().database
            connections[alias].ensure_connection()
            info = driver(connections[alias], alias).info
            before, after = migrate(make_conninfo(info.dsn, password=info.password or None))
        except SendonceError as error:
            raise CommandError(str(error)) from None
        if options["verbosity"] > 0:
            done = f"is at {after}" if before == after else f"went from {before or 'nothing'} to {after}"
            self.stdout.write(f"The schema {done}.")
