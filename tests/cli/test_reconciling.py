"""``reconcile --deep``: mails without workflows and workflows without mails, on a real Temporal server."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from sendonce.store import comparing
from sendonce.workflows.port import WORKFLOW_NAME, Ticket

if TYPE_CHECKING:
    from pathlib import Path

    from sendonce.embedded import EmbeddedTemporal
    from tests.cli.conftest import Seed
    from tests.conftest import Result, Run


@pytest.fixture
def prefix() -> str:
    """The server is shared: others have queues of their own."""
    return f"deep-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def compare(
    run: Run, database_url: str, temporal: EmbeddedTemporal, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setattr(comparing, "QUIET_SECONDS", 0.0)

    async def compare(*options: str) -> Result:
        return await asyncio.to_thread(
            run,
            "reconcile",
            "--deep",
            "--json",
            "--per-second",
            "1000",
            *options,
            SENDONCE_DATABASE_URL=database_url,
            SENDONCE_TEMPORAL_ADDRESS=temporal.target,
            SENDONCE_TASK_QUEUE_PREFIX=prefix,
        )

    return compare


async def start(client: Client, email_id: object, key: str, queue: str) -> None:
    ticket = Ticket(str(email_id), key, "default")
    await client.start_workflow(WORKFLOW_NAME, ticket, id=key, task_queue=queue)


async def status(client: Client, key: str) -> tuple[WorkflowExecutionStatus | None, str]:
    found = await client.get_workflow_handle(key).describe()
    return found.status, found.task_queue


async def until_visible(client: Client, keys: list[str]) -> None:
    """Visibility lags behind."""
    names = ", ".join(f"'{key}'" for key in keys)
    query = f"WorkflowId IN ({names}) AND ExecutionStatus = 'Running'"
    while (await client.count_workflows(query)).count < len(keys):  # noqa: ASYNC110  # there is nothing to wait for
        await asyncio.sleep(0.05)


async def test_both_ways(seed: Seed, compare: Any, temporal_client: Client, prefix: str) -> None:
    tag = uuid.uuid4().hex[:8]
    fine, gone, moved, ended, lost = (f"{name}-{tag}" for name in ("fine", "gone", "moved", "ended", "lost"))
    ids = {key: seed.mail(key) for key in (fine, gone, moved, ended)}
    seed.mail(f"never-started-{tag}")
    seed.connection.execute("UPDATE sendonce.email SET started_at = now(), seen_at = now() WHERE key = ANY (%s)",
                            [list(ids)])  # fmt: skip
    seed.update(ids[ended], stage="sent")
    queue = f"{prefix}-default"
    for key in (fine, ended):
        await start(temporal_client, ids[key], key, queue)
    await start(temporal_client, ids[moved], moved, f"old-{queue}")
    await start(temporal_client, uuid.uuid4(), lost, queue)
    # Another installation's.
    await start(temporal_client, uuid.uuid4(), f"theirs-{tag}", f"theirs-{queue}")
    await until_visible(temporal_client, [fine, ended, moved, lost, f"theirs-{tag}"])
    found = await compare()
    *wrong, total = found.objects
    expected = {(gone, "no_workflow"), (moved, "other_queue"), (ended, "row_ended"), (lost, "no_row")}
    assert {(one["key"], one["finding"]) for one in wrong} == expected
    assert all(one.keys() == {"finding", "key", "account", "mended"} and not one["mended"] for one in wrong)
    assert (found.code, total["rows"], total["runs"], total["mended"]) == (1, 3, 3, 0)
    with pytest.raises(RPCError):
        await status(temporal_client, gone)

    mended = await compare("--mend")
    assert {(one["key"], one["mended"]) for one in mended.objects[:-1]} == {(key, True) for key, _ in expected}
    assert mended.code == 0
    for key in (gone, moved):
        assert await status(temporal_client, key) == (WorkflowExecutionStatus.RUNNING, queue)
    for key in (ended, lost):
        # Nobody serves the queue here; a worker's run asks the store when it is woken.
        events = [event async for event in temporal_client.get_workflow_handle(key).fetch_history_events()]
        assert any(event.HasField("workflow_execution_signaled_event_attributes") for event in events)


async def test_nothing_is_done_by_accident(run: Run, compare: Any, database_url: str, free_port: int) -> None:
    assert (await asyncio.to_thread(run, "reconcile", SENDONCE_DATABASE_URL=database_url)).code == 2
    away = await compare("--config", "missing.toml")
    assert away.code == 2
    nobody = await asyncio.to_thread(
        run,
        "reconcile",
        "--deep",
        SENDONCE_DATABASE_URL=database_url,
        SENDONCE_TEMPORAL_ADDRESS=f"127.0.0.1:{free_port}",
    )
    assert (nobody.code, nobody.out) == (3, "")


CODEC = """
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec


class Sealed(PayloadCodec):
    async def encode(self, payloads):
        return [Payload(metadata={"encoding": b"binary/sealed"}, data=one.SerializeToString()) for one in payloads]

    async def decode(self, payloads):
        return [Payload.FromString(one.data) for one in payloads]
"""


async def test_what_is_started_goes_through_the_codec(
    seed: Seed,
    compare: Any,
    temporal_client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A workflow whose input is plain would show what the workers encrypt, and they may refuse to read it."""
    name = f"codec_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(CODEC)
    (tmp_path / "sendonce.toml").write_text(f'[temporal]\npayload_codec = "{name}:Sealed"\n')
    monkeypatch.syspath_prepend(tmp_path)
    key = f"gone-{uuid.uuid4().hex[:8]}"
    seed.update(seed.mail(key), started_at=datetime.now(UTC), seen_at=datetime.now(UTC))
    mended = await compare("--mend", "--config", str(tmp_path / "sendonce.toml"))
    assert (mended.code, mended.objects[0]["mended"]) == (0, True), mended
    history = await temporal_client.get_workflow_handle(key).fetch_history()
    (given,) = history.events[0].workflow_execution_started_event_attributes.input.payloads
    assert given.metadata["encoding"] == b"binary/sealed"
