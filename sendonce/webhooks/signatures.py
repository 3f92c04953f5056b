"""Proofs of who wrote, over the raw bytes and in constant time. Two secrets count while one replaces the other."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from sendonce.webhooks.receiver import Delivery, Rejected

SKEW = 300.0
"""How far ahead a provider's clock may be, in seconds."""

SECRET_HEADER = "x-sendonce-secret"  # noqa: S105 - its name, not its value
"""A header that a provider can be told to send a shared secret in."""

_SECONDS = re.compile(r"[0-9]{1,12}")


def same(given: str | bytes, wanted: Iterable[str | bytes]) -> bool:
    """Whether ``given`` is one of those. Each is looked at, and neither content nor length shows in the time taken."""
    digest = hashlib.sha256(_raw(given)).digest()
    found = [hmac.compare_digest(digest, hashlib.sha256(_raw(one)).digest()) for one in wanted]
    return True in found


def mac(key: str | bytes, message: bytes) -> bytes:
    """HMAC-SHA256."""
    return hmac.digest(_raw(key), message, "sha256")


def fresh(timestamp: str, now: float, seconds: float) -> None:
    """Raises Rejected unless ``timestamp`` (Unix seconds) is at most ``seconds`` old.

    Inside that window the same request can be sent again by whoever saw it; its events have the same ids then, and
    are kept once.
    """
    if not _SECONDS.fullmatch(timestamp):
        raise Rejected("no timestamp")
    if not -min(SKEW, seconds) <= now - int(timestamp) <= seconds:
        raise Rejected("timestamp outside the window")


def standard_webhook(prefix: str, delivery: Delivery, keys: Sequence[bytes], seconds: float) -> str:
    """Check ``<prefix>-id``, ``-timestamp`` and ``-signature``, and return the id. Raises Rejected.

    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: base64 of the HMAC over
    ``id.timestamp.body``, once per key in use, each with its version ``v1,`` and spaces between.
    """
    message_id, timestamp, signatures = (
        delivery.headers.get(f"{prefix}-{name}", "") for name in ("id", "timestamp", "signature")
    )
    if not message_id or not signatures:
        raise Rejected("no signature")
    fresh(timestamp, delivery.now, seconds)
    message = b".".join((_raw(message_id), timestamp.encode(), delivery.body))
    wanted = [base64.b64encode(mac(key, message)) for key in keys]
    given = [value for version, _, value in (one.partition(",") for one in signatures.split(" ")) if version == "v1"]
    if not any(same(one, wanted) for one in given[:16]):
        raise Rejected("wrong signature")
    return message_id


def shared_secret(delivery: Delivery, secrets: Sequence[str], *, in_query: bool = False) -> None:
    """Raises Rejected unless one of the secrets came along: as what follows the account in the path, as the password
    of HTTP basic authentication, as a bearer token, in the header :data:`SECRET_HEADER`; ``in_query``: as ``?secret=``.
    """
    given = [delivery.path_secret, delivery.headers.get(SECRET_HEADER, "")]
    scheme, _, credentials = delivery.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(credentials.strip())
    elif scheme.lower() == "basic":
        given.append((decoded(credentials) or b"").partition(b":")[2].decode("utf-8", "replace"))
    if in_query:
        given.append(delivery.query.get("secret", ""))
    found = [one for one in given if one]
    if not found:
        raise Rejected("no secret")
    if not any(same(one, secrets) for one in found):
        raise Rejected("wrong secret")


def decoded(text: str) -> bytes | None:
    """Base64 as it stands in a header; None when it is none."""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _raw(text: str | bytes) -> bytes:
    # Headers are read as Latin-1: these characters must come back as the bytes they were, or as something else at all.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
