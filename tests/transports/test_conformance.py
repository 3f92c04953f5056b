"""What every transport must do, whatever it speaks: the same cases against each real server."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sendonce.activities.transports.ahasend import AhaSendSettings, AhaSendTransport
from sendonce.activities.transports.azure import AzureSettings, AzureTransport
from sendonce.activities.transports.base import Fenced, Job, StoreAway, Transport
from sendonce.activities.transports.brevo import BrevoSettings, BrevoTransport
from sendonce.activities.transports.http import GatewaySettings, GatewayTransport
from sendonce.activities.transports.lettermint import LettermintSettings, LettermintTransport
from sendonce.activities.transports.mailgun import MailgunSettings, MailgunTransport
from sendonce.activities.transports.mailjet import MailjetSettings, MailjetTransport
from sendonce.activities.transports.postmark import PostmarkSettings, PostmarkTransport
from sendonce.activities.transports.resend import ResendSettings, ResendTransport
from sendonce.activities.transports.sendgrid import SendGridSettings, SendGridTransport
from sendonce.activities.transports.ses import SesSettings, SesTransport
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.activities.transports.sparkpost import SparkPostSettings, SparkPostTransport
from sendonce.message import OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, Deferred, NotOffered, Refused, Unanswered
from sendonce.testing import http_misbehaviour, smtp_misbehaviour
from sendonce.testing.ahasend_server import ACCOUNT, AhaSendServer
from sendonce.testing.attempt import CREATED_AT, RecordingGate, make_job
from sendonce.testing.azure_server import AzureServer
from sendonce.testing.brevo_server import BrevoServer
from sendonce.testing.certificate import Certificate
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.http_server import HttpServer
from sendonce.testing.lettermint_server import LettermintServer
from sendonce.testing.mailbox import Mailbox
from sendonce.testing.mailgun_server import MailgunServer
from sendonce.testing.mailjet_server import MailjetServer
from sendonce.testing.postmark_server import PostmarkServer
from sendonce.testing.resend_server import ResendServer
from sendonce.testing.script import Rule
from sendonce.testing.sendgrid_server import SendGridServer
from sendonce.testing.ses_server import SesServer
from sendonce.testing.smtp_misbehaviour import SmtpAct
from sendonce.testing.smtp_server import SmtpServer
from sendonce.testing.sparkpost_server import SparkPostServer
from sendonce.transport import (
    AccountError,
    Capability,
    PermanentError,
    RetryLater,
    SimpleMail,
    SimpleSettings,
    SimpleTransport,
)

NASTY = b"caf\xe9 \xd3\xca\x00\x07 \xed\xa0\x80"


def mail(key: str = "order-1") -> OutgoingEmail:
    return OutgoingEmail(
        key=key, sender="shop@example.org", to=["ann@example.org", "bob@example.org"], subject="Hello", text="Hi.\n"
    )


class Provider(ABC):
    """A server, and a transport that is set up for it. Another provider is one more subclass in ``PROVIDERS``."""

    identity: str
    """Of the account that :meth:`account` makes."""
    server: Any
    mailbox: Mailbox
    transport: Transport
    accepted: asyncio.Event
    """Set when a mail has been stored and its answer is not written."""

    def __init__(self, certificate: Certificate) -> None:
        self.ca = certificate.file
        self.server = self.make_server(certificate)
        self.server.on_event = self.note
        self.mailbox = self.server.mailbox
        self.accepted = asyncio.Event()

    async def note(self, name: str, _: object) -> None:
        """The server's hook."""
        if name in ("dot", "accepted"):
            self.accepted.set()

    @abstractmethod
    def make_server(self, certificate: Certificate) -> Any: ...

    @abstractmethod
    def transport_to(self, port: int) -> Transport: ...

    @staticmethod
    @abstractmethod
    def account(secret: str) -> Transport:
        """One that is set up with this secret and nothing unusual."""

    @abstractmethod
    def rules(self, until: asyncio.Event) -> dict[str, Callable[[], Rule[Any]]]:
        """The server's rule for each thing that a test wants it to do."""

    @abstractmethod
    def offered(self) -> bool:
        """True when the server has seen what can lead to acceptance."""

    def script(self, what: str, until: asyncio.Event | None = None) -> None:
        self.server.script.add(self.rules(until or asyncio.Event())[what]())

    def behave(self) -> None:
        self.server.script.clear()

    async def idle(self) -> None:
        await self.server.idle()

    def job(self, key: str = "order-1", answer_seconds: float = 20.0) -> Job:
        return make_job(self.transport, mail(key), answer_seconds=answer_seconds)

    def copies(self, key: str = "order-1") -> int:
        return self.mailbox.copies("ann@example.org", message_id=f"<{key}@sendonce.test>")


class Smtp(Provider):
    identity = "smtp:relay.example.org:587:shop"

    def make_server(self, certificate: Certificate) -> SmtpServer:
        return SmtpServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        return SmtpTransport(SmtpSettings(host="127.0.0.1", port=port, tls="starttls", ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return SmtpTransport(SmtpSettings(host="relay.example.org", username="shop", password=SecretStr(secret)))

    def rules(self, until: asyncio.Event) -> dict[str, Callable[[], Rule[Any]]]:
        m = smtp_misbehaviour
        return {
            "refuse": lambda: m.refuse_message(554),
            "defer": lambda: m.refuse_message(451, "4.3.0 later"),
            "account fault": lambda: m.answer("mail", 530, "5.7.0 log in first"),
            "lose answer": m.cut_after_dot,
            "no answer": m.silent_after_dot,
            "late answer": lambda: m.late_reply(until, times=1),
            "nasty refusal": lambda: m.answer_raw("dot", b"550 5.1.1 " + NASTY + b"\r\n"),
            "huge answer": lambda: Rule("dot", SmtpAct(b"250 " + b"x" * 300_000 + b"\r\n", store=True)),
        }

    def offered(self) -> bool:
        dots = next(self.server.ids) - 1
        return bool(dots > 0)


class Http(Provider):
    """Whatever takes one request per mail."""

    server: HttpServer

    def rules(self, until: asyncio.Event) -> dict[str, Callable[[], Rule[Any]]]:
        m = http_misbehaviour
        return {
            "refuse": lambda: m.answer(422, "validation_error"),
            "defer": m.too_many_requests,
            "account fault": m.unauthorised,
            "lose answer": m.lose_answer,
            "no answer": m.silent_after_accepting,
            "late answer": lambda: m.late_answer(until, times=1),
            "nasty refusal": lambda: m.answer(422, body=NASTY),
            "huge answer": lambda: m.answer(200, at="accepted", body=b'{"pad": "' + b"x" * 300_000 + b'", "id": "1"}'),
        }

    def offered(self) -> bool:
        return bool(self.server.requests)


class Gateway(Http):
    identity = "http:https://api.example.org/emails"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return HttpGateway(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        return GatewayTransport(GatewaySettings(url=f"https://127.0.0.1:{port}/emails", ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        headers = {"Authorization": SecretStr(secret)}
        return GatewayTransport(GatewaySettings(url="https://api.example.org/emails", headers=headers))


class Resend(Http):
    identity = "resend:api.resend.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return ResendServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        return ResendTransport(ResendSettings(api_key=SecretStr("re_1"), base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return ResendTransport(ResendSettings(api_key=SecretStr(secret)))

    def copies(self, key: str = "order-1") -> int:
        # The Message-ID is Resend's own.
        return sum(stored.key == key for stored in self.mailbox.mails() if "ann@example.org" in stored.recipients)


class Brevo(Http):
    identity = "brevo:api.brevo.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return BrevoServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        return BrevoTransport(BrevoSettings(api_key=SecretStr("xkeysib-1"), base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return BrevoTransport(BrevoSettings(api_key=SecretStr(secret)))

    def copies(self, key: str = "order-1") -> int:
        # The Message-ID is Brevo's own.
        found = [stored for stored in self.mailbox.mails() if f"sendonce-key-{key}" in stored.json()["tags"]]
        return sum("ann@example.org" in stored.recipients for stored in found)


class Ses(Http):
    identity = "ses:email.eu-central-1.amazonaws.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return SesServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        return SesTransport(self.settings_with("secret", base_url=url, ca_file=self.ca))

    @staticmethod
    def settings_with(secret: str, **more: Any) -> SesSettings:
        keys = {"access_key_id": SecretStr("AKIA1"), "secret_access_key": SecretStr(secret)}
        return SesSettings(region="eu-central-1", **keys, **more)

    @staticmethod
    def account(secret: str) -> Transport:
        return SesTransport(Ses.settings_with(secret))

    def copies(self, key: str = "order-1") -> int:
        # The Message-ID is SES's own.
        tag = {"Name": "sendonce_key", "Value": key}
        found = [stored for stored in self.mailbox.mails() if tag in stored.json()["EmailTags"]]
        return sum("ann@example.org" in stored.recipients for stored in found)


class Postmark(Http):
    identity = "postmark:api.postmarkapp.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return PostmarkServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        return PostmarkTransport(PostmarkSettings(api_key=SecretStr("token"), base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return PostmarkTransport(PostmarkSettings(api_key=SecretStr(secret)))


class SendGrid(Http):
    identity = "sendgrid:api.sendgrid.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return SendGridServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        return SendGridTransport(SendGridSettings(api_key=SecretStr("SG.1"), base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return SendGridTransport(SendGridSettings(api_key=SecretStr(secret)))


class Mailgun(Http):
    identity = "mailgun:api.mailgun.net:mg.example.org"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return MailgunServer(tls=certificate.context, domain="mg.example.org")

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        settings = MailgunSettings(api_key=SecretStr("1"), domain="mg.example.org", base_url=url, ca_file=self.ca)
        return MailgunTransport(settings)

    @staticmethod
    def account(secret: str) -> Transport:
        return MailgunTransport(MailgunSettings(api_key=SecretStr(secret), domain="mg.example.org"))


class SparkPost(Http):
    identity = "sparkpost:api.sparkpost.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return SparkPostServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        return SparkPostTransport(SparkPostSettings(api_key=SecretStr("1"), base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return SparkPostTransport(SparkPostSettings(api_key=SecretStr(secret)))

    def copies(self, key: str = "order-1") -> int:
        # The Message-ID is SparkPost's own.
        return sum(stored.key == key for stored in self.mailbox.mails() if "ann@example.org" in stored.recipients)


class Lettermint(Http):
    identity = "lettermint:api.lettermint.co"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return LettermintServer(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}/v1"
        return LettermintTransport(LettermintSettings(api_key=SecretStr("lm_1"), base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return LettermintTransport(LettermintSettings(api_key=SecretStr(secret)))

    def copies(self, key: str = "order-1") -> int:
        # What becomes of our Message-ID is not documented, so it is not sent.
        return sum(stored.key == key for stored in self.mailbox.mails() if "ann@example.org" in stored.recipients)


class AhaSend(Http):
    identity = f"ahasend:{ACCOUNT}"

    def make_server(self, certificate: Certificate) -> HttpServer:
        server = AhaSendServer(tls=certificate.context)
        server.one_id = True
        return server

    def transport_to(self, port: int) -> Transport:
        url = f"https://127.0.0.1:{port}"
        key = SecretStr("aha-sk-1")
        return AhaSendTransport(AhaSendSettings(api_key=key, account_id=ACCOUNT, base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return AhaSendTransport(AhaSendSettings(api_key=SecretStr(secret), account_id=ACCOUNT))

    def copies(self, key: str = "order-1") -> int:
        # The Message-ID is AhaSend's own.
        return sum(stored.key == key for stored in self.mailbox.mails() if "ann@example.org" in stored.recipients)


class Mailjet(Http):
    identity = "mailjet:api.mailjet.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        server = MailjetServer(tls=certificate.context)
        server.one_id = True
        return server

    def transport_to(self, port: int) -> Transport:
        url, keys = f"https://127.0.0.1:{port}", {"api_key": SecretStr("public"), "secret_key": SecretStr("private")}
        return MailjetTransport(MailjetSettings(**keys, base_url=url, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return MailjetTransport(MailjetSettings(api_key=SecretStr("public"), secret_key=SecretStr(secret)))

    def copies(self, key: str = "order-1") -> int:
        # The Message-ID is Mailjet's own.
        found = [one.json()["Messages"][0]["EventPayload"] for one in self.mailbox.mails()]
        return sum(json.loads(payload)["sendonce_key"] == key for payload in found)


class Azure(Http):
    identity = "azure:shop.communication.azure.com"

    def make_server(self, certificate: Certificate) -> HttpServer:
        server = AzureServer(tls=certificate.context)
        # Here, keys are what a person can read.
        server.guids = False
        server.wall = lambda: CREATED_AT
        return server

    def transport_to(self, port: int) -> Transport:
        key = SecretStr(f"endpoint=https://127.0.0.1:{port}/;accesskey=a2V5")
        return AzureTransport(AzureSettings(api_key=key, ca_file=self.ca), now=lambda: CREATED_AT)

    @staticmethod
    def account(secret: str) -> Transport:
        key = base64.b64encode(secret.encode()).decode()
        connection = f"endpoint=https://shop.communication.azure.com/;accesskey={key}"
        return AzureTransport(AzureSettings(api_key=SecretStr(connection)))


class PigeonSettings(SimpleSettings):
    port: int = 443
    token: SecretStr = SecretStr("")
    ca_file: Path | None = None


class PigeonTransport(SimpleTransport[PigeonSettings]):
    """A transport of somebody's own, on nothing but asyncio's streams."""

    settings_model = PigeonSettings
    name = "pigeon"
    capability = Capability(key="header Idempotency-Key", replay="the first answer, with the same id")
    key_window = 86400.0

    def request(self, mail: SimpleMail) -> bytes:
        headers = {"Message-ID": mail.message_id}
        to = [one.mailbox for one in (*mail.content.to, *mail.content.cc, *mail.content.bcc)]
        body = {"from": mail.content.sender.mailbox, "to": to, "text": mail.content.text, "headers": headers}
        return json.dumps(body).encode()

    @asynccontextmanager
    async def prepare(self, mail: SimpleMail) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        context = ssl.create_default_context(cafile=self.settings.ca_file)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.settings.port, ssl=context)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def send(self, mail: SimpleMail) -> str | None:
        reader, writer = mail.prepared
        head = (
            "POST /emails HTTP/1.1",
            f"Authorization: Bearer {self.settings.token.get_secret_value()}",
            f"Idempotency-Key: {mail.idempotency_key}",
            f"Content-Length: {len(mail.body)}",
        )
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + mail.body)
        await writer.drain()
        fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status, length = int(fields.split(" ")[1]), int(fields.partition("content-length:")[2].split()[0])
        answer = await reader.readexactly(min(length, 65536))
        if status == 429:
            raise RetryLater(1, status, answer)
        if status == 401:
            raise AccountError(status, answer)
        if status == 422:
            raise PermanentError(status, answer)
        found: str = json.loads(answer)["id"]
        return found


class Simple(Http):
    identity = "pigeon:default"

    def make_server(self, certificate: Certificate) -> HttpServer:
        return HttpGateway(tls=certificate.context)

    def transport_to(self, port: int) -> Transport:
        return PigeonTransport(PigeonSettings(port=port, ca_file=self.ca))

    @staticmethod
    def account(secret: str) -> Transport:
        return PigeonTransport(PigeonSettings(token=SecretStr(secret)))


PROVIDERS: list[type[Provider]] = [
    Smtp,
    Gateway,
    Resend,
    Postmark,
    Brevo,
    Ses,
    SendGrid,
    Mailgun,
    SparkPost,
    Lettermint,
    AhaSend,
    Mailjet,
    Azure,
    Simple,
]


@pytest.fixture(params=PROVIDERS, ids=lambda made: made.__name__.lower())
async def provider(request: pytest.FixtureRequest, certificate: Certificate) -> AsyncIterator[Provider]:
    made: Provider = request.param(certificate)
    async with made.server:
        made.transport = made.transport_to(made.server.port)
        yield made
        await made.transport.close()


async def test_accepted_once_and_the_id_is_kept(provider: Provider) -> None:
    gate = RecordingGate()
    result = await provider.transport.transmit(provider.job(), gate)
    [stored] = provider.mailbox.mails()
    assert stored.recipients == ("ann@example.org", "bob@example.org")
    assert set(result.outcomes) == {0, 1}
    for outcome in result.outcomes.values():
        assert isinstance(outcome, Accepted)
        assert outcome.provider_id == stored.provider_id != ""
        assert not outcome.replayed
    assert gate.offers == 1


@pytest.mark.parametrize(("what", "kind"), [("refuse", Refused), ("defer", Deferred), ("account fault", AccountFault)])
async def test_refusals_are_classified_and_leave_nothing_behind(provider: Provider, what: str, kind: type) -> None:
    provider.script(what)
    result = await provider.transport.transmit(provider.job(), RecordingGate())
    assert [type(outcome) for outcome in result.outcomes.values()] == [kind, kind]
    assert provider.mailbox.mails() == []


async def test_a_refused_connection_is_not_offered(provider: Provider, closed_port: int) -> None:
    gate = RecordingGate()
    transport = provider.transport_to(closed_port)
    job = make_job(transport, mail())
    result = await transport.transmit(job, gate)
    await transport.close()
    assert all(isinstance(outcome, NotOffered) and outcome.counted for outcome in result.outcomes.values())
    assert len(result.outcomes) == 2
    assert gate.begun == []


async def test_a_connection_that_is_cut_before_the_offer_is_not_offered(provider: Provider) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    gate = RecordingGate()
    listener = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    transport = provider.transport_to(listener.sockets[0].getsockname()[1])
    result = await transport.transmit(make_job(transport, mail()), gate)
    listener.close()
    await transport.close()
    assert all(isinstance(outcome, NotOffered) and outcome.counted for outcome in result.outcomes.values())
    assert gate.begun == []


async def test_a_lost_answer_is_unanswered_and_one_copy(provider: Provider) -> None:
    provider.script("lose answer")
    result = await provider.transport.transmit(provider.job(), RecordingGate())
    assert [type(outcome) for outcome in result.outcomes.values()] == [Unanswered, Unanswered]
    assert provider.copies() == 1


async def test_silence_is_unanswered_when_the_answer_timer_ends(provider: Provider) -> None:
    provider.script("no answer")
    result = await provider.transport.transmit(provider.job(answer_seconds=0.4), RecordingGate())
    assert [type(outcome) for outcome in result.outcomes.values()] == [Unanswered, Unanswered]
    assert provider.copies() == 1
    await provider.idle()


@pytest.mark.parametrize("error", [Fenced(), StoreAway()])
async def test_when_begin_is_refused_nothing_is_offered(provider: Provider, error: Exception) -> None:
    with pytest.raises(type(error)):
        await provider.transport.transmit(provider.job(), RecordingGate(refuse=error))
    await provider.idle()
    assert not provider.offered()
    assert provider.mailbox.mails() == []


async def test_when_the_offer_comes_too_late_nothing_is_offered(provider: Provider) -> None:
    gate = RecordingGate(too_late=True)
    with pytest.raises(Fenced):
        await provider.transport.transmit(provider.job(), gate)
    await provider.idle()
    assert len(gate.begun) == 1
    assert not provider.offered()
    assert provider.mailbox.mails() == []


async def test_begin_comes_once_and_before_the_offer(provider: Provider) -> None:
    seen: list[tuple[bool, int]] = []

    async def look() -> None:
        seen.append((provider.offered(), len(provider.mailbox.mails())))

    gate = RecordingGate(on_begin=look)
    await provider.transport.transmit(provider.job(), gate)
    assert gate.begun == [(0, 1)]
    assert seen == [(False, 0)]


async def test_only_the_envelope_is_offered_with_its_own_ordinals(provider: Provider) -> None:
    gate = RecordingGate()
    job = make_job(provider.transport, mail(), ordinals=(1,))
    result = await provider.transport.transmit(job, gate)
    assert gate.begun == [(1,)]
    assert set(result.outcomes) == {1}
    assert [stored.recipients for stored in provider.mailbox.mails()] == [("bob@example.org",)]


async def test_cancelled_in_begin_the_connection_closes_and_nothing_is_offered(provider: Provider) -> None:
    begun = asyncio.Event()

    async def hold() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(provider.transport.transmit(provider.job(), RecordingGate(on_begin=hold)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await provider.idle()
    assert not provider.offered()


async def test_cancelled_after_the_offer_the_next_mail_gets_its_own_answer(provider: Provider) -> None:
    release = asyncio.Event()
    provider.script("late answer", release)
    task = asyncio.create_task(provider.transport.transmit(provider.job("order-1"), RecordingGate()))
    await provider.accepted.wait()
    assert provider.copies("order-1") == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    provider.behave()
    result = await provider.transport.transmit(provider.job("order-2"), RecordingGate())
    await provider.transport.close()  # what it would keep for the next mail is not waited for
    await provider.idle()
    first, second = provider.mailbox.mails()
    assert {getattr(outcome, "provider_id", None) for outcome in result.outcomes.values()} == {second.provider_id}
    assert first.provider_id != second.provider_id
    assert (provider.copies("order-1"), provider.copies("order-2")) == (1, 1)


async def test_one_cancelled_mail_leaves_the_others_unharmed(provider: Provider) -> None:
    begun = asyncio.Event()

    async def hold() -> None:
        begun.set()
        await asyncio.Event().wait()

    held = asyncio.create_task(provider.transport.transmit(provider.job("held"), RecordingGate(on_begin=hold)))
    await begun.wait()
    others = [
        asyncio.create_task(provider.transport.transmit(provider.job(f"other-{n}"), RecordingGate())) for n in range(5)
    ]
    held.cancel()
    results = await asyncio.gather(*others)
    with pytest.raises(asyncio.CancelledError):
        await held
    assert all(isinstance(outcome, Accepted) for result in results for outcome in result.outcomes.values())
    assert [provider.copies(f"other-{n}") for n in range(5)] == [1] * 5
    assert provider.copies("held") == 0


async def test_text_that_cannot_be_stored_is_made_storable(provider: Provider) -> None:
    provider.script("nasty refusal")
    result = await provider.transport.transmit(provider.job(), RecordingGate())
    for outcome in result.outcomes.values():
        assert isinstance(outcome, Refused)
        assert "caf" in outcome.reply.text
        assert "\x00" not in outcome.reply.text
        assert json.loads(json.dumps(outcome.reply.text).encode()) == outcome.reply.text
        outcome.reply.text.encode()


async def test_an_oversized_answer_settles_nothing(provider: Provider) -> None:
    provider.script("huge answer")
    result = await provider.transport.transmit(provider.job(), RecordingGate())
    for outcome in result.outcomes.values():
        assert isinstance(outcome, Unanswered)
        assert len(outcome.reply.text) <= 1000
    assert provider.copies() == 1


async def test_the_same_row_gives_the_same_bytes(provider: Provider, tmp_path: Path) -> None:
    first, second = provider.job(), provider.job()
    assert first.rendering == second.rendering
    assert first.rendering.digest() == second.rendering.digest()
    await provider.transport.transmit(first, RecordingGate())
    [stored] = provider.mailbox.mails()
    assert stored.content == first.rendering.body


async def test_closing_twice_is_fine_and_closes_connections(provider: Provider) -> None:
    await provider.transport.transmit(provider.job(), RecordingGate())
    await provider.transport.close()
    await provider.transport.close()
    await provider.idle()


@pytest.mark.parametrize("made", PROVIDERS, ids=lambda made: made.__name__.lower())
def test_identity_and_digest_hold_no_secret(made: type[Provider]) -> None:
    one, same, other = (made.account(secret) for secret in ("hunter2", "hunter2", "hunter3"))
    assert one.identity == other.identity == made.identity
    assert one.settings_digest == same.settings_digest != other.settings_digest
    settings = one.settings  # type: ignore[attr-defined] # every transport has them under this name
    assert "hunter2" not in f"{one.settings_digest}{settings!r}{settings!s}{one!r}"
