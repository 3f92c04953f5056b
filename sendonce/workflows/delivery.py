"""One workflow per mail: ask the store what comes next, wait for it, ask again. The store decides everything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, assert_never

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

from sendonce.stages import Stage
from sendonce.workflows.port import (
    NO_SUCH_ROW,
    WAKE_SIGNAL,
    WORKFLOW_NAME,
    AttemptAnswer,
    AttemptCall,
    Carried,
    DeliverySteps,
    Ended,
    InFlight,
    Missing,
    Sent,
    Sleep,
    Ticket,
    Unrecorded,
    Wake,
    Withdrawal,
)

SHORTEST_SLEEP = 0.25
"""Seconds. The store's clock is another clock: a wait that ends a moment early there would be asked in a loop."""

LONGEST_FAULT_SLEEP = 60.0
"""Seconds between two tries after the activity itself failed (a bug, a timeout)."""

STEP_TIMEOUT = timedelta(minutes=75)
"""For one activity. Under time skipping it waits for the whole transmission, whose answer timer is 1 h at most."""

LONG_WAIT = 86400.0
"""After a wait of this many seconds the workflow continues as new: short histories, and new code for sleepers."""

MANY_EVENTS = 1000
"""A history of this many events is continued as new."""


@workflow.defn(name=WORKFLOW_NAME)
class EmailDelivery:
    """Delivers one mail. Completes with :class:`Sent` only when the store says ``sent``.

    Everything else final fails it, with the stage as the failure's type, or ends it as cancelled when that was
    asked of the workflow. Nothing but a final stage, or a missing row, ends it.
    """

    def __init__(self) -> None:
        self._woken = False
        self._cancelled = False
        self._withdrawal_due = False
        self._carried: list[Carried] = []
        self._faults = 0

    @workflow.signal(name=WAKE_SIGNAL)
    def wake(self, call: Wake) -> None:
        """Ask the store again now. What the store could not be told travels with it."""
        self._carry(call.carried)
        self._woken = True

    @workflow.run
    async def run(self, ticket: Ticket) -> Sent:
        """Deliver the mail of ``ticket``."""
        self._carry(ticket.carried)
        ticket = replace(ticket, carried=[])
        while True:
            answer = await self._step(ticket)
            match answer:
                case Ended():
                    return self._end(ticket, answer)
                case Missing():
                    raise ApplicationError("the store has no such row", type=NO_SUCH_ROW, non_retryable=True)
                case Sleep() | InFlight() | Unrecorded() | None:
                    seconds = self._fault_sleep() if answer is None else answer.seconds
                case _:
                    assert_never(answer)
            await self._sleep(seconds)
            if self._outgrown(seconds):
                workflow.continue_as_new(replace(ticket, carried=self._carried))

    async def _step(self, ticket: Ticket) -> AttemptAnswer | None:
        """One call to the worker; None when the activity itself failed."""
        await self._let_in()
        self._woken = False
        withdrawing, call = self._withdrawal_due, AttemptCall(ticket, list(self._carried))
        try:
            if withdrawing:
                answer = await self._activity(DeliverySteps.withdraw, Withdrawal(ticket))
            else:
                answer = await self._activity(DeliverySteps.attempt, call)
        except FailureError:
            # A local activity fails with what it raised, without an ActivityError around it.
            self._faults += 1
            return None
        self._faults = 0
        if withdrawing:
            # Asked once; from here on the store knows, and an offered mail is seen through.
            self._withdrawal_due = isinstance(answer, Sleep) and not answer.recorded
            return answer
        if not (isinstance(answer, Sleep) and not answer.recorded):
            self._carried = self._carried[len(call.carried) :]
        if isinstance(answer, Unrecorded):
            self._carry([answer.carried])
        return answer

    async def _let_in(self) -> None:
        """A cancellation that came together with the start, or with a timer, counts before the next step."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._cancel()

    async def _activity(self, step: Any, call: AttemptCall | Withdrawal) -> AttemptAnswer:
        """Run one local activity. A cancellation of the workflow is remembered and never reaches it."""
        task: asyncio.Task[AttemptAnswer] = asyncio.ensure_future(
            workflow.execute_local_activity_method(
                step,
                call,
                start_to_close_timeout=STEP_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        )
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.done():
                    raise
                self._cancel()

    async def _sleep(self, seconds: float) -> None:
        if self._woken:
            return
        try:
            await workflow.wait_condition(lambda: self._woken, timeout=timedelta(seconds=max(SHORTEST_SLEEP, seconds)))
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._cancel()

    def _cancel(self) -> None:
        self._cancelled = self._withdrawal_due = self._woken = True

    def _carry(self, more: list[Carried]) -> None:
        known = {c.attempt_id for c in self._carried}
        self._carried += [c for c in more if c.attempt_id not in known]

    def _fault_sleep(self) -> float:
        return min(LONGEST_FAULT_SLEEP, 2.0 ** min(self._faults - 1, 10))

    def _outgrown(self, slept: float) -> bool:
        info = workflow.info()
        many = info.is_continue_as_new_suggested() or info.get_current_history_length() >= MANY_EVENTS
        # A withdrawal that is still due is known to this run only.
        return (many or slept >= LONG_WAIT) and not self._withdrawal_due

    def _end(self, ticket: Ticket, answer: Ended) -> Sent:
        if answer.stage == Stage.SENT:
            return Sent(ticket.email_id, answer.code, answer.partial, answer.attempts)
        if answer.stage == Stage.CANCELLED and self._cancelled:
            # Temporal shows a workflow as cancelled only when its own cancellation was requested.
            raise asyncio.CancelledError
        doubt = ", may have been accepted" if answer.maybe_accepted else ""
        raise ApplicationError(
            f"{answer.stage}: {answer.attempts} attempts, last reply {answer.code} {answer.enhanced}".rstrip() + doubt,
            type=answer.stage,
            non_retryable=True,
        )
