"""From a step that failed to what to do about it. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from aiosmtplib import SMTPReadTimeoutError

from sendonce.activities.transports.doctor_step import advise_on_certificate
from sendonce.activities.transports.smtp_connection import NoLine
from sendonce.activities.transports.smtp_settings import SmtpSettings

_LOG_IN = {
    421: "the server ends the connection: try later; its log says why",
    432: "the server wants the password changed first (RFC 4954 6)",
    454: "the server cannot check it now: try later",
    504: "the server does not take this mechanism: set auth to another one",
    530: "the server wants TLS before a log-in: set tls = 'starttls'",
    534: "the mechanism is too weak for this account: set auth, or use an app password or a token",
    535: "check username and password or token; many providers want an app password or an API key here",
    538: "the server wants TLS before a log-in: set tls = 'starttls'",
}

_SOURCE = {
    "token_command": "run token_command by hand, as the user that the worker runs as",
    "token_url": "check token_url, client_id, client_secret and refresh_token; invalid_grant: grant access anew",
    "auth_missing": "check host and port, or set auth and credentials to what the server offers",
}

_CLIENT = "set client_certificate (and client_key) to one that the server's operator gave you"
_MAYBE_CLIENT = "the server broke it off, and its log says why; if it asks for a client certificate, set one"
_STARTTLS = "the port does not start with TLS: set tls = 'starttls' (usually port 587), or check port"


def advise(step: str, error: NoLine, settings: SmtpSettings) -> str:
    """What to do, in a sentence or two."""
    reply, causes = error.outcome.reply, list(_causes(error))
    match step:
        case "tls":
            return _tls(reply.enhanced, causes)
        case _ if asks_for_certificate(causes):
            return _CLIENT
        case "greeting" if reply.code:
            return "the server turns this machine away: its operator knows why"
        case "greeting" if settings.tls == "implicit":
            return _MAYBE_CLIENT
        case "greeting" if any(isinstance(cause, SMTPReadTimeoutError) for cause in causes):
            return "the port may want TLS from the first octet: set tls = 'implicit' (usually port 465), or check port"
        case "greeting":
            return "check host and port; a server that turns this machine away may hang up too: its log says why"
        case "ehlo" if reply.code:
            return "the server does not like how it is greeted: set ehlo_name to this machine's full host name"
        case "auth":
            return _SOURCE.get(reply.enhanced) or _LOG_IN.get(reply.code) or "the server's log says why"
        case _:
            return "the server hung up or fell silent: its log says why"


def asks_for_certificate(causes: list[BaseException]) -> bool:
    """True when the server said that it wants a client certificate (RFC 8446 6.2), which it can after the handshake."""
    return any(isinstance(cause, ssl.SSLError) and "CERTIFICATE_REQUIRED" in str(cause.reason) for cause in causes)


def broke_handshake(error: NoLine) -> bool:
    """True when TCP stood, and what failed with it was the handshake of implicit TLS."""
    # asyncio says ConnectionAbortedError when a handshake takes too long, and ConnectionResetError when it is cut.
    cut = (ssl.SSLError, ConnectionAbortedError, ConnectionResetError)
    return any(isinstance(cause, cut) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _tls(code: str, causes: list[BaseException]) -> str:
    if code == "starttls_missing":
        return "set tls = 'implicit' (usually port 465), or port to the server's port for submission (usually 587)"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return advise_on_certificate(cause)
        if isinstance(cause, ConnectionAbortedError):
            return _STARTTLS
        if isinstance(cause, ssl.SSLError):
            return _handshake(str(cause.reason))
    return _MAYBE_CLIENT


def _handshake(reason: str) -> str:
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return _STARTTLS
    if "CERTIFICATE_REQUIRED" in reason:
        return _CLIENT
    if "PROTOCOL" in reason:
        return "the server offers nothing as new as TLS 1.2: it must be updated"
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return "the server does not take the certificate that it was shown: check client_certificate"
    return _MAYBE_CLIENT
