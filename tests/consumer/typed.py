"""What business code writes, read by type checkers only: each wrong line is one that they must find."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import date
from typing import assert_type

import psycopg
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from temporalio.client import Client

import sendonce
from sendonce import (
    Enqueued,
    Final,
    OutgoingEmail,
    SignalWorkflow,
    Template,
    Templates,
    enqueue,
    enqueue_many,
    start_now,
    take_finals,
    wait,
)


class ParcelTyped(Template):
    """Typed parameters."""

    number: str
    arrives: date


class OrderTyped(Template, template="shop/order_typed"):
    """With a template's name of its own."""

    number: int = 1


def email(template: str | Template | None = None) -> OutgoingEmail:
    """A mail with what can be said about it."""
    return OutgoingEmail(
        key="k",
        sender="Shop <shop@example.com>",
        to=["ann@example.org"],
        template=template,
        text=None if template else "Hello.",
        topic="password-reset:user-42",
        on_final=SignalWorkflow(workflow_id="order-7", signal="mail_ended"),
    )


def plain(session: Session, connection: psycopg.Connection, engine: Engine, templates: Templates) -> None:
    """Without async."""
    assert_type(enqueue(session, email()), Enqueued)
    assert_type(enqueue_many(connection, [email(OrderTyped())]), list[Enqueued])
    assert_type(wait(engine, "k", timeout=5), Final)
    assert_type(take_finals(session), list[Final])
    made = templates.email(ParcelTyped(number="1", arrives=date(2030, 1, 1)), key="k", to="ann@example.org")
    assert_type(made, OutgoingEmail)
    assert_type(ParcelTyped.sample(), ParcelTyped)


async def asynchronous(session: AsyncSession, client: Client) -> None:
    """With it."""
    waiting = enqueue(session, email())
    assert_type(waiting, Awaitable[Enqueued])
    assert_type(await start_now(client, await waiting), bool)
    assert_type(await wait(session, "k", account="bulk"), Final)


def wrong(session: Session) -> None:
    """What is no use."""
    ParcelTyped(number=1, arrives=date(2030, 1, 1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ParcelTyped(number="1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    email(template=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    OutgoingEmail(key="k", sender="a@example.org", on_final="tell")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wait("url", "k")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    enqueue(session, "mail")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert sendonce.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
