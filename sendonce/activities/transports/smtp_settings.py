"""Settings of one SMTP account."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

USUAL_PORT = {"none": 25, "starttls": 587, "implicit": 465}
"""RFC 5321 4.5.4.2, RFC 6409 3.1, RFC 8314 3.3."""


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
    """Certificates (PEM) to trust instead of the system's."""
    username: str | None = Field(None, min_length=1, max_length=128)
    password: SecretStr | None = None
    ehlo_name: str | None = Field(None, pattern=r"^[!-~]{1,255}$")
    """The name to greet with (RFC 5321 4.1.1.1). None: the address literal of the connection's own end."""
    timeouts: SmtpTimeouts = SmtpTimeouts()

    @field_validator("username")
    @classmethod
    def _plain(cls, username: str | None) -> str | None:
        if username is not None and not username.isprintable():
            raise ValueError("username holds control characters")
        return username

    @model_validator(mode="before")
    @classmethod
    def _usual_port(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("port"):
            tls = data.get("tls", "starttls")
            return {**data, "port": USUAL_PORT.get(tls, 0) if isinstance(tls, str) else 0}
        return data

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together: give both or neither")
        if self.username is not None and self.tls == "none" and not _loopback(self.host):
            raise ValueError(f"a log-in to {self.host} needs tls = 'starttls' or 'implicit': it would go in clear")
        return self

    def identity(self) -> str:
        """Whose account it is, without secrets; at most 200 characters of it."""
        return f"smtp:{self.host.lower()}:{self.port}:{self.username or ''}"[:200]

    def digest(self) -> str:
        """SHA-256, in hex, over all settings, the password included."""
        body = self.model_dump(mode="json")
        body["password"] = self.password.get_secret_value() if self.password is not None else None
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
