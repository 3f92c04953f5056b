"""Servers for trying and testing, run from wheels: nothing to install by hand (extra ``embedded``).

They run as child processes that end with this process. For Linux and macOS; not meant for production.
"""

from sendonce.embedded.databases import create_database, database_url, drop_database
from sendonce.embedded.postgres import EmbeddedPostgres
from sendonce.embedded.process import ChildProcess, EmbeddedServerError, clean_environment, free_port
from sendonce.embedded.temporal import EmbeddedTemporal, start_time_skipping

__all__ = [
    "ChildProcess",
    "EmbeddedPostgres",
    "EmbeddedServerError",
    "EmbeddedTemporal",
    "clean_environment",
    "create_database",
    "database_url",
    "drop_database",
    "free_port",
    "start_time_skipping",
]
