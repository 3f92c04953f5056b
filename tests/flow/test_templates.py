"""Mail made from a template: a broken one holds it, with an alarm that says where, and costs nobody's mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sendonce.store import Store, open_pool
from sendonce.templates import Templates
from sendonce.workflows.port import Wake

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flow.conftest import Flow, Relay

FIELDS: dict[str, Any] = {
    "text": None,
    "subject": None,
    "template": "order",
    "parameters": {"number": 4711, "name": "Ann <ann@example.org>"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "templates" / "order"
    made.mkdir(parents=True)
    (made / "subject.txt").write_text("Order {{ number }}\n")
    (made / "body.txt").write_text("Dear {{ name }},\nthank you.\n")
    (made / "body.html").write_text("<p>Dear {{ name }}</p>")
    return made


async def test_a_mail_is_made_from_its_template_and_pinned(flow: Flow, relay: type[Relay], folder: Path) -> None:
    transport = relay()
    async with flow.worker(transport, templates=Templates(folder.parent)):
        key = await flow.enqueue(**FIELDS)
        await flow.until_stage(key, "sent")
    assert transport.jobs[0].rendering.body.endswith(b" Order 4711")


async def test_a_mended_template_lets_the_waiting_mail_go(flow: Flow, relay: type[Relay], folder: Path) -> None:
    transport = relay()
    (folder / "body.txt").write_text("Dear {{ name }},\n\n{{ nothing.like_that }}\n")
    await flow.own_clock()
    async with flow.worker(transport, templates=Templates(folder.parent)):
        key = await flow.enqueue(**FIELDS)
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'template'")
        found = await flow.rows_until("SELECT kind, detail FROM sendonce.alarm WHERE email_id IS NOT NULL")
        assert found == [
            {"kind": "held", "detail": "template order: order/body.txt:3: UndefinedError: 'nothing' is not given"}
        ]
        row = await flow.email(key)
        assert (row["stage"], row["attempts"], transport.jobs) == ("pending", 0, [])
        (folder / "body.txt").write_text("Dear {{ name }}, it is mended.\n")
        await flow.advance(60)
        await flow.handle(key).signal("wake", Wake())
        assert (await flow.until_stage(key, "sent"))["attempts"] == 1
    assert len(transport.jobs) == 1
    assert await flow.rows("SELECT kind FROM sendonce.alarm WHERE closes IS NOT NULL AND kind = 'held'") == [
        {"kind": "held"}
    ]


async def test_a_template_that_stays_broken_ends_dead_and_is_rendered_anew_once_requeued(
    flow: Flow, relay: type[Relay], folder: Path
) -> None:
    transport = relay()
    (folder / "subject.txt").write_text("{% if %}")
    async with flow.worker(transport, templates=Templates(folder.parent), template_patience=0.0):
        key = await flow.enqueue(**FIELDS)
        await flow.until_stage(key, "dead")
        assert transport.jobs == []
        assert await flow.rows("SELECT 1 FROM sendonce.pinned") == []
        (folder / "subject.txt").write_text("Mended {{ number }}")
        async with open_pool(flow.database_url, name="operator") as pool:
            await Store(pool).requeue(flow.ids[key], lane=flow.config().lanes["default"], actor="operator")
        await flow.until_stage(key, "sent")
    assert transport.jobs[0].rendering.body.endswith(b" Mended 4711")


async def test_a_worker_without_templates_leaves_the_mail_to_others(
    flow: Flow, relay: type[Relay], folder: Path
) -> None:
    transport = relay()
    async with flow.worker(transport):
        key = await flow.enqueue(**FIELDS)
        await flow.rows_until("SELECT 1 FROM sendonce.attempt WHERE ended_why = 'template'")
        assert (await flow.until_stage(key, "pending"))["attempts"] == 0
    assert await flow.alarms() == ["held"]
