"""``webhooks`` and ``dsn``: what comes back reaches the store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psycopg
import pytest

from sendonce.dsn.proof import Proof
from sendonce.embedded import free_port
from sendonce.store import open_pool

if TYPE_CHECKING:
    from tests.conftest import Run

SETTINGS = """
[store]
database_url = "{url}"
[accounts.default]
transport = "postmark"
api_key = "t"
[accounts.default.webhook]
secret_env = "HOOK_SECRET"
# Its key is not there: whoever takes webhooks of the other account needs it not.
[accounts.other]
transport = "postmark"
api_key_env = "NOT_SET"
"""

BOUNCE = """\
From: MAILER-DAEMON@mx.example.org
To: <shop@example.org>
Content-Type: multipart/report; report-type=delivery-status; boundary="b"
MIME-Version: 1.0

--b
Content-Type: text/plain

It did not work.

--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.org
Original-Envelope-Id: {envelope_id}

Final-Recipient: rfc822; ann.lee@example.org
Action: failed
Status: 5.1.1

--b--
"""


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as made:
        yield made


@pytest.fixture
def sent(connection: psycopg.Connection[Any]) -> UUID:
    """A mail that was sent, with the provider's id ``P1``."""
    message = {"key": "k1", "sender": "shop@example.org", "to": ["ann.lee@example.org"], "text": "Hi."}
    row = connection.execute("SELECT email_id FROM sendonce.enqueue(%s)", [json.dumps(message)]).fetchone()
    assert row is not None
    connection.execute("UPDATE sendonce.email SET stage = 'sent', final_at = now()")
    connection.execute("UPDATE sendonce.recipient SET stage = 'accepted', provider_id = 'P1'")
    return UUID(str(row[0]))


def delivery(connection: psycopg.Connection[Any]) -> list[Any]:
    return [row[0] for row in connection.execute("SELECT delivery FROM sendonce.recipient").fetchall()]


def suppressed(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("SELECT mailbox, reason, source FROM sendonce.suppression").fetchall()


@contextmanager
def serving(command: Path, folder: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, ready; ended by SIGTERM, in order."""
    process = subprocess.Popen(
        [command, *arguments], env=os.environ | variables, cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = ""
        while "ready:" not in said:
            said = process.stderr.readline()
            assert said, "it ended before it was ready"
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_webhook_reaches_the_store(
    sendonce: Path, database_url: str, connection: psycopg.Connection[Any], sent: UUID, tmp_path: Path
) -> None:
    (tmp_path / "sendonce.toml").write_text(SETTINGS.format(url=database_url), encoding="utf-8")
    port = free_port()
    bounce = {
        "RecordType": "Bounce", "Type": "HardBounce", "TypeCode": 1, "ID": 42, "MessageID": "P1",
        "Email": "ann.lee@example.org", "BouncedAt": "2026-01-31T12:00:00Z", "Metadata": {"sendonce_id": str(sent)},
    }  # fmt: skip
    with serving(sendonce, tmp_path, "webhooks", "--port", str(port), HOOK_SECRET="s3cret-s3cret-s3cret"):
        url = f"http://127.0.0.1:{port}/webhooks/default"
        assert httpx.post(url, json=bounce).status_code == 401
        assert delivery(connection) == [None]
        assert httpx.post(f"{url}/s3cret-s3cret-s3cret", json=bounce).status_code == 200
        assert httpx.post(f"{url}/s3cret-s3cret-s3cret", json=bounce).status_code == 200
    assert delivery(connection) == ["bounced"]
    assert suppressed(connection) == [("ann.lee@example.org", "bounced", "webhook:postmark")]
    assert connection.execute("SELECT count(*) FROM sendonce.event").fetchone() == (1,)


def test_webhooks_that_cannot_be_taken_say_why(run: Run, database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text(SETTINGS.format(url=database_url).partition("[accounts.default.webhook]")[0], encoding="utf-8")
    none = run("webhooks")
    assert (none.code, "no account has a webhook" in none.err) == (2, True)
    file.write_text(SETTINGS.format(url=database_url).replace("secret_env", "secrets_env"), encoding="utf-8")
    wrong = run("webhooks")
    assert (wrong.code, "[accounts.default.webhook] unknown key" in wrong.err) == (2, True)


def proof(connection: psycopg.Connection[Any]) -> Proof:
    row = connection.execute("SELECT secrets FROM sendonce.installation").fetchone()
    assert row is not None
    return Proof(row[0])


def test_a_bounce_that_proves_itself_suppresses_and_a_forged_one_does_not(
    run_process: Run, database_url: str, connection: psycopg.Connection[Any], sent: UUID
) -> None:
    where = {"SENDONCE_DATABASE_URL": database_url}
    envelope_id = proof(connection).envelope_id(sent)
    forged = BOUNCE.format(envelope_id=f"{sent}.{'a' * 16}")
    assert run_process("dsn", standard_input=forged, **where).code == 0
    assert (delivery(connection), suppressed(connection)) == ([None], [])
    assert connection.execute("SELECT proven, email_id FROM sendonce.event").fetchall() == [(False, None)]
    assert run_process("dsn", standard_input=BOUNCE.format(envelope_id=envelope_id), **where).code == 0
    assert delivery(connection) == ["bounced"]
    assert suppressed(connection) == [("ann.lee@example.org", "bounced", "dsn")]
    assert run_process("dsn", standard_input="Subject: hello\n\nNo bounce.\n", **where).code == 0


def test_a_mail_that_cannot_be_recorded_is_kept_by_the_mail_server(
    run: Run, run_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It waits for the store, usually for five seconds. What is read here is no mail, which is found out later.
    monkeypatch.setattr("sendonce.store.open_pool", partial(open_pool, timeout=0.2))
    assert run("dsn", SENDONCE_DATABASE_URL=f"postgresql://127.0.0.1:{free_port()}/x").code == 75
    (tmp_path / "sendonce.toml").write_text("[stor]\n", encoding="utf-8")
    assert run_process("dsn", standard_input="Subject: hello\n\n").code == 75


def test_a_maildir_is_read_once(
    run: Run, database_url: str, connection: psycopg.Connection[Any], sent: UUID, tmp_path: Path
) -> None:
    for name in ("new", "cur", "tmp"):
        (tmp_path / "bounces" / name).mkdir(parents=True)
    mail = BOUNCE.format(envelope_id=proof(connection).envelope_id(sent)).replace("5.1.1", "4.4.7")
    (tmp_path / "bounces" / "new" / "1.mx").write_text(mail, encoding="ascii")
    for _ in range(2):
        assert run("dsn", "--maildir", "bounces", "--once", SENDONCE_DATABASE_URL=database_url).code == 0
    assert delivery(connection) == ["soft_bounced"]
    assert not list((tmp_path / "bounces" / "new").iterdir())
    assert re.search("give --maildir or --lmtp", run("dsn", "--maildir", "x", "--lmtp", "127.0.0.1:1").err)


def test_lmtp(
    sendonce: Path, database_url: str, connection: psycopg.Connection[Any], sent: UUID, tmp_path: Path
) -> None:
    import smtplib

    port = free_port()
    mail = BOUNCE.format(envelope_id=proof(connection).envelope_id(sent))
    arguments = ("dsn", "--lmtp", f"127.0.0.1:{port}", "--log-level", "info")
    with serving(sendonce, tmp_path, *arguments, SENDONCE_DATABASE_URL=database_url):
        with smtplib.LMTP("127.0.0.1", port, timeout=20) as client:
            client.sendmail("", ["bounces@example.org"], mail)
        end = time.monotonic() + 20
        while delivery(connection) != ["bounced"]:
            assert time.monotonic() < end
            time.sleep(0.05)
