"""What a workflow says of its mail to people: details and summaries for the Temporal UI. Codes and times only.

Nothing here is a command: details are kept in memory and told when somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sendonce.stages import Stage
from sendonce.workflows.port import AttemptAnswer, Ended, InFlight, Missing, Seen, Sleep, Ticket, Unrecorded
from sendonce.workflows.searching import reply_code

MOST_SEEN = 20
"""So many attempts are kept, the last ones."""

AWAITS = {
    "look_up": "its provider is asked again and again whether it has the mail; an operator may decide before",
    "replay": "the same request is repeated under the provider's own key, which makes no second copy",
    "resend": "policy `resend`: it is sent once more, unless its provider answers before",
    "operator": "an operator: its provider cannot be asked, and the policy is `hold`",
}
"""What an unknown waits for, in words."""

WHY = {
    "deferred": "deferred",
    "not_due": "waiting until it is due",
    "no_place": "waiting for a free place in the worker",
    "destination_full": "waiting: its destination has enough mails at once",
    "paused": "waiting: its account is paused",
    "on_hold": "on hold: an operator has paused such mail",
    "rate": "waiting for a slot of its account's rates",
    "alone": "waiting for the other mails to end: it took processes down, and is tried alone",
    "busy": "another attempt holds it",
    "locked": "waiting: somebody's open transaction holds its row in the store",
    "shutdown": "the worker is stopping: another one is asked",
    "store_away": "the store cannot be reached",
    "template": "held: its template is missing or broken",
    "not_configured": "held: its account is missing in the worker's settings",
    "fault": "the worker's own code failed: see its log",
}
"""Why a workflow sleeps, in words."""


@dataclass
class Details:
    """What one workflow has seen."""

    ticket: Ticket
    seen: list[Seen] = field(default_factory=list)

    def add(self, answer: AttemptAnswer | None, now: datetime) -> None:
        """Take an answer in: one that follows an attempt is a row more."""
        if not isinstance(answer, (Ended, Sleep)):
            return
        known = max((one.number for one in self.seen), default=0)
        counted = answer.attempts if answer.attempts > known else 0
        if counted or answer.tried:
            reply = reply_code(answer.code, answer.enhanced)
            self.seen = [*self.seen, Seen(counted, now.timestamp(), reply, _then(answer, now))][-MOST_SEEN:]

    def step_summary(self) -> str:
        """For the activity that makes the next attempt."""
        return f"attempt {max((one.number for one in self.seen), default=0) + 1}"

    def timer_summary(self, answer: AttemptAnswer | None, seconds: float, now: datetime) -> str:
        """For the timer that follows an answer."""
        then = _clock(now, seconds)
        match answer:
            case InFlight():
                return f"{_flight(answer)} · answer awaited until {then}"
            case Sleep() if answer.stage == Stage.UNKNOWN:
                return f"unknown · awaits {answer.awaits or 'news'} · next {then}"
            case Sleep() if self.seen and answer.attempts:
                parts = (f"attempt {answer.attempts}", reply_code(answer.code, answer.enhanced), f"next {then}")
                return " · ".join(part for part in parts if part)
            case Sleep():
                return f"{answer.why} · next {then}"
            case _:
                return f"not recorded yet · next {then}"

    def first_text(self) -> str:
        """Markdown, before the first answer."""
        return self._page("**started**: an attempt is under way")

    def text(self, answer: AttemptAnswer | None, seconds: float, now: datetime) -> str:
        """Markdown: where the mail stands, its attempts, and the commands that say and do more."""
        return self._page(_headline(answer, _clock(now, seconds)), unknown=_unknown(answer))

    def _page(self, headline: str, *, unknown: bool = False) -> str:
        parts = [headline]
        if self.seen:
            rows = [f"| {one.number or '·'} | {_at(one.at)} | `{one.reply or '–'}` | {one.then} |" for one in self.seen]
            parts.append("\n".join(["| attempt | at (UTC) | reply | then |", "|---|---|---|---|", *rows]))
        account = "" if self.ticket.account == "default" else f" --account {self.ticket.account}"
        who = f"{self.ticket.key}{account}"
        parts.append(f"All that is known of it: `sendonce show {who}`")
        if unknown:
            parts.append(
                f'To decide: `sendonce resolve {who} --sent --because "…"`. `--not-sent` tries it again, `--resend`'
                " sends it once more at the risk of two. The update `resolve` does the same."
            )
        return "\n\n".join(parts)


def _unknown(answer: AttemptAnswer | None) -> bool:
    return isinstance(answer, Sleep) and answer.stage == Stage.UNKNOWN


def _headline(answer: AttemptAnswer | None, then: str) -> str:
    match answer:
        case Ended():
            doubt = "; it may have been accepted all the same" if answer.maybe_accepted else ""
            part = ", not to everybody" if answer.partial else ""
            return f"**{answer.stage}**{part}{doubt}"
        case InFlight():
            return f"**{_flight(answer)}**: its answer is awaited until {then}"
        case Unrecorded():
            return f"**answered, not recorded**: the store cannot be reached, so the answer is carried. Next try {then}"
        case Missing():
            return "**no such row** in the store"
        case Sleep() if answer.stage == Stage.UNKNOWN:
            awaited = AWAITS.get(answer.awaits, "news")
            return f"**unknown**: offered, and never answered. Awaited: {awaited}. Asked again {then}"
        case Sleep():
            return f"**{_why(answer)}**. Next {then}"
        case None:
            return f"**{WHY['fault']}**. Next {then}"


def _then(answer: Ended | Sleep, now: datetime) -> str:
    if isinstance(answer, Ended):
        return answer.stage + (", not to everybody" if answer.partial else "")
    if answer.stage == Stage.UNKNOWN:
        return f"unknown, awaits {answer.awaits or 'news'}"
    return f"{_why(answer)}, next {_clock(now, answer.seconds)}"


def _why(answer: Sleep) -> str:
    held = "held: " if answer.held else ""
    return WHY.get(answer.why, f"{held}{answer.why}")


def _flight(answer: InFlight) -> str:
    return "being offered to its provider" if answer.stage == Stage.TRANSMITTING else "an attempt is under way"


def _clock(now: datetime, seconds: float) -> str:
    """The time of day, with the date where it is another day.

    >>> now = datetime(2030, 1, 1, 23, 59, tzinfo=UTC)
    >>> _clock(now, 30), _clock(now, 90)
    ('23:59:30', '2030-01-02 00:00:30')
    """
    then = now + timedelta(seconds=seconds)
    return f"{then:%H:%M:%S}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M:%S}"


def _at(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
