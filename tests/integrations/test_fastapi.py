"""A real FastAPI application, through ASGI, on a real database."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Annotated

import httpx
import psycopg
import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker
from temporalio.client import Client

from sendonce import BackgroundStarter, LoopStarter, OutgoingEmail
from sendonce.embedded import EmbeddedTemporal
from sendonce.fastapi import SyncUnitOfWork, UnitOfWork, unit_of_work

if TYPE_CHECKING:
    from tests.integrations.conftest import Witness

INSERT = text("INSERT INTO orders VALUES (:id, :number)")


def mail(key: str) -> OutgoingEmail:
    return OutgoingEmail(key=key, sender="shop@example.com", to="ann@example.org", text="Hi.")


def shop(async_engine: AsyncEngine, engine: Engine, witness: Witness) -> FastAPI:
    app = FastAPI()
    work_of = unit_of_work(async_sessionmaker(async_engine), witness)
    sync_work_of = unit_of_work(sessionmaker(engine), witness)

    async def order(number: int, work: UnitOfWork, refuse: bool = False) -> dict[str, str]:
        await work.session.execute(INSERT, {"id": number + 100, "number": number})
        done = await work.enqueue(mail(f"order-{number}"), notify=False)
        assert witness.take() == []
        if refuse:
            raise HTTPException(409, "sold out")
        return {"key": done.key}

    def sync_order(number: int, work: SyncUnitOfWork, refuse: bool = False) -> dict[str, str]:
        work.session.execute(INSERT, {"id": number + 100, "number": number})
        done = work.enqueue(mail(f"order-{number}"), notify=False)
        if refuse:
            raise HTTPException(409, "sold out")
        return {"key": done.key}

    # As text these names would be looked for in the module.
    order.__annotations__["work"] = Annotated[UnitOfWork, work_of]
    sync_order.__annotations__["work"] = Annotated[SyncUnitOfWork, sync_work_of]
    app.post("/async/{number}", status_code=201)(order)
    app.post("/sync/{number}", status_code=201)(sync_order)
    return app


def browser(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://shop.example"
    )


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_answer_means_committed_and_started(
    kind: str, async_engine: AsyncEngine, engine: Engine, witness: Witness
) -> None:
    async with browser(shop(async_engine, engine, witness)) as client:
        answer = await client.post(f"/{kind}/1")
        assert (answer.status_code, answer.json()) == (201, {"key": "order-1"})
        assert (witness.take(), witness.committed()) == (["order-1"], ["order-1"])

        refused = await client.post(f"/{kind}/2?refuse=1")
        assert (refused.status_code, refused.json()) == (409, {"detail": "sold out"})
        assert (witness.take(), witness.committed()) == ([], ["order-1"])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_commit_that_fails_is_no_success_for_the_client(
    kind: str, async_engine: AsyncEngine, engine: Engine, witness: Witness
) -> None:
    with psycopg.connect(witness.url) as connection:
        connection.execute("INSERT INTO orders VALUES (1, 7)")  # found out when the other one commits
    async with browser(shop(async_engine, engine, witness)) as client:
        answer = await client.post(f"/{kind}/7")
    assert answer.status_code == 500
    assert (witness.take(), witness.committed()) == ([], [])


async def test_side_by_side(async_engine: AsyncEngine, engine: Engine, witness: Witness) -> None:
    app = shop(async_engine, engine, witness)
    async with browser(app) as client:
        paths = [f"/sync/{number}?refuse={int(number % 2)}" for number in range(8)]
        answers = await asyncio.gather(*(client.post(path) for path in paths))
    assert [answer.status_code for answer in answers] == [201, 409] * 4
    kept = [f"order-{number}" for number in range(0, 8, 2)]
    assert (sorted(witness.take()), witness.committed()) == (kept, kept)


@pytest.mark.parametrize("kind", ["loop", "background"])
async def test_the_workflow_is_there(
    kind: str, async_engine: AsyncEngine, temporal: EmbeddedTemporal, temporal_client: Client
) -> None:
    starter = LoopStarter(temporal_client) if kind == "loop" else BackgroundStarter(temporal.target)
    key = f"fastapi-{uuid.uuid4().hex}"

    async def order(work: UnitOfWork) -> None:
        await work.enqueue(mail(key))

    order.__annotations__["work"] = Annotated[UnitOfWork, unit_of_work(async_sessionmaker(async_engine), starter)]
    app = FastAPI()
    app.post("/")(order)
    async with browser(app) as client:
        assert (await client.post("/")).status_code == 200
    if isinstance(starter, LoopStarter):
        await starter.close()
    else:
        await asyncio.to_thread(starter.close)
    assert (await temporal_client.get_workflow_handle(key).describe()).workflow_type == "EmailDelivery"


async def test_without_a_starter_the_mail_is_there_all_the_same(async_engine: AsyncEngine, witness: Witness) -> None:
    async def order(work: UnitOfWork) -> None:
        await work.enqueue(mail("plain"))

    order.__annotations__["work"] = Annotated[UnitOfWork, unit_of_work(async_sessionmaker(async_engine))]
    app = FastAPI()
    app.post("/")(order)
    async with browser(app) as client:
        assert (await client.post("/")).status_code == 200
    assert witness.committed() == ["plain"]
