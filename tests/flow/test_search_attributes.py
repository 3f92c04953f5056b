"""A namespace without the search attributes delays no mail; and one that gets them is used soon."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sendonce import search_attributes
from sendonce.activities.failures import client_options
from sendonce.embedded import EmbeddedTemporal
from sendonce.outcome import Accepted, AttemptResult, Deferred, Outcome, Reply, same_for_all
from sendonce.search_attributes import NAMES, NotRegistered, missing, register

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Gate, Job
    from tests.flow.conftest import Flow, Relay, Step


@pytest.fixture(scope="module")
def bare(scrubbed_environment: None) -> Iterator[EmbeddedTemporal]:
    """A server whose namespace has none of them."""
    with EmbeddedTemporal.start() as server:
        yield server


@pytest.fixture
async def client(bare: EmbeddedTemporal) -> AsyncIterator[Client]:
    """Of a namespace that has none, before and after the test."""
    client = await Client.connect(bare.target, **client_options())
    yield client
    found = await search_attributes._types(client)
    if ours := [name for name in NAMES if name in found]:
        await client.operator_service.remove_search_attributes(
            RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=ours)
        )


async def test_mail_goes_on_without_them_and_uses_them_once_they_are_there(
    flow: Flow, relay: type[Relay], client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sendonce")
    monkeypatch.setattr("sendonce.search_attributes.ASK_AGAIN", 0.2)
    flow.client = client
    async with flow.worker(relay(*_put_off_once()), client=client):
        before = await flow.enqueue("before")
        await flow.until_closed(before)
        assert await flow.attributes(before) == {}
        assert "upsert_workflow_search_attributes" not in await flow.events(before)
        # Details need none.
        assert "| 2 |" in await flow.details(before)
        [warning] = [r.message for r in caplog.records if "search attributes" in r.message]
        assert warning.startswith(
            "workflows are started without search attributes, because namespace 'default' has no "
        )
        assert all(f"no {name}" in warning for name in NAMES)
        assert "run 'sendonce setup', and they are used within a minute" in warning
        assert await register(client) == list(NAMES)
        assert await missing(client) == []

        async def used() -> bool:
            key = await flow.enqueue(f"after-{len(flow.ids)}")
            await flow.until_closed(key)
            return (await flow.attributes(key)).get("SendStage") == "started"

        await flow.until(used, "a workflow with attributes")
        assert "search attributes are there: new workflows carry them" in caplog.text


async def test_a_start_that_is_refused_for_them_is_made_without(
    flow: Flow, relay: type[Relay], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await register(client)
    flow.client = client
    async with flow.worker(relay(), client=client):
        with_them = await flow.enqueue("with")
        await flow.until_closed(with_them)
        assert (await flow.attributes(with_them))["SendStage"] == "started"
        await client.operator_service.remove_search_attributes(
            RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=NAMES)
        )
        without = await flow.enqueue("without")
        await flow.until_closed(without)
        assert await flow.attributes(without) == {}
        assert (await flow.email(without))["stage"] == "sent"
    assert "namespace 'default' refuses them: run 'sendonce setup'" in caplog.text


class _Closed:
    """The operator's service of a server that keeps it from clients, as Temporal Cloud does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name == "operator_service":
            return self
        if name in ("list_search_attributes", "add_search_attributes"):
            return self._refuse
        return getattr(self._client, name)

    async def _refuse(self, request: object, **more: object) -> None:
        raise RPCError("not allowed", RPCStatusCode.PERMISSION_DENIED, b"")


async def test_where_nobody_may_ask_a_query_tells_and_set_up_says_what_to_do(client: Client) -> None:
    closed: Any = _Closed(client)
    assert await missing(closed) == list(NAMES)
    with pytest.raises(NotRegistered, match=r"Temporal Cloud .* 'tcld namespace search-attributes add'") as refusal:
        await register(closed)
    assert all(name in str(refusal.value) for name in NAMES)
    await register(client)
    assert await missing(closed) == []
    assert await register(closed) == []


async def test_a_name_of_another_type_is_refused_with_what_to_do(client: Client) -> None:
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=client.namespace,
            search_attributes={"SendLane": IndexedValueType.INDEXED_VALUE_TYPE_INT},
        )
    )
    assert "SendLane" in await missing(client)
    with pytest.raises(NotRegistered, match="has SendLane as another type than Keyword"):
        await register(client)


def _put_off_once() -> list[Step]:
    def step(outcome: Outcome) -> Step:
        async def run(job: Job, gate: Gate) -> AttemptResult:
            ordinals = tuple(r.ordinal for r in job.recipients)
            await gate.begin(ordinals)
            gate.offered()
            return same_for_all(ordinals, outcome)

        return run

    return [step(Deferred(Reply(451, "4.7.1"))), step(Accepted(Reply(250, "2.0.0"), "Q1"))]
