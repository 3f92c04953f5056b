"""The playing servers of all providers, with the settings of an account at each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from sendonce import settings
from sendonce.testing.ahasend_server import ACCOUNT, AhaSendServer
from sendonce.testing.azure_server import AzureServer
from sendonce.testing.brevo_server import BrevoServer
from sendonce.testing.certificate import Certificate
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.lettermint_server import LettermintServer
from sendonce.testing.mailgun_server import MailgunServer
from sendonce.testing.mailjet_server import MailjetServer
from sendonce.testing.postmark_server import PostmarkServer
from sendonce.testing.resend_server import ResendServer
from sendonce.testing.sendgrid_server import SendGridServer
from sendonce.testing.ses_server import SesServer
from sendonce.testing.smtp_server import SmtpServer
from sendonce.testing.sparkpost_server import SparkPostServer
from tests.crash.world import GATEWAY, SECURE, SMTP, Playing, World

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport


@dataclass(frozen=True)
class Provider:
    """A server that plays it, and the account's settings as :meth:`World.play` takes them."""

    server: Callable[[Certificate], Playing]
    settings: str


def _azure(_: Certificate) -> AzureServer:
    server = AzureServer()
    # What it compares times with moves on with the clock that it forgets by.
    server.wall = lambda: datetime.now(UTC) + timedelta(seconds=server.clock() - monotonic())
    return server


def _lettermint(_: Certificate) -> LettermintServer:
    server = LettermintServer()
    server.team_token = "lm_team"
    return server


Searched = TypeVar("Searched", PostmarkServer, BrevoServer)


def _blind(server: Searched) -> Searched:
    server.search_lag = float("inf")
    return server


def _account(transport: str, *lines: str, secret: str = 'api_key = "key-1"', path: str = "") -> str:
    return "\n".join((f'transport = "{transport}"', f'base_url = "{{origin}}{path}"', secret, *lines))


_SECRETS = 'access_key_id = "AKIA1"\nsecret_access_key = "secret"'
_CONNECTION = 'transport = "azure"\napi_key = "endpoint={origin}/;accesskey=a2V5"'

PROVIDERS = {
    "resend": Provider(lambda _: ResendServer(), _account("resend")),
    "postmark": Provider(lambda _: PostmarkServer(), _account("postmark")),
    "ses": Provider(lambda _: SesServer(), _account("ses", 'region = "eu-central-1"', secret=_SECRETS)),
    "brevo": Provider(lambda _: BrevoServer(), _account("brevo")),
    "sendgrid": Provider(lambda _: SendGridServer(), _account("sendgrid")),
    "sendgrid with email activity": Provider(lambda _: SendGridServer(), _account("sendgrid", "email_activity = true")),
    "mailgun": Provider(
        lambda _: MailgunServer(domain="mg.example.org"), _account("mailgun", 'domain = "mg.example.org"')
    ),
    "sparkpost": Provider(lambda _: SparkPostServer(), _account("sparkpost")),
    "lettermint": Provider(_lettermint, _account("lettermint", 'team_token = "lm_team"', path="/v1")),
    "ahasend": Provider(lambda _: AhaSendServer(), _account("ahasend", f'account_id = "{ACCOUNT}"')),
    "mailjet": Provider(lambda _: MailjetServer(), _account("mailjet", 'secret_key = "private"')),
    "azure": Provider(_azure, _CONNECTION),
}
"""Whatever is reached by an API of its own, as in the capability table."""

OTHERS = {
    "smtp": Provider(lambda _: SmtpServer(), SMTP),
    "secure": Provider(
        lambda certificate: SmtpServer(tls=certificate.context, credentials={"shop": "hunter2-secret"}), SECURE
    ),
    "gateway": Provider(lambda _: HttpGateway(), GATEWAY),
    "resend by TLS": Provider(
        lambda certificate: ResendServer(tls=certificate.context), _account("resend", 'ca_file = "{ca}"')
    ),
    "postmark by TLS": Provider(
        lambda certificate: PostmarkServer(tls=certificate.context), _account("postmark", 'ca_file = "{ca}"')
    ),
    "postmark that finds nothing": Provider(lambda _: _blind(PostmarkServer()), _account("postmark")),
    "brevo that finds nothing": Provider(lambda _: _blind(BrevoServer()), _account("brevo")),
}

_numbers = count(1)


async def open_account(world: World, provider: str, *lines: str) -> str:
    """A server of its own and an account there, ``lines`` being further settings; returns the account's name."""
    found = (PROVIDERS | OTHERS)[provider]
    account = f"{provider.lower().replace(' ', '-')}-{next(_numbers)}"
    await world.play(account, found.server(world.certificate), "\n".join((found.settings, *lines)))
    return account


def transports(world: World) -> dict[str, Transport]:
    """What the workers have for each account, by the same settings."""
    return settings.build_transports(settings.load(world.settings))
