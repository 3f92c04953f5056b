"""Settings of one SMTP account."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sendonce.checks import envelope_mailbox
from sendonce.dsn.proof import MAC_CHARACTERS, return_path

USUAL_PORT = {"none": 25, "starttls": 587, "implicit": 465}
"""RFC 5321 4.5.4.2, RFC 6409 3.1, RFC 8314 3.3."""

PASSWORD_MECHANISMS = ("plain", "cram-md5", "login")
TOKEN_MECHANISMS = ("oauthbearer", "xoauth2")


class SmtpTimeouts(BaseModel):
    """How long each step may take, in seconds; 0.01 to 3600 each. The defaults are the least that RFC 5321 4.5.3.2
    asks of a client; it names none for connecting and TLS. The final dot's is the lane's ``answer_seconds``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect: float = Field(30, ge=0.01, le=3600)
    """Name resolution and TCP together."""
    tls: float = Field(30, ge=0.01, le=3600)
    greeting: float = Field(300, ge=0.01, le=3600)
    ehlo: float = Field(300, ge=0.01, le=3600)
    auth: float = Field(300, ge=0.01, le=3600)
    """For each step of the log-in."""
    mail: float = Field(300, ge=0.01, le=3600)
    rcpt: float = Field(300, ge=0.01, le=3600)
    data: float = Field(120, ge=0.01, le=3600)
    """From DATA to 354."""
    block: float = Field(180, ge=0.01, le=3600)
    """For each 64 KiB of the body to be taken."""
    quit: float = Field(5, ge=0.01, le=3600)
    """Leaving is a courtesy: the message is settled by then."""


class SmtpPoolSettings(BaseModel):
    """The connections of one account in one process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: int = Field(60, ge=1, le=1000)
    """At once; 1 to 1000. Less than the places of all lanes together (20 each) lets one lane keep another waiting."""
    reserved: int | None = Field(None, ge=0, le=999)
    """Of these, how many only mail of an urgent lane may take, such as ``critical``; 0 to 999, and fewer
    than all. None: a tenth, at least one of two or more."""
    idle_seconds: float = Field(10, ge=0, le=3600)
    """How long an unused connection is kept; 0 keeps none. 0 to 3600. Servers close theirs after minutes (RFC 5321
    4.5.3.2.7 gives them five), some relays after seconds."""
    mails_per_connection: int = Field(100, ge=1, le=100000)
    """Then a new one is made; 1 to 100000. Many relays set such a limit themselves."""

    @property
    def kept_free(self) -> int:
        """``reserved``, or what it comes to when it is not set."""
        if self.reserved is not None:
            return self.reserved
        return 0 if self.max_connections == 1 else max(1, self.max_connections // 10)

    @model_validator(mode="after")
    def _some_for_all(self) -> Self:
        if self.kept_free >= self.max_connections:
            raise ValueError(f"reserved must be less than max_connections, {self.max_connections}")
        return self


class SmtpSettings(BaseModel):
    """How to reach and use one SMTP relay. Raises pydantic's ValidationError for what cannot work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._:-]+$")
    """A host name (A-labels) or an IP address. The certificate must name it."""
    port: int = Field(0, ge=0, le=65535)
    """0 becomes the usual one: 587 with ``starttls``, 465 with ``implicit``, 25 with ``none``."""
    tls: Literal["none", "starttls", "implicit"] = "starttls"
    """``starttls``: no mail and no log-in before TLS, and none without it. At least TLS 1.2; the certificate is always
    verified. ``none`` sends in clear and allows no log-in but to a loopback address."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's. Paths are relative to the working directory."""
    client_certificate: Path | None = None
    """The certificate (PEM) to show to a server that asks for one, with its intermediates."""
    client_key: Path | None = None
    """Its private key (PEM). None: it is in ``client_certificate`` too."""
    client_key_password: SecretStr | None = None
    """What the private key is encrypted with."""
    auth: Literal["auto", "plain", "login", "cram-md5", "xoauth2", "oauthbearer"] = "auto"
    """The SASL mechanism. ``auto``: the strongest that is offered and fits what is configured; see
    :func:`~sendonce.activities.transports.smtp_auth.choose`."""
    username: str | None = Field(None, min_length=1, max_length=128)
    """Whom to log in as: with ``password``, or with an access token from ``token_command`` or ``token_url``."""
    password: SecretStr | None = None
    token_command: tuple[str, ...] = Field((), max_length=100, repr=False)
    """Program and arguments, run without a shell; its standard output is an OAuth 2 access token."""
    token_url: str | None = Field(None, max_length=500, pattern=r"^https?://[!-~]+$")
    """The token endpoint of an OAuth 2 server (RFC 6749 3.2): ``https``, or ``http`` on loopback. It is asked with
    ``client_id``, ``refresh_token`` and, if set, ``client_secret`` and ``scope`` (RFC 6749 6)."""
    token_ca_file: Path | None = None
    """Certificates (PEM) to trust at ``token_url`` instead of the system's."""
    token_seconds: float = Field(30, ge=0.1, le=300)
    """How long fetching a token may take, in seconds; 0.1 to 300."""
    client_id: str | None = Field(None, min_length=1, max_length=500)
    client_secret: SecretStr | None = None
    refresh_token: SecretStr | None = None
    scope: str | None = Field(None, min_length=1, max_length=1000)
    """None: what was granted with the refresh token."""
    ehlo_name: str | None = Field(None, pattern=r"^[!-~]{1,255}$")
    """The name to greet with (RFC 5321 4.1.1.1). None: the address literal of the connection's own end."""
    pool: SmtpPoolSettings = SmtpPoolSettings()
    pipelining: bool = True
    """Send sender, recipients and DATA in one go where the server offers it (RFC 2920)."""
    dsn: bool = True
    """Ask for bounces that name the mail, where the server offers it (RFC 3461)."""
    bounces_to: str | None = Field(None, max_length=254)
    """A mailbox for bounces, such as ``bounces@example.com``, that takes mail with an extension too: each mail's return
    path is then its own, ``bounces+…@example.com`` (VERP), and proves which mail a bounce is about. None: the sender's
    mailbox. A mail's own ``envelope_sender`` wins."""
    account_faults: tuple[str, ...] = ()
    """Replies that are the account's fault at this relay, though elsewhere they are the mail's: command, code and
    optionally the enhanced code, as in ``"rcpt 554 5.7.1"`` (a relay that has forgotten us) or ``"dot 554 5.2.2"`` (the
    sender's quota). Commands: mail, rcpt, data, dot."""
    timeouts: SmtpTimeouts = SmtpTimeouts()

    @field_validator("username")
    @classmethod
    def _plain(cls, username: str | None) -> str | None:
        if username is not None and not username.isprintable():
            raise ValueError("username holds control characters")
        return username

    @field_validator("bounces_to")
    @classmethod
    def _holds_a_proof(cls, mailbox: str | None) -> str | None:
        if mailbox is not None:
            mailbox = envelope_mailbox(mailbox)
            return_path(f"{UUID(int=0)}.{'a' * MAC_CHARACTERS}", mailbox)
        return mailbox

    @field_validator("account_faults")
    @classmethod
    def _readable(cls, faults: tuple[str, ...]) -> tuple[str, ...]:
        for fault in faults:
            if not re.fullmatch(r"(mail|rcpt|data|dot) [45]\d\d( [45]\.\d{1,3}\.\d{1,3})?", fault):
                raise ValueError('account_faults holds what is no reply: write for example "rcpt 554 5.7.1"')
        return faults

    @model_validator(mode="before")
    @classmethod
    def _usual_port(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("port"):
            tls = data.get("tls", "starttls")
            return {**data, "port": USUAL_PORT.get(tls, 0) if isinstance(tls, str) else 0}
        return data

    @model_validator(mode="after")
    def _safe(self) -> Self:
        self._check_log_in()
        if self.client_certificate is None and (self.client_key or self.client_key_password):
            raise ValueError("client_key needs client_certificate: give both, or one file with both")
        if self.client_certificate is not None and self.tls == "none":
            raise ValueError("client_certificate is shown in TLS only: set tls = 'starttls' or 'implicit'")
        if self.username is not None and self.tls == "none" and not _loopback(self.host):
            raise ValueError(f"a log-in to {self.host} needs tls = 'starttls' or 'implicit': it would go in clear")
        return self

    def _check_log_in(self) -> None:
        sources = [name for name in ("password", "token_command", "token_url") if getattr(self, name)]
        if len(sources) > 1:
            raise ValueError(f"{sources[0]} and {sources[1]} are two ways to log in: keep one")
        if bool(sources) != (self.username is not None):
            raise ValueError("username and password go together (or username and token_command or token_url)")
        if self.auth != "auto" and not sources:
            raise ValueError(f"auth = '{self.auth}' needs a username and what to log in with")
        if self.auth in PASSWORD_MECHANISMS and not self.password:
            raise ValueError(f"auth = '{self.auth}' needs a password")
        if self.auth in TOKEN_MECHANISMS and self.password:
            raise ValueError(f"auth = '{self.auth}' needs token_command or token_url instead of a password")
        if self.token_url is None:
            for name in ("client_id", "client_secret", "refresh_token", "scope", "token_ca_file"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for the token endpoint: set token_url too, or leave it out")
            return
        if self.client_id is None or self.refresh_token is None:
            raise ValueError("token_url needs client_id and refresh_token")
        if "@" in urlsplit(self.token_url).netloc:
            raise ValueError("token_url: no user or password in it; use client_id and client_secret")
        if self.token_url.startswith("http:") and not _loopback(urlsplit(self.token_url).hostname or ""):
            raise ValueError("token_url must be https: secrets go there")

    def identity(self) -> str:
        """Whose account it is, without secrets; at most 200 characters of it."""
        return f"smtp:{self.host.lower()}:{self.port}:{self.username or ''}"[:200]

    def secrets(self) -> dict[str, str]:
        """Every secret that is set, in clear, by the name of its key."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value.get_secret_value() for name, value in values if isinstance(value, SecretStr)}

    def digest(self) -> str:
        """SHA-256, in hex, over all settings, the secrets included."""
        body = self.model_dump(mode="json") | self.secrets()
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
