"""The application: business transactions that enqueue mail, in a process of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, insert, table
from sqlalchemy.orm import Session
from sqlalchemy.sql import column

from bench.mail import SENDER, SUBJECT, TEXT, mailbox
from bench.part import Handler
from sendonce.message import OutgoingEmail
from sendonce.store.intake import enqueue, enqueue_many

ORDERS = table("orders", column("id"))
MANY = 500
"""Mails per transaction where many are enqueued at once."""


def mail(key: str, *, lane: str = "default", account: str = "default", to: str = "") -> OutgoingEmail:
    """The mail that everybody here sends, under ``key``; to its namesake mailbox unless ``to`` names another."""
    return OutgoingEmail(
        key=key,
        lane=lane,
        account=account,
        sender=SENDER,
        to=mailbox(to or key),
        subject=SUBJECT,
        text=TEXT,
    )


def place_order(engine: Engine, one: OutgoingEmail) -> float:
    """One business transaction. Returns when its commit had returned (CLOCK_MONOTONIC)."""
    with Session(engine) as session, session.begin():
        session.execute(insert(ORDERS), {"id": one.key})
        enqueue(session, one)
    return time.monotonic()


def _moments(per_second: float, number: int, seed: int) -> Iterator[float]:
    """When to enqueue, from now: as independent customers come (a Poisson process)."""
    chance, at = random.Random(seed), 0.0
    for _ in range(number):
        at += chance.expovariate(per_second)
        yield at


def _orders(engine: Engine, command: dict[str, Any]) -> dict[str, float]:
    """``number`` orders, one after the other or at ``per_second`` on average; when each was committed, by mailbox."""
    prefix, number = command["prefix"], command["number"]
    options = {name: command[name] for name in ("lane", "account") if name in command}
    mails = [mail(f"{prefix}-{n}", **options) for n in range(number)]
    committed = {}
    begun = time.monotonic()
    pace = command.get("per_second")
    moments = _moments(pace, number, command.get("seed", 0)) if pace else iter([0.0] * number)
    for one, at in zip(mails, moments, strict=True):
        time.sleep(max(0.0, begun + at - time.monotonic()))
        committed[one.to[0].mailbox] = place_order(engine, one)
    return committed


def _bulk(engine: Engine, command: dict[str, Any]) -> None:
    """``number`` mails, many per transaction; to ``<to>-<n>`` if that is said."""
    prefix, number = command["prefix"], command["number"]
    options = {name: command[name] for name in ("lane", "account") if name in command}
    for first in range(0, number, MANY):
        numbers = range(first, min(number, first + MANY))
        to = {n: f"{command['to']}-{n}" if "to" in command else "" for n in numbers}
        with Session(engine) as session, session.begin():
            enqueue_many(session, [mail(f"{prefix}-{n}", to=to[n], **options) for n in numbers])


@asynccontextmanager
async def feeder(database_url: str) -> AsyncIterator[Handler]:
    """Commands: ``orders`` and ``bulk``; see the functions."""
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))

    async def handle(command: dict[str, Any]) -> Any:
        return await asyncio.to_thread({"orders": _orders, "bulk": _bulk}[command["do"]], engine, command)

    try:
        yield handle
    finally:
        engine.dispose()
