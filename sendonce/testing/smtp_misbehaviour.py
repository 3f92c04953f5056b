"""The named misbehaviours of the playing SMTP server; each is a rule, or a list of them, for its script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sendonce.testing.script import Rule


@dataclass(frozen=True, slots=True)
class SmtpAct:
    """What the server does at one point. The default is the usual reply."""

    reply: bytes | None = None
    """The whole reply, line ends included; None: the usual one."""
    then: Literal["go on", "close", "cut", "silent", "stall"] = "go on"
    """After the reply. ``close``: end the connection in order. Instead of a reply: ``cut`` resets the connection,
    ``silent`` reads on and never answers, ``stall`` stops reading as well."""
    store: bool | None = None
    """At the dot: whether the message is stored first. None: when the reply is a 2xx."""
    until: asyncio.Event | None = None
    """Wait for this before replying."""
    pieces: bool = False
    """Write the reply octet by octet."""
    after: int = 0
    """In the body: act once that many octets have arrived."""


SmtpRule = Rule[SmtpAct]


def _line(code: int, text: str | bytes) -> bytes:
    return b"%d %s\r\n" % (code, text.encode() if isinstance(text, str) else text)


def answer(at: str, code: int, text: str | bytes = "as scripted", *, times: int | None = None) -> SmtpRule:
    """Reply ``code`` at ``at``: connect, ehlo, starttls, auth, mail, rcpt, data, dot, rset or quit."""
    return Rule(at, SmtpAct(_line(code, text)), times)


def answer_raw(at: str, reply: bytes, *, times: int | None = None) -> SmtpRule:
    """Write exactly these octets as the reply at ``at``."""
    return Rule(at, SmtpAct(reply), times)


def greylist(code: int = 451) -> SmtpRule:
    """Defer every mailbox once, then accept it."""
    seen: set[str] = set()

    def first_time(mailbox: str) -> bool:
        new = mailbox not in seen
        seen.add(mailbox)
        return new

    return Rule("rcpt", SmtpAct(_line(code, "4.7.1 greylisted, try again later")), when=first_time)


def reject_mailbox(mailbox: str, code: int = 550, text: str | bytes = "5.1.1 no such user") -> SmtpRule:
    """Refuse this mailbox at RCPT."""
    return Rule("rcpt", SmtpAct(_line(code, text)), when=lambda argument: argument == mailbox)


def refuse_sender(code: int = 550, text: str = "5.7.1 sender not allowed", *, times: int | None = None) -> SmtpRule:
    """Refuse at MAIL."""
    return answer("mail", code, text, times=times)


def shut_down(at: str, *, times: int | None = None) -> SmtpRule:
    """Reply 421 at ``at`` and close, as a server does that is going away (RFC 5321 3.8)."""
    return Rule(at, SmtpAct(_line(421, "4.3.2 shutting down"), "close"), times)


def too_many_recipients(limit: int, code: int = 452, text: str = "4.5.3 too many recipients") -> SmtpRule:
    """Accept ``limit`` mailboxes in each transaction, then reply ``code`` (452, or 552 as old servers do)."""
    return Rule("rcpt:over", SmtpAct(_line(code, text)), when=_over(limit))


def _over(limit: int) -> Callable[[str], bool]:
    return lambda accepted: int(accepted) >= limit


def silent_after_dot(*, times: int | None = None) -> SmtpRule:
    """Store the message and never answer."""
    return Rule("dot", SmtpAct(then="silent", store=True), times)


def cut_after_dot(*, times: int | None = None) -> SmtpRule:
    """Store the message and reset the connection."""
    return Rule("dot", SmtpAct(then="cut", store=True), times)


def cut_before_storing(*, times: int | None = None) -> SmtpRule:
    """Read the dot, store nothing and reset the connection."""
    return Rule("dot", SmtpAct(then="cut", store=False), times)


def refuse_message(code: int = 554, text: str = "5.6.0 not wanted", *, times: int | None = None) -> SmtpRule:
    """Refuse (5xx) or defer (4xx) the message after the dot."""
    return answer("dot", code, text, times=times)


def late_reply(until: asyncio.Event, *, at: str = "dot", times: int | None = None) -> SmtpRule:
    """Give the usual reply, but only once ``until`` is set. At the dot the message is stored before."""
    return Rule(at, SmtpAct(until=until), times)


def early_reply(code: int, *, after: int = 1, close: bool = False, text: str = "as scripted") -> SmtpRule:
    """Reply in the middle of the body, after that many octets of it."""
    return Rule("body", SmtpAct(_line(code, text), "close" if close else "go on", after=after))


def cut_in_body(*, after: int = 1) -> SmtpRule:
    """Reset the connection after that many octets of the body."""
    return Rule("body", SmtpAct(then="cut", after=after))


def stalled_reader(*, after: int = 1) -> SmtpRule:
    """Stop reading after that many octets of the body."""
    return Rule("body", SmtpAct(then="stall", after=after))


def cut(at: str, *, times: int | None = None) -> SmtpRule:
    """Reset the connection instead of replying at ``at``."""
    return Rule(at, SmtpAct(then="cut"), times)


def silent(at: str, *, times: int | None = None) -> SmtpRule:
    """Never reply at ``at``."""
    return Rule(at, SmtpAct(then="silent"), times)


def in_pieces(*points: str) -> list[SmtpRule]:
    """Write the replies at these points octet by octet."""
    return [Rule(point, SmtpAct(pieces=True)) for point in points]


def not_utf8(at: str = "rcpt", code: int = 550) -> SmtpRule:
    """Reply with a text in GBK, as some hosts do, and a NUL in it."""
    return answer(at, code, b"%d.1.1 \xd3\xca\xcf\xe4\x00 unknown" % (code // 100))


def auth_refused(code: int = 535, text: str = "5.7.8 bad credentials") -> SmtpRule:
    """Refuse every log-in."""
    return answer("auth", code, text)
