"""``migrate``, ``worker`` and ``starter`` as processes of their own, against real servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from sendonce.embedded import EmbeddedTemporal
from sendonce.store.migrate import _LOCK, head
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.smtp_misbehaviour import cut_after_dot, reject_mailbox
from sendonce.testing.smtp_server import SmtpEvent, SmtpServer, SmtpSession

if TYPE_CHECKING:
    from tests.conftest import Run

PATIENCE = 60  # seconds in which a process on a busy machine comes up
PERSONAL = ("ann.lee", "Parcel for Ann", "horse-battery")

Launch = Callable[..., Awaitable[Process]]


@pytest.fixture
async def launch(tmp_path: Path, sendonce: Path) -> AsyncIterator[Launch]:
    """Start ``sendonce`` with these arguments; killed at the end of the test if it still runs."""
    started: list[Process] = []

    async def launch(*arguments: str, **variables: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sendonce, *arguments, stdout=PIPE, stderr=PIPE, cwd=tmp_path, env=os.environ | variables
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def log_until(process: Process, words: str) -> list[dict[str, Any]]:
    """The log records up to the first whose message holds ``words``."""
    assert process.stdout is not None
    records: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE):
        async for line in process.stdout:
            records.append(json.loads(line))
            if words in records[-1]["message"]:
                return records
    raise AssertionError(f"ended without saying {words!r}: {records}")


async def stop(process: Process) -> tuple[int | None, str, str]:
    """SIGTERM; the exit code and what it still wrote."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def enqueue(url: str, key: str) -> None:
    message = {
        "key": key,
        "sender": "shop@example.org",
        "to": ["ann.lee@example.org"],
        "subject": "Parcel for Ann",
        "text": "On its way.",
    }
    with psycopg.connect(url) as connection:
        connection.execute("SELECT sendonce.enqueue(%s)", [json.dumps(message)])


# migrate ----------------------------------------------------------------------------------------------------------


def test_migrate_goes_up_once_and_says_so(run: Run, empty_database_url: str) -> None:
    first = run("migrate", "--json", SENDONCE_DATABASE_URL=empty_database_url)
    assert first.code == 0, first.err
    assert first.objects == [{"before": None, "after": head(), "changed": True}]
    again = run("migrate", "--json", SENDONCE_DATABASE_URL=empty_database_url)
    assert again.objects == [{"before": head(), "after": head(), "changed": False}]
    assert run("migrate", SENDONCE_DATABASE_URL=empty_database_url).out == f"The schema is at {head()} already.\n"


async def test_a_command_that_waits_says_what_it_waits_for(launch: Launch, database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as holder:
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        process = await launch("migrate", SENDONCE_DATABASE_URL=database_url)
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            line = await process.stderr.readline()
        assert line == b"sendonce: migrating the schema, or waiting for another migration ...\n"
        assert process.returncode is None
    async with asyncio.timeout(PATIENCE):
        await process.communicate()
    assert process.returncode == 0


# worker -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path, database_url: str, temporal: EmbeddedTemporal) -> Callable[[int], str]:
    """Write a settings file for a relay at this port; returns the task queue prefix, which no other test uses."""

    def configure(port: int) -> str:
        prefix = f"t{uuid4().hex}"
        text = f"""
            [store]
            database_url = "{database_url}"
            [temporal]
            address = "{temporal.target}"
            namespace = "{temporal.namespace}"
            task_queue_prefix = "{prefix}"
            [lanes.default]
            answer_seconds = 60
            [accounts.default]
            transport = "smtp"
            host = "127.0.0.1"
            port = {port}
            tls = "none"
            username = "shop"
            password_env = "RELAY_PASSWORD"
        """
        (tmp_path / "sendonce.toml").write_text(text, encoding="utf-8")
        return prefix

    return configure


async def test_a_worker_delivers_a_row_and_ends_in_order(
    launch: Launch, run: Run, configured: Callable[[int], str], database_url: str
) -> None:
    key = f"order-{uuid4()}"
    delivered = asyncio.Event()

    async def on_event(event: SmtpEvent, session: SmtpSession) -> None:
        if event == "replied":
            delivered.set()

    async with SmtpServer(credentials={"shop": "horse-battery"}, on_event=on_event) as relay:
        configured(relay.port)
        enqueue(database_url, key)
        process = await launch("worker", "--json", "--lanes", "default, bulk", RELAY_PASSWORD="horse-battery")
        records = await log_until(process, "ready: ")
        assert " lanes=default,bulk " in records[-1]["message"]
        async with asyncio.timeout(PATIENCE):
            await delivered.wait()
        code, out, err = await stop(process)
        assert len(relay.mailbox.mails()) == 1
    assert code == 0, err
    records += [json.loads(line) for line in out.splitlines()]
    assert all(r.keys() >= {"at", "level", "logger", "message"} for r in records)
    assert records[-1]["message"].startswith("stopped")
    (ready,) = [r for r in records if r["message"].startswith("ready: ")]
    assert ready["lanes"] == "default,bulk"
    warned = [r["message"] for r in records if r["level"] == "warning"]
    assert [w for w in warned if w.startswith("sendonce.toml: [lanes.default] answer_seconds = 60 with account")]
    log = json.dumps(records) + err
    assert [word for word in PERSONAL if word in log] == []
    shown = await asyncio.to_thread(run, "show", key, "--json")
    assert shown.objects[0]["stage"] == "sent"


ODD = {
    '"odd..quoted"@one.example.net': ("default", "sent"),
    "o'brien+tag=x@two.example.net": ("default", "failed"),
    "{braces}%s@three.example.net": ("default", "pending"),
    "d\u00fcmmy@m\u00fcnchen.example.net": ("default", "sent"),
    "cut!short@five.example.net": ("lossy", "unknown"),
    "web^caret@six.example.net": ("web", "sent"),
}
"""Mailbox: the account that it is written to by, and the stage that the mail comes to."""


async def test_no_address_is_in_anything_that_a_process_logs_or_shows(
    launch: Launch, configured: Callable[[int], str], database_url: str, free_port: int, tmp_path: Path
) -> None:
    """At the lowest level, with relays that quote whom they refuse; and with all that watches turned on."""
    refusing = [
        reject_mailbox(address, code, f"{enhanced} <{address}> says ann.quoted@two.example.net")
        for address, code, enhanced in (
            ("o'brien+tag=x@two.example.net", 550, "5.1.1"),
            ("{braces}%s@three.example.net", 451, "4.7.1"),
        )
    ]
    async with (
        SmtpServer(Mailbox(), *refusing) as relay,
        SmtpServer(Mailbox(), cut_after_dot()) as lossy,
        HttpGateway() as gateway,
    ):
        configured(relay.port)
        settings = (tmp_path / "sendonce.toml").read_text().replace('username = "shop"', "")
        (tmp_path / "sendonce.toml").write_text(
            settings.replace('password_env = "RELAY_PASSWORD"', "")
            + f"""
            [accounts.lossy]
            transport = "smtp"
            host = "127.0.0.1"
            port = {lossy.port}
            tls = "none"
            [accounts.web]
            transport = "http"
            url = "{gateway.url}"
            [watch]
            listen = "127.0.0.1:{free_port}"
            [log]
            format = "json"
            """
        )
        process = await launch("worker", "--log-level", "debug")
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as store:
            for n, (address, (account, _)) in enumerate(ODD.items()):
                domain = address.rpartition("@")[2]
                message = {
                    "key": f"odd-{n}-{uuid4()}",
                    "account": account,
                    "sender": "Odd Shop <odd.sender@shop.example.net>",
                    "to": [
                        {
                            "email": address,
                            "name": "Odd Name",
                            "mailbox": address.replace(domain, domain.encode("idna").decode()),
                        }
                    ],
                    "subject": "An odd subject",
                    "text": "An odd text.",
                }
                await store.execute("SELECT sendonce.enqueue(%s)", [json.dumps(message)])
            async with asyncio.timeout(PATIENCE):
                told = "SELECT FROM sendonce.alarm_notice WHERE told > 0"
                while not await (await store.execute(told)).fetchall():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                while await stages(store) != sorted(stage for _, stage in ODD.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                while not (shown := await asyncio.to_thread(metrics, free_port)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        code, out, err = await stop(process)
    assert code == 0
    assert out == ""
    records = [json.loads(line) for line in err.splitlines()]
    attempts = {(r["outcome"], r["code"], r["account"]): r for r in records if "outcome" in r}
    refused = attempts["refused", 550, "default"]
    assert (refused["attempt"], refused["lane"], refused["enhanced"]) == (1, "default", "5.1.1")
    assert refused["key"].startswith("odd-1-")
    assert attempts.keys() >= {("accepted", 200, "web"), ("unanswered", 0, "lossy"), ("deferred", 451, "default")}
    assert [r["kind"] for r in records if r["logger"] == "sendonce.alarms"] == ["unknown"]
    # The SDK's metrics are part of the answer.
    assert "\nsendonce_replies_total{" in shown
    assert "\ntemporal_" in shown
    everything = (err + shown).lower()
    for part in ("odd..", "o'brien", "braces", "d\u00fcmmy", "d\\u00fcmmy", "cut!", "caret", "ann.quoted"):
        assert part not in everything
    for part in ("odd name", "odd.sender", "odd subject", "odd text", ".example.net"):
        assert part not in everything


async def stages(store: psycopg.AsyncConnection[Any]) -> list[str]:
    query = "SELECT stage FROM sendonce.email WHERE attempts > 0 ORDER BY stage"
    return [row[0] for row in await (await store.execute(query)).fetchall()]


def metrics(port: int) -> str:
    """What is shown once the attempts of all kinds are counted; empty before."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text if 'sendonce_replies_total{account="lossy",outcome="unanswered"' in text else ""


async def test_a_starter_starts_workflows_and_delivers_nothing(
    launch: Launch, configured: Callable[[int], str], database_url: str, temporal_client: Client
) -> None:
    key = f"order-{uuid4()}"
    async with SmtpServer() as relay:
        prefix = configured(relay.port)
        process = await launch("starter", "--json", RELAY_PASSWORD="horse-battery")
        await log_until(process, "ready: ")
        enqueue(database_url, key)
        handle = temporal_client.get_workflow_handle(key)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    found = await handle.describe()
                    break
                except RPCError as error:
                    if error.status is not RPCStatusCode.NOT_FOUND:
                        raise
                    await asyncio.sleep(0.05)
        assert found.status is WorkflowExecutionStatus.RUNNING
        assert found.task_queue == f"{prefix}-default"
        code, out, err = await stop(process)
        assert relay.sessions == []
    await handle.terminate()
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["message"] == "stopped"


@pytest.mark.parametrize("command", ["worker", "starter"])
async def test_a_process_waits_for_a_store_that_is_away_and_can_be_stopped(
    launch: Launch, configured: Callable[[int], str], free_port: int, command: str
) -> None:
    configured(1)
    away = f"postgresql://shop:horse-battery@127.0.0.1:{free_port}/shop"
    process = await launch(command, "--json", SENDONCE_DATABASE_URL=away, RELAY_PASSWORD="horse-battery")
    records = await log_until(process, "the store cannot be reached")
    code, out, err = await stop(process)
    assert code == 0, err
    assert "horse-battery" not in json.dumps(records) + out + err


@pytest.mark.parametrize("command", ["worker", "starter"])
def test_a_process_without_the_schema_ends_with_exit_code_3(
    run_process: Run, configured: Callable[[int], str], empty_database_url: str, command: str
) -> None:
    configured(1)
    result = run_process(command, SENDONCE_DATABASE_URL=empty_database_url, RELAY_PASSWORD="horse-battery")
    assert result.code == 3
    assert "run 'sendonce migrate'" in result.err
    assert "Traceback" not in result.err


def test_lanes_that_are_not_there_end_with_exit_code_2(run_process: Run, configured: Callable[[int], str]) -> None:
    configured(1)
    result = run_process("worker", "--lanes", "critical,express", RELAY_PASSWORD="p")
    assert result.code == 2
    assert result.err == "sendonce: --lanes: there is no lane 'express'; lanes: critical, default, bulk\n"


def test_a_worker_without_an_account_ends_with_exit_code_2(run_process: Run) -> None:
    result = run_process("worker", "--json")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("sendonce: environment: there is no account to send with; write [accounts.default]")
