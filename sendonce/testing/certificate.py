"""Certificates for a playing server and its clients, made on the spot."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# What Python verifies strictly from 3.13 on (RFC 5280 4.2.1): key identifiers, and what an authority's key is for.
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)

DAYS = 7
"""How long a certificate is valid unless something else is asked for."""


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

    def issue(self, folder: Path, *names: str, days: int = DAYS) -> Certificate:
        """A certificate for these names, valid for ``days`` days (0: it has expired), in ``folder``."""
        authority = x509.load_pem_x509_certificate(self.file.read_bytes())
        signer = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder("loopback.test", key, days)
            .issuer_name(authority.subject)
            .add_extension(_names(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        return _certificate(folder, key, made.sign(signer, hashes.SHA256()))


def private_authority(folder: Path) -> Authority:
    """Make one, valid for a week, in ``folder``."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _builder("authority.test", key, DAYS)
        .issuer_name(_name("authority.test"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS, critical=True)
    ).sign(key, hashes.SHA256())
    return Authority(*_written(folder, "authority.pem", "authority-key.pem", key, made))


def self_signed(folder: Path, *names: str) -> Certificate:
    """Make one for these names (``DNS:localhost``, ``IP:127.0.0.1``), valid for a week, in ``folder``."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _builder("loopback.test", key, DAYS)
        .issuer_name(_name("loopback.test"))
        .add_extension(_names(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    ).sign(key, hashes.SHA256())
    return _certificate(folder, key, made)


def encrypted(key: Path, file: Path, password: str) -> Path:
    """Write ``key`` to ``file``, encrypted with ``password``; returns ``file``."""
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    how = serialization.BestAvailableEncryption(password.encode())
    file.write_bytes(plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    return file


def _builder(subject: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days) if days else now - timedelta(seconds=1))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _names(names: tuple[str, ...]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(
        [
            x509.IPAddress(ipaddress.ip_address(text)) if kind == "IP" else x509.DNSName(text)
            for kind, _, text in (name.partition(":") for name in names)
        ]
    )


def _written(
    folder: Path, name: str, key_name: str, key: ec.EllipticCurvePrivateKey, made: x509.Certificate
) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    file, key_file = folder / name, folder / key_name
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.write_bytes(made.public_bytes(pem))
    key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return file, key_file


def _certificate(folder: Path, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> Certificate:
    file, key_file = _written(folder, "certificate.pem", "key.pem", key, made)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key_file)
    return Certificate(file, key_file, context)
