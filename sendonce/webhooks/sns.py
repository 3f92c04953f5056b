"""Messages of Amazon SNS, and who signed them:
https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html.

The signature covers the fields, not the bytes: RSA over them in a fixed order, with SHA-1 (version 1) or SHA-256
(version 2). Its certificate is named by the message, so the name decides whom we trust: https, the host of SNS in the
region of the topic, and SNS's own file names.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from sendonce.webhooks.reading import Node
from sendonce.webhooks.receiver import NotNow, Rejected
from sendonce.webhooks.signatures import decoded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

FIELDS = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": (
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ),
}
FIELDS["UnsubscribeConfirmation"] = FIELDS["SubscriptionConfirmation"]
"""What is signed, in this order; a Subject that is not there is left out."""

_HOST = re.compile(r"sns\.([a-z0-9-]{1,40})\.amazonaws\.com(?:\.cn)?")
_FILE = re.compile(r"/SimpleNotificationService-[A-Za-z0-9]{1,100}\.pem")
_SECONDS = 10.0
_BYTES = 65536
_KEPT = 16
_FORGOTTEN = timedelta(days=1)


class Amazon:
    """What is asked of Amazon: certificates, each once a day, and confirmations of subscriptions."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport``: how requests travel; None: as httpx does it, with the system's certificates."""
        self._transport = transport
        self._keys: dict[str, tuple[RSAPublicKey, datetime]] = {}
        self._turn = asyncio.Lock()

    async def check(self, message: Node, now: datetime) -> None:
        """Raises Rejected unless SNS signed this; NotNow when the certificate cannot be had at present."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA1, SHA256

        version = message["SignatureVersion"].value
        # SHA-1 is what SNS signs with unless the topic says otherwise.
        hashes = {"1": SHA1(), "2": SHA256()}  # noqa: S303
        signature = decoded(message["Signature"].text)
        fields = FIELDS.get(message["Type"].text, ())
        if not (isinstance(version, str) and version in hashes and signature and fields):
            raise Rejected("no signature")
        key = await self._key(_trusted(message), now)
        try:
            key.verify(signature, to_sign(message, fields), PKCS1v15(), hashes[version])
        except InvalidSignature:
            raise Rejected("wrong signature") from None

    async def confirm(self, message: Node) -> None:
        """Visit the SubscribeURL of a message that was checked. Raises Rejected and NotNow."""
        url = message["SubscribeURL"].value
        if not isinstance(url, str) or not _at_amazon(url):
            raise Rejected("SubscribeURL does not lead to Amazon SNS")
        await self._get(url)

    async def _key(self, url: str, now: datetime) -> RSAPublicKey:
        # One at a time: a burst of messages fetches a certificate once.
        async with self._turn:
            known = self._keys.get(url)
            if known is None or known[1] <= now:
                known = _public_key(await self._get(url), now)
                self._keys.pop(url, None)
                while len(self._keys) >= _KEPT:
                    self._keys.pop(next(iter(self._keys)))
                self._keys[url] = known
            return known[0]

    async def _get(self, url: str) -> bytes:
        # No proxy and no credentials of the environment; a redirect would lead away from the host that was checked.
        client = httpx.AsyncClient(transport=self._transport, timeout=_SECONDS, follow_redirects=False, trust_env=False)
        body = b""
        try:
            async with asyncio.timeout(_SECONDS), client, client.stream("GET", url) as answer:
                async for block in answer.aiter_bytes():
                    body += block
                    if len(body) > _BYTES:
                        raise Rejected("Amazon's answer is too long")
        except (httpx.HTTPError, TimeoutError):
            raise NotNow("Amazon SNS cannot be reached") from None
        except httpx.InvalidURL:
            raise Rejected("no URL") from None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise NotNow(f"Amazon SNS answers {answer.status_code}")
        if answer.status_code != 200:
            raise Rejected(f"Amazon SNS answers {answer.status_code}")
        return body


def to_sign(message: Node, fields: tuple[str, ...]) -> bytes:
    """The signed text: each name and value on a line of its own."""
    lines = []
    for name in fields:
        value: Any = message[name].value
        if value is None and name == "Subject":
            continue
        if not isinstance(value, str):
            raise Rejected("a signed field is missing")
        lines += [name, value]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def _trusted(message: Node) -> str:
    """The certificate's URL. Raises Rejected unless it is one of SNS's, in the topic's region."""
    url = message.first("SigningCertURL", "SigningCertUrl").value
    region = message["TopicArn"].text.split(":")[3:4]
    if isinstance(url, str):
        parts = _parts(url)
        host = _HOST.fullmatch(parts.netloc) if parts else None
        if parts and host and [host[1]] == region and parts.scheme == "https" and url.isascii():
            plain = f"https://{parts.netloc}{parts.path}"
            if _FILE.fullmatch(parts.path) and plain == url:
                return url
    raise Rejected("the certificate is not at Amazon SNS")


def _at_amazon(url: str) -> bool:
    parts = _parts(url)
    return bool(parts and parts.scheme == "https" and _HOST.fullmatch(parts.netloc) and url.isascii())


def _parts(url: str) -> Any:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _public_key(pem: bytes, now: datetime) -> tuple[RSAPublicKey, datetime]:
    """The certificate's key, and when it is to be fetched again."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except ValueError:
        raise NotNow("Amazon's certificate cannot be read") from None
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not isinstance(key, RSAPublicKey) or not begins <= now <= ends:
        raise Rejected("the certificate is not valid")
    return key, min(ends.astimezone(UTC), now + _FORGOTTEN)
