"""An app to post to, and the providers as they sign: each with a documented example of theirs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sendonce.events import Event
from sendonce.webhooks.app import make_app
from sendonce.webhooks.receiver import Receiver
from sendonce.webhooks.registry import make_receiver
from sendonce.webhooks.ses import SesWebhook
from sendonce.webhooks.settings import WebhookSettings

NOW = 1_788_000_000
EMAIL_ID = "0b7cf5b4-8d5a-4d0c-9f5e-0d3f5a2f7c11"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:mail-events"


@dataclass
class Store:
    """Keeps events as the store does: by their ids, or not at all."""

    events: dict[str, Event] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    """The account of each call."""
    away: Exception | None = None

    async def record(self, account: str, events: Sequence[Event]) -> None:
        self.calls.append(account)
        if self.away:
            raise self.away
        for event in events:
            self.events.setdefault(event.event_id, event)

    @property
    def kept(self) -> list[Event]:
        return list(self.events.values())


@dataclass
class Door:
    """An app with one account, ``main``, reached without a network."""

    app: Starlette
    store: Store

    async def post(
        self, body: bytes, headers: Mapping[str, str] | None = None, path: str = "/webhooks/main"
    ) -> httpx.Response:
        return await self.request("POST", path, content=body, headers=headers)

    async def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hooks.test") as client:
            return await client.request(method, path, **more)


OpenDoor = Callable[..., Door]


@pytest.fixture
def open_door() -> OpenDoor:
    """``open_door(receiver, now=…, **options)``: an app whose clock stands still."""

    def open_(receiver: Receiver, *, now: float = NOW, **options: Any) -> Door:
        store = Store()
        return Door(make_app({"main": receiver}, store.record, clock=lambda: now, **options), store)

    return open_


# Providers that sign -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signed:
    """A provider that signs. ``sign`` gives the request as it arrives, for a body and one of ``secrets``."""

    name: str
    secrets: tuple[str, str, str]
    """The present one, the one before, and somebody else's."""
    receiver: Callable[..., Receiver]
    """With the numbers of the secrets that are set."""
    body: bytes
    """A documented example that holds one event."""
    sign: Callable[[bytes, str, int], tuple[bytes, dict[str, str]]]
    window: int
    """How old a signature may be by default."""
    covers_bytes: bool = True


def _settings(secrets: Sequence[str], **more: Any) -> WebhookSettings:
    fields: dict[str, Any] = {"secret": SecretStr(secrets[0])} if secrets else {}
    if len(secrets) > 1:
        fields["previous_secret"] = SecretStr(secrets[1])
    return WebhookSettings(**fields, **more)


def _from_secrets(name: str, secrets: tuple[str, str, str]) -> Callable[..., Receiver]:
    def receiver(*numbers: int, **more: Any) -> Receiver:
        return make_receiver(name, _settings([secrets[number] for number in numbers or (0,)], **more))

    return receiver


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def _standard(prefix: str, key_of: Callable[[str], bytes]) -> Callable[..., tuple[bytes, dict[str, str]]]:
    def sign(body: bytes, secret: str, now: int) -> tuple[bytes, dict[str, str]]:
        signed = _hmac(key_of(secret), b"msg_2Lk.%d.%s" % (now, body))
        return body, {
            f"{prefix}-id": "msg_2Lk",
            f"{prefix}-timestamp": str(now),
            f"{prefix}-signature": "v1a,ignored v1," + base64.b64encode(signed).decode(),
        }

    return sign


def _lettermint(body: bytes, secret: str, now: int) -> tuple[bytes, dict[str, str]]:
    signed = _hmac(secret.encode(), b"%d.%s" % (now, body)).hex()
    return body, {"X-Lettermint-Signature": f"t={now},v1={signed}", "X-Lettermint-Event": "message.hard_bounced"}


def _mailgun(body: bytes, secret: str, now: int) -> tuple[bytes, dict[str, str]]:
    token = hashlib.sha256(body + b"%d" % now).hexdigest()[:50]
    signature = {
        "timestamp": str(now),
        "token": token,
        "signature": _hmac(secret.encode(), f"{now}{token}".encode()).hex(),
    }
    return json.dumps({"signature": signature, **json.loads(body)}).encode(), {"Content-Type": "application/json"}


_EC_KEYS = {}
for _ in range(3):
    _key = ec.generate_private_key(ec.SECP256R1())
    _der = _key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    _EC_KEYS[base64.b64encode(_der).decode()] = _key


def _sendgrid(body: bytes, secret: str, now: int) -> tuple[bytes, dict[str, str]]:
    signed = _EC_KEYS[secret].sign(str(now).encode() + body, ec.ECDSA(hashes.SHA256()))
    return body, {
        "X-Twilio-Email-Event-Webhook-Signature": base64.b64encode(signed).decode(),
        "X-Twilio-Email-Event-Webhook-Timestamp": str(now),
    }


RESEND = {
    "type": "email.bounced",
    "created_at": "2024-11-22T23:41:12.126Z",
    "data": {
        "broadcast_id": "8b146471-e88e-4322-86af-016cd36fd216",
        "created_at": "2024-11-22T23:41:11.894719+00:00",
        "email_id": "56761188-7520-42d8-8898-ff6fc54ce618",
        "from": "Acme <onboarding@resend.dev>",
        "to": ["delivered@resend.dev"],
        "subject": "Sending this example",
        "bounce": {
            "diagnosticCode": ["smtp; 550 5.5.0 Requested action not taken: mailbox unavailable"],
            "message": "The recipient's email address is on the suppression list.",
            "subType": "General",
            "type": "Permanent",
        },
        "tags": {"sendonce_id": EMAIL_ID},
    },
}
AHASEND = {
    "type": "message.bounced",
    "webhook_id": "abe11757-2886-4b55-96f1-0e0afc95795a",
    "timestamp": "2024-05-06T10:05:16.687031577Z",
    "data": {
        "account_id": "4cdd7bdd-294e-4762-892f-83d40abf5a87",
        "event": "on_bounced",
        "from": "sender@example.com",
        "recipient": "recipient@example.com",
        "subject": "Welcome to our service",
        "message_id_header": "<message-id-12345@localhost>",
        "id": "407926766d2711f09b30960002cafe7c",
    },
}
LETTERMINT = {
    "id": "123e4567-e89b-12d3-a456-426614174000",
    "event": "message.hard_bounced",
    "timestamp": "2025-08-08T20:15:12.000Z",
    "data": {
        "message_id": "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "subject": "Your weekly newsletter",
        "recipient": "user@example.com",
        "response": {"status_code": 550, "enhanced_status_code": "5.1.1", "content": "User unknown"},
        "metadata": {"sendonce_id": EMAIL_ID},
        "tag": None,
    },
}
MAILGUN = {
    "event-data": {
        "event": "failed",
        "id": "G9Bn5sl1TC6nu79C8C0bwg",
        "timestamp": 1521233195.375624,
        "severity": "permanent",
        "reason": "bounce",
        "recipient": "alice@example.com",
        "recipient-domain": "example.com",
        "delivery-status": {
            "attempt-no": 1,
            "code": 550,
            "enhanced-code": "5.1.1",
            "message": "5.1.1 The email account that you tried to reach does not exist.",
            "description": "",
            "bounce-type": "hard",
        },
        "message": {
            "headers": {
                "to": "Alice <alice@example.com>",
                "message-id": "20130503192659.13651.20287@sandbox.mailgun.org",
                "from": "Bob <bob@sandbox.mailgun.org>",
                "subject": "Test permanent_fail webhook",
            },
            "size": 111,
        },
        "user-variables": {"sendonce-id": EMAIL_ID, "my_var_1": "Mailgun Variable #1"},
    }
}
SENDGRID = [
    {
        "email": "example@test.com",
        "timestamp": 1513299569,
        "smtp-id": "<14c5d75ce93.dfd.64b469@ismtpd-555>",
        "event": "bounce",
        "category": "cat facts",
        "sg_event_id": "ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",
        "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "reason": "550 5.1.1 The email account that you tried to reach does not exist",
        "status": "5.1.1",
        "type": "bounce",
        "bounce_classification": "Invalid Address",
        "sendonce_id": EMAIL_ID,
    }
]
SES = {
    "eventType": "Bounce",
    "bounce": {
        "bounceType": "Permanent",
        "bounceSubType": "General",
        "bouncedRecipients": [
            {
                "emailAddress": "recipient@example.com",
                "action": "failed",
                "status": "5.1.1",
                "diagnosticCode": "smtp; 550 5.1.1 user unknown",
            }
        ],
        "timestamp": "2017-08-05T00:41:02.669Z",
        "feedbackId": "01000157c44f053b-61b59c11-9236-11e6-8f96-7be8aexample-000000",
        "reportingMTA": "dsn; mta.example.com",
    },
    "mail": {
        "timestamp": "2017-08-05T00:40:02.012Z",
        "source": "Sender Name <sender@example.com>",
        "messageId": "EXAMPLE7c191be45-e9aedb9a-02f9-4d12-a87d-dd0099a07f8a-000000",
        "destination": ["recipient@example.com"],
        "tags": {"ses:configuration-set": ["ConfigSet"], "sendonce_id": [EMAIL_ID]},
    },
}


def _bytes(content: Any) -> bytes:
    return json.dumps(content, indent=1).encode()


_WHSEC = tuple("whsec_" + base64.b64encode(bytes([number]) * 24).decode() for number in (1, 2, 3))
_PLAIN = ("a-signing-secret-0001", "a-signing-secret-0002", "a-signing-secret-0003")


def _svix_key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix("whsec_"))


def _signing(amazon: Amazon) -> dict[str, Signed]:
    whsec = (_WHSEC[0], _WHSEC[1], _WHSEC[2])
    first, second, third = _EC_KEYS
    public = (first, second, third)

    def plain(name: str, body: Any, sign: Any, window: int, **more: Any) -> Signed:
        return Signed(name, _PLAIN, _from_secrets(name, _PLAIN), _bytes(body), sign, window, **more)

    def topics(*numbers: int, **more: Any) -> Receiver:
        settings = WebhookSettings(topics=tuple(amazon.topics[number] for number in numbers or (0,)), **more)
        return SesWebhook(settings, amazon.transport)

    svix, standard = _standard("svix", _svix_key), _standard("webhook", str.encode)
    found = [
        Signed("resend", whsec, _from_secrets("resend", whsec), _bytes(RESEND), svix, 300),
        # The whole secret is the key, even one that could be decoded.
        Signed("ahasend", whsec, _from_secrets("ahasend", whsec), _bytes(AHASEND), standard, 300),
        plain("lettermint", LETTERMINT, _lettermint, 300),
        plain("mailgun", MAILGUN, _mailgun, 12 * 3600, covers_bytes=False),
        Signed("sendgrid", public, _from_secrets("sendgrid", public), _bytes(SENDGRID), _sendgrid, 25 * 3600),
        Signed("ses", amazon.topics, topics, _bytes(SES), amazon.wrap, 7200, covers_bytes=False),
    ]
    return {case.name: case for case in found}


@pytest.fixture
def signing(amazon: Amazon) -> dict[str, Signed]:
    """Every provider that signs, by name."""
    return _signing(amazon)


@pytest.fixture(params=["resend", "ahasend", "lettermint", "mailgun", "sendgrid", "ses"])
def signed(request: pytest.FixtureRequest, signing: dict[str, Signed]) -> Signed:
    """Each provider that signs."""
    return signing[request.param]


# Amazon ------------------------------------------------------------------------------------------------------------


def _certificate(key: rsa.RSAPrivateKey, *, days: int) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    begins = datetime.fromtimestamp(NOW, UTC) - timedelta(days=30)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=30 + days))
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM)


_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Amazon:
    """Plays SNS: signs messages, serves its certificate, takes confirmations."""

    topics = (TOPIC, f"{TOPIC}-2", "arn:aws:sns:eu-west-1:666666666666:theirs")

    def __init__(self) -> None:
        self.certificate = _certificate(_RSA_KEY, days=365)
        self.status = 200
        self.asked: list[str] = []
        """The URLs that were asked for."""
        app = Starlette(routes=[Route("/{path:path}", self._answer)])
        self.transport: httpx.AsyncBaseTransport = httpx.ASGITransport(app=app)

    async def _answer(self, request: Request) -> Response:
        self.asked.append(str(request.url))
        await asyncio.sleep(0)  # an answer takes a while: others come meanwhile
        return Response(self.certificate if request.url.path.endswith(".pem") else b"<ok/>", self.status)

    def message(self, body: str, topic: str = TOPIC, now: int = NOW, **more: Any) -> dict[str, Any]:
        """A notification, not signed yet."""
        return {
            "Type": "Notification",
            "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
            "TopicArn": topic,
            "Subject": "Amazon SES Email Event Notification",
            "Message": body,
            "Timestamp": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "SignatureVersion": "1",
            "SigningCertURL": "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-9c6465fa7f48f5cacd23014.pem",
            **more,
        }

    def signed(self, message: dict[str, Any]) -> bytes:
        """As it is posted: https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html."""
        if message["Type"] == "Notification":
            names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
        else:
            names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
        text = "".join(f"{name}\n{message[name]}\n" for name in names if name in message)
        algorithm = hashes.SHA256() if message["SignatureVersion"] == "2" else hashes.SHA1()
        signature = _RSA_KEY.sign(text.encode(), padding.PKCS1v15(), algorithm)
        return json.dumps({**message, "Signature": base64.b64encode(signature).decode()}).encode()

    def wrap(self, body: bytes, topic: str, now: int) -> tuple[bytes, dict[str, str]]:
        return self.signed(self.message(body.decode(), topic, now)), {"x-amz-sns-message-type": "Notification"}


@pytest.fixture
def amazon() -> Amazon:
    return Amazon()


@pytest.fixture
def expired(amazon: Amazon) -> Amazon:
    """Its certificate ended yesterday."""
    amazon.certificate = _certificate(_RSA_KEY, days=-1)
    return amazon


# Providers that do not ----------------------------------------------------------------------------------------------

SECRET = "a-shared-secret-of-ours"

UNSIGNED: dict[str, Any] = {
    "postmark": {
        "RecordType": "Bounce",
        "MessageStream": "outbound",
        "ID": 4323372036854775807,
        "Type": "HardBounce",
        "TypeCode": 1,
        "Name": "Hard bounce",
        "Tag": "Test",
        "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483",
        "Metadata": {"sendonce-id": EMAIL_ID},
        "ServerID": 23,
        "Description": "The server was unable to deliver your message (ex: unknown user, mailbox not found).",
        "Details": "smtp;550 5.1.1 The email account that you tried to reach does not exist.",
        "Email": "john@example.com",
        "From": "sender@example.com",
        "BouncedAt": "2019-11-05T16:33:54.9070259Z",
        "DumpAvailable": True,
        "Inactive": True,
        "CanActivate": True,
        "Subject": "Test subject",
    },
    "brevo": {
        "event": "hard_bounce",
        "email": "example@domain.com",
        "id": 26224,
        "date": "2020-10-09 00:00:00",
        "ts": 1604937111,
        "message-id": "<201798300811.5787683@relay.domain.com>",
        "ts_event": 1604933654,
        "ts_epoch": 1604933654000,
        "subject": "My first Transactional",
        "X-Mailin-custom": json.dumps({"sendonce_id": EMAIL_ID}),
        "sending_ip": "xxx.xxx.xxx.xxx",
        "template_id": 22,
        "tags": ["transac_messages"],
        "reason": "550 5.1.1 user unknown",
    },
    "mailjet": {
        "event": "bounce",
        "time": 1430812195,
        "MessageID": 13792286917004336,
        "Message_GUID": "1ab23cd4-e567-8901-2345-6789f0gh1i2j",
        "email": "bounce@mailjet.com",
        "mj_campaign_id": 0,
        "mj_contact_id": 0,
        "customcampaign": "",
        "CustomID": "helloworld",
        "Payload": json.dumps({"sendonce_id": EMAIL_ID}),
        "blocked": False,
        "hard_bounce": True,
        "error_related_to": "recipient",
        "error": "user unknown",
        "comment": "550 5.1.1 Host or domain name not found.",
    },
    "sparkpost": [
        {"msys": {}},
        {
            "msys": {
                "message_event": {
                    "type": "bounce",
                    "bounce_class": "10",
                    "error_code": "550",
                    "event_id": "92356927693813856",
                    "message_id": "000443ee14578172be22",
                    "raw_rcpt_to": "Recipient@example.com",
                    "rcpt_to": "recipient@example.com",
                    "raw_reason": "550 5.1.1 user unknown",
                    "reason": "550 5.1.1 user unknown",
                    "rcpt_meta": {"sendonce_id": EMAIL_ID},
                    "timestamp": "1454442600",
                    "transmission_id": "65832150921904138",
                }
            }
        },
    ],
    "azure": [
        {
            "id": "00000000-0000-0000-0000-000000000000",
            "topic": "/subscriptions/x/resourceGroups/y/providers/Microsoft.Communication/CommunicationServices/z",
            "subject": "sender/senderid@azure.com/message/00000000-0000-0000-0000-000000000000",
            "data": {
                "sender": "senderid@azure.com",
                "recipient": "receiver@azure.com",
                "messageId": "fb9e3380-428f-4e59-95a1-fc82e99a5219",
                "internetMessageId": f"<{EMAIL_ID}@example.com>",
                "status": "Bounced",
                "deliveryStatusDetails": {"statusMessage": "550 5.1.1 user unknown"},
                "deliveryAttemptTimestamp": "2020-09-18T00:22:20.2855749+00:00",
            },
            "eventType": "Microsoft.Communication.EmailDeliveryReportReceived",
            "dataVersion": "1.0",
            "metadataVersion": "1",
            "eventTime": "2020-09-18T00:22:20Z",
        }
    ],
}


@dataclass(frozen=True)
class Unsigned:
    """A provider that signs nothing."""

    name: str
    body: bytes
    secret: str = SECRET

    def receiver(self, **more: Any) -> Receiver:
        return make_receiver(self.name, WebhookSettings(**({"secret": SecretStr(self.secret)} | more)))


@pytest.fixture(params=UNSIGNED)
def unsigned(request: pytest.FixtureRequest) -> Unsigned:
    """Each provider that signs nothing."""
    return Unsigned(request.param, _bytes(UNSIGNED[request.param]))


# Reading -----------------------------------------------------------------------------------------------------------

Send = Callable[[str, Any], Any]


@pytest.fixture
def examples() -> dict[str, Any]:
    """A documented example of each provider, to be changed: copies."""
    found = {
        "resend": RESEND,
        "ahasend": AHASEND,
        "lettermint": LETTERMINT,
        "mailgun": MAILGUN,
        "sendgrid": SENDGRID,
        "ses": SES,
        **UNSIGNED,
    }
    copied: dict[str, Any] = json.loads(json.dumps(found))
    return copied


@pytest.fixture
def send(open_door: OpenDoor, signing: dict[str, Signed]) -> Send:
    """``await send(provider, content)``: what is kept of a body that the provider would send so."""

    async def send_(provider: str, content: Any) -> list[Event]:
        body = _bytes(content)
        if provider in signing:
            case = signing[provider]
            door = open_door(case.receiver())
            body, headers = case.sign(body, case.secrets[0], NOW)
        else:
            door = open_door(Unsigned(provider, body).receiver())
            headers = {"Authorization": f"Bearer {SECRET}"}
        answer = await door.post(body, headers)
        assert (answer.status_code, answer.content) == (200, b"")
        return [replace(event) for event in door.store.kept]

    return send_
