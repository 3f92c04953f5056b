"""A headless Chromium, driven by the W3C WebDriver protocol: JSON over HTTP, of which a few calls are enough."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sendonce.embedded import ChildProcess, clean_environment, free_port

FLAGS = (
    "--headless",
    "--no-sandbox",  # it refuses to run as root with one
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1500,1250",
)
_TEXT = "return document.body ? document.body.innerText : ''"

SECONDS = 30.0
"""Until something must be seen."""


class Browser:
    """One window."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def open(self, url: str) -> None:
        self._http.post("/url", json={"url": url}).raise_for_status()

    def run(self, script: str, *args: Any) -> Any:
        """Run this function body in the page; returns what it returns."""
        return (
            self._http.post("/execute/sync", json={"script": script, "args": args}).raise_for_status().json()["value"]
        )

    def text(self) -> str:
        """All that the page shows, what stands in its frames included."""
        parts = [str(self.run(_TEXT))]
        for frame in range(int(self.run("return window.frames.length"))):
            self._http.post("/frame", json={"id": frame}).raise_for_status()
            parts.append(str(self.run(_TEXT)))
            self._http.post("/frame", json={"id": None}).raise_for_status()
        return "\n".join(parts)

    def follow(self, label: str) -> None:
        """Click the link or button with this label."""
        self.until_text(label)
        self.run(
            "[...document.querySelectorAll('a, button')].find(e => e.innerText.trim() === arguments[0]).click()", label
        )

    def until(self, expression: str) -> None:
        """Wait until this is true in the page."""
        end = time.monotonic() + SECONDS
        while not self.run(f"return {expression}"):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.1)

    def until_text(self, *wanted: str) -> str:
        """Wait until the page shows all of these; returns all that it shows."""
        end = time.monotonic() + SECONDS
        while True:
            text = self.text()
            if all(part in text for part in wanted):
                return text
            assert time.monotonic() < end, f"{wanted} not all seen in: {text}"
            time.sleep(0.1)

    def picture(self, file: Path) -> None:
        """A PNG of the window."""
        shot = self._http.get("/screenshot").raise_for_status().json()["value"]
        file.write_bytes(base64.b64decode(shot))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium is not installed: apt-get install chromium chromium-driver")
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    environment = {**clean_environment(), "HOME": str(tmp_path)}
    with ChildProcess([driver, f"--port={port}"], env=environment, log=tmp_path / "chromedriver.log") as process:
        _until(lambda: httpx.get(f"{origin}/status", trust_env=False).json()["value"]["ready"], process)
        options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        with httpx.Client(timeout=SECONDS, trust_env=False) as http:
            began = http.post(f"{origin}/session", json={"capabilities": capabilities}).raise_for_status()
            http.base_url = httpx.URL(f"{origin}/session/{began.json()['value']['sessionId']}")
            try:
                yield Browser(http)
            finally:
                http.delete("")


def _until(there: Callable[[], bool], process: ChildProcess) -> None:
    end = time.monotonic() + SECONDS
    while True:
        try:
            if there():
                return
        except httpx.HTTPError:
            pass
        assert process.running, "chromedriver ended"
        assert time.monotonic() < end, "chromedriver does not answer"
        time.sleep(0.05)
