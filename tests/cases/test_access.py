"""A whole delivery by roles that may do little, with credentials that are rotated meanwhile, and through a pooler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from sendonce import OutgoingEmail, cancel, enqueue, enqueue_many, settings, status, take_events
from sendonce.embedded import free_port
from sendonce.embedded.binaries import postgres_account
from sendonce.errors import ConfigurationError
from sendonce.store import roles
from sendonce.store.pooling import check_pooler
from sendonce.testing.smtp_server import SmtpServer
from sendonce.worker import WorkerConfig
from tests.cases.conftest import Office, make_lane, until

LANE = make_lane()


@pytest.fixture
def names(database_url: str) -> Iterator[roles.Roles]:
    mark = uuid.uuid4().hex[:10]
    names = roles.Roles(f"app_{mark}", f"worker_{mark}", f"operator_{mark}")
    roles.apply(database_url, roles.grants(names, create=True))
    made = [name for name in (names.app, names.worker, names.operator) if name]
    for name in made:
        password(database_url, name, "first")
    yield names
    with psycopg.connect(database_url, autocommit=True) as owner:
        for name in made:
            owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def password(url: str, role: str, secret: str) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(secret)))


def login(url: str, role: str | None, secret: str) -> str:
    return make_conninfo(url, user=role or "", password=secret)


async def test_roles_that_may_do_little_and_secrets_that_are_rotated(
    office: Office, names: roles.Roles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passwords are rotated while the worker runs: it goes on, and the paused account heals."""
    assert names.worker is not None
    url, relay_password = tmp_path / "url", tmp_path / "relay"
    url.write_text(login(office.database_url, names.worker, "first") + "\n")
    relay_password.write_text("old")
    (tmp_path / "sendonce.toml").write_text(f"""
[store]
database_url_file = "url"
[accounts.default]
transport = "smtp"
host = "127.0.0.1"
port = PORT
tls = "none"
username = "shop"
password_file = "relay"
[temporal]
address = "{office.target}"
task_queue_prefix = "{office.prefix}"
""")
    async with SmtpServer(credentials={"shop": "new"}) as relay:
        file = tmp_path / "sendonce.toml"
        file.write_text(file.read_text().replace("PORT", str(relay.port)))
        found = settings.load(file)
        made = settings.build_worker_config(found, settings.build_transports(found))
        monkeypatch.setattr(office, "config", lambda *_, **__: quick(made))
        async with office.worker(LANE):
            first = await sent_by(office, names, "one")
            await office.until_row("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
            assert relay.mailbox.copies() == 0
            relay_password.write_text("new\n")
            assert (await office.until_stage(await sent_by(office, names, "two"), "sent"))["attempts"] == 1
            await office.handle(first).signal("wake", {})
            await office.until_stage(first, "sent")
            # Nobody would probe the pause of the old secret: it is over, and so is its alarm.
            await office.until_row(
                "SELECT 1 WHERE NOT EXISTS (SELECT FROM sendonce.account WHERE paused_at IS NOT NULL)"
            )
            [told] = await office.rows("SELECT b.detail FROM sendonce.alarm a JOIN sendonce.alarm b ON b.closes = a.id")
            assert told["detail"].startswith("the settings have changed (settings ")

            password(office.database_url, names.worker, "second")
            url.write_text(login(office.database_url, names.worker, "second"))
            await office.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [names.worker]
            )
            await office.until_stage(await sent_by(office, names, "three"), "sent")
            # It is that role that does the work.
            by = await office.rows(
                "SELECT DISTINCT usename FROM pg_stat_activity"
                " WHERE application_name ~ 'sendonce' AND datname = current_database()"
            )
            assert by == [{"usename": names.worker}]
    assert relay.mailbox.copies() == 3
    log = await office.rows("SELECT DISTINCT actor FROM sendonce.transition WHERE cause = 'enqueued'")
    assert log == [{"actor": names.app}]


def quick(config: WorkerConfig) -> WorkerConfig:
    return replace(config, poll_seconds=0.2, drain_seconds=2.0, lanes={"default": LANE})


async def sent_by(office: Office, names: roles.Roles, name: str) -> str:
    """Enqueue as business code."""
    key = f"{office.prefix}-{name}"
    email = OutgoingEmail(key=key, sender="shop@example.com", to="ann@example.org", text="Hi")
    async with await psycopg.AsyncConnection.connect(login(office.database_url, names.app, "first")) as app:
        assert (await enqueue(app, email)).created
    return key


@pytest.fixture
def pooled(office: Office) -> Iterator[str]:
    """The office's database through a real PgBouncer that pools by transaction."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (apt-get install pgbouncer)")
    direct = conninfo_to_dict(office.database_url)
    port = free_port()
    account = postgres_account(Path("/nonexistent"))
    # It does not run as root, and whom it runs as must find its settings.
    with tempfile.TemporaryDirectory(prefix="sendonce-pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "pgbouncer.ini")
        file.write_text(f"""
[databases]
{direct["dbname"]} = host={direct["host"]} port={direct["port"]} user={direct["user"]} password={direct["password"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
""")
        process = subprocess.Popen(
            [program, str(file)],
            user=account.uid if account else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},
        )
        try:
            yield make_conninfo("", host="127.0.0.1", port=port, user="anyone", dbname=str(direct["dbname"]))
        finally:
            process.kill()
            process.wait()


async def reached(url: str) -> bool:
    try:
        await (await psycopg.AsyncConnection.connect(url)).close()
    except psycopg.OperationalError:
        return False
    return True


async def test_a_pooler_by_transaction_is_noticed_and_worked_with(office: Office, pooled: str) -> None:
    direct = office.database_url
    await until(lambda: reached(pooled), lambda: "pgbouncer")
    with pytest.raises(ConfigurationError, match=r"set \[store\] pooler"):
        async with office.worker(LANE, database_url=pooled):
            pass
    # What a session begins with cannot be told to it: it must be right.
    name = sql.Identifier(str(conninfo_to_dict(direct)["dbname"]))
    with psycopg.connect(direct, autocommit=True) as owner:
        owner.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(name))
        owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with pytest.raises(ConfigurationError, match="SET default_transaction_isolation = 'read committed'"):
            async with office.worker(LANE, database_url=pooled, pooler="transaction"):
                pass
        owner.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))
        owner.execute(sql.SQL("ALTER DATABASE {} SET lock_timeout = '4s'").format(name))
        owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    async with office.worker(LANE, database_url=pooled, pooler="transaction"):
        keys = [f"{office.prefix}-{n}" for n in range(20)]
        emails = [OutgoingEmail(key=key, sender="shop@example.com", to="ann@example.org", text="Hi") for key in keys]
        engine = create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(pooled, prepare_threshold=None), poolclass=NullPool
        )
        with Session(engine) as session, session.begin():
            assert all(one.created for one in enqueue_many(session, emails[:10]))
        with psycopg.connect(pooled, prepare_threshold=None) as app:
            for email in emails[10:]:
                enqueue(app, email)
                app.commit()
            for key in keys:
                found = status(app, key)
                assert found is not None
            assert take_events(app) == []
            assert cancel(app, "no-such-key").outcome == "missing"
        engine.dispose()
        for key in keys:
            await office.until_stage(key, "sent")
    assert office.relay.mailbox.copies() == 20


async def test_a_server_that_tells_nothing_about_itself(office: Office, names: roles.Roles) -> None:
    """As some services do; then there are fewer witnesses, and everything else goes on."""
    hidden = ("pg_control_system()", "pg_walfile_name(pg_lsn)")
    key = await office.enqueue()

    async def identity() -> dict[str, Any]:
        return (await office.rows("SELECT system_id, timeline, database_oid FROM sendonce.continuity"))[0]

    for function in hidden:
        await office.rows(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    url = login(office.database_url, names.worker, "first")
    async with office.worker(LANE, database_url=url):
        await office.until_stage(key, "sent")
    found = await identity()
    assert (found["system_id"], found["timeline"], found["database_oid"] is not None) == (None, None, True)
    for function in hidden:
        await office.rows(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC")
    async with office.worker(LANE, database_url=url):
        await office.until_row("SELECT 1 FROM sendonce.continuity WHERE timeline = 1 AND system_id IS NOT NULL")
    assert await office.alarms() == []


def test_sessions_behind_a_pooler_by_transaction_must_not_wait_for_locks_for_ever(office: Office) -> None:
    """A worker cannot tell them so. What the role begins with may be shorter."""
    name = sql.Identifier(str(conninfo_to_dict(office.database_url)["dbname"]))
    with psycopg.connect(office.database_url, autocommit=True) as owner:
        for wrong in ("0", "6s"):
            owner.execute(sql.SQL("ALTER DATABASE {} SET lock_timeout = {}").format(name, wrong))
            with pytest.raises(ConfigurationError, match=r'rely on: ALTER ROLE "[^"]+" SET lock_timeout = .5000.;'):
                check_pooler(office.database_url, "transaction")
        owner.execute(sql.SQL("ALTER DATABASE {} SET lock_timeout = '4s'").format(name))
    check_pooler(office.database_url, "transaction")
