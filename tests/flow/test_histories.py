"""Histories of earlier releases replay on this code; and the workflow's code pulls in no I/O."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sendonce.activities.failures import client_options
from sendonce.workflows import EmailDelivery, EmailOutcome
from sendonce.workflows.upkeep import Upkeep

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


def test_there_are_histories_of_every_workflow() -> None:
    started = [history(path).events[0].workflow_execution_started_event_attributes for path in HISTORIES]
    names = [one.workflow_type.name for one in started]
    assert names.count("EmailDelivery") >= 5
    assert {"EmailOutcome", "Upkeep"} < set(names)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_stored_history_replays(path: Path) -> None:
    """When this fails, the workflow's commands have changed: keep the old course behind ``workflow.patched``."""
    replayer = Replayer(
        workflows=[EmailDelivery, EmailOutcome, Upkeep],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("sendonce")
        ),
        data_converter=client_options()["data_converter"],
    )
    await replayer.replay_workflow(history(path))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_stored_history_is_whole(path: Path) -> None:
    last = str(history(path).events[-1].WhichOneof("attributes"))
    assert last.startswith("workflow_execution_")


def test_importing_the_workflows_loads_no_io() -> None:
    banned = "httpx psycopg psycopg_pool sqlalchemy aiosmtplib pydantic jinja2 alembic"
    modules = "sendonce.workflows, sendonce.workflow"
    code = f"import {modules}, sys; print(*[m for m in '{banned}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
