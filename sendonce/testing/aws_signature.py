"""Signature Version 4 as its receiver checks it, after AWS's description and without AWS's code.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from sendonce.testing.http_request import HttpRequest

Flaw = Literal["MissingAuthenticationToken", "IncompleteSignature", "UnrecognizedClient", "InvalidSignature"]
"""What AWS calls a request that it does not let in."""

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/([0-9]{8})/([^/]+)/([^/]+)/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)
_SKEW = 300.0
"""Seconds by which the clocks may differ."""


def flaw(
    request: HttpRequest, secrets: Mapping[str, str] | None, *, region: str, service: str, now: datetime
) -> Flaw | None:
    """What is wrong with a request's signature; None: nothing. ``secrets`` by access key id; None: any will do."""
    given = request.headers.get("authorization")
    if given is None:
        return "MissingAuthenticationToken"
    parts = _AUTHORIZATION.fullmatch(given)
    stamp = request.headers.get("x-amz-date", "")
    if parts is None or not re.fullmatch(r"[0-9]{8}T[0-9]{6}Z", stamp):
        return "IncompleteSignature"
    key_id, day, its_region, its_service, names, signature = parts.groups()
    if not {"host", "x-amz-date"} <= set(names.split(";")) or not stamp.startswith(day):
        return "IncompleteSignature"
    signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if (its_region, its_service) != (region, service) or abs((now - signed_at).total_seconds()) > _SKEW:
        return "InvalidSignature"
    if secrets is None:
        return None
    if key_id not in secrets:
        return "UnrecognizedClient"
    url = urlsplit(request.path)
    fields = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in names.split(";"))
    body = hashlib.sha256(request.body).hexdigest()
    canonical = "\n".join([request.method, url.path, url.query, fields, names, body])
    scope = f"{day}/{region}/{service}/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secrets[key_id]}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    return None if hmac.digest(key, to_sign.encode(), "sha256").hex() == signature else "InvalidSignature"
