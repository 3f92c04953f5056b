"""From a step that failed to what to do about it. Pure."""

from __future__ import annotations

import ssl

from sendonce.activities.transports.smtp_connection import NoLine
from sendonce.activities.transports.smtp_settings import SmtpSettings

_VERIFY = {
    9: "the certificate is not valid yet: check this machine's clock",
    10: "the certificate has expired: the server's operator must renew it",
    18: "the certificate is self-signed: set ca_file to a copy of it that you trust",
    19: "it is signed by a private authority: set ca_file to that authority's certificate",
    20: "its issuer is not known here: set ca_file for a private one; else the server leaves out an intermediate",
    21: "its issuer is not known here: set ca_file for a private one; else the server leaves out an intermediate",
    62: "the certificate is for another name: set host to a name that it holds",
    64: "the certificate is for another address: set host to a name that it holds",
}
"""By OpenSSL's code (``X509_V_ERR_…``, https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/)."""

_LOG_IN = {
    432: "the server wants the password changed first (RFC 4954 6)",
    454: "the server cannot check it now: try later",
    504: "the server does not take this mechanism: set auth to another one",
    530: "the server wants TLS before a log-in: set tls = 'starttls'",
    534: "the mechanism is too weak for this account: set auth, or use an app password or a token",
    535: "check username and password or token; many providers want an app password or an API key here",
    538: "the server wants TLS before a log-in: set tls = 'starttls'",
}


def advise(step: str, error: NoLine, settings: SmtpSettings) -> str:
    """What to do, in a sentence or two."""
    reply, cause = error.outcome.reply, error.__cause__
    match step:
        case "tcp":
            return (
                "check host and port, and that no firewall is in between; many networks block port 25. If connecting "
                "works and TLS stalls, the port may be one for tls = 'starttls'"
                if settings.tls == "implicit"
                else "check host and port, and that no firewall is in between; many networks block port 25"
            )
        case "greeting" if reply.code:
            return "the server turns this machine away: its operator knows why"
        case "greeting":
            return "the port may want TLS from the first octet: set tls = 'implicit' (usually port 465), or check port"
        case "ehlo" if reply.code:
            return "the server does not like how it is greeted: set ehlo_name to this machine's full host name"
        case "tls":
            return _tls(reply.enhanced, cause)
        case "auth":
            return _LOG_IN.get(reply.code) or _source(reply.enhanced)
        case _:
            return (
                "the server hung up: if it asks for a client certificate set client_certificate, else its log says why"
            )


def _tls(code: str, cause: BaseException | None) -> str:
    if code == "starttls_missing":
        return "set tls = 'implicit' (usually port 465), or port to the server's port for submission (usually 587)"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _VERIFY.get(cause.verify_code, "the certificate cannot be verified: ask the server's operator")
    if isinstance(cause, ssl.SSLError) and cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "the port does not start with TLS: set tls = 'starttls' (usually port 587), or check port"
    if isinstance(cause, ssl.SSLError) and "PROTOCOL" in (cause.reason or ""):
        return "the server offers nothing as new as TLS 1.2: it must be updated"
    return "the server broke the handshake off: if it asks for a client certificate set client_certificate"


def _source(code: str) -> str:
    match code:
        case "token_command":
            return "run token_command by hand, as the user that the worker runs as"
        case "token_url":
            return "check token_url, client_id, client_secret and refresh_token; invalid_grant: grant access anew"
        case "auth_missing":
            return "check host and port, or set auth and credentials to what the server offers"
        case _:
            return "the server's log says why"
