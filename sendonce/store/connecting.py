"""What a command's connection to the database is told, and how a database without the schema shows."""

from __future__ import annotations

import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict

CONNECT_SECONDS = 10
"""How long a connection is tried, unless the URL or ``PGCONNECT_TIMEOUT`` says otherwise."""

MISSING = frozenset({"3F000", "42P01", "42703", "42883"})
"""SQLSTATE of a schema, table, column or function that is not there: an older schema, or none."""


def connect_options(url: str) -> dict[str, Any]:
    """What a command's connection is told besides ``url``, which wins."""
    extra: dict[str, Any] = {"application_name": "sendonce cli"}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        extra["connect_timeout"] = CONNECT_SECONDS
    given = conninfo_to_dict(url)
    return {name: value for name, value in extra.items() if name not in given}
