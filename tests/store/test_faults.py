"""The table of faults in the documentation, row by row: a relay that misbehaves, the real transport, the real store."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.message import OutgoingEmail
from sendonce.outcome import AccountFault
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.store.records import Begun, Finished, Held, Wait
from sendonce.testing import smtp_misbehaviour as m
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.smtp_server import SmtpServer

if TYPE_CHECKING:
    from tests.store.conftest import Bench

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
LANE = LanePolicy("default", RetryPolicy(delays=(40,), jitter=0, max_attempts=5, max_age=86400), greylist_delays=(70,))


@dataclass(frozen=True)
class Fault:
    """How the relay, or the account's settings, misbehave."""

    script: Callable[[], Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    recipients: int = 1
    answer_seconds: float = 20.0


FAULTS = {
    "nobody listens at the port": Fault(settings={"port": 1}),
    "the greeting is 421": Fault(lambda: m.answer("connect", 421)),
    "the greeting is 554": Fault(lambda: m.answer("connect", 554)),
    "EHLO is refused with 550": Fault(lambda: m.answer("ehlo", 550)),
    "no STARTTLS where it is required": Fault(settings={"tls": "starttls"}),
    "the log-in is answered 454": Fault(
        lambda: m.answer("auth", 454, "4.7.0 later"), settings={"username": "shop", "password": "right"}
    ),
    "the log-in is refused with 535": Fault(
        lambda: m.answer("auth", 535, "5.7.8 no"), settings={"username": "shop", "password": "wrong"}
    ),
    "MAIL is answered 421": Fault(lambda: m.answer("mail", 421)),
    "MAIL is answered 451 4.7.1": Fault(lambda: m.answer("mail", 451, "4.7.1 try later")),
    "MAIL is answered 550 5.7.1": Fault(lambda: m.answer("mail", 550, "5.7.1 sender not allowed")),
    "MAIL is answered 530 5.7.0": Fault(lambda: m.answer("mail", 530, "5.7.0 authentication required")),
    "MAIL is answered 550": Fault(lambda: m.answer("mail", 550, "no")),
    "RCPT is answered 550 5.1.1": Fault(lambda: m.answer("rcpt", 550, "5.1.1 no such user")),
    "RCPT is answered 451 4.7.1": Fault(m.greylist),
    "RCPT is answered 452 4.2.2": Fault(lambda: m.answer("rcpt", 452, "4.2.2 full")),
    "two recipients are taken and the third is one too many (452 4.5.3)": Fault(
        lambda: m.too_many_recipients(2), recipients=3
    ),
    "DATA is answered 451": Fault(lambda: m.answer("data", 451)),
    "the line is cut in the body": Fault(lambda: m.cut("body")),
    "the dot is answered 451": Fault(lambda: m.answer("dot", 451, "4.3.2 busy")),
    "the dot is answered 554": Fault(lambda: m.answer("dot", 554, "no spam, please")),
    "the dot is answered 550 5.7.26": Fault(lambda: m.answer("dot", 550, "5.7.26 DMARC")),
    "the line is cut after the dot": Fault(lambda: m.cut("dot")),
    "the answer to the dot does not come in time": Fault(lambda: m.silent("dot"), answer_seconds=0.3),
}
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]


def test_every_row_has_its_fault() -> None:
    assert [row[0] for row in ROWS] == list(FAULTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
async def test_the_fault_costs_what_the_table_says(bench: Bench, row: list[str]) -> None:
    name, documented, counted, next_try = row
    fault = FAULTS[name]
    bench.lane = LANE
    people = [f"r{n}@example.org" for n in range(fault.recipients)]
    await bench.enqueue(to=people)
    claimed = await bench.claim()

    async def begin() -> None:
        assert isinstance(await bench.begin(claimed), Begun)

    async with SmtpServer() as server:
        if fault.script is not None:
            server.script.add(fault.script())
        if "username" in fault.settings:
            server.credentials = {"shop": "right"}
        settings = {"host": "127.0.0.1", "port": server.port, "tls": "none"} | fault.settings
        transport = SmtpTransport(SmtpSettings(**settings))
        content = OutgoingEmail(key="k1", sender="shop@example.com", to=people, subject="S", text="T")
        job = make_job(transport, content, answer_seconds=fault.answer_seconds)
        result = await transport.transmit(job, RecordingGate(on_begin=begin))
        await transport.close()
    outcomes = [result.outcomes[n] for n in sorted(result.outcomes)]
    assert [outcome.kind for outcome in outcomes] == re.findall(r"`(\w+)`", documented)
    standing = await bench.settle(claimed, result.outcomes)
    assert bool((await bench.email())["attempts"]) == (counted == "yes")
    assert told(standing, outcomes[0]) == next_try


def told(standing: object, outcome: object) -> str:
    """The next try in the table's words."""
    match standing:
        case Wait() if isinstance(outcome, AccountFault):
            return "pause of the account" if outcome.scope == "account" else "pause of the From domain"
        case Wait(seconds=seconds):
            return {0.0: "at once", 40.0: "retry policy", 70.0: "greylist delays"}[seconds]
        case Finished():
            return "never"
        case Held():
            return "held as unknown"
    raise AssertionError(standing)
