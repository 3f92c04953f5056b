"""A certificate for a playing server, made on the spot."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate: ``file`` is what a client must be told to trust."""

    file: Path
    context: ssl.SSLContext
    """For the server."""


def self_signed(folder: Path, *names: str) -> Certificate:
    """Make one for these names (``DNS:localhost``, ``IP:127.0.0.1``), valid for a week, in ``folder``.

    Needs the ``openssl`` command, 1.1.1 or later. Raises FileNotFoundError without it, CalledProcessError when it
    fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key, file = folder / "key.pem", folder / "certificate.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "7"]
    subject = ["-subj", "/CN=loopback.test", "-addext", f"subjectAltName={','.join(names)}"]
    subprocess.run(
        ["openssl", *request, *subject, "-keyout", key, "-out", file],  # noqa: S607 - whichever is on PATH
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return Certificate(file, context)
