"""A store that comes back older than it was: nothing is sent again, and what cannot be known is said.

Real servers: a base backup, an archive of the log, a recovery to a point in time, a standby that is promoted, files put
back, a dump that is loaded.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from sendonce import embedded
from sendonce.activities.failures import client_options
from sendonce.activities.reconcile import Reconciliation, Report
from sendonce.embedded import EmbeddedPostgres, EmbeddedTemporal
from sendonce.embedded.binaries import postgres_account, postgres_programs
from sendonce.store import open_pool
from sendonce.store.migrate import migrate
from sendonce.testing import smtp_misbehaviour
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.smtp_server import SmtpServer
from tests.cases.conftest import Office, make_lane, until
from tests.conftest import Run

LANE = make_lane(answer_seconds=1.0)


class Site:
    """A place for servers: each is a folder, and all of them, one after the other, listen on one port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive = folder / "archive"
        self.archive.mkdir()
        # The server may run as another user.
        self.archive.chmod(0o777)
        folder.chmod(0o755)
        self.running: list[EmbeddedPostgres] = []
        self.options = {
            "wal_level": "replica",
            "archive_mode": "on",
            "archive_command": f"cp %p {self.archive}/%f",
            "min_wal_size": "32MB",
            "max_wal_size": "64MB",
        }

    def start(self, name: str, port: int | None = None, **options: str) -> EmbeddedPostgres:
        server = EmbeddedPostgres.start(self.folder / name, port=port, options={**self.options, **options})
        self.running.append(server)
        return server

    def backup(self, server: EmbeddedPostgres, name: str, *options: str) -> None:
        """``pg_basebackup`` into the folder of a server that is not running yet."""
        target = self.folder / name
        target.mkdir()
        program(
            "pg_basebackup",
            *("--pgdata", str(target / "data"), "--checkpoint=fast", "--no-sync", *options, "--dbname", server.url),
        )
        shutil.copy(server.folder / "server.json", target)
        own(target)

    def recover(self, name: str, *lines: str, signal: str) -> None:
        """Say how the server of this folder recovers when it starts."""
        data = self.folder / name / "data"
        with (data / "postgresql.auto.conf").open("a") as file:
            file.write(f"restore_command = 'cp {self.archive}/%f %p'\n" + "".join(f"{line}\n" for line in lines))
        (data / signal).touch()
        own(self.folder / name)

    def end(self) -> None:
        for server in self.running:
            server.stop()


def program(name: str, *arguments: str) -> None:
    ran = subprocess.run(
        [postgres_programs(None) / name, *arguments],
        env=embedded.clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def own(folder: Path) -> None:
    """Give the data to the user who runs the server."""
    account = postgres_account(Path("/nonexistent"))
    if account is None:
        return
    for path in [folder / "data", *(folder / "data").rglob("*")]:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


@pytest.fixture
def site() -> Iterator[Site]:
    # Not below pytest's own folder: the server may run as a user who may not go there.
    with tempfile.TemporaryDirectory(prefix="sendonce-site-") as folder:
        site = Site(Path(folder))
        yield site
        site.end()


@pytest.fixture
async def shop(site: Site, temporal: EmbeddedTemporal, brisk: None) -> AsyncIterator[Office]:
    """An installation on the site's first server, called ``first``."""
    server = site.start("first")
    url = server.create_database("shop")
    await asyncio.to_thread(migrate, url)
    client = await Client.connect(temporal.target, **client_options())
    async with SmtpServer() as relay, HttpGateway() as gateway:
        yield Office(url, client, temporal.target, relay, gateway)


async def reconcile(office: Office, *, go_on: bool = True, **options: Any) -> tuple[Report, set[tuple[str, str]]]:
    """What ``sendonce reconcile --after-restore`` does; the report, and what was found of which key."""
    found: set[tuple[str, str]] = set()
    config = office.config(LANE)
    async with open_pool(office.database_url, name="reconcile", max_size=2) as pool:
        store = config.store(pool)
        await store.halt("reconcile")
        known, _ = await store.server()
        assert known.halted_at is not None
        assert known.seen_at is not None
        one = Reconciliation(
            store,
            office.client,
            config.transports,
            config.lanes,
            config.task_queues(),
            actor="olga",
            per_second=1000,
            tell=lambda what, _, key: found.add((what, key.removeprefix(f"{office.prefix}-"))),
        )
        report = await one.run(known.seen_at, known.halted_at, **options)
        if go_on:
            await store.go_on("olga", "reconciled")
    for transport in config.transports.values():
        await transport.close()
    return report, found


async def until_halted(office: Office, why: str) -> None:
    await office.until_row("SELECT 1 FROM sendonce.continuity WHERE halted_at IS NOT NULL")
    assert await office.rows("SELECT halted_why FROM sendonce.continuity") == [{"halted_why": why}]


async def until_visible(office: Office, *names: str) -> None:
    """Visibility is written after the fact."""

    async def there() -> bool:
        keys = [f"{office.prefix}-{name}" for name in names]
        query = " OR ".join(f"(WorkflowId = '{key}' AND ExecutionStatus = 'Completed')" for key in keys)
        return len([run async for run in office.client.list_workflows(query)]) == len(keys)

    await until(there, lambda: f"completed runs of {names}")


SLOW_LANE = make_lane(answer_seconds=1.0, retry=replace(LANE.retry, delays=(600.0,)))


async def send_and_forget(shop: Office) -> dict[str, str]:
    """Mails of which the store knows nothing but that they are due: one is sent then, one meets silence, one reaches
    one of two, one is deferred.
    """
    keys = {
        "sent": await shop.enqueue("sent", to="sent@example.org"),
        "silent": await shop.enqueue("silent", to="silent@example.org"),
        "two": await shop.enqueue("two", to=["taken@example.org", "later@example.org"]),
        "deferred": await shop.enqueue("deferred", to="later@example.org"),
    }
    silence = smtp_misbehaviour.cut_after_dot()
    silence.when = lambda recipients: "silent@" in recipients
    shop.relay.script.add(silence, smtp_misbehaviour.reject_mailbox("later@example.org", 450, "4.2.0 later"))
    return keys


async def until_forgotten(shop: Office, keys: dict[str, str]) -> None:
    await shop.until_stage(keys["sent"], "sent")
    await shop.until_stage(keys["silent"], "unknown")
    for name in ("two", "deferred"):
        await shop.until_row(
            "SELECT 1 FROM sendonce.email WHERE key = %s AND stage = 'pending' AND attempts = 1", [keys[name]]
        )
    await until_visible(shop, "sent")


async def until_woken(shop: Office, key: str) -> None:
    """Poke a mail's workflow, which may just have been told to wait, until the mail is sent."""

    async def sent() -> bool:
        with suppress(RPCError):  # it has ended by now
            await shop.handle(key).signal("wake", {})
        return bool((await shop.email(key))["stage"] == "sent")

    await until(sent, lambda: f"{key} sent")


def copies(shop: Office) -> dict[str, int]:
    names = ("sent", "silent", "taken", "later", "new", "after")
    return {name: found for name in names if (found := shop.relay.mailbox.copies(f"{name}@example.org"))}


async def test_after_a_recovery_to_a_point_in_time_nothing_is_sent_twice(shop: Office, site: Site) -> None:
    first = site.running[0]
    async with shop.worker(SLOW_LANE):
        await shop.until_stage(await shop.enqueue("early", to="early@example.org"), "sent")
    keys = await send_and_forget(shop)
    await asyncio.to_thread(site.backup, first, "second", "--wal-method=fetch")
    site.recover(
        "second", "recovery_target = 'immediate'", "recovery_target_action = 'promote'", signal="recovery.signal"
    )
    async with shop.worker(SLOW_LANE):
        await shop.until_stage(await shop.enqueue("after", to="after@example.org"), "sent")
        await until_forgotten(shop, keys)
        await until_visible(shop, "after")
    first.stop()
    known = copies(shop)
    assert known == {"sent": 1, "silent": 1, "taken": 1, "after": 1}

    await asyncio.to_thread(site.start, "second", first.port)
    assert [(await shop.email(key))["stage"] for key in keys.values()] == ["pending"] * 4
    shop.relay.script.clear()
    async with shop.worker(SLOW_LANE):
        await until_halted(shop, "other_timeline")
        new = await shop.enqueue("new", to="new@example.org")
        # The workflows that sleep ask, and are told to wait.
        for name in ("silent", "two", "deferred"):
            await shop.handle(keys[name]).signal("wake", {})
        await shop.until_row("SELECT 1 FROM sendonce.process WHERE beat_at > sendonce.clock() - interval '1 second'")
        assert (copies(shop), (await shop.email(new))["started_at"]) == (known, None)

        report, found = await reconcile(shop)
        assert found == {("sent", "sent"), ("unanswered", "silent"), ("unanswered", "two"), ("missing", "after")}
        assert (report.runs >= 5, report.unwitnessed) == (True, 0)
        await shop.until_stage(new, "sent")
        await until_woken(shop, keys["deferred"])
    assert await shop.alarms() == ["halted", "unknown", "unknown"]
    assert copies(shop) == known | {"later": 1, "new": 1}
    stages = {name: (await shop.email(key))["stage"] for name, key in keys.items()}
    assert stages == {"sent": "sent", "silent": "unknown", "two": "unknown", "deferred": "sent"}
    log = await shop.rows("SELECT cause, actor FROM sendonce.transition WHERE actor = 'olga' ORDER BY cause")
    assert [row["cause"] for row in log] == ["evidence:temporal", "forgotten", "forgotten"]
    closing = await shop.rows("SELECT detail FROM sendonce.alarm WHERE kind = 'halted' AND closes IS NOT NULL")
    assert [row["detail"] for row in closing] == ["reconciled by olga"]


@pytest.mark.slow
@pytest.mark.parametrize("failover", ["halt", "go_on"])
async def test_a_standby_that_is_promoted_while_workers_run(shop: Office, site: Site, failover: str) -> None:
    """It streams, so it has lost nothing: it may be let through. Unless somebody says so, workers wait."""
    first = site.running[0]
    await asyncio.to_thread(site.backup, first, "second", "--wal-method=stream", "--write-recovery-conf")
    second = await asyncio.to_thread(site.start, "second")
    async with shop.worker(LANE, failover=failover):
        await shop.until_stage(await shop.enqueue("sent", to="sent@example.org"), "sent")
        with psycopg.connect(first.url, autocommit=True) as connection:
            streams = "SELECT FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_flush_lsn()"
            await until(lambda: there(connection, streams), lambda: "the standby")
        first.kill()
        second.stop()
        second = await asyncio.to_thread(site.start, "second", first.port)
        with psycopg.connect(second.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        if failover == "halt":
            await until_halted(shop, "other_timeline")
            new = await shop.enqueue("new", to="new@example.org")
            _, found = await reconcile(shop)
            assert found == set()
        else:
            new = await shop.enqueue("new", to="new@example.org")
        await shop.until_stage(new, "sent")
    assert copies(shop) == {"sent": 1, "new": 1}
    assert await shop.alarms() == (["halted"] if failover == "halt" else [])


async def there(connection: psycopg.Connection[Any], query: str) -> bool:
    return connection.execute(query.encode()).fetchone() is not None


@pytest.mark.slow
async def test_files_that_are_put_back_are_told_by_the_completed_runs(shop: Office, site: Site) -> None:
    """The same system, the same timeline: only another witness knows."""
    first = site.running[0]
    async with shop.worker(LANE):
        await shop.until_stage(await shop.enqueue("early", to="early@example.org"), "sent")
    keys = await send_and_forget(shop)
    first.stop()
    shutil.copytree(first.folder / "data", site.folder / "kept")
    await asyncio.to_thread(first.restart)
    async with shop.worker(SLOW_LANE):
        await until_forgotten(shop, keys)
    known = copies(shop)
    first.stop()
    shutil.rmtree(first.folder / "data")
    shutil.copytree(site.folder / "kept", first.folder / "data")
    own(first.folder)
    await asyncio.to_thread(first.restart)
    shop.relay.script.clear()
    async with shop.worker(SLOW_LANE):
        await until_halted(shop, "completed_runs")
        await reconcile(shop)
        await until_woken(shop, keys["deferred"])
    assert copies(shop) == known | {"later": 1}


@pytest.mark.slow
async def test_a_dump_that_is_loaded_into_another_database(shop: Office, site: Site) -> None:
    first = site.running[0]
    async with shop.worker(LANE):
        await shop.until_stage(await shop.enqueue("early", to="early@example.org"), "sent")
    keys = await send_and_forget(shop)
    dump = str(site.folder / "shop.dump")
    await asyncio.to_thread(program, "pg_dump", "--format=custom", "--file", dump, shop.database_url)
    async with shop.worker(SLOW_LANE):
        await until_forgotten(shop, keys)
    known = copies(shop)
    loaded = first.create_database("loaded")
    await asyncio.to_thread(program, "pg_restore", "--exit-on-error", "--dbname", loaded, dump)
    shop = replace(shop, database_url=loaded)
    shop.relay.script.clear()
    async with shop.worker(SLOW_LANE):
        await until_halted(shop, "other_database")
        _, found = await reconcile(shop)
        assert found == {("sent", "sent"), ("unanswered", "silent"), ("unanswered", "two")}
        await until_woken(shop, keys["deferred"])
    assert copies(shop) == known | {"later": 1}


@pytest.mark.slow
async def test_when_temporal_is_lost_too_nobody_can_know_and_it_is_said(shop: Office, site: Site) -> None:
    """What was due becomes unknown, if asked for; without that it is sent, and that may be a second copy."""
    first = site.running[0]
    async with shop.worker(LANE):
        await shop.until_stage(await shop.enqueue("early", to="early@example.org"), "sent")
    sent = await shop.enqueue("sent", to="sent@example.org")
    future = await shop.enqueue("new", to="new@example.org", send_after="2099-01-01T00:00:00Z")
    loaded = first.create_database("loaded", "shop")
    async with shop.worker(LANE):
        await shop.until_stage(sent, "sent")
    shop = replace(shop, database_url=loaded)
    # Another Temporal, that knows nothing.
    with EmbeddedTemporal.start() as empty:
        shop = replace(shop, target=empty.target, client=await Client.connect(empty.target, **client_options()))
        async with shop.worker(LANE):
            await until_halted(shop, "other_database")
            report, _ = await reconcile(shop, go_on=False)
            assert (report.unwitnessed, report.unanswered) == (1, 0)
            report, found = await reconcile(shop, lost_temporal=True)
            assert found == {("unanswered", "sent")}
            again = await shop.enqueue("after", to="after@example.org")
            await shop.until_stage(again, "sent")
        assert (await shop.email(sent))["stage"] == "unknown"
        assert (await shop.email(future))["stage"] == "pending"
    assert copies(shop) == {"sent": 1, "after": 1}


async def test_a_copy_halts_and_becomes_an_installation_of_its_own(office: Office, postgres_url: str, run: Run) -> None:
    """A copy for staging sends nothing: not by itself, and not what belongs to the original."""
    async with office.worker(LANE):
        await office.until_stage(await office.enqueue("early", to="early@example.org"), "sent")
    copied = await office.enqueue("sent", to="sent@example.org")
    name = f"copy_{office.prefix}"
    original = office.database_url.rpartition("/")[2]
    url_of_copy = embedded.create_database(postgres_url, name, original)
    # Queues of its own stand for a namespace of its own.
    staging = replace(office, database_url=url_of_copy, prefix=f"staging-{office.prefix}")
    try:
        url = {"SENDONCE_DATABASE_URL": staging.database_url}
        async with staging.worker(LANE):
            await until_halted(staging, "other_database")
            refused = await asyncio.to_thread(run, "new-installation", "--because", "staging", **url)
            assert (refused.code, "--yes" in refused.err) == (2, True)
            made = await asyncio.to_thread(run, "new-installation", "--because", "staging", "--yes", "--json", **url)
            assert made.objects[0]["held"] == 1
            before = await office.rows("SELECT id::text FROM sendonce.installation")
            assert made.objects[0]["installation"] != before[0]["id"]
            await staging.until_stage(await staging.enqueue("new", to="new@example.org"), "sent")
        assert (await staging.email(copied))["held_why"] == "copied"
        log = await staging.rows("SELECT cause, because FROM sendonce.transition WHERE cause LIKE 'held%'")
        assert log == [{"cause": "held: copied", "because": "staging"}]
        # The original goes on.
        async with office.worker(LANE):
            await office.until_stage(copied, "sent")
    finally:
        embedded.drop_database(postgres_url, name)
    assert copies(office) == {"sent": 1, "new": 1}


async def test_the_command_reads_temporal_and_lets_the_workers_go_on(office: Office, run: Run, tmp_path: Path) -> None:
    async with office.worker(LANE):
        sent = await office.enqueue("sent", to="sent@example.org")
        await office.until_stage(sent, "sent")
        await until_visible(office, "sent")
    # A store that has forgotten.
    await office.rows("UPDATE sendonce.email SET stage = 'pending', final_at = NULL, started_at = NULL, seen_at = NULL")
    await office.rows("UPDATE sendonce.recipient SET stage = 'outstanding'")
    await office.rows("DELETE FROM sendonce.attempt")
    settings = f"""
[store]
database_url = "{office.database_url}"
[temporal]
address = "{office.target}"
task_queue_prefix = "{office.prefix}"
[accounts.default]
transport = "smtp"
host = "127.0.0.1"
port = {office.relay.port}
tls = "none"
"""
    path = tmp_path / "shop.toml"
    path.write_text(settings)
    async with office.worker(LANE):
        await until_halted(office, "completed_runs")
        done = await asyncio.to_thread(run, "reconcile", "--after-restore", "--json", "--config", str(path))
        assert done.code == 0, done.err
        assert done.objects[0] == {"found": "sent", "account": "default", "key": sent}
        assert done.objects[1]["going_on"] is True
        assert (await office.email(sent))["stage"] == "sent"
        new = await office.enqueue("new", to="new@example.org")
        await office.until_stage(new, "sent")
    assert copies(office) == {"sent": 1, "new": 1}
