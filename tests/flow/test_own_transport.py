"""A transport of somebody's own, from its entry point to mail that arrives, with a provider that misbehaves."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sendonce import settings
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.http_gateway import HttpGateway

if TYPE_CHECKING:
    from tests.flow.conftest import Flow

SECRET = "correct-horse-battery"

MODULE = """
import json
import httpx
from pydantic import SecretStr
from sendonce.transport import (
    AccountError, Capability, NotSent, PermanentError, RetryLater, SimpleSettings, SimpleTransport
)

class Settings(SimpleSettings):
    url: str
    token: SecretStr

class Pigeon(SimpleTransport[Settings]):
    name = "pigeon"
    settings_model = Settings
    capability = Capability(key="header Idempotency-Key")
    key_window = 86400.0

    def request(self, mail):
        addresses = [one.mailbox for one in mail.content.to]
        return json.dumps({"from": mail.content.sender.mailbox, "to": addresses, "text": mail.content.text}).encode()

    async def send(self, mail):
        token = self.settings.token.get_secret_value()
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": mail.idempotency_key}
        async with httpx.AsyncClient(timeout=mail.answer_seconds) as http:
            try:
                response = await http.post(self.settings.url, content=mail.body, headers=headers)
            except httpx.ConnectError:
                raise NotSent("no connection")
            except httpx.HTTPError as error:
                raise RuntimeError(f"{token} did not help with {mail.recipients}") from error
        if response.status_code == 429:
            raise RetryLater(response.headers["Retry-After"], 429, response.text)
        if response.status_code == 401:
            raise AccountError(401)
        if response.status_code == 422:
            raise PermanentError(422, response.text, name=response.json()["name"])
        return response.json()["id"]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the package is installed; returns where its application keeps its settings."""
    (tmp_path / "flow_pigeon.py").write_text(MODULE, encoding="utf-8")
    metadata = tmp_path / "flow_pigeon-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flow-pigeon\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[sendonce.transports]\npigeon = flow_pigeon:Pigeon\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "flow_pigeon", None)  # put back, whatever was there
    monkeypatch.delitem(sys.modules, "flow_pigeon")
    return tmp_path / "sendonce.toml"


def account(file: Path, url: str) -> Any:
    file.write_text(f'[accounts.default]\ntransport = "pigeon"\nurl = "{url}"\ntoken_env = "TOKEN"\n')
    (built,) = settings.build_transports(settings.load(file, {"TOKEN": SECRET})).values()
    return built


async def test_mail_goes_by_a_transport_of_ones_own(
    flow: Flow, package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with HttpGateway(api_key=SECRET) as gateway, flow.worker(account(package, gateway.url)):
        plain = await flow.enqueue("plain")
        await flow.until_stage(plain, "sent")

        gateway.script.add(bad.too_many_requests("0", times=1))
        later = await flow.enqueue("later")
        await flow.until_stage(later, "sent")

        gateway.script.add(bad.answer(422, "invalid_to", times=1))
        refused = await flow.enqueue("refused")
        await flow.until_stage(refused, "failed")

        # Accepted, and the answer is lost: what the transport raises says nothing of it.
        gateway.script.add(bad.lose_answer(times=1))
        lost = await flow.enqueue("lost")
        await flow.until_stage(lost, "sent")

        gateway.script.add(bad.unauthorised())
        held = await flow.enqueue("held")
        await flow.rows_until("SELECT 1 FROM sendonce.account WHERE paused_at IS NOT NULL")
    mails = gateway.mailbox.mails()
    assert len(mails) == 3
    assert [one.recipients for one in mails] == [("ann@example.org",)] * 3
    for key, stored in zip((plain, later, lost), mails, strict=True):
        ids = await flow.rows("SELECT provider_id FROM sendonce.recipient WHERE email_id = %s", [flow.ids[key]])
        assert ids == [{"provider_id": stored.provider_id}]
    for key, kinds in (
        (later, ["deferred", "accepted"]),
        (refused, ["refused"]),
        (lost, ["unanswered", "accepted"]),
        (held, ["account_fault"]),
    ):
        assert [one["answers"]["0"]["kind"] for one in await flow.attempts(key)] == kinds
    assert [one["counted"] for one in await flow.attempts(held)] == [False]
    # Replayed under the same key, byte for byte; after a definite answer there is another key.
    sent = {key: [one for one in gateway.requests if key in one.key] for key in (later, lost)}
    assert len({(one.key, one.body) for one in sent[lost]}) == 1
    assert len(sent[lost]) == len(sent[later]) == len({one.key for one in sent[later]}) == 2
    assert len({one.body for one in sent[later]}) == 1
    await nowhere(SECRET, flow, caplog.text)


async def nowhere(secret: str, flow: Flow, logs: str) -> None:
    """Neither in the logs nor in a history nor in any table."""
    assert "the mail is unknown" in logs
    assert secret not in logs
    for key in flow.ids:
        history = await flow.handle(key).fetch_history()
        assert secret.encode() not in b"".join(event.SerializeToString() for event in history.events)
    tables = await flow.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'sendonce'")
    assert len(tables) > 5
    for table in tables:
        rows = await flow.rows(f"SELECT to_jsonb(t)::text AS row FROM sendonce.{table['tablename']} t")
        assert secret not in "".join(row["row"] for row in rows), table
