"""What the outcomes of attempts say about the account they went through."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple
from uuid import UUID

import psycopg

from sendonce.activities.failures import safe_code, where
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Deferred, NotOffered, Outcome, Refused, Unanswered
from sendonce.store import Store
from sendonce.store.records import Claimed

logger = logging.getLogger(__name__)

GIVE_BACK_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between the tries to give a probe back while the store is away; then its lease ends by itself."""

OUTAGE = "outage"
"""The reason of a pause that the breaker made."""


class Probe(NamedTuple):
    """The pause that an attempt passes as its probe."""

    account: str
    domain: str
    """``""``: the whole account's."""


class AccountWatch:
    """Pauses an account that is at fault or out of reach, and ends the pause of one that has just worked."""

    def __init__(self, store: Store, *, breaker_mails: int) -> None:
        """``breaker_mails``: after failures of so many different mails in a row the account is paused as an outage.

        A failure is a connection that could not be used, a server error, or silence. One mail alone never trips it.
        """
        self._store = store
        self._breaker_mails = breaker_mails
        self._paused: set[tuple[str, str]] = set()
        self._failed: dict[str, set[UUID]] = {}

    def is_paused(self, account: str, domain: str) -> None:
        """The store said that the account is paused, as a whole (``""``) or for a From domain."""
        self._paused.add((account, domain))

    async def blame(self, claimed: Claimed, result: AttemptResult) -> AttemptResult:
        """The result as it is to be recorded: a mail that others' probes prove to be the cause is refused.

        A relay that refuses the sender may mean the domain, or something about this one mail. The domain is paused;
        once other mail from it has passed, the same fault again is the mail's own.
        """
        faults = [o for o in result.outcomes.values() if isinstance(o, AccountFault) and o.scope == "sender"]
        if not faults or not await self._store.is_culprit(
            claimed.account, claimed.email_id, domain=claimed.from_domain
        ):
            return result
        return AttemptResult(
            {
                ordinal: Refused(outcome.reply) if outcome in faults else outcome
                for ordinal, outcome in result.outcomes.items()
            }
        )

    async def judge(self, claimed: Claimed, result: AttemptResult, *, probe: str | None, reached: bool) -> None:
        """Draw the conclusion from one attempt. ``reached``: it came as far as its begin.

        ``probe``: the From domain whose pause it passed as the probe, ``""`` for the account's; None: it was none.
        """
        account, domain = claimed.account, claimed.from_domain
        outcomes = list(result.outcomes.values())
        faults = [o for o in outcomes if isinstance(o, AccountFault)]
        if faults:
            fault = faults[0]
            scope = domain if fault.scope == "sender" else ""
            if scope and probe == "":
                # Everything up to naming the sender worked.
                await self._works(account, "")
            await self._pause(claimed, scope, fault.reply.code, fault.reply.enhanced, fault.retry_after, probe=probe)
        elif any(_proves(o, reached=reached) for o in outcomes):
            self._failed.pop(account, None)
            for scope in ("", domain):
                if probe in ("", scope) or (account, scope) in self._paused:
                    await self._works(account, scope)
        elif outcomes and all(_out_of_reach(o) for o in outcomes):
            failed = self._failed.setdefault(account, set())
            failed.add(claimed.email_id)
            if probe == "" or len(failed) >= self._breaker_mails:
                await self._pause(claimed, "", outcomes[0].reply.code, OUTAGE, None, probe=probe)
            elif probe is not None:
                await self._store.give_probe_back(account, claimed.email_id, domain=probe)
        elif probe is not None:
            await self._store.give_probe_back(account, claimed.email_id, domain=probe)

    async def no_answer(self, probe: Probe, email_id: UUID) -> None:
        """This mail's attempt was not judged as the probe that it was: another may pass. Never raises."""
        for pause in (*GIVE_BACK_PAUSES, None):
            try:
                await self._store.give_probe_back(probe.account, email_id, domain=probe.domain)
                return
            except psycopg.OperationalError:
                if pause is None:
                    logger.warning("probe not given back, the store is away: account=%s", probe.account)
                else:
                    await asyncio.sleep(pause)
            except Exception as error:
                logger.error("probe not given back: account=%s %s", probe.account, where(error))
                return

    async def _works(self, account: str, domain: str) -> None:
        await self._store.account_works(account, domain=domain)
        self._paused.discard((account, domain))

    async def _pause(
        self, claimed: Claimed, domain: str, code: int, enhanced: str, wait: float | None, *, probe: str | None
    ) -> None:
        # The reason is shown in alarms and logs: a code, never a provider's prose.
        await self._store.account_fault(
            claimed.account,
            code=code,
            enhanced=safe_code(enhanced),
            retry_after=wait,
            probe=probe == domain,
            domain=domain,
            email_id=claimed.email_id,
        )
        if probe is not None and probe != domain:
            await self._store.give_probe_back(claimed.account, claimed.email_id, domain=probe)
        self._paused.add((claimed.account, domain))
        if not domain:
            self._failed.pop(claimed.account, None)


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
