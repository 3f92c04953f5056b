"""Asking providers what became of unanswered offers. Reads only; "not found" proves nothing and changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from sendonce.activities.failures import safe_code, where
from sendonce.activities.inflight import Poker
from sendonce.activities.transports.base import Asked, LooksUp, Question, Recipient, Transport
from sendonce.outcome import AttemptResult
from sendonce.policy import LanePolicy
from sendonce.store import Store
from sendonce.store.records import LookUp
from sendonce.store.sweeps import lane_of
from sendonce.workflows.port import Wake, workflow_id

logger = logging.getLogger(__name__)

PER_ROUND = 10
"""Mails of one account that one process asks about in one round: providers limit such requests."""

ANSWER_SECONDS = 15.0
"""How long one look-up may take."""

ROUND_SECONDS = 30.0
"""A round begins no further look-up after so long: a provider that is slow each time must not make the round stuck.
Those that are left are asked about at their next time."""


class LookUps:
    """The round that asks; to be called every few seconds by every worker."""

    def __init__(
        self,
        store: Store,
        transports: Mapping[str, Transport],
        poker: Poker,
        lanes: Mapping[str, LanePolicy],
        worker: str,
    ) -> None:
        """``transports``: all accounts. Mail of one that cannot be asked may have gone by one that can."""
        self._store = store
        self._poker = poker
        self._lanes = lanes
        self._worker = worker
        self._transports = transports

    async def round(self) -> int:
        """Ask about what is due, account beside account, so that a slow provider holds up no other; how many mails."""
        # Anew in each round: an account's credentials may be rotated.
        askable = {name: one for name, one in self._transports.items() if one.capability.look_up}
        # Without anybody to ask there is nothing to look for.
        owners = list(self._transports) if askable else []
        return sum(await asyncio.gather(*(self._account(name, askable) for name in owners)))

    async def _account(self, owner: str, askable: Mapping[str, Transport]) -> int:
        failed: set[str] = set()
        end = time.monotonic() + ROUND_SECONDS
        due = await self._store.due_look_ups(owner, list(askable), PER_ROUND)
        for question in due:
            name = question.via
            transport = askable[name]
            if time.monotonic() > end:
                logger.warning("look-ups of account=%s take long; the others come later", owner)
                break
            if name in failed or question.identity != transport.identity:
                # The latter: made under another account of the provider, whose records this one does not know.
                continue
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._ask(transport, question)
            except Asked as error:
                logger.warning("look-up failed: account=%s %s", name, safe_code(error.why) or "no usable answer")
                failed.add(name)
            except TimeoutError:
                logger.warning("look-up failed: account=%s no answer in time", name)
                failed.add(name)
            except Exception as error:
                logger.error("look-up failed: email_id=%s %s", question.email_id, where(error))
        return len(due)

    async def _ask(self, transport: Transport, question: LookUp) -> None:
        assert isinstance(transport, LooksUp)
        found = await transport.look_up(
            Question(
                email_id=str(question.email_id),
                key=question.key,
                message_id=question.message_id,
                provider_key=question.provider_key,
                begun_at=question.begun_at,
                recipients=tuple(Recipient(r.ordinal, r.mailbox) for r in question.recipients),
            )
        )
        offered = {r.ordinal for r in question.recipients}
        result = AttemptResult({ordinal: outcome for ordinal, outcome in found.items() if ordinal in offered})
        if not result.outcomes:
            return
        # All offers of a generation were one and the same request: what the provider knows answers each of them.
        for attempt in question.attempts:
            await self._store.settle(
                question.email_id,
                attempt,
                result,
                lane=lane_of(self._lanes, question.lane),
                actor=self._worker,
                cause="look_up",
            )
        await self._poker.wake(workflow_id(question.key, question.account), Wake())
