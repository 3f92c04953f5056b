"""TLS towards one SMTP relay: verified, at least 1.2, with the settings' own certificates."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sendonce.activities.transports.smtp_settings import SmtpSettings

T = TypeVar("T")


def client_context(settings: SmtpSettings) -> ssl.SSLContext:
    """The context for STARTTLS and implicit TLS: certificate and name are always verified.

    Raises OSError whose ``strerror`` names the setting and the file that cannot be used.
    """
    context = trusting("ca_file", settings.ca_file)
    certificate, key, password = settings.client_certificate, settings.client_key, settings.client_key_password
    if certificate is not None:
        for name, file in (("client_certificate", certificate), ("client_key", key)):
            if file is not None:
                _named(name, file, file.read_bytes)
        # Without a password OpenSSL would ask for one at the terminal.
        secret = password.get_secret_value() if password is not None else ""
        name = "client_certificate" if key is None else "client_key"
        _named(name, key or certificate, lambda: context.load_cert_chain(certificate, key, secret))
    return context


def trusting(name: str, ca_file: Path | None) -> ssl.SSLContext:
    """A client's context that trusts the certificates in ``ca_file``, the value of the setting ``name``, or, without
    it, the system's. Raises OSError as above.
    """
    if ca_file is None:
        context = ssl.create_default_context()
    else:
        context = _named(name, ca_file, lambda: ssl.create_default_context(cafile=ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _named(name: str, file: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except ssl.SSLError:
        wanted = "certificates" if name.endswith("ca_file") else "a certificate and its key"
        why = f"{name}: {file} does not hold {wanted} in PEM that can be read"
        if name.startswith("client"):
            why += "; check that they belong together, and client_key_password"
        raise OSError(errno.EINVAL, why) from None
    except OSError as error:
        raise OSError(error.errno, f"{name}: {file} cannot be read: {error.strerror}") from None
