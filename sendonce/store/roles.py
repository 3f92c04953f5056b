"""Four database roles, each with just the rights that it needs: business code, workers, operators, and who erases.

Business code has no right on any table: it calls functions that run as their owner (``0001_roles.sql``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

_READ, _APPEND, _STEP, _ALL = "SELECT", "SELECT, INSERT", "SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE, DELETE"

APP_FUNCTIONS = ("enqueue", "cancel", "status", "take_events", "take_finals", "standing")
"""All that business code may call."""

SHARED_FUNCTIONS = (
    "clock",
    "server_identity",
    "open_transactions",
    "on_hold",
    "held_back",
    "mailbox_digest",
    "cancel",
    "status",
    "standing",
)
"""What workers and operators call. An operator enqueues too: a mail that is sent again has another key."""

WORKER: Mapping[str, str] = {
    "schema_version": _READ,
    "installation": _READ,
    # A worker neither takes keys nor writes what is to be sent.
    "email_key": _READ,
    "email_content": _READ,
    "attachment": _READ,
    "email": "SELECT, UPDATE",
    "recipient": "SELECT, UPDATE",
    "pinned": _APPEND,
    "generation": _APPEND,
    "attempt": _STEP,
    "evidence": _APPEND,
    "transition": _APPEND,
    "alarm": _STEP,
    "account": _STEP,
    "rate": _STEP,
    "suppression": _APPEND,
    "event": _ALL,
    "wake": _ALL,
    "process": _ALL,
    "continuity": "SELECT, UPDATE",
    "operator_action": _READ,
    "hold": _READ,
    "sent_again": _READ,
    "reveal": _READ,
    "acknowledgement": _READ,
    "alarm_state": _STEP,
    "alarm_notice": _STEP,
    "alarm_condition": _ALL,
    "process_loop": _ALL,
    "gauge": "SELECT, UPDATE",
    "erasure": _READ,
    "erasure_mail": _READ,
    "key_walk": _READ,
    "topic": "SELECT, UPDATE",
    "final": "SELECT, UPDATE",
    "final_watch": _APPEND,
}
"""What a worker, a starter, ``sendonce webhooks`` and ``sendonce dsn`` do with each table."""

OPERATOR: Mapping[str, str] = {
    "schema_version": _READ,
    "installation": "SELECT, UPDATE",
    "email_key": _READ,
    "email_content": _READ,
    "attachment": _READ,
    "email": "SELECT, UPDATE",
    "recipient": "SELECT, UPDATE",
    "pinned": _READ,
    "generation": _APPEND,
    "attempt": _STEP,
    "evidence": _APPEND,
    "transition": _APPEND,
    "alarm": _STEP,
    "account": _STEP,
    "rate": _READ,
    "suppression": _ALL,
    "event": _READ,
    "wake": _ALL,
    "process": _READ,
    "continuity": "SELECT, UPDATE",
    "operator_action": _APPEND,
    "hold": _STEP,
    "sent_again": _APPEND,
    "reveal": _APPEND,
    "acknowledgement": _APPEND,
    "alarm_state": _STEP,
    "alarm_notice": _READ,
    "alarm_condition": _READ,
    "process_loop": _READ,
    "gauge": _READ,
    "erasure": _READ,
    "erasure_mail": _READ,
    "key_walk": _READ,
    "topic": _READ,
    "final": _READ,
    "final_watch": _READ,
}
"""What the commands that look and decide do with each table."""

UPKEEP: Mapping[str, str] = {
    "email_key": "SELECT, UPDATE, DELETE",
    "email_content": "SELECT, UPDATE",
    "attachment": "SELECT, DELETE",
    "email": "SELECT, UPDATE, DELETE",
    "recipient": "SELECT, UPDATE",
    "pinned": "SELECT, DELETE",
    "attempt": "SELECT, UPDATE",
    "evidence": "SELECT, UPDATE",
    "transition": _STEP,
    "operator_action": "SELECT, UPDATE",
    "alarm": _ALL,
    "suppression": _ALL,
    "event": _ALL,
    "wake": _ALL,
    "sent_again": "SELECT, UPDATE, DELETE",
    "reveal": "SELECT, UPDATE, DELETE",
    "acknowledgement": "SELECT, UPDATE, DELETE",
    "hold": "SELECT, UPDATE",
    "erasure": _ALL,
    "erasure_mail": _ALL,
    "key_walk": "SELECT, UPDATE",
    "final": "SELECT, UPDATE",
}
"""What emptying old mail and erasing a person need beside a worker's, or an operator's, rights."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of roles in the database's cluster; None: that one is not granted anything."""

    app: str | None = None
    worker: str | None = None
    operator: str | None = None
    upkeep: str | None = None
    """Who empties old mail and erases people; may be the worker's role, or the operator's, as well."""


def grants(roles: Roles, *, create: bool = False) -> list[sql.Composed]:
    """The statements, in order. Safe to repeat. ``create``: make the roles too, without a password and unable to log in
    until ``ALTER ROLE … LOGIN`` gives them one; a role that exists is an error then.

    Who executes them owns the schema, or is superuser.
    """
    return list(_grants(roles, create))


def _grants(roles: Roles, create: bool) -> Iterator[sql.Composed]:
    # Each once, also where one has the rights of two.
    for name in dict.fromkeys((roles.app, roles.worker, roles.operator, roles.upkeep)):
        if name is not None:
            role = sql.Identifier(name)
            if create:
                yield sql.SQL("CREATE ROLE {} NOLOGIN").format(role)
            # What an earlier release, or a hand, has given beyond what is needed.
            yield sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA sendonce FROM {}").format(role)
            yield sql.SQL("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA sendonce FROM {}").format(role)
            yield sql.SQL("GRANT USAGE ON SCHEMA sendonce TO {}").format(role)
    if roles.app is not None:
        yield from _execute(APP_FUNCTIONS, roles.app)
    for name, tables in ((roles.worker, WORKER), (roles.operator, OPERATOR), (roles.upkeep, UPKEEP)):
        if name is not None:
            for table, rights in tables.items():
                yield sql.SQL("GRANT {} ON sendonce.{} TO {}").format(
                    sql.SQL(rights), sql.Identifier(table), sql.Identifier(name)
                )
            yield from _execute(SHARED_FUNCTIONS, name)
    if roles.operator is not None:
        yield from _execute(("enqueue",), roles.operator)


def _execute(functions: tuple[str, ...], role: str) -> Iterator[sql.Composed]:
    for function in functions:
        yield sql.SQL("GRANT EXECUTE ON FUNCTION sendonce.{} TO {}").format(
            sql.Identifier(function), sql.Identifier(role)
        )


def apply(url: str, statements: list[sql.Composed]) -> None:
    """Execute them in one transaction. Raises psycopg's error for a role that is missing, or a right to grant."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)


def as_text(statements: list[sql.Composed]) -> str:
    """As SQL to be read and run in psql."""
    return "".join(f"{statement.as_string()};\n" for statement in statements)
