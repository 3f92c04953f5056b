"""Webhooks, Slack and commands against real servers and programs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from sendonce.store.alarm_delivery import Audience, Notice
from sendonce.store.alarms import Alarm
from sendonce.watching.sinks import CommandSink, LogSink, Sink, SinkFailed, SlackSink, WebhookSink, check_body

AT = datetime(2030, 1, 31, 9, 0, tzinfo=UTC)
ID = UUID("00000000-0000-4000-8000-000000000001")


def notice(detail: str = "limits", *, waiting: int = 2, ended: bool = False) -> Notice:
    examples = tuple(Alarm(n, AT, "dead", ID, "default", f"order-{n}", detail, None) for n in range(waiting))
    return Notice("oncall", "dead", "default", ended, waiting, AT, AT, 0, 0, ID, examples)


class Hook:
    """A server that keeps what it is sent and answers what it is to."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], Any]] = []
        self.status = 204
        self.go = threading.Event()
        self.go.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append((dict(self.headers), json.loads(body)))
                hook.go.wait(10)
                self.send_response(hook.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/s3cret-path"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.go.set()
    hook.server.shutdown()
    hook.server.server_close()


async def tell(sink: Sink, one: Notice | None = None) -> None:
    try:
        await sink.tell(one or notice())
    finally:
        await sink.close()


async def test_a_webhook_gets_the_whole_message_with_its_headers(hook: Hook) -> None:
    await tell(WebhookSink(Audience("oncall"), hook.url, source="shop", headers={"Authorization": "Bearer t0ken"}))
    ((headers, body),) = hook.got
    assert headers["Authorization"] == "Bearer t0ken"
    assert body == {
        "event": "alarm",
        "source": "shop",
        "kind": "dead",
        "account": "default",
        "count": 2,
        "first_at": "2030-01-31T09:00:00+00:00",
        "last_at": "2030-01-31T09:00:00+00:00",
        "text": "shop: 2 x dead, account default, since 2030-01-31 09:00:00 UTC: limits (order-0, order-1)",
        "detail": "limits",
        "keys": "order-0, order-1",
        "alarms": [
            {
                "id": n,
                "at": "2030-01-31T09:00:00+00:00",
                "kind": "dead",
                "account": "default",
                "key": f"order-{n}",
                "email_id": str(ID),
                "detail": "limits",
                "closes": None,
            }
            for n in range(2)
        ],
    }


async def test_a_body_of_ones_own_is_filled_and_values_are_values(hook: Hook) -> None:
    body = {
        "title": "{kind} ({count})",
        "braces": "{{kind}}",
        "n": "{count}",
        "list": ["{account}", {"all": "{alarms}"}],
        "why": "{detail}",
        "fixed": 3,
    }
    check_body(body)
    # What a value holds is not looked at again, and cannot leave its place.
    nasty = 'x", "injected": {kind} {{}}'
    await tell(WebhookSink(Audience("oncall"), hook.url, source="shop", body=body), notice(nasty, waiting=1))
    ((_, sent),) = hook.got
    assert sent["title"] == "dead (1)"
    assert (sent["braces"], sent["n"], sent["fixed"], sent["why"]) == ("{kind}", 1, 3, nasty)
    assert sent["list"][0] == "default"
    assert sent["list"][1]["all"][0]["key"] == "order-0"


@pytest.mark.parametrize("body", ["{nobody}", "{", "a }", "{alarms} and more", ["{kind.__class__}"], {"a": {1, 2}}])
def test_a_body_that_cannot_be_filled_is_refused_with_its_place(body: Any) -> None:
    with pytest.raises(ValueError, match=r"^body\.field"):
        check_body({"field": body})


async def test_slack_gets_one_text_without_markup_of_others(hook: Hook) -> None:
    await tell(SlackSink(Audience("oncall"), hook.url, source="shop"), notice("a<b & <!channel>", waiting=1))
    ((_, body),) = hook.got
    assert body == {"text": "shop: dead, account default: a&lt;b &amp; &lt;!channel&gt; (order-0)"}


@pytest.mark.parametrize("status", [199 + 102, 400, 500])
async def test_only_a_2xx_is_an_answer_and_redirects_are_not_followed(hook: Hook, status: int) -> None:
    hook.status = status
    with pytest.raises(SinkFailed, match=f"^HTTP {status}$"):
        await tell(WebhookSink(Audience("oncall"), hook.url, source="shop"))
    assert len(hook.got) == 1


async def test_what_fails_says_a_code_and_no_secret(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sendonce")
    gone = WebhookSink(
        Audience("oncall"), "http://127.0.0.1:1/s3cret-path", source="s", headers={"Authorization": "s3cret"}
    )
    hook.go.clear()
    slow = WebhookSink(Audience("oncall"), hook.url, source="s", timeout=0.2)
    for sink in (gone, slow):
        with pytest.raises(SinkFailed) as failed:
            await tell(sink)
        assert "s3cret" not in str(failed.value)
        assert failed.value.__cause__ is None
    assert "s3cret" not in caplog.text


async def test_a_command_gets_the_message_on_its_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    await tell(CommandSink(Audience("oncall"), [sys.executable, "-c", code, str(out)], source="shop"))
    assert json.loads(out.read_text())["text"].startswith("shop: 2 x dead")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], "^exit 3$"),
        (["/nowhere/at-all"], "^FileNotFoundError$"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "^exit -9$"),
    ],
)
async def test_a_command_that_fails_says_how(command: list[str], why: str) -> None:
    with pytest.raises(SinkFailed, match=why):
        await tell(CommandSink(Audience("oncall"), command, source="shop"))


async def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {pid}.new; mv {pid}.new {pid}; cat > /dev/null; wait"
    sink = CommandSink(Audience("oncall"), ["sh", "-c", script], source="shop", timeout=1.0)
    with pytest.raises(SinkFailed, match=r"^timeout$"):
        await tell(sink)
    async with asyncio.timeout(10):
        while alive(int(pid.read_text())):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state not in ("Z", "X")


async def test_the_log_has_a_line_for_each_message_without_addresses(caplog: pytest.LogCaptureFixture) -> None:
    await tell(LogSink(), notice("535 of ann@example.org"))
    await tell(LogSink(), notice(waiting=1, ended=True))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "sendonce.alarms"]
    assert lines == [
        (
            "ERROR",
            f"alarm: kind=dead account=default count=2 id=0 key=order-0 email_id={ID} detail=535 of *** also=order-1",
        ),
        ("WARNING", f"alarm ended: kind=dead account=default count=1 id=0 key=order-0 email_id={ID} detail=limits"),
    ]
