"""Logging in to an SMTP server (RFC 4954): which SASL mechanism, and its exchange.

==============  =====================================================================================
mechanism       source
==============  =====================================================================================
PLAIN           RFC 4616
LOGIN           draft-murchison-sasl-login
CRAM-MD5        RFC 2195
OAUTHBEARER     RFC 7628
XOAUTH2         https://developers.google.com/workspace/gmail/imap/xoauth2-protocol
==============  =====================================================================================
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from aiosmtplib import SMTPAuthenticationError
from aiosmtplib.auth import auth_crammd5_verify, auth_login_encode, auth_plain_encode, auth_xoauth2_encode

from sendonce.activities.transports.smtp_settings import PASSWORD_MECHANISMS, TOKEN_MECHANISMS, SmtpSettings
from sendonce.activities.transports.smtp_token import NoToken, TokenSource
from sendonce.outcome import AccountFault, NotOffered, Outcome, Reply

COMMAND_LIMIT = 512
"""Octets of a command line (RFC 5321 4.5.3.1.4). A longer first response waits for the server's 334 (RFC 4954 4)."""

CANCEL = b"*"

PASSWORD_CHANGE = 432
"""The one 4xx that does not pass by itself: somebody has to change the password (RFC 4954 4.7.12)."""

Answer = Callable[[str], bytes]
"""From the text of a 334 to the line that answers it."""


class Line(Protocol):
    """What a log-in needs of a connection."""

    settings: SmtpSettings

    @property
    def auth_methods(self) -> Sequence[str]:
        """The mechanisms that the server offers."""

    @property
    def usable(self) -> bool:
        """True while replies and commands are paired and the connection is up."""

    async def set_up(self, *words: bytes, timeout: float) -> tuple[Reply, str]:
        """Send one command; its reply, and the reply's text as it was read."""


def choose(settings: SmtpSettings, offered: Sequence[str]) -> str:
    """The mechanism to use, in lower case; ``""`` when the server offers none that may be used.

    With ``auto`` and a password: PLAIN in TLS, else CRAM-MD5, LOGIN; without TLS (loopback only) CRAM-MD5 comes first,
    which does not show the password. With a token: OAUTHBEARER, else XOAUTH2.
    """
    if settings.auth != "auto":
        wanted: Sequence[str] = (settings.auth,)
    elif settings.password is None:
        wanted = TOKEN_MECHANISMS
    elif settings.tls == "none":
        wanted = ("cram-md5", "plain", "login")
    else:
        wanted = PASSWORD_MECHANISMS
    known = {name.lower() for name in offered}
    return next((name for name in wanted if name in known), "")


async def log_in(line: Line, tokens: TokenSource | None) -> Outcome | None:
    """Log in with what the settings hold; None when the server agreed, else what to make of it for every recipient.

    A token that is refused is replaced once, as it may have been revoked before its time. What the server says is
    freed of secrets that it repeats. Raises what :meth:`Line.set_up` raises.
    """
    mechanism = choose(line.settings, line.auth_methods)
    if not mechanism:
        return AccountFault(Reply(enhanced="auth_missing", text=_missing(line)))
    if line.settings.password is not None:
        return _fault(await _exchange(line, mechanism, _with_password(mechanism, line.settings)))
    assert tokens is not None
    try:
        token = await tokens.get()
        reply = await _exchange(line, mechanism, _with_token(mechanism, line.settings, token))
        if reply.code == 535:
            fresh = await tokens.get(refused=token)
            if line.usable:
                reply = await _exchange(line, mechanism, _with_token(mechanism, line.settings, fresh))
    except NoToken as error:
        return error.outcome
    return _fault(reply)


def _fault(reply: Reply) -> Outcome | None:
    """What the final reply means.

    A 4xx (454 above all) says that the server cannot check anybody just now, and nothing of our credentials. It is
    what a greeting of 4xx is: this try failed, the retry policy goes on, connections that are logged in serve on, and
    many mails that fail so in a row pause the account as an outage. A pause at the first one would stop all mail, with
    an alarm, for what the next connection may not even meet.
    """
    if reply.code == 235:
        return None
    if 400 <= reply.code <= 499 and reply.code != PASSWORD_CHANGE:
        return NotOffered(reply)
    return AccountFault(reply)


def _missing(line: Line) -> str:
    settings = line.settings
    if settings.auth != "auto":
        fitting = settings.auth.upper()
    else:
        fitting = " or ".join(PASSWORD_MECHANISMS if settings.password is not None else TOKEN_MECHANISMS).upper()
    offered = ", ".join(sorted(line.auth_methods)).upper() or "no log-in at all"
    return f"the server offers {offered}, and {fitting} is needed: check host, port and auth, or log in another way"


async def _exchange(line: Line, mechanism: str, answers: list[Answer]) -> Reply:
    """AUTH and every 334 that follows; the final reply. ``answers`` are used up in turn."""
    timeout = line.settings.timeouts.auth
    said: list[bytes] = []

    def say(answer: Answer, challenge: str) -> bytes:
        said.append(answer(challenge))
        return said[-1]

    words = [b"AUTH", mechanism.upper().encode()]
    # CRAM-MD5 has no first response: the server speaks first.
    if mechanism != "cram-md5" and len(b" ".join(words)) + len(answers[0]("")) + 3 <= COMMAND_LIMIT:
        words.append(say(answers[0], ""))
        answers = answers[1:]
    reply, text = await line.set_up(*words, timeout=timeout)
    for answer in answers:
        if reply.code != 334:
            break
        reply, text = await line.set_up(say(answer, text), timeout=timeout)
    if reply.code == 334:
        # It wants more than the mechanism has to say; it answers 501 (RFC 4954 4).
        reply, _ = await line.set_up(CANCEL, timeout=timeout)
    return replace(reply, text=_without(reply.text, said, line.settings))


def _without(text: str, said: Sequence[bytes], settings: SmtpSettings) -> str:
    """Some servers repeat what they refuse, and the reply is stored: what was said is taken out, encoded and plain."""
    lines = [line for line in said if line != CANCEL]
    # NUL and ^A stand between the parts of PLAIN, XOAUTH2 and OAUTHBEARER.
    parts = [part for line in lines for part in re.split(b"[\x00\x01]", base64.b64decode(line))]
    parts += [part.removeprefix(b"auth=Bearer ") for part in parts]
    secrets = {each.decode() for each in (*lines, *parts, *map(base64.b64encode, parts))}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3 and secret not in (settings.username, settings.host):
            text = text.replace(secret, "***")
    return text


def _with_password(mechanism: str, settings: SmtpSettings) -> list[Answer]:
    assert settings.username is not None
    assert settings.password is not None
    username, password = settings.username, settings.password.get_secret_value()
    match mechanism:
        case "plain":
            return [lambda _: auth_plain_encode(username, password)]
        case "login":
            first, second = auth_login_encode(username, password)
            return [lambda _: first, lambda _: second]
        case _:
            return [lambda challenge: _cram_md5(username, password, challenge)]


def _cram_md5(username: str, password: str, challenge: str) -> bytes:
    try:
        return auth_crammd5_verify(username, password, challenge)
    except (SMTPAuthenticationError, ValueError):
        return CANCEL


def _with_token(mechanism: str, settings: SmtpSettings, token: str) -> list[Answer]:
    assert settings.username is not None
    username = settings.username
    if mechanism == "xoauth2":
        # A 334 after the token says in JSON why it is refused; an empty line fetches the 535.
        return [lambda _: auth_xoauth2_encode(username, token), lambda _: b""]
    # RFC 7628 3.1 and 3.2.3; in a GS2 header "," and "=" are escaped (RFC 5801 4).
    escaped = username.replace("=", "=3D").replace(",", "=2C")
    said = f"n,a={escaped},\x01host={settings.host}\x01port={settings.port}\x01auth=Bearer {token}\x01\x01"
    return [lambda _: base64.b64encode(said.encode()), lambda _: base64.b64encode(b"\x01")]
