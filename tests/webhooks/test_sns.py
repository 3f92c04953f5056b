"""Whom we trust when Amazon SNS writes, and what we ask Amazon for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.webhooks.ses import SesWebhook
from sendonce.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from tests.webhooks.conftest import Amazon, Door, OpenDoor

NOW = 1_788_000_000
TOPIC = "arn:aws:sns:eu-west-1:123456789012:mail-events"
HOST = "https://sns.eu-west-1.amazonaws.com"
PEM = f"{HOST}/SimpleNotificationService-9c6465fa7f48f5cacd23014.pem"


@pytest.fixture
def door(amazon: Amazon, open_door: OpenDoor) -> Door:
    return open_door(SesWebhook(WebhookSettings(topics=(TOPIC,)), amazon.transport))


@pytest.fixture
def body(examples: dict[str, Any]) -> str:
    return json.dumps(examples["ses"])


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", ["with a subject", None])
async def test_both_versions(version: str, subject: str | None, amazon: Amazon, door: Door, body: str) -> None:
    message = amazon.message(body, SignatureVersion=version, Subject=subject)
    if subject is None:
        del message["Subject"]
    assert (await door.post(amazon.signed(message))).status_code == 200
    assert len(door.store.kept) == 1


@pytest.mark.parametrize("version", ["3", "", 1, 2, None, ["1"]])
async def test_no_other_version(version: Any, amazon: Amazon, door: Door, body: str) -> None:
    assert (await door.post(amazon.signed(amazon.message(body, SignatureVersion=version)))).status_code == 401


async def test_a_signature_of_the_other_version(amazon: Amazon, door: Door, body: str) -> None:
    signed = json.loads(amazon.signed(amazon.message(body, SignatureVersion="1")))
    assert (await door.post(json.dumps(signed | {"SignatureVersion": "2"}).encode())).status_code == 401


@pytest.mark.parametrize("name", ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"])
async def test_every_field_is_signed(name: str, amazon: Amazon, door: Door, body: str) -> None:
    message = json.loads(amazon.signed(amazon.message(body)))
    for other in (f"{message[name]} ", None, "", [message[name]]):
        answer = await door.post(json.dumps(message | {name: other}).encode())
        assert answer.status_code == 401, (name, other)
    assert door.store.calls == []


@pytest.mark.parametrize(
    "url",
    [
        PEM.replace("https:", "http:"),
        PEM.replace("https:", "HTTPS:"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com.evil.example"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "evil.example"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "evil.example#sns.eu-west-1.amazonaws.com"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com@evil.example"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "user@sns.eu-west-1.amazonaws.com"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com:8443"),
        PEM.replace("sns.eu-west-1.amazonaws.com", "snsxeu-west-1.amazonaws.com"),
        PEM.replace("sns.", "my-bucket.s3."),
        PEM.replace("sns.eu-west-1", "my.sns.eu-west-1"),
        PEM.replace("eu-west-1", "us-east-1"),
        PEM.replace(".pem", ".pem?x"),
        PEM.replace(".pem", ".pem#x"),
        PEM.replace(".pem", ".txt"),
        f"{HOST}/other.pem",
        f"{HOST}/x/../SimpleNotificationService-9c.pem",
        f"{HOST}\\@evil.example/SimpleNotificationService-9c.pem",
        f" {PEM}",
        f"{PEM}\n",
        "https://[::1",
        "",
        None,
        7,
        [PEM],
    ],
)
async def test_a_certificate_that_is_not_amazons(url: Any, amazon: Amazon, door: Door, body: str) -> None:
    message = amazon.signed(amazon.message(body, SigningCertURL=url))
    assert (await door.post(message)).status_code == 401
    assert amazon.asked == []


async def test_a_certificate_in_china(amazon: Amazon, open_door: OpenDoor, body: str) -> None:
    topic = "arn:aws-cn:sns:cn-north-1:123456789012:mail-events"
    door = open_door(SesWebhook(WebhookSettings(topics=(topic,)), amazon.transport))
    url = "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-9c.pem"
    assert (await door.post(amazon.signed(amazon.message(body, topic, SigningCertURL=url)))).status_code == 200


async def test_a_certificate_is_fetched_once(amazon: Amazon, open_door: OpenDoor, body: str) -> None:
    receiver = SesWebhook(WebhookSettings(topics=(TOPIC,)), amazon.transport)
    door = open_door(receiver)
    message = amazon.signed(amazon.message(body))
    answers = await asyncio.gather(*(door.post(message) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {200}
    assert amazon.asked == [PEM]
    day = 86400
    tomorrow = open_door(receiver, now=NOW + day)
    assert (await tomorrow.post(amazon.signed(amazon.message(body, now=NOW + day)))).status_code == 200
    assert amazon.asked == [PEM, PEM]


async def test_a_certificate_that_has_ended(expired: Amazon, door: Door, body: str) -> None:
    assert (await door.post(expired.signed(expired.message(body)))).status_code == 401


@pytest.mark.parametrize(("status", "answer"), [(404, 401), (301, 401), (500, 503), (503, 503), (429, 503)])
async def test_amazon_refuses_or_is_away(status: int, answer: int, amazon: Amazon, door: Door, body: str) -> None:
    message = amazon.signed(amazon.message(body))
    amazon.status = status
    assert (await door.post(message)).status_code == answer
    amazon.status = 200
    assert (await door.post(message)).status_code == 200


@pytest.mark.parametrize(("certificate", "answer"), [(b"<html>", 503), (b"x" * 70000, 401)])
async def test_what_is_no_certificate(certificate: bytes, answer: int, amazon: Amazon, door: Door, body: str) -> None:
    amazon.certificate = certificate
    assert (await door.post(amazon.signed(amazon.message(body)))).status_code == answer


async def test_amazon_cannot_be_reached(amazon: Amazon, open_door: OpenDoor, body: str, free_port: int) -> None:
    """A transport that finds nobody listening, instead of the internet."""
    import httpx

    class Nobody(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            request.url = httpx.URL(f"http://127.0.0.1:{free_port}/")
            return await super().handle_async_request(request)

    door = open_door(SesWebhook(WebhookSettings(topics=(TOPIC,)), Nobody(trust_env=False)))
    assert (await door.post(amazon.signed(amazon.message(body)))).status_code == 503


# Subscriptions ----------------------------------------------------------------------------------------------------


def confirmation(amazon: Amazon, topic: str = TOPIC, **more: Any) -> dict[str, Any]:
    message = amazon.message("You have chosen to subscribe to the topic. To confirm, visit the SubscribeURL.", topic)
    del message["Subject"]
    return {
        **message,
        "Type": "SubscriptionConfirmation",
        "Token": "2336412f37fb687f5d51e6e241d09c805a5a57b30d712f794cc5f6a988666d92768dd60a747ba6f3beb71854e285d6ad0",
        "SubscribeURL": f"{HOST}/?Action=ConfirmSubscription&TopicArn={topic}&Token=2336412f37fb",
        **more,
    }


@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_subscription_is_confirmed(version: str, amazon: Amazon, door: Door) -> None:
    message = confirmation(amazon, SignatureVersion=version)
    assert (await door.post(amazon.signed(message))).status_code == 200
    assert amazon.asked == [PEM, message["SubscribeURL"]]
    assert door.store.calls == []


async def test_somebody_elses_topic_is_not(amazon: Amazon, door: Door) -> None:
    """Amazon signs what anybody subscribes our URL to."""
    theirs = "arn:aws:sns:eu-west-1:666666666666:mail-events"
    assert (await door.post(amazon.signed(confirmation(amazon, theirs)))).status_code == 401
    assert amazon.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/?Action=ConfirmSubscription",
        "http://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription",
        "https://sns.eu-west-1.amazonaws.com@evil.example/",
        "https://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "",
    ],
)
async def test_only_amazon_is_visited(url: str, amazon: Amazon, door: Door) -> None:
    assert (await door.post(amazon.signed(confirmation(amazon, SubscribeURL=url)))).status_code == 401
    assert amazon.asked == [PEM]


async def test_a_confirmation_that_is_not_signed(amazon: Amazon, door: Door) -> None:
    signed = json.loads(amazon.signed(confirmation(amazon)))
    changed = signed | {"SubscribeURL": f"{HOST}/?Action=ConfirmSubscription&Token=other"}
    assert (await door.post(json.dumps(changed).encode())).status_code == 401
    assert amazon.asked == [PEM]


async def test_amazon_is_away_when_a_subscription_is_confirmed(amazon: Amazon, door: Door, body: str) -> None:
    assert (await door.post(amazon.signed(amazon.message(body)))).status_code == 200
    amazon.status = 500
    assert (await door.post(amazon.signed(confirmation(amazon)))).status_code == 503


async def test_the_end_of_a_subscription_is_only_taken_note_of(amazon: Amazon, door: Door) -> None:
    message = confirmation(amazon, Type="UnsubscribeConfirmation")
    assert (await door.post(amazon.signed(message))).status_code == 200
    assert amazon.asked == [PEM]
