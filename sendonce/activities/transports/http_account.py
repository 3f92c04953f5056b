"""Settings that every account at an HTTP provider has, and the checks they share with a gateway's."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_VALUE = re.compile(r"[!-~](?:[ -~]{0,4000}[!-~])?")


class ProviderSettings(BaseModel):
    """One account at a provider whose API is known: its key is all that is needed.

    Raises pydantic's ValidationError, which never shows a value, for what cannot work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    provider: ClassVar[str]
    """The name in ``transport = "…"``; the identity begins with it."""

    api_key: SecretStr
    """What the provider calls API key or token. A secret: never pinned, logged or shown."""
    base_url: str = Field(max_length=300)
    """Where the API is, without the path of an endpoint: ``https``, or ``http`` on loopback."""
    scope: str | None = Field(None, pattern=r"^[!-~]{1,150}$")
    """In whose name the provider knows our keys and mails: its team, account or server, in words of your own. None:
    the host of the API. Change it when ``api_key`` comes to belong to another one: no mail that was offered before is
    then replayed or looked for there."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    connect_seconds: float = Field(30, ge=0.01, le=3600)
    """For name resolution and TCP, and again for TLS. The lane's ``answer_seconds`` bounds all that comes after."""

    @field_validator("base_url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        try:
            return checked_url(url).rstrip("/")
        except ValueError as error:
            raise ValueError(f"base_url: {error}") from None

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, key: SecretStr) -> SecretStr:
        if not is_header_value(key.get_secret_value()):
            raise ValueError("api_key: must be printable ASCII without spaces around it; was it copied whole?")
        return key

    def identity(self) -> str:
        """Whose account it is, without secrets; at most 200 characters."""
        return f"{self.provider}:{self.scope or urlsplit(self.base_url).netloc}"[:200]

    def digest(self) -> str:
        """SHA-256, in hex, over all settings, the key included."""
        return digest(self)


def checked_url(url: str) -> str:
    """The URL as it is. Raises ValueError, without a field's name, for one that no mail should be posted to."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("no user, password or #fragment; credentials belong into settings of their own")
    if not url.isascii() or not host or parts.scheme not in ("https", "http") or re.search(r"\s", url):
        raise ValueError("write an absolute URL such as https://api.example.com/emails")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise ValueError("http would send the mail and the credentials in clear; use https")
    return url


def is_header_value(text: str) -> bool:
    """Printable ASCII without spaces around it, at most about 4000 characters."""
    return _VALUE.fullmatch(text) is not None


def digest(settings: BaseModel) -> str:
    """SHA-256, in hex, over all settings, secrets included: whose account fault it was."""
    return hashlib.sha256(json.dumps(settings.model_dump(), sort_keys=True, default=_revealed).encode()).hexdigest()


def _revealed(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
