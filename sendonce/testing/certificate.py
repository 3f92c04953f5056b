"""Certificates for a playing server and its clients, made on the spot."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key. If it is self-signed, ``file`` is what the other side must be told to trust."""

    file: Path
    key: Path
    context: ssl.SSLContext
    """For the server."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A private certificate authority: ``file`` is what everybody must be told to trust."""

    file: Path
    key: Path

    def issue(self, folder: Path, *names: str, days: int = 7) -> Certificate:
        """A certificate for these names, valid for ``days`` days (0: it has expired), in ``folder``.

        Raises as :func:`self_signed`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        key, file, request, extensions = (
            folder / name for name in ("key.pem", "certificate.pem", "request.pem", "extensions.cnf")
        )
        extensions.write_text(f"subjectAltName = {','.join(names)}\n", encoding="utf-8")
        _openssl("req", *_NEW_KEY, "-subj", "/CN=loopback.test", "-keyout", key, "-out", request)
        signed_by: list[str | Path] = ["-CA", self.file, "-CAkey", self.key, "-set_serial", "1"]
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", str(days), "-extfile", extensions, "-out", file)
        return _certificate(file, key)


def private_authority(folder: Path) -> Authority:
    """Make one, valid for a week, in ``folder``. Raises as :func:`self_signed`."""
    folder.mkdir(parents=True, exist_ok=True)
    file, key = folder / "authority.pem", folder / "authority-key.pem"
    # req's own configuration makes it an authority.
    _openssl("req", "-x509", *_NEW_KEY, "-days", "7", "-subj", "/CN=authority.test", "-keyout", key, "-out", file)
    return Authority(file, key)


def self_signed(folder: Path, *names: str) -> Certificate:
    """Make one for these names (``DNS:localhost``, ``IP:127.0.0.1``), valid for a week, in ``folder``.

    Needs the ``openssl`` command, 1.1.1 or later. Raises FileNotFoundError without it, CalledProcessError when it
    fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key, file = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=loopback.test", "-addext", f"subjectAltName={','.join(names)}"]
    _openssl("req", "-x509", *_NEW_KEY, "-days", "7", *subject, "-keyout", key, "-out", file)
    return _certificate(file, key)


def encrypted(key: Path, file: Path, password: str) -> Path:
    """Write ``key`` to ``file``, encrypted with ``password``; returns ``file``. Raises as :func:`self_signed`."""
    _openssl("pkcs8", "-topk8", "-in", key, "-out", file, "-passout", f"pass:{password}")
    return file


def _certificate(file: Path, key: Path) -> Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return Certificate(file, key, context)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)  # noqa: S607 - whichever is on PATH
