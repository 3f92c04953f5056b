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
from sendonce.workflows import asking, searching
from sendonce.workflows.details import Details
from sendonce.workflows.port import (
    NO_SUCH_ROW,
    REFUSED,
    WAKE_SIGNAL,
    WORKFLOW_NAME,
    Acted,
    Action,
    Answered,
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

ACT_TIMEOUT = timedelta(seconds=30)
"""For one try to carry out what somebody asks by an update."""

LONG_WAIT = 86400.0
"""After a wait of this many seconds the workflow continues as new: short histories, and new code for sleepers."""

MANY_EVENTS = 1000
"""A history of this many events is continued as new."""


@workflow.defn(name=WORKFLOW_NAME)
class EmailDelivery:
    """Delivers one mail. Completes with :class:`Sent` only when the store says ``sent``.

    Everything else final fails it, with the stage as the failure's type, or ends it as cancelled when that was
    asked of the workflow. Nothing but a final stage, or a missing row, ends it.

    Its updates are doors to the store, which decides; whoever uses them is who they say they are.
    """

    @workflow.init
    def __init__(self, ticket: Ticket) -> None:
        self._ticket = replace(ticket, carried=[], seen=[])
        self._details = Details(self._ticket, ticket.seen)
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

    @workflow.update(
        name="retry_now",
        description="Try a mail that waits now, and not only at its next time. Limits, pauses and rates hold all the"
        ' same. Input, if any: {"by": "your name", "because": "why"}',
    )
    async def retry_now(self, given: Any = None) -> Answered:
        """Have the mail tried now."""
        return await self._act("retry_now", asking.read(given))

    @retry_now.validator
    def _retry_now_is_valid(self, given: Any = None) -> None:
        asking.read(given)

    @workflow.update(
        name="cancel",
        description="Withdraw the mail; what has been offered to a provider cannot be cut. To cancel the workflow is"
        ' the same. Input, if any: {"by": "your name", "because": "why"}',
    )
    async def cancel(self, given: Any = None) -> Answered:
        """Withdraw the mail."""
        return await self._act("cancel", asking.read(given))

    @cancel.validator
    def _cancel_is_valid(self, given: Any = None) -> None:
        asking.read(given)

    @workflow.update(
        name="resolve",
        description="Decide about an unknown mail: it was sent; not-sent, so that it is tried again; or resend, at the"
        ' risk of two. Input: {"decision": "sent", "by": "your name", "because": "why"}',
    )
    async def resolve(self, given: Any = None) -> Answered:
        """Decide about a mail that was offered and never answered."""
        ask = asking.read(given, decides=True)
        return await self._act(f"resolve:{ask.decision}", ask)

    @resolve.validator
    def _resolve_is_valid(self, given: Any = None) -> None:
        asking.read(given, decides=True)

    async def _act(self, action: str, ask: asking.Ask) -> Answered:
        """Carry an update out, however long the store is away, or its row locked."""
        info = workflow.current_update_info()
        assert info is not None
        call = Action(self._ticket, action, ask.action_id or info.id, ask.by, ask.because)
        while True:
            try:
                acted: Acted = await workflow.execute_local_activity_method(
                    DeliverySteps.act,
                    call,
                    start_to_close_timeout=ACT_TIMEOUT,
                    retry_policy=RetryPolicy(maximum_attempts=1),
                    summary=action,
                )
            except FailureError:
                raise _refused(
                    "the worker failed at it, and its log says why; the same action_id is safe to repeat"
                ) from None
            if not acted.again_in:
                break
            await workflow.sleep(acted.again_in, summary=f"{action} · {acted.said}")
        # Whatever came of it, the store has news.
        self._woken = True
        if not acted.done:
            raise _refused(acted.said)
        return Answered(acted.said, acted.stage)

    @workflow.run
    async def run(self, ticket: Ticket) -> Sent:
        """Deliver the mail of ``ticket``."""
        self._carry(ticket.carried)
        ticket = self._ticket
        workflow.set_current_details(self._details.first_text())
        while True:
            answer = await self._step(ticket)
            seconds = self._seconds(answer)
            self._tell(answer, seconds)
            match answer:
                case Ended():
                    await self._answer_everybody()
                    return self._end(ticket, answer)
                case Missing():
                    await self._answer_everybody()
                    raise ApplicationError("the store has no such row", type=NO_SUCH_ROW, non_retryable=True)
                case Sleep() | InFlight() | Unrecorded() | None:
                    await self._sleep(seconds, self._details.timer_summary(answer, seconds, workflow.now()))
                case _:
                    assert_never(answer)
            if self._outgrown(seconds) or (isinstance(answer, Sleep) and answer.elsewhere):
                await self._answer_everybody()
                # A withdrawal that came meanwhile is known to this run only.
                if not self._withdrawal_due:
                    workflow.continue_as_new(replace(ticket, carried=self._carried, seen=self._details.seen))

    def _seconds(self, answer: AttemptAnswer | None) -> float:
        """How long to sleep after this answer."""
        if answer is None:
            return self._fault_sleep()
        return 0.0 if isinstance(answer, (Ended, Missing)) else max(SHORTEST_SLEEP, answer.seconds)

    def _tell(self, answer: AttemptAnswer | None, seconds: float) -> None:
        """People who look at the workflow see this answer."""
        now = workflow.now()
        self._details.add(answer, now)
        workflow.set_current_details(self._details.text(answer, seconds, now))
        if self._ticket.attributes:
            searching.show(answer)

    async def _answer_everybody(self) -> None:
        """An update that is being carried out gets its answer before the run ends."""
        while not workflow.all_handlers_finished():
            try:
                await workflow.wait_condition(workflow.all_handlers_finished)
            except asyncio.CancelledError:
                self._cancel()

    async def _step(self, ticket: Ticket) -> AttemptAnswer | None:
        """One call to the worker; None when the activity itself failed."""
        await self._let_in()
        self._woken = False
        withdrawing, call = self._withdrawal_due, AttemptCall(ticket, list(self._carried))
        try:
            if withdrawing:
                answer = await self._activity(DeliverySteps.withdraw, Withdrawal(ticket), "withdraw")
            else:
                answer = await self._activity(DeliverySteps.attempt, call, self._details.step_summary())
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

    async def _activity(self, step: Any, call: AttemptCall | Withdrawal, summary: str) -> AttemptAnswer:
        """Run one local activity. A cancellation of the workflow is remembered and never reaches it."""
        task: asyncio.Task[AttemptAnswer] = asyncio.ensure_future(
            workflow.execute_local_activity_method(
                step,
                call,
                start_to_close_timeout=STEP_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary=summary,
            )
        )
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.done():
                    raise
                self._cancel()

    async def _sleep(self, seconds: float, summary: str) -> None:
        if self._woken:
            return
        try:
            await workflow.wait_condition(
                lambda: self._woken, timeout=timedelta(seconds=seconds), timeout_summary=summary
            )
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


def _refused(said: str) -> ApplicationError:
    return ApplicationError(said, type=REFUSED, non_retryable=True)
