"""What the doctors of all transports share: a step's result, the name's look-up, the certificate."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

PATIENCE = 20.0
"""Seconds that a step may take at most: somebody is looking."""

EXPIRES_SOON = timedelta(days=14)
NAMES_SHOWN = 3
"""Of a certificate that holds more."""

Status = Literal["ok", "warn", "fail", "skip"]

_VERIFY = {
    9: "the certificate is not valid yet: check this machine's clock",
    10: "the certificate has expired: the server's operator must renew it, or check this machine's clock",
    18: "the certificate is self-signed: set ca_file to a copy of it that you trust",
    19: "it is signed by a private authority: set ca_file to that authority's certificate",
    20: "its issuer is not known here: set ca_file for a private one; else the server leaves out an intermediate",
    21: "its issuer is not known here: set ca_file for a private one; else the server leaves out an intermediate",
    62: "the certificate is for another name: set {host} to a name that it holds",
    64: "the certificate is for another address: set {host} to a name that it holds",
}
"""By OpenSSL's code (``X509_V_ERR_…``, https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/)."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step found."""

    name: str
    status: Status
    what: str
    """In words; what a server said may be in it, secrets are not."""
    fix: str = ""
    """What to do about it."""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    """For programs: ``offers``, ``certificate``, ``mechanism`` …"""


async def look_up(host: str, port: int, *, setting: str = "host") -> Step:
    """The step ``dns``. ``setting`` is the key that names the host. Never raises but CancelledError."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return Step("dns", "skip", f"{host} is an address")
    try:
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return Step("dns", "fail", f"{host}: no answer in time", "check the name server of this machine")
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a name that can be looked up"
        return Step("dns", "fail", f"{host}: {why}", f"check {setting}, and the name server of this machine")
    addresses = sorted({str(entry[4][0]) for entry in found})
    return Step("dns", "ok", f"{host} is {', '.join(addresses)}", details={"addresses": addresses})


def not_connected(
    error: BaseException | None, *, setting: str = "host and port", firewall: str = ""
) -> tuple[str, str]:
    """Why a TCP connection failed, at one address or at several, and what to do about it.

    ``setting`` names what says where to; ``firewall`` is added to the advice for a connection that is dropped.
    """
    # asyncio joins what its tries of a name's addresses said: "[Errno 111] Connect call failed ('::1', 25, 0, 0), …".
    numbers = sorted({int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))})
    if isinstance(error, TimeoutError) or errno.ETIMEDOUT in numbers:
        return "no answer in time", f"check {setting}; else a firewall drops the connection{firewall}"
    why = ", ".join(os.strerror(number) for number in numbers) or type(error).__name__
    if errno.ECONNREFUSED in numbers:
        return why, f"nobody listens there: check {setting}"
    return why, f"check {setting}, and that no firewall is in between"


def certificate_step(tls: ssl.SSLObject, details: dict[str, Any]) -> Step:
    """The step ``tls`` for a verified connection; its ``certificate`` is added to ``details``."""
    found = _certificate(tls)
    what = "{protocol} {cipher}, certificate for {subject} by {issuer} until {until:%Y-%m-%d}".format(**found)
    details = {**details, "certificate": found}
    if found["until"] - datetime.now(UTC) < EXPIRES_SOON:
        fix = "the server's certificate expires soon: its operator renews it"
        return Step("tls", "warn", what, fix, details=details)
    return Step("tls", "ok", what, details=details)


def _certificate(tls: ssl.SSLObject) -> dict[str, Any]:
    shown, cipher = tls.getpeercert(), tls.cipher()
    # Verified, so there is one.
    assert shown is not None
    assert cipher is not None
    fields: dict[str, Any] = dict(shown)
    names = [value for _, value in fields.get("subjectAltName", ())]
    subject = ", ".join(names[:NAMES_SHOWN]) or _name(fields["subject"])
    if len(names) > NAMES_SHOWN:
        subject += f" and {len(names) - NAMES_SHOWN} more"
    return {
        "subject": subject,
        "issuer": _name(fields["issuer"]),
        "until": datetime.fromtimestamp(ssl.cert_time_to_seconds(fields["notAfter"]), UTC),
        "protocol": tls.version(),
        "cipher": cipher[0],
    }


def _name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """A distinguished name: its common name, else its organisation, else all of it."""
    pairs = {key: value for part in parts for key, value in part}
    return pairs.get("commonName") or pairs.get("organizationName") or ", ".join(pairs.values()) or "nobody"


def advise_on_certificate(error: ssl.SSLCertVerificationError, setting: str = "host") -> str:
    """What to do about a certificate that does not verify. ``setting`` is the key that names the host."""
    usual = "the certificate cannot be verified: ask the server's operator"
    return _VERIFY.get(error.verify_code, usual).format(host=setting)
