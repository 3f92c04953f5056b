"""What comes back about a mail: early, late, again and again, out of order, oddly written."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette

from sendonce import take_events
from sendonce.activities.transports.resend import ResendSettings, ResendTransport
from sendonce.dsn.proof import Proof
from sendonce.dsn.reader import Unproven
from sendonce.dsn.run import from_maildir, handler
from sendonce.events import Event
from sendonce.policy import DEFAULT_LANES
from sendonce.store import Store, open_pool
from sendonce.store.events import Terms
from sendonce.testing.http_request import HttpRequest
from sendonce.testing.resend_server import ResendServer
from sendonce.webhooks.app import make_app
from sendonce.webhooks.registry import make_receiver
from sendonce.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from tests.cases.conftest import Office

PRESENT, BEFORE, FOREIGN = (
    f"whsec_{base64.b64encode(word * 4).decode()}" for word in (b"present", b"before!", b"foreign")
)
TERMS = Terms(DEFAULT_LANES, "hooks")
T0 = 1_893_456_000


@dataclass
class Door:
    """What takes webhooks of the account ``default``, which is at Resend, and bounces by mail, over the real store."""

    store: Store
    app: Starlette

    async def raw(self, body: bytes, event_id: str = "e1", *, secret: str = PRESENT, age: float = 0) -> int:
        """Post this body, signed as it is; returns the status of the answer."""
        return await self.signed(body, body, event_id, secret=secret, age=age)

    async def signed(
        self, body: bytes, of: bytes, event_id: str = "e1", *, secret: str = PRESENT, age: float = 0
    ) -> int:
        """Post ``body`` under the signature of another one."""
        at = str(int(time.time() - age))
        key = base64.b64decode(secret.removeprefix("whsec_"))
        mac = hmac.new(key, f"{event_id}.{at}.".encode() + of, hashlib.sha256).digest()
        headers = {
            "svix-id": event_id,
            "svix-timestamp": at,
            "svix-signature": f"v1,{base64.b64encode(mac).decode()}",
        }
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hooks.test") as client:
            return (await client.post("/webhooks/default", content=body, headers=headers)).status_code

    async def post(self, event_id: str, kind: str, at: int, **data: Any) -> None:
        """An event of Resend's that happened ``at`` seconds after the beginning."""
        moment = datetime.fromtimestamp(T0 + at, UTC).isoformat()
        content = {"type": f"email.{kind}", "created_at": moment, "data": {"to": ["ann@example.org"], **data}}
        assert await self.raw(json.dumps(content).encode(), event_id) == 200

    async def bounce_mail(self, folder: Path, mail: str) -> None:
        """A mail to the mailbox that takes bounces, read from its Maildir."""
        for part in ("new", "cur", "tmp"):
            (folder / part).mkdir(parents=True)
        (folder / "new" / "1.mx").write_text(mail, encoding="ascii")

        async def record(events: Sequence[Event]) -> None:
            await self.store.record_events("", events, TERMS)

        async def park(unproven: Sequence[Unproven]) -> None:
            await self.store.record_events("", [one.event for one in unproven], TERMS, proven=False)

        proof = Proof(await self.store.bounce_secrets())
        assert await from_maildir(handler(proof, record, park), folder, asyncio.Event(), once=True)


HARD = {"bounce": {"type": "Permanent", "subType": "General", "message": "550 5.1.1 no such user"}}
SOFT = {"bounce": {"type": "Transient", "subType": "MailboxFull", "message": "452 4.2.2 full"}}


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Door]:
    settings = WebhookSettings(secret=SecretStr(PRESENT), previous_secret=SecretStr(BEFORE))
    async with open_pool(database_url, name="test", max_size=4) as pool:
        store = Store(pool)

        async def record(account: str, events: Sequence[Event]) -> None:
            await store.record_events(account, events, TERMS)

        yield Door(store, make_app({"default": make_receiver("resend", settings)}, record))


@pytest.fixture
async def resend() -> AsyncIterator[ResendServer]:
    async with ResendServer() as server:
        yield server


def account_at(server: ResendServer) -> dict[str, Any]:
    return {"default": ResendTransport(ResendSettings(api_key=SecretStr("re_1"), base_url=server.origin))}


async def deliveries(office: Office, key: str) -> list[tuple[str, str | None]]:
    rows = await office.rows(
        "SELECT r.mailbox, r.delivery FROM sendonce.recipient r JOIN sendonce.email e ON e.id = r.email_id"
        " WHERE e.key = %s ORDER BY r.ordinal",
        [key],
    )
    return [(row["mailbox"], row["delivery"]) for row in rows]


async def suppressed(office: Office) -> list[str]:
    return [row["mailbox"] for row in await office.rows("SELECT mailbox FROM sendonce.suppression ORDER BY 1")]


@pytest.mark.parametrize("named_by", ["our id", "the provider's id"])
async def test_an_event_that_comes_before_the_answer_to_its_mail_is_not_lost(
    office: Office, door: Door, resend: ResendServer, named_by: str
) -> None:
    seen: list[str] = []

    async def on_event(name: str, request: HttpRequest) -> None:
        """The provider knows already what became of the mail when it has not yet said that it took it."""
        if name != "accepted":
            return
        (offered,) = await office.rows("SELECT key FROM sendonce.email WHERE stage = 'transmitting'")
        seen.append(offered["key"])
        content = json.loads(request.body)
        data: dict[str, Any] = {"email_id": resend.mailbox.mails()[-1].provider_id, "to": content["to"]}
        if named_by == "our id":
            data = {"email_id": "", "to": content["to"], "tags": content["tags"]}
        if content["to"] == ["bob@example.org"]:
            await door.post("b", "bounced", 1, **data, **HARD)
        else:
            await door.post("d", "delivered", 1, **data)

    resend.on_event = on_event
    async with office.worker(transports=account_at(resend)):
        keys = []
        for name in ("ann", "bob"):
            keys.append(await office.enqueue(name, to=[f"{name}@example.org"]))
            await office.until_stage(keys[-1], "sent")
        await office.until_row("SELECT 1 FROM sendonce.event HAVING count(*) = 2 AND count(email_id) = 2")
    assert seen == keys
    assert await deliveries(office, keys[0]) == [("ann@example.org", "delivered")]
    assert await deliveries(office, keys[1]) == [("bob@example.org", "bounced")]
    assert await suppressed(office) == ["bob@example.org"]
    assert [len(await office.attempts(key)) for key in keys] == [1, 1]
    assert resend.mailbox.copies() == 2
    assert await office.alarms() == []


async def test_what_became_of_a_mail_follows_from_what_happened_not_from_when_it_is_told(
    office: Office, door: Door, resend: ResendServer
) -> None:
    keys = {}
    async with office.worker(transports=account_at(resend)):
        for name in ("again", "late", "soft", "hard"):
            keys[name] = await office.enqueue(name)
        for key in keys.values():
            await office.until_stage(key, "sent")
    found = await office.rows(
        "SELECT e.key, r.provider_id FROM sendonce.email e JOIN sendonce.recipient r ON r.email_id = e.id"
    )
    ids = {row["key"]: {"email_id": row["provider_id"]} for row in found}

    async def state(name: str) -> str | None:
        [(_, delivery)] = await deliveries(office, keys[name])
        return delivery

    # Up to 46 times in little more than a day, two of them at the same moment; an older word in between.
    again = ids[keys["again"]]
    await door.post("again-b", "bounced", 5, **again, **HARD)
    await door.post("again-d", "delivered", 3, **again)
    for _ in range(22):
        await asyncio.gather(*(door.post("again-b", "bounced", 5, **again, **HARD) for _ in range(2)))
    await door.post("again-b", "bounced", 5, **again, **HARD)
    assert await state("again") == "bounced"

    late = ids[keys["late"]]
    await door.post("late-d", "delivered", 8, **late)
    await door.post("late-w", "delivery_delayed", 9, **late)
    assert await state("late") == "delivered"
    await door.post("late-b", "bounced", 3600, **late, **HARD)
    assert await state("late") == "bounced"

    soft = ids[keys["soft"]]
    await door.post("soft-b", "bounced", 5, **soft, **SOFT)
    assert await state("soft") == "soft_bounced"
    await door.post("soft-d", "delivered", 6, **soft)
    assert await state("soft") == "delivered"

    hard = ids[keys["hard"]]
    await door.post("hard-c", "complained", 7, **hard)
    await door.post("hard-d", "delivered", 6, **hard)
    assert await state("hard") == "complained"

    # Business code gets each once too.
    with psycopg.connect(office.database_url) as connection:
        taken = take_events(connection)
    assert sorted((one.key, str(one.kind)) for one in taken) == sorted(
        (keys[name], kind)
        for name, kinds in {
            "again": ["bounced", "delivered"],
            "late": ["delivered", "delayed", "bounced"],
            "soft": ["soft_bounced", "delivered"],
            "hard": ["complained", "delivered"],
        }.items()
        for kind in kinds
    )
    assert {(await office.email(key))["stage"] for key in keys.values()} == {"sent"}


BODIES = {
    "slashes that are escaped": rb'{"type":"email.delivered","data":{"url":"https:\/\/example.com\/'
    + "é".encode()
    + b'"}}',
    "spaces": b'{ "type" :  "email.delivered" ,\t"data": { "url": "https:\\/\\/example.com\\/\xc3\xa9" } }',
    "letters that are escaped": rb'{"type":"email.delivered","data":{"url":"https:\/\/example.com\/\u00e9"}}',
    "a line end behind it": rb'{"type":"email.delivered","data":{"url":"https:\/\/example.com\/\u00e9"}}' + b"\n",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_signature_is_over_the_bytes_as_they_came(door: Door, database_url: str, body: bytes) -> None:
    as_we_would_write_it = json.dumps(json.loads(body)).encode()
    assert as_we_would_write_it != body

    async def kept() -> int:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            rows = await (await connection.execute("SELECT 1 FROM sendonce.event")).fetchall()
        return len(rows)

    assert await door.signed(body, as_we_would_write_it) == 401
    assert await door.signed(as_we_would_write_it, body) == 401
    assert await door.raw(body, age=3600) == 401
    assert await door.raw(body, secret=FOREIGN) == 401
    assert await kept() == 0
    assert await door.raw(body, "e1") == 200
    assert await door.raw(body, "e2", secret=BEFORE) == 200
    assert await kept() == 2


DSN = """\
From: MAILER-DAEMON@mx.example.org
To: <shop@example.com>
Content-Type: multipart/report; report-type=delivery-status; boundary="b"
MIME-Version: 1.0

--b
Content-Type: text/plain

It did not work.

--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.org
Original-Envelope-Id: {envelope_id}

Final-Recipient: rfc822; bob@example.org
Action: failed
Status: 5.1.1
Diagnostic-Code: smtp; 550 5.1.1 no such user

--b--
"""


async def test_a_late_bounce_of_one_recipient_changes_that_one_only(office: Office, door: Door, tmp_path: Path) -> None:
    names = ["ann@example.org", "bob@example.org", "cid@example.org"]
    async with office.worker():
        key = await office.enqueue(to=names)
        before = await office.until_stage(key, "sent")
        stages = await office.rows("SELECT ordinal, stage, code, changed_at FROM sendonce.recipient ORDER BY ordinal")
        proof = Proof(await door.store.bounce_secrets())
        await door.bounce_mail(tmp_path / "bounces", DSN.format(envelope_id=proof.envelope_id(UUID(str(before["id"])))))
        assert await deliveries(office, key) == [(names[0], None), (names[1], "bounced"), (names[2], None)]
        # Nobody is written to again, and the mail stands where it stood.
        again = await office.enqueue("next", to=names)
        await office.until_stage(again, "sent")
    after = await office.email(key)
    assert (after["stage"], after["partial"], after["attempts"]) == ("sent", False, 1)
    assert stages == await office.rows(
        "SELECT ordinal, stage, code, changed_at FROM sendonce.recipient WHERE email_id = %s ORDER BY ordinal",
        [before["id"]],
    )
    assert await suppressed(office) == [names[1]]
    # The bounce counts for what follows: the next mail goes to the others.
    assert [mail.recipients for mail in office.relay.mailbox.mails()] == [tuple(names), (names[0], names[2])]
