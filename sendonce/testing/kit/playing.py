"""Which providers can be played, and how each is set up."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from pydantic import SecretStr

from sendonce.errors import ConfigurationError
from sendonce.testing.http_server import HttpServer
from sendonce.testing.kit.arrivals import Arrivals, Inbox, Reader, read_json, read_mime
from sendonce.testing.kit.clock import Clock
from sendonce.testing.kit.provider import HttpProvider, Provider, SmtpProvider
from sendonce.testing.smtp_server import SmtpServer

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport

Maker = Callable[[str, Clock, Arrivals], Provider]


def _smtp(account: str, clock: Clock, arrivals: Arrivals) -> Provider:
    return SmtpProvider(account, clock, SmtpServer(Inbox(account, read_mime, arrivals)))


def _http(
    module: str,
    name: str,
    connect: Callable[[HttpServer], Transport],
    read: Reader,
    *,
    code_member: str,
    text_member: str = "message",
    refusal: str,
) -> Maker:
    """``code_member`` and ``text_member``: where an error has its code and its text; ``refusal``: the code for a
    recipient that is refused.
    """

    def body(code: str) -> bytes:
        return json.dumps({code_member: int(code) if code.isdecimal() else code, text_member: "as scripted"}).encode()

    def make(account: str, clock: Clock, arrivals: Arrivals) -> Provider:
        made = getattr(import_module(f"sendonce.testing.{module}"), name)
        server: HttpServer = made(Inbox(account, read, arrivals))
        return HttpProvider(account, clock, server, connect, body, refusal)

    return make


def _gateway(server: HttpServer) -> Transport:
    from sendonce.activities.transports.http import GatewaySettings, GatewayTransport

    return GatewayTransport(GatewaySettings(url=server.url))


def _resend(server: HttpServer) -> Transport:
    from sendonce.activities.transports.resend import ResendSettings, ResendTransport

    return ResendTransport(ResendSettings(api_key=SecretStr("re_1"), base_url=server.origin))


def _postmark(server: HttpServer) -> Transport:
    from sendonce.activities.transports.postmark import PostmarkSettings, PostmarkTransport

    return PostmarkTransport(PostmarkSettings(api_key=SecretStr("token"), base_url=server.origin))


def _brevo(server: HttpServer) -> Transport:
    from sendonce.activities.transports.brevo import BrevoSettings, BrevoTransport

    return BrevoTransport(BrevoSettings(api_key=SecretStr("xkeysib-1"), base_url=server.origin))


_BY_NAME = read_json("subject", "text", "html", "attachments", "filename", "content", "content_type")

_BY_CAPITALS = read_json("Subject", "TextBody", "HtmlBody", "Attachments", "Name", "Content", "ContentType")
_BY_CONTENT = read_json("subject", "textContent", "htmlContent", "attachment", "name", "content")

KINDS: dict[str, Maker] = {
    "smtp": _smtp,
    "http": _http("http_gateway", "HttpGateway", _gateway, _BY_NAME, code_member="name", refusal="validation_error"),
    "resend": _http("resend_server", "ResendServer", _resend, _BY_NAME, code_member="name", refusal="validation_error"),
    "postmark": _http(
        "postmark_server",
        "PostmarkServer",
        _postmark,
        _BY_CAPITALS,
        code_member="ErrorCode",
        text_member="Message",
        refusal="406",
    ),
    "brevo": _http("brevo_server", "BrevoServer", _brevo, _BY_CONTENT, code_member="code", refusal="invalid_parameter"),
}
"""How each is made, by the name that a setting gives."""


def play(account: str, kind: str, clock: Clock, arrivals: Arrivals) -> Provider:
    """The provider of an account. Raises ConfigurationError for one that cannot be played."""
    if kind not in KINDS:
        raise ConfigurationError(
            f"the test kit cannot play {kind!r} for the account {account!r}: name one of {', '.join(KINDS)}, or give "
            "a transport of your own"
        )
    return KINDS[kind](account, clock, arrivals)
