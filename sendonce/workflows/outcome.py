"""Waits for a mail's end on behalf of another workflow, whoever started the mail's own one."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

from sendonce.workflows.port import (
    FINAL_SIGNAL,
    NO_SUCH_ROW,
    OUTCOME_WORKFLOW_NAME,
    Awaited,
    EmailFinal,
    Missing,
    NotYet,
    OutcomeSteps,
    Watch,
    WatchAnswer,
)

FIRST_LOOK_AGAIN = 5.0
LONGEST_LOOK_AGAIN = 3600.0
"""Seconds between two looks at the store, twice as long each time: the signal comes first if nothing is broken."""

STORE_AWAY = 5.0
"""Seconds until the next try when the store could not be reached."""

MANY_EVENTS = 1000


@workflow.defn(name=OUTCOME_WORKFLOW_NAME)
class EmailOutcome:
    """Completes with how the mail ended, whatever its stage. Ending it does nothing to the mail."""

    def __init__(self) -> None:
        self._told = False

    @workflow.signal(name=FINAL_SIGNAL)
    def final(self, end: EmailFinal) -> None:  # noqa: ARG002
        """The mail has ended; the store says how."""
        self._told = True

    @workflow.run
    async def run(self, awaited: Awaited) -> EmailFinal:
        """Wait for the mail of ``awaited``."""
        seconds = FIRST_LOOK_AGAIN
        while True:
            self._told = False
            answer = await self._look(awaited)
            match answer:
                case EmailFinal():
                    return answer
                case Missing():
                    raise ApplicationError("the store has no such mail", type=NO_SUCH_ROW, non_retryable=True)
                case NotYet():
                    pause = seconds if answer.recorded else STORE_AWAY
                case None:
                    pause = STORE_AWAY
                case _:
                    assert_never(answer)
            try:
                await workflow.wait_condition(lambda: self._told, timeout=timedelta(seconds=pause))
            except TimeoutError:
                seconds = min(LONGEST_LOOK_AGAIN, seconds * 2)
            if workflow.info().get_current_history_length() >= MANY_EVENTS and not self._told:
                workflow.continue_as_new(awaited)

    async def _look(self, awaited: Awaited) -> WatchAnswer | None:
        try:
            return await workflow.execute_local_activity_method(
                OutcomeSteps.watch,
                Watch(awaited, workflow.info().workflow_id),
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            return None
