"""Settings of one account at a mail gateway that takes JSON over HTTP."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sendonce.activities.transports.http_account import checked_url, digest, is_header_value
from sendonce.activities.transports.json_template import check_template

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")  # RFC 9110 5.6.2
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding"})

USUAL_BODY: dict[str, Any] = {
    "from": "{from}",
    "to": "{to}",
    "cc": "{cc}",
    "bcc": "{bcc}",
    "reply_to": "{reply_to}",
    "subject": "{subject}",
    "text": "{text}",
    "html": "{html}",
    "headers": "{all_headers}",
    "attachments": {
        "$each": "attachments",
        "item": {
            "filename": "{item.filename}",
            "content": "{item.content}",
            "content_type": "{item.content_type}",
            "content_id": "{item.content_id}",
        },
    },
}
"""What several providers understand as it is (Resend's POST /emails, https://resend.com/docs/api-reference)."""


class GatewaySettings(BaseModel):
    """How to reach and use one gateway account. Raises pydantic's ValidationError for what cannot work."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(max_length=500)
    """Where mails are posted: ``https``, or ``http`` on loopback. No credentials in it."""
    headers: dict[str, SecretStr] = {}
    """Sent with each request, for example ``Authorization``. Never pinned, logged or shown."""
    body: dict[str, Any] = USUAL_BODY
    """The request's body: :mod:`sendonce.activities.transports.json_template` says how it is written."""
    id_path: str | None = "id"
    """Where the message's id is in a 2xx answer, as a dotted path (``data.0.id``). A 2xx without it counts as no
    answer: some gateways answer 200 to what they did not take. None: the status alone decides."""
    id_header: str | None = None
    """The answer's header that holds the id, instead of ``id_path``."""
    key_header: str | None = "Idempotency-Key"
    """The request header for the idempotency key. None: not sent as a header."""
    key_window: float | None = Field(86400, gt=0, le=30 * 86400)
    """Seconds from the first offer for which the provider documents that it knows a key; beyond them an unanswered mail
    is never sent again under it. None: the provider keeps no keys, and nothing is ever replayed."""
    replayed_headers: tuple[str, ...] = ("Idempotent-Replayed", "X-Idempotent-Replayed")
    """Answer headers whose value ``true`` says that this is a stored answer (AhaSend and SparkPost document these)."""
    scope: str | None = Field(None, pattern=r"^[!-~]{1,150}$")
    """In whose name the provider knows our keys (a project, an account). None: the URL. Change it when the account
    behind the URL changes: no key is replayed at another account."""
    error_paths: tuple[str, ...] = ("name", "code", "error.code", "error.type", "error", "errors.0.code", "type")
    """Where an error's code is in the answer, as dotted paths; the first that is there counts."""
    mismatch_codes: tuple[str, ...] = ("invalid_idempotent_request", "idempotency_key_reused", "1600")
    """Error codes (any case) of a 409 or 422 that say: this key had another body (Resend, Plunk, SparkPost)."""
    account_codes: tuple[str, ...] = ("daily_quota_exceeded", "monthly_quota_exceeded")
    """Error codes (any case) of a 4xx that say: our account is at fault, whatever the status (Resend's quotas: 429)."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    connect_seconds: float = Field(30, ge=0.01, le=3600)
    """For name resolution and TCP, and again for TLS. The lane's ``answer_seconds`` bounds all that comes after."""

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        try:
            return checked_url(url)
        except ValueError as error:
            raise ValueError(f"url: {error}") from None

    @field_validator("body")
    @classmethod
    def _fillable(cls, body: dict[str, Any]) -> dict[str, Any]:
        check_template(body)
        return body

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [*self.headers, *((self.key_header,) if self.key_header is not None else ())]
        for name in names:
            if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
                raise ValueError(f"headers: {name!r} is no header name, or one that is set from the request itself")
        if len({name.lower() for name in names}) < len(names):
            raise ValueError("headers: the same name twice, or the key's header among them")
        for name, value in self.headers.items():
            if not is_header_value(value.get_secret_value()):
                raise ValueError(f"headers: the value of {name} must be printable ASCII without spaces around it")
        if self.key_window is not None and self.key_header is None and "{provider_key}" not in json.dumps(self.body):
            raise ValueError(
                "key_window: no key is sent; set key_header, put {provider_key} into body, or set it to None"
            )
        if self.id_path is not None and self.id_header is not None:
            raise ValueError("id_path and id_header: give one")
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_place(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("id_header") and "id_path" not in data:
            return {**data, "id_path": None}
        return data

    def identity(self) -> str:
        """Whose account it is, without secrets; at most 200 characters."""
        scope = self.scope or self.url
        if len(scope) > 180:
            scope = scope[:140] + hashlib.sha256(scope.encode()).hexdigest()[:32]
        return f"http:{scope}"

    def digest(self) -> str:
        """SHA-256, in hex, over all settings, the secret headers included."""
        return digest(self)
