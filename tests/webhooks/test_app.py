"""The app and the server around it: what each answer is, over a real connection where that matters."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import SecretStr

from sendonce.events import Event
from sendonce.webhooks.app import make_app
from sendonce.webhooks.receiver import Delivery, Receiver, Taken
from sendonce.webhooks.registry import make_receiver
from sendonce.webhooks.serving import serve
from sendonce.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from tests.webhooks.conftest import OpenDoor, Signed, Unsigned

NOW = 1_788_000_000
SECRET = "a-shared-secret-of-ours"
BEARER = {"Authorization": f"Bearer {SECRET}"}
DELIVERY = json.dumps({"RecordType": "Delivery", "MessageID": "m-1", "Recipient": "ann@example.org"}).encode()


def postmark() -> Receiver:
    return make_receiver("postmark", WebhookSettings(secret=SecretStr(SECRET)))


# Answers ----------------------------------------------------------------------------------------------------------


async def test_it_says_that_it_lives(open_door: OpenDoor) -> None:
    answer = await open_door(postmark()).request("GET", "/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")


async def test_an_account_that_is_not_there(open_door: OpenDoor) -> None:
    door = open_door(postmark())
    for path in ("/webhooks/other", f"/webhooks/other/{SECRET}", "/webhooks/", "/webhooks/main/a/b", "/"):
        assert (await door.post(DELIVERY, BEARER, path)).status_code == 404, path
    assert door.store.calls == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_only_posting_is_meant(method: str, open_door: OpenDoor) -> None:
    answer = await open_door(postmark()).request(method, "/webhooks/main", headers=BEARER)
    assert answer.status_code == 405


async def test_what_is_authentic_and_says_nothing(unsigned: Unsigned, open_door: OpenDoor) -> None:
    for body in (b"", b"{", b"null", b"[]", b"7", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"event": "new"}', b"[{}]"):
        door = open_door(unsigned.receiver())
        answer = await door.post(body, BEARER)
        assert (answer.status_code, answer.content) == (200, b"")
        assert door.store.calls == []


async def test_the_same_for_signed_ones(signed: Signed, open_door: OpenDoor) -> None:
    for body in (b"{}", b'{"type": "something.new", "event": "something.new"}'):
        door = open_door(signed.receiver())
        answer = await door.post(*signed.sign(body, signed.secrets[0], NOW))
        assert (answer.status_code, door.store.calls) == (200, [])


async def test_a_store_that_is_away(signed: Signed, open_door: OpenDoor) -> None:
    door = open_door(signed.receiver())
    request = signed.sign(signed.body, signed.secrets[0], NOW)
    door.store.away = OSError("no route to the database")
    assert (await door.post(*request)).status_code == 503
    door.store.away = None
    assert (await door.post(*request)).status_code == 200
    assert len(door.store.kept) == 1


async def test_a_store_that_does_not_answer() -> None:
    async def never(account: str, events: Sequence[Event]) -> None:
        await asyncio.Event().wait()

    app = make_app({"main": postmark()}, never, record_seconds=0.05)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://hooks.test") as client:
        assert (await client.post("/webhooks/main", content=DELIVERY, headers=BEARER)).status_code == 503


async def test_a_fault_of_ours_is_not_repeated_for_hours(open_door: OpenDoor, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Receiver):
        name = "broken"

        async def verify(self, delivery: Delivery) -> None:
            pass

        async def read(self, delivery: Delivery) -> Taken:
            raise KeyError("ann@example.org")

    door = open_door(Broken(WebhookSettings()))
    assert (await door.post(b"{}")).status_code == 200
    assert "webhook of main: a KeyError of broken cannot be read and is dropped: please report it" in caplog.messages


async def test_too_much(open_door: OpenDoor) -> None:
    door = open_door(postmark(), body_limit=len(DELIVERY))
    assert (await door.post(DELIVERY, BEARER)).status_code == 200
    assert (await door.post(DELIVERY + b" ", BEARER)).status_code == 413
    assert len(door.store.calls) == 1


async def test_accounts_are_kept_apart() -> None:
    calls: list[tuple[str, int]] = []

    async def record(account: str, events: Sequence[Event]) -> None:
        calls.append((account, len(events)))

    other = make_receiver("postmark", WebhookSettings(secret=SecretStr("the-secret-of-another")))
    app = make_app({"main": postmark(), "other": other}, record)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://hooks.test") as client:
        for account, status in (("main", 200), ("other", 401)):
            answer = await client.post(f"/webhooks/{account}", content=DELIVERY, headers=BEARER)
            assert answer.status_code == status
    assert calls == [("main", 1)]


# Azure's handshakes -----------------------------------------------------------------------------------------------


def azure() -> Receiver:
    return make_receiver("azure", WebhookSettings(secret=SecretStr(SECRET)))


async def test_event_grid_is_told_its_code(open_door: OpenDoor) -> None:
    body = json.dumps(
        [
            {
                "id": "2d1781af-3a4c-4d7c-bd0c-e34b19da4e66",
                "topic": "/subscriptions/xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
                "subject": "",
                "data": {
                    "validationCode": "512d38b6-c7b8-40c8-89fe-f46f9e9622b6",
                    "validationUrl": "https://rp-eastus2.eventgrid.azure.net:553/eventsubscriptions/x/validate",
                },
                "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
                "eventTime": "2018-01-25T22:12:19.4556811Z",
                "metadataVersion": "1",
                "dataVersion": "1",
            }
        ]
    ).encode()
    door = open_door(azure())
    answer = await door.post(body, {"aeg-event-type": "SubscriptionValidation"}, f"/webhooks/main?secret={SECRET}")
    assert (answer.status_code, answer.json()) == (
        200,
        {"validationResponse": "512d38b6-c7b8-40c8-89fe-f46f9e9622b6"},
    )
    assert (await door.post(body, {}, "/webhooks/main?secret=guessed")).status_code == 401
    assert door.store.calls == []


async def test_cloud_events_are_asked_for(open_door: OpenDoor) -> None:
    door = open_door(azure())
    origin = {"WebHook-Request-Origin": "eventgrid.azure.net"}
    answer = await door.request("OPTIONS", f"/webhooks/main?secret={SECRET}", headers=origin)
    assert answer.status_code == 200
    assert answer.headers["WebHook-Allowed-Origin"] == "eventgrid.azure.net"
    answer = await door.request("OPTIONS", "/webhooks/main?secret=guessed", headers=origin)
    assert answer.status_code == 401
    assert "WebHook-Allowed-Origin" not in answer.headers
    assert (await door.request("OPTIONS", f"/webhooks/main?secret={SECRET}")).status_code == 405


# Over a connection ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(app, "127.0.0.1", 0, stop, ready=ready.set_result))
    try:
        yield await ready
    finally:
        stop.set()
        await serving


async def test_a_provider_on_the_wire(signed: Signed, open_door: OpenDoor) -> None:
    door = open_door(signed.receiver())
    body, headers = signed.sign(signed.body, signed.secrets[0], NOW)
    async with listening(door.app) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/webhooks/main"
        assert (await client.post(url, content=body, headers=headers)).status_code == 200

        # Without a length, in pieces.
        async def pieces() -> AsyncIterator[bytes]:
            for place in range(0, len(body), 100):
                yield body[place : place + 100]

        assert (await client.post(url, content=pieces(), headers=headers)).status_code == 200
    assert len(door.store.kept) == 1


async def raw(port: int, request: bytes) -> bytes:
    """What comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


def head(*lines: str) -> bytes:
    return "\r\n".join(
        ["POST /webhooks/main HTTP/1.1", "Host: h", f"Authorization: Bearer {SECRET}", *lines, "", ""]
    ).encode()


async def test_a_declared_length_is_refused_before_it_is_read(open_door: OpenDoor) -> None:
    door = open_door(postmark(), body_limit=1000)
    async with listening(door.app) as port:
        answer = await raw(port, head("Content-Length: 1001"))
        assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_length_that_is_not_declared_ends_where_it_must(open_door: OpenDoor) -> None:
    door = open_door(postmark(), body_limit=1000)
    async with listening(door.app) as port:
        answer = await raw(port, head("Transfer-Encoding: chunked") + b"3e9\r\n" + b"x" * 1001)
        assert answer.startswith(b"HTTP/1.1 413 ")
    assert door.store.calls == []


async def test_a_body_that_does_not_come(open_door: OpenDoor) -> None:
    door = open_door(postmark(), body_seconds=0.05)
    async with listening(door.app) as port:
        answer = await raw(port, head("Content-Length: 10") + b"{")
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_connection_that_breaks(open_door: OpenDoor, caplog: pytest.LogCaptureFixture) -> None:
    door = open_door(postmark())
    async with listening(door.app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head("Content-Length: 10") + b"{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"http://127.0.0.1:{port}/webhooks/main", content=DELIVERY, headers=BEARER)
            assert answer.status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_stopping_waits_for_what_is_being_kept() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    kept: list[Event] = []

    async def record(account: str, events: Sequence[Event]) -> None:
        begun.set()
        await go_on.wait()
        kept.extend(events)

    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = make_app({"main": postmark()}, record)
    serving = asyncio.create_task(serve(app, "127.0.0.1", 0, stop, ready=ready.set_result))
    async with httpx.AsyncClient() as client:
        posting = asyncio.create_task(
            client.post(f"http://127.0.0.1:{await ready}/webhooks/main", content=DELIVERY, headers=BEARER)
        )
        await begun.wait()
        stop.set()
        go_on.set()
        assert (await posting).status_code == 200
        await serving
    assert len(kept) == 1


async def test_a_port_that_is_taken() -> None:
    app = make_app({}, _nothing)
    async with listening(app) as port:
        with pytest.raises(OSError, match="in use"):
            await serve(app, "127.0.0.1", port, asyncio.Event())


async def _nothing(account: str, events: Sequence[Event]) -> None:
    pass


# Logs -------------------------------------------------------------------------------------------------------------


async def test_no_address_body_or_secret_is_logged(
    unsigned: Unsigned, open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    door = open_door(unsigned.receiver())
    async with listening(door.app) as port, httpx.AsyncClient() as client:
        caplog.clear()
        door.store.away = RuntimeError("INSERT … VALUES ('ann@example.org')")
        url = f"http://127.0.0.1:{port}/webhooks/main"
        assert (await client.post(f"{url}/{SECRET}", content=unsigned.body)).status_code == 503
        assert (await client.post(f"{url}/wrong-{SECRET}", content=unsigned.body)).status_code == 401
        caplog.records[:] = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "1 events not kept (RuntimeError)" in text
    assert "refused, wrong secret" in text
    for private in (SECRET, "example.", "azure.com", "mailjet.com", "550", "VALUES"):
        assert private not in text, private
    assert all(record.exc_info is None for record in caplog.records)
