"""The server's side of AUTH (RFC 4954): PLAIN, LOGIN, CRAM-MD5, XOAUTH2 and OAUTHBEARER."""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping

Ask = Callable[[bytes], Awaitable[str]]
"""Write this line (a 334 with its end) and read the client's next line."""

CHALLENGE = b"<1896.697170952@loopback.test>"
"""Of CRAM-MD5 (RFC 2195)."""

TOKEN_FAULT = json.dumps({"status": "401", "schemes": "bearer"}).encode()
"""What stands in the 334 after a token that is not right (RFC 7628 3.2.2)."""


class Cancelled(Exception):
    """The client gave up with ``*``, or said what cannot be read."""


async def log_in(argument: str, credentials: Mapping[str, str], ask: Ask) -> tuple[str, bool]:
    """One exchange, up to the final reply, which is left to the caller: the user, and whether the secret was right.

    ``argument`` is what follows AUTH; ``credentials`` is user → password or token. Raises :class:`Cancelled`.
    """
    mechanism, _, initial = argument.partition(" ")

    async def hear(challenge: bytes) -> str:
        return _decode(await ask(b"334 %s\r\n" % base64.b64encode(challenge)))

    async def first(challenge: bytes = b"") -> str:
        return _decode(initial) if initial else await hear(challenge)

    match mechanism.upper():
        case "PLAIN":
            _, user, secret = [*(await first()).split("\0"), "", ""][:3]
        case "LOGIN":
            user, secret = await first(b"Username:"), await hear(b"Password:")
        case "CRAM-MD5":
            user, _, digest = (await hear(CHALLENGE)).rpartition(" ")
            right = hmac.new(credentials.get(user, "").encode(), CHALLENGE, "md5").hexdigest()
            return user, user in credentials and hmac.compare_digest(right, digest)
        case "XOAUTH2" | "OAUTHBEARER" as name:
            user, secret = _bearer(name, await first())
            if credentials.get(user) != secret:
                await hear(TOKEN_FAULT)
        case _:
            raise Cancelled
    return user, credentials.get(user) == secret


def _bearer(mechanism: str, said: str) -> tuple[str, str]:
    head = r"user=(?P<user>[^\x01]*)" if mechanism == "XOAUTH2" else r"n,a=(?P<user>[^\x01,]*),"
    pairs = "" if mechanism == "XOAUTH2" else r"\x01host=[^\x01]+\x01port=[0-9]+"
    found = re.fullmatch(rf"{head}{pairs}\x01auth=Bearer (?P<token>[!-~]+)\x01\x01", said)
    if found is None:
        raise Cancelled
    return found["user"].replace("=2C", ",").replace("=3D", "="), found["token"]


def _decode(text: str) -> str:
    if text == "*":
        raise Cancelled
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        raise Cancelled from None
