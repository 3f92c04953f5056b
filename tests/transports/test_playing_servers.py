"""The playing servers themselves, where the transports' tests do not already show it."""

from __future__ import annotations

import asyncio
import smtplib
from pathlib import Path

import httpx
import pytest

from sendonce.testing import http_misbehaviour
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.mailbox import Mailbox, StoredMail
from sendonce.testing.script import Rule, Script
from sendonce.testing.smtp_server import SmtpServer


def stored(message_id: str = "<1@x>", recipients: tuple[str, ...] = ("a@x", "b@x")) -> StoredMail:
    content = f"Message-ID: {message_id}\r\nSubject: Hi\r\n\r\nbody\r\n".encode()
    return StoredMail("s@x", recipients, content, message_id, "q1", "key", {"x-order": "17"})


def test_copies_are_counted_by_recipient_message_id_and_header() -> None:
    mailbox = Mailbox()
    mailbox.store(stored())
    mailbox.store(stored())
    mailbox.store(stored("<2@x>", ("a@x",)))
    assert mailbox.copies() == 5
    assert mailbox.copies("a@x") == 3
    assert mailbox.copies("a@x", message_id="<1@x>") == 2
    assert mailbox.copies("A@x") == 0
    assert mailbox.copies(header=("X-Order", "17")) == 5
    assert mailbox.copies(header=("X-Order", "18")) == 0
    mailbox.clear()
    assert mailbox.mails() == []


def test_a_kept_mailbox_is_seen_by_others_in_order(folder: Path) -> None:
    writer, reader = Mailbox(folder), Mailbox(folder)
    for number in range(5):
        writer.store(stored(f"<{number}@x>"))
    assert reader.mails() == writer.mails() == Mailbox(folder).mails()
    assert [mail.message_id for mail in reader.mails()] == [f"<{n}@x>" for n in range(5)]
    assert reader.mails()[0].parsed()["Subject"] == "Hi"
    # A message whose envelope is not there yet is not complete.
    (folder / "new" / "zzz.eml").write_bytes(b"half")
    assert len(Mailbox(folder).mails()) == 5
    writer.clear()
    assert Mailbox(folder).mails() == []


def test_rules_are_used_up_in_order() -> None:
    script = Script(Rule("a", 1, times=1), Rule("a", 2, times=1, when=lambda x: x == "y"), Rule("b", 3))
    assert [script.pick("a", "y"), script.pick("a", "x"), script.pick("a", "y"), script.pick("a", "y")] == [
        1,
        None,
        2,
        None,
    ]
    assert [script.pick("b"), script.pick("b")] == [3, 3]


async def test_the_smtp_server_talks_to_other_clients(smtp: SmtpServer) -> None:
    def talk() -> tuple[int, dict[str, tuple[int, bytes]]]:
        with smtplib.SMTP("127.0.0.1", smtp.port) as client:
            client.ehlo("me.test")
            refused = client.sendmail("s@x", ["a@x", "b@x"], b"Message-ID: <1@x>\r\n\r\n.dot\r\n")
            code, _ = client.docmd("HELP")
            client.rset()
            assert client.noop()[0] == 250
            with pytest.raises(smtplib.SMTPSenderRefused):
                client.sendmail("s@x", ["a@x"], b"x" * 10)
            return code, refused

    smtp.script.add(bad.reject_mailbox("b@x"), bad.answer("mail", 550, times=1))
    smtp.script.rules[1].when = lambda _: len(smtp.mailbox.mails()) == 1
    code, refused = await asyncio.to_thread(talk)
    assert code == 502
    assert list(refused) == ["b@x"]
    assert smtp.mailbox.copies("a@x", message_id="<1@x>") == 1
    assert smtp.mailbox.mails()[0].content.endswith(b"\r\n\r\n.dot\r\n")


async def test_a_message_beyond_the_servers_script_is_kept_on_disk(folder: Path) -> None:
    async with SmtpServer(Mailbox(folder)) as server:

        def talk() -> None:
            with smtplib.SMTP("127.0.0.1", server.port) as client:
                client.sendmail("s@x", ["a@x"], b"Message-ID: <1@x>\r\n\r\nhi\r\n")

        await asyncio.to_thread(talk)
    assert Mailbox(folder).copies("a@x", message_id="<1@x>") == 1


async def test_the_gateway_judges_requests(gateway: HttpGateway) -> None:
    gateway.api_key = "secret"
    good = {"from": "S <s@x>", "to": [{"email": "a@x"}, "B <b@x>"], "cc": "c@x", "headers": {"Message-ID": "<1@x>"}}
    async with httpx.AsyncClient(headers={"Authorization": "Bearer secret"}) as client:
        assert (await client.post(gateway.url, json=good, headers={"Authorization": "no"})).status_code == 401
        assert (await client.get(gateway.url)).status_code == 405
        assert (await client.post(gateway.url, content=b"{")).status_code == 422
        assert (await client.post(gateway.url, json={"to": []})).status_code == 422
        assert (await client.post(gateway.url, json={"to": ["nobody"]})).status_code == 422
        answer = await client.post(gateway.url, json=good)
    assert answer.json() == {"id": gateway.mailbox.mails()[0].provider_id}
    assert gateway.mailbox.mails()[0].recipients == ("a@x", "b@x", "c@x")
    assert gateway.mailbox.copies("b@x", message_id="<1@x>") == 1
    assert gateway.mailbox.mails()[0].json() == good


async def test_the_gateway_frees_a_key_whose_request_was_not_accepted(gateway: HttpGateway) -> None:
    gateway.script.add(http_misbehaviour.answer(422, at="refuse", times=1))
    async with httpx.AsyncClient(headers={"Idempotency-Key": "k"}) as client:
        statuses = [
            (await client.post(gateway.url, json={"from": "s@x", "to": [to]})).status_code
            for to in ("a@x", "b@x", "c@x")
        ]
    assert statuses == [422, 200, 409]


async def test_the_gateways_hooks_are_called_in_order(gateway: HttpGateway) -> None:
    seen: list[tuple[str, int]] = []

    async def on_event(name: str, _: object) -> None:
        seen.append((name, len(gateway.mailbox.mails())))

    gateway.on_event = on_event
    async with httpx.AsyncClient() as client:
        await client.post(gateway.url, json={"from": "s@x", "to": ["a@x"]})
    await gateway.close()
    assert seen == [("request", 0), ("accepted", 1), ("answered", 1)]
