"""What a person finds in the Temporal UI: the unknown mails, one of them with its attempts, and what to do about it.

``BROWSER_PICTURES=<folder>`` keeps what it looked like, for the documentation.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.types.json import Jsonb
from temporalio.client import Client

from sendonce.activities.failures import client_options
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.embedded import EmbeddedTemporal
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.search_attributes import NAMES
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.smtp_misbehaviour import answer, cut_after_dot
from sendonce.testing.smtp_server import SmtpServer
from sendonce.worker import WorkerConfig, serve

if TYPE_CHECKING:
    from tests.browser.conftest import Browser

LANES = {"default": LanePolicy("default", RetryPolicy(delays=(0.25,), jitter=0, max_attempts=50, max_age=86400.0))}
SECONDS = 30.0
BUTTONS = "[...document.querySelectorAll('button, [role=menuitem], [role=combobox]')]"


@pytest.fixture
def own_temporal(browser: Browser) -> Iterator[EmbeddedTemporal]:
    """With its UI; not started where there is no browser."""
    with EmbeddedTemporal.start(ui=True, search_attributes=dict.fromkeys(NAMES, "Keyword")) as server:
        yield server


@asynccontextmanager
async def worker(url: str, server: EmbeddedTemporal, relay: SmtpServer) -> AsyncIterator[None]:
    account = SmtpTransport(SmtpSettings(host="127.0.0.1", port=relay.port, tls="none"))
    client = await Client.connect(server.target, identity="worker", **client_options())
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(WorkerConfig(url, {"default": account}, lanes=LANES), stop, client=client))
    try:
        yield
    finally:
        stop.set()
        await serving


async def enqueue(url: str, *keys: str) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        for key in keys:
            message = {"key": key, "sender": "shop@example.com", "to": ["ann@example.org"], "subject": "s", "text": "t"}
            await connection.execute("SELECT sendonce.enqueue(%s)", [Jsonb(message)])


async def until_stages(url: str, stages: dict[str, str]) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    end = time.monotonic() + SECONDS
    async with connection:
        while True:
            found: dict[str, Any] = dict(
                await (await connection.execute("SELECT key, stage FROM sendonce.email")).fetchall()
            )
            if found == stages:
                return
            assert time.monotonic() < end, found
            await asyncio.sleep(0.05)


async def test_the_unknown_mails_are_found_and_one_says_what_to_do(
    browser: Browser, own_temporal: EmbeddedTemporal, database_url: str
) -> None:
    ui = own_temporal.ui_url
    # The mail is put off twice, and then taken without an answer; the next ones are sent.
    rules = [answer("dot", 451, "4.3.0 busy", times=1), answer("dot", 452, "4.3.1 full", times=1)]
    async with (
        SmtpServer(Mailbox(), *rules, cut_after_dot(times=1)) as relay,
        worker(database_url, own_temporal, relay),
    ):
        await enqueue(database_url, "order-4711-confirmation")
        await until_stages(database_url, {"order-4711-confirmation": "unknown"})
        await enqueue(database_url, "order-4712-confirmation", "order-4713-confirmation")
        await until_stages(
            database_url,
            {
                "order-4711-confirmation": "unknown",
                "order-4712-confirmation": "sent",
                "order-4713-confirmation": "sent",
            },
        )
        await asyncio.to_thread(_look, browser, f"{ui}/namespaces/default/workflows")


def _look(browser: Browser, workflows: str) -> None:
    browser.open(workflows)
    browser.until_text("order-4711-confirmation", "order-4712-confirmation", "order-4713-confirmation")

    unknown = quote('SendStage="unknown"')
    browser.open(f"{workflows}?query={unknown}")
    listed = browser.until_text("order-4711-confirmation")
    assert "order-4712-confirmation" not in listed
    _picture(browser, "temporal-ui-list.png")

    browser.follow("order-4711-confirmation")
    # In the list of events: what came of each attempt.
    browser.until_text("attempt 1 · 451 4.3.0 · next ", "attempt 2 · 452 4.3.1 · next ", "unknown · awaits operator")
    browser.follow("Search Attributes")
    browser.until_text("SendStage", "unknown", "SendLane", "SendAccount", "SendReplyCode", "452 4.3.1")
    browser.follow("User Metadata")
    shown = browser.until_text("default · default", "sendonce show order-4711-confirmation")
    for part in ("451 4.3.0", "452 4.3.1", "unknown, awaits operator", "sendonce resolve order-4711-confirmation"):
        assert part in shown
    _picture(browser, "temporal-ui-mail.png")

    browser.run(f"{BUTTONS}.filter(e => e.innerText.trim() === 'More Actions').at(-1).click()")
    browser.until_text("Send an Update")
    browser.run(f"{BUTTONS}.filter(e => e.innerText.trim() === 'Send an Update').at(-1).click()")
    browser.until("[...document.querySelectorAll('#update-select')].some(e => e.offsetParent !== null)")
    browser.run(f"{BUTTONS}.filter(e => /update-select/.test(e.outerHTML.split('>')[0])).forEach(e => e.click())")
    browser.until_text(
        "Limits, pauses and rates hold", "what has been offered to a provider cannot be cut", '"decision"'
    )


def _picture(browser: Browser, name: str) -> None:
    if folder := os.environ.get("BROWSER_PICTURES"):
        browser.picture(Path(folder) / name)
