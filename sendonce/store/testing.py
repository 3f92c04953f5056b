"""What the test kit asks of a store and does to it: databases of tests, never one that a worker uses.

Statements through a caller's connection go by :mod:`~sendonce.store.callers`, all others through connections of the
kit's own.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

import psycopg

from sendonce.errors import ConfigurationError, StoreNotReady
from sendonce.message import OutgoingEmail
from sendonce.stages import FINAL
from sendonce.store import tables
from sendonce.store.callers import Call, Statement, Steps, run
from sendonce.store.migrate import REVISIONS, check, head

if TYPE_CHECKING:
    from sendonce.store.callers import AnyAsyncConnection, SyncConnection

# The schema ---------------------------------------------------------------------------------------------------------

_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|'[^']*'|--[^\n]*|[^;$'-]|[$-])+", re.DOTALL)
"""One statement of a script: a semicolon in a function's body, a string or a comment ends none."""


@overload
def install(connection: SyncConnection) -> None: ...
@overload
def install(connection: AnyAsyncConnection) -> Awaitable[None]: ...
def install(connection: Any) -> Awaitable[None] | None:
    """Create the schema ``sendonce`` in the transaction of ``connection``, which takes a fraction of a second.

    ``connection`` is what :func:`~sendonce.store.intake.enqueue` takes; for an async one, await the result. Nothing is
    committed here: commit it once for all tests, or roll it back with the test. Where the schema is there, nothing
    happens. For real databases there is ``sendonce migrate``.

    Raises :class:`~sendonce.errors.StoreNotReady` when the schema that is there is another release's.
    """
    return run(connection, _install(), Call("install", "the schema"))


def _install() -> Steps[None]:
    ((there,),) = yield Statement("SELECT CAST(to_regclass({name}) AS text)", {"name": "sendonce.schema_version"})
    if there is not None:
        rows = yield Statement(
            "SELECT version_num FROM sendonce.schema_version WHERE version_num <> {none}", {"none": ""}
        )
        found = rows[0][0] if rows else "nothing"
        if found != head():
            raise StoreNotReady(f"the schema 'sendonce' is at {found}, the test kit makes {head()}: drop the schema")
        return
    yield Statement("CREATE SCHEMA IF NOT EXISTS sendonce")
    folder = Path(__file__).parent / "migrations" / "versions"
    for revision in REVISIONS:
        (script,) = folder.glob(f"{revision}_*.py")
        for name in import_module(f"sendonce.store.migrations.versions.{script.stem}").FILES:
            for statement in _STATEMENT.findall((folder / name).read_text(encoding="utf-8")):
                if re.sub(r"--[^\n]*", "", statement).strip():
                    yield Statement(statement)
    # As Alembic makes it.
    yield Statement(
        "CREATE TABLE sendonce.schema_version ("
        "version_num varchar(32) NOT NULL CONSTRAINT schema_version_pkc PRIMARY KEY)"
    )
    yield Statement(f"INSERT INTO sendonce.schema_version VALUES ('{head()}')")


@overload
def clear(connection: SyncConnection) -> None: ...
@overload
def clear(connection: AnyAsyncConnection) -> Awaitable[None]: ...
def clear(connection: Any) -> Awaitable[None] | None:
    """Forget every mail, in the transaction of ``connection``: for databases that several tests share.

    ``connection`` is what :func:`~sendonce.store.intake.enqueue` takes; for an async one, await the result.
    """
    return run(connection, _clear(), Call("clear", "the removal"))


def _clear() -> Steps[None]:
    names = ", ".join(table.fullname for table in tables.metadata.sorted_tables if table.name != "installation")
    yield Statement(f"TRUNCATE {names}")


# What is in it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredMail:
    """One mail as the store has it."""

    id: UUID
    message: OutgoingEmail
    """As it was enqueued."""
    stage: str
    due_in: float | None
    """Seconds until the next attempt; below zero: it is due. None: nobody will try."""
    attempts: int
    """Counted ones."""
    last_reply: str
    """Code, enhanced code and text; ``""`` when there was none."""
    held_why: str | None

    @property
    def final(self) -> bool:
        """Nothing more will happen to it."""
        return self.stage in FINAL


@overload
def mails(connection: SyncConnection) -> list[StoredMail]: ...
@overload
def mails(connection: AnyAsyncConnection) -> Awaitable[list[StoredMail]]: ...
def mails(connection: Any) -> list[StoredMail] | Awaitable[list[StoredMail]]:
    """Every mail that the transaction of ``connection`` sees, oldest first, except those that retention has emptied.

    ``connection`` is what :func:`~sendonce.store.intake.enqueue` takes; for an async one, await the result.
    """
    return run(connection, _mails(), Call("mails", "the look"))


# Everything as text or number: drivers differ in what they make of JSON, octets and ids.
_MAILS = """
SELECT CAST(e.id AS text), CAST(c.content AS text), e.stage,
    CAST(extract(epoch FROM e.next_attempt_at - sendonce.clock()) AS float8), e.attempts,
    -- An SMTP reply's text begins with its enhanced code.
    concat_ws(' ', nullif(e.last_code, 0),
        CASE WHEN strpos(coalesce(said.reply_text, ''), e.last_enhanced) = 0 THEN nullif(e.last_enhanced, '') END,
        nullif(said.reply_text, '')),
    e.held_why
FROM sendonce.email e JOIN sendonce.email_content c ON c.email_id = e.id
LEFT JOIN LATERAL (SELECT r.reply_text FROM sendonce.recipient r
    WHERE r.email_id = e.id AND r.code = e.last_code ORDER BY r.ordinal LIMIT 1) said ON true
WHERE e.key <> {none}
ORDER BY e.created_at, e.id
"""
_FILES = """
SELECT CAST(a.email_id AS text), a.filename, a.content_type, a.content_id, a.inline, a.alternative,
    encode(a.content, 'base64')
FROM sendonce.attachment a WHERE a.filename <> {none} ORDER BY a.email_id, a.ordinal
"""


def _mails() -> Steps[list[StoredMail]]:
    rows = yield Statement(_MAILS, {"none": ""})
    files: dict[str, list[dict[str, Any]]] = {}
    for email_id, filename, content_type, content_id, inline, alternative, content in (
        yield Statement(_FILES, {"none": ""})
    ):
        files.setdefault(email_id, []).append(
            {
                "filename": filename,
                "content_type": content_type,
                "content_id": content_id,
                "inline": inline,
                "alternative": alternative,
                "content": base64.b64decode(content),
            }
        )
    return [
        StoredMail(
            UUID(email_id),
            OutgoingEmail.from_json(json.loads(content), files.get(email_id, ())),
            stage,
            due_in,
            attempts,
            reply,
            held_why,
        )
        for email_id, content, stage, due_in, attempts, reply, held_why in rows
    ]


# The clock ----------------------------------------------------------------------------------------------------------

_OWN_CLOCK = """
CREATE SCHEMA IF NOT EXISTS sendonce_testing;
CREATE TABLE IF NOT EXISTS sendonce_testing.clock (ahead interval NOT NULL);
TRUNCATE sendonce_testing.clock;
INSERT INTO sendonce_testing.clock VALUES ('0');
GRANT USAGE ON SCHEMA sendonce_testing TO PUBLIC;
GRANT SELECT ON sendonce_testing.clock TO PUBLIC;
CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT clock_timestamp() + ahead FROM sendonce_testing.clock $$;
"""
_REAL_CLOCK = """
CREATE OR REPLACE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;
DROP SCHEMA sendonce_testing CASCADE;
DELETE FROM sendonce.process;
"""


def own_clock(url: str) -> None:
    """Let :func:`set_ahead` move the store's clock, which starts at the present.

    Raises :class:`~sendonce.errors.ConfigurationError` when a worker uses the database: it is not a test's; and
    :class:`~sendonce.errors.StoreNotReady` when the schema is missing.
    """
    check(url)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT id FROM sendonce.process WHERE beat_at > sendonce.clock() - interval '60 seconds' LIMIT 1"
        ).fetchone()
        if row is not None:
            raise ConfigurationError(
                f"a worker uses this database ({row[0]}), and the test kit would move its clock: give the kit a "
                "database of its own, or wait a minute if that worker was a test that has been killed"
            )
        connection.execute(_OWN_CLOCK)


def real_clock(url: str) -> None:
    """Undo :func:`own_clock`."""
    with psycopg.connect(url) as connection:
        connection.execute(_REAL_CLOCK)


async def set_ahead(connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
    """Set the store's clock to the present plus ``seconds``. Nobody counts as dead because time has jumped."""
    async with connection.transaction():
        await connection.execute("UPDATE sendonce_testing.clock SET ahead = %s * interval '1 second'", [seconds])
        await connection.execute("UPDATE sendonce.process SET beat_at = sendonce.clock()")
        await connection.execute("UPDATE sendonce.process_loop SET beat_at = sendonce.clock()")


@dataclass(frozen=True, slots=True)
class Agenda:
    """What the store waits for, apart from the workflows that run."""

    open: bool
    """Some mail will be tried again."""
    stuck: bool
    """A mail is due that no workflow was started for: it waits for a slot or a place."""
    next_in: float | None
    """Seconds until something else falls due."""


_AGENDA = """
WITH mail AS MATERIALIZED (
    SELECT e.*, e.stage = 'pending' AND e.started_at IS NULL AS unstarted, sendonce.clock() AS now
    FROM sendonce.email e WHERE e.stage IN ('pending', 'claimed', 'transmitting', 'unknown')
)
SELECT coalesce(bool_or(next_attempt_at IS NOT NULL OR stage IN ('claimed', 'transmitting')), false),
    coalesce(bool_or(unstarted AND next_attempt_at <= now AND NOT EXISTS (
        SELECT FROM sendonce.account a WHERE a.name = mail.account AND a.paused_at IS NOT NULL)), false),
    CAST((SELECT min(extract(epoch FROM t.at - m.now)) FROM mail m, LATERAL (VALUES
        (CASE WHEN m.unstarted THEN m.next_attempt_at END),
        (CASE WHEN m.unstarted THEN m.expires_at END),
        (CASE WHEN m.stage = 'unknown' THEN m.look_up_at END),
        (CASE WHEN m.stage = 'unknown' THEN m.close_at END)) AS t (at) WHERE t.at > m.now) AS float8)
FROM mail
"""


async def agenda(connection: psycopg.AsyncConnection[Any]) -> Agenda:
    """What comes next."""
    row = await (await connection.execute(_AGENDA)).fetchone()
    assert row is not None
    return Agenda(*row)


async def alarms(connection: psycopg.AsyncConnection[Any]) -> list[tuple[str, str, str]]:
    """The open alarms: kind, account and detail."""
    cursor = await connection.execute(
        "SELECT a.kind, coalesce(a.account, ''), a.detail FROM sendonce.alarm a WHERE a.closes IS NULL"
        " AND NOT EXISTS (SELECT FROM sendonce.alarm c WHERE c.closes = a.id) ORDER BY a.id"
    )
    return await cursor.fetchall()
