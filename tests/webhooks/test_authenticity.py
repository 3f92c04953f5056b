"""Nothing is kept of what the provider did not write, or did not write now."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from sendonce.errors import ConfigurationError
from sendonce.events import EventKind
from sendonce.webhooks.registry import PROVIDERS, make_receiver
from sendonce.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from tests.webhooks.conftest import OpenDoor, Signed, Unsigned

NOW = 1_788_000_000
SECRET = "a-shared-secret-of-ours"
OLDER = "the-secret-of-last-year"


async def refused(open_door: OpenDoor, receiver: Any, body: bytes, headers: dict[str, str], **more: Any) -> None:
    door = open_door(receiver, **more)
    answer = await door.post(body, headers)
    assert (answer.status_code, answer.text) == (401, "not authentic\n")
    assert door.store.calls == []


# Signed -----------------------------------------------------------------------------------------------------------


async def test_what_is_signed_is_kept(signed: Signed, open_door: OpenDoor) -> None:
    door = open_door(signed.receiver())
    answer = await door.post(*signed.sign(signed.body, signed.secrets[0], NOW))
    assert answer.status_code == 200
    (event,) = door.store.kept
    assert (event.source, event.kind) == (f"webhook:{signed.name}", EventKind.BOUNCED)
    assert door.store.calls == ["main"]


async def test_one_byte_changed(signed: Signed, open_door: OpenDoor) -> None:
    body, headers = signed.sign(signed.body, signed.secrets[0], NOW)
    covered = range(0, len(body), 11)
    if signed.name == "ses":
        # The fields are signed, not what stands between them: see sns.py.
        begins = body.index(b'"Message":') + len('"Message": "')
        covered = range(begins, begins + 400, 11)
    elif signed.name == "mailgun":
        # Nothing else is: see mailgun.py.
        begins = body.index(b'"timestamp": "') + len('"timestamp": "')
        covered = range(begins, begins + 10)
    for place in covered:
        changed = bytearray(body)
        changed[place] ^= 1
        await refused(open_door, signed.receiver(), bytes(changed), headers)


async def test_the_same_json_in_other_bytes(signed: Signed, open_door: OpenDoor) -> None:
    body, headers = signed.sign(signed.body, signed.secrets[0], NOW)
    again = json.dumps(json.loads(body), separators=(",", ":")).encode()
    assert again != body
    if signed.covers_bytes:
        await refused(open_door, signed.receiver(), again, headers)
    else:
        assert (await open_door(signed.receiver()).post(again, headers)).status_code == 200


@pytest.mark.parametrize("late", [1, -1])
async def test_the_window(signed: Signed, late: int, open_door: OpenDoor) -> None:
    request = signed.sign(signed.body, signed.secrets[0], NOW)
    edge = signed.window if late == 1 else -300
    assert (await open_door(signed.receiver(), now=NOW + edge).post(*request)).status_code == 200
    await refused(open_door, signed.receiver(), *request, now=NOW + edge + late)


async def test_a_window_of_ones_own(signed: Signed, open_door: OpenDoor) -> None:
    request = signed.sign(signed.body, signed.secrets[0], NOW)
    receiver = signed.receiver(tolerance_seconds=60.0)
    assert (await open_door(receiver, now=NOW + 60).post(*request)).status_code == 200
    await refused(open_door, receiver, *request, now=NOW + 61)
    await refused(open_door, receiver, *request, now=NOW - 61)


async def test_two_secrets_while_one_replaces_the_other(signed: Signed, open_door: OpenDoor) -> None:
    for number in (0, 1):
        door = open_door(signed.receiver(0, 1))
        answer = await door.post(*signed.sign(signed.body, signed.secrets[number], NOW))
        assert (answer.status_code, len(door.store.kept)) == (200, 1)
    await refused(open_door, signed.receiver(0, 1), *signed.sign(signed.body, signed.secrets[2], NOW))
    await refused(open_door, signed.receiver(0), *signed.sign(signed.body, signed.secrets[1], NOW))


async def test_a_missing_header(signed: Signed, open_door: OpenDoor) -> None:
    body, headers = signed.sign(signed.body, signed.secrets[0], NOW)
    if signed.name in ("mailgun", "ses"):
        # Theirs stand in the body.
        content = json.loads(body)
        place = content["signature"] if signed.name == "mailgun" else content
        missing = ["timestamp", "token", "signature"]
        if signed.name == "ses":
            missing = ["Signature", "SignatureVersion", "SigningCertURL", "Timestamp", "TopicArn", "Message", "Type"]
        for name in missing:
            value = place.pop(name)
            await refused(open_door, signed.receiver(), json.dumps(content).encode(), headers)
            place[name] = value
        return
    needed = [name for name in headers if "Event" not in name or "Twilio" in name]
    assert needed
    for name in needed:
        await refused(open_door, signed.receiver(), body, {k: v for k, v in headers.items() if k != name})
    await refused(open_door, signed.receiver(), body, {})


@pytest.mark.parametrize("junk", ["", "v1,", "t=1,v1=", "\u00e9\u00ff", "v1," + "A" * 43 + "=", "t=,v1=0", "=" * 4000])
async def test_junk_for_a_signature(signed: Signed, junk: str, open_door: OpenDoor) -> None:
    body, headers = signed.sign(signed.body, signed.secrets[0], NOW)
    if signed.name in ("mailgun", "ses"):
        content = json.loads(body)
        if signed.name == "mailgun":
            content["signature"]["signature"] = junk
        else:
            content["Signature"] = junk
        body = json.dumps(content).encode()
    else:
        name = next(name for name in headers if name.lower().endswith("signature"))
        headers[name] = junk.encode("latin-1").decode("latin-1")
    latin = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
    door = open_door(signed.receiver())
    answer = await door.request("POST", "/webhooks/main", content=body, headers=latin)
    assert (answer.status_code, door.store.calls) == (401, [])


async def test_mailguns_token_is_good_for_one_body(signing: dict[str, Signed], open_door: OpenDoor) -> None:
    case = signing["mailgun"]
    body, headers = case.sign(case.body, case.secrets[0], NOW)
    forged = body.replace(b"alice@example.com", b"mallory@example.com")
    door = open_door(case.receiver())
    assert (await door.post(body, headers)).status_code == 200
    assert (await door.post(forged, headers)).status_code == 401
    # Mailgun's own retry: one event.
    assert (await door.post(body, headers)).status_code == 200
    assert [event.recipient for event in door.store.kept] == ["alice@example.com"]


async def test_mailguns_retry_after_the_store_was_away(signing: dict[str, Signed], open_door: OpenDoor) -> None:
    case = signing["mailgun"]
    request = case.sign(case.body, case.secrets[0], NOW)
    door = open_door(case.receiver())
    door.store.away = ConnectionError()
    assert (await door.post(*request)).status_code == 503
    door.store.away = None
    assert (await door.post(*request)).status_code == 200
    assert len(door.store.kept) == 1


async def test_svixs_own_example(open_door: OpenDoor) -> None:
    """https://docs.svix.com/receiving/verifying-payloads/how-manual."""
    receiver = make_receiver("resend", WebhookSettings(secret=SecretStr("whsec_plJ3nmyCDGBKInavdOK15jsl")))
    body = b'{"event_type":"ping","data":{"success":true}}'
    headers = {
        "svix-id": "msg_loFOjxBNrRLzqYUf",
        "svix-timestamp": "1731705121",
        "svix-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    }
    assert (await open_door(receiver, now=1731705121).post(body, headers)).status_code == 200
    await refused(open_door, receiver, body + b" ", headers, now=1731705121)


async def test_sendgrids_own_example(open_door: OpenDoor) -> None:
    """https://github.com/sendgrid/sendgrid-python/blob/main/test/unit/test_eventwebhook.py."""
    key = (
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglS"
        "I8eNEc6wEA3F+g=="
    )
    event = {
        "email": "hello@world.com",
        "event": "dropped",
        "reason": "Bounced Address",
        "sg_event_id": "ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",
        "sg_message_id": "LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0",
        "smtp-id": "<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>",
        "timestamp": 1600112492,
    }
    body = json.dumps([event], sort_keys=True, separators=(",", ":")).encode() + b"\r\n"
    headers = {
        "X-Twilio-Email-Event-Webhook-Signature": "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0J"
        "uG+luQAbPIqHh89M15TluLtEZtM=",
        "X-Twilio-Email-Event-Webhook-Timestamp": "1600112502",
    }
    receiver = make_receiver("sendgrid", WebhookSettings(secret=SecretStr(key)))
    door = open_door(receiver, now=1600112502)
    assert (await door.post(body, headers)).status_code == 200
    (kept,) = door.store.kept
    assert (kept.kind, kept.provider_id) == (EventKind.DROPPED, "LRzXl_NHStOGhQ4kofSm_A")
    await refused(open_door, receiver, body[:-2], headers, now=1600112502)


# Not signed -------------------------------------------------------------------------------------------------------


def basic(password: str, user: str = "sendonce") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_a_shared_secret_wherever_a_provider_can_put_it(unsigned: Unsigned, open_door: OpenDoor) -> None:
    ways: list[tuple[dict[str, str], str]] = [
        ({}, f"/webhooks/main/{SECRET}"),
        (basic(SECRET), "/webhooks/main"),
        ({"Authorization": f"Bearer {SECRET}"}, "/webhooks/main"),
        ({"X-Sendonce-Secret": SECRET}, "/webhooks/main"),
    ]
    if unsigned.name == "azure":
        ways.append(({}, f"/webhooks/main?secret={SECRET}"))
    for headers, path in ways:
        door = open_door(unsigned.receiver())
        answer = await door.post(unsigned.body, headers, path)
        assert answer.status_code == 200, path
        (event,) = door.store.kept
        assert (event.source, event.kind) == (f"webhook:{unsigned.name}", EventKind.BOUNCED)


async def test_another_secret_or_none(unsigned: Unsigned, open_door: OpenDoor) -> None:
    ways: list[tuple[dict[str, str], str]] = [
        ({}, "/webhooks/main"),
        ({}, f"/webhooks/main/{SECRET[:-1]}"),
        ({}, f"/webhooks/main/{SECRET}x"),
        (basic(SECRET[:-1]), "/webhooks/main"),
        (basic("", SECRET), "/webhooks/main"),
        ({"Authorization": "Basic ***"}, "/webhooks/main"),
        ({"Authorization": f"Digest {SECRET}"}, "/webhooks/main"),
        ({"Authorization": "Bearer "}, "/webhooks/main"),
        ({"X-Sendonce-Secret": ""}, "/webhooks/main"),
        ({"X-Sendonce-Secret": SECRET.upper()}, "/webhooks/main"),
        ({}, "/webhooks/main?secret="),
    ]
    if unsigned.name != "azure":
        ways.append(({}, f"/webhooks/main?secret={SECRET}"))
    for headers, path in ways:
        door = open_door(unsigned.receiver())
        answer = await door.post(unsigned.body, headers, path)
        assert (answer.status_code, door.store.calls) == (401, []), path
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")


async def test_two_shared_secrets(unsigned: Unsigned, open_door: OpenDoor) -> None:
    receiver = unsigned.receiver(previous_secret=SecretStr(OLDER))
    for secret, status in ((SECRET, 200), (OLDER, 200), ("somebody-elses-secret", 401)):
        assert (await open_door(receiver).post(unsigned.body, basic(secret))).status_code == status


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_a_provider_needs_is_asked_for(provider: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^webhook of {provider}: (secret|topics) is missing; write "):
        make_receiver(provider, WebhookSettings())


@pytest.mark.parametrize("provider", ["resend", "sendgrid", "brevo"])
def test_a_secret_is_never_shown(provider: str) -> None:
    settings = WebhookSettings(secret=SecretStr("tell-nobody"))
    assert "tell-nobody" not in repr(settings)
    with pytest.raises(ConfigurationError) as caught:
        make_receiver(provider, settings)
    assert "tell-nobody" not in str(caught.value)


@pytest.mark.parametrize(
    ("provider", "secret", "why"),
    [
        ("resend", "whsec_!", "no base64"),
        ("sendgrid", "AAAA", "no public key on P-256"),
        ("postmark", "short", "less than 16 characters"),
    ],
)
def test_a_secret_that_cannot_be_one(provider: str, secret: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make_receiver(provider, WebhookSettings(secret=SecretStr(secret)))


def test_a_provider_without_webhooks() -> None:
    with pytest.raises(ConfigurationError, match="there is no webhook of 'smtp'; known are ahasend, azure, "):
        make_receiver("smtp", WebhookSettings(secret=SecretStr(SECRET)))
    assert make_receiver("smtp", WebhookSettings(secret=SecretStr(SECRET), provider="postmark")).name == "postmark"


@pytest.mark.parametrize("topic", ["mail-events", "arn:aws:sqs:eu-west-1:1:q", "arn:aws:sns::1:t", ""])
def test_topics_are_whole_arns(topic: str) -> None:
    with pytest.raises(ValueError, match="whole ARNs"):
        WebhookSettings(topics=(topic,))


@pytest.mark.parametrize("field", [{"secret": SecretStr(" ")}, {"tolerance_seconds": 0.0}, {"sekret": "x"}])
def test_settings_that_cannot_be_meant(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        WebhookSettings(**field)
