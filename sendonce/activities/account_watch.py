"""What the outcomes of attempts say about the account they went through."""

from __future__ import annotations

from uuid import UUID

from sendonce.activities.failures import safe_code
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Deferred, NotOffered, Outcome, Refused, Unanswered
from sendonce.store import Store

OUTAGE = "outage"
"""The reason of a pause that the breaker made."""


class AccountWatch:
    """Pauses an account that is at fault or out of reach, and ends the pause of one that has just worked."""

    def __init__(self, store: Store, *, breaker_mails: int) -> None:
        """``breaker_mails``: after failures of so many different mails in a row the account is paused as an outage.

        A failure is a connection that could not be used, a server error, or silence. One mail alone never trips it.
        """
        self._store = store
        self._breaker_mails = breaker_mails
        self._paused: set[str] = set()
        self._failed: dict[str, set[UUID]] = {}

    def is_paused(self, account: str) -> None:
        """The store said that the account is paused."""
        self._paused.add(account)

    async def judge(self, account: str, email_id: UUID, result: AttemptResult, *, probe: bool, reached: bool) -> None:
        """Draw the conclusion from one attempt. ``reached``: it came as far as its begin."""
        outcomes = list(result.outcomes.values())
        faults = [o for o in outcomes if isinstance(o, AccountFault)]
        if faults:
            reply = faults[0].reply
            await self._pause(account, reply.code, reply.enhanced, faults[0].retry_after, probe=probe)
        elif any(_proves(o, reached=reached) for o in outcomes):
            self._failed.pop(account, None)
            if probe or account in self._paused:
                await self._store.account_works(account)
                self._paused.discard(account)
        elif outcomes and all(_out_of_reach(o) for o in outcomes):
            failed = self._failed.setdefault(account, set())
            failed.add(email_id)
            if probe or len(failed) >= self._breaker_mails:
                await self._pause(account, outcomes[0].reply.code, OUTAGE, None, probe=probe)
        elif probe:
            await self._store.give_probe_back(account)

    async def no_answer(self, account: str) -> None:
        """The probe did not come as far as an outcome."""
        await self._store.give_probe_back(account)

    async def _pause(
        self, account: str, code: int, enhanced: str, retry_after: float | None, *, probe: bool
    ) -> None:
        # The reason is shown in alarms and logs: a code, never a provider's prose.
        await self._store.account_fault(
            account, code=code, enhanced=safe_code(enhanced), retry_after=retry_after, probe=probe
        )
        self._paused.add(account)
        self._failed.pop(account, None)


def _proves(outcome: Outcome, *, reached: bool) -> bool:
    """Does this answer show that our credentials and set-up work?"""
    match outcome:
        case Accepted():
            return True
        case Refused():
            return outcome.reply.code > 0
        case Deferred():
            return reached and outcome.reply.code < 500
        case _:
            return False


def _out_of_reach(outcome: Outcome) -> bool:
    match outcome:
        case Unanswered():
            return True
        case NotOffered():
            return outcome.counted
        case Deferred():
            return outcome.reply.code >= 500
        case _:
            return False
