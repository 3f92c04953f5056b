"""Which workflows sleep, and until when: seen at the calls of a Temporal client and the activities of its workers."""

from __future__ import annotations

import asyncio
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio import activity

from sendonce.testing.kit.clock import Clock
from sendonce.workflows.delivery import LONGEST_FAULT_SLEEP, SHORTEST_SLEEP
from sendonce.workflows.port import WORKFLOW_NAME, Ended, Missing

_ASKING = {"attempt", "withdraw"}
"""The activities whose answer says how long their workflow may sleep."""


class Watch(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """A workflow is awake from its start, or a signal, until its next activity has said how long it may sleep.

    Time is moved only while all sleep, so that none can be cut off by it. An activity that comes while time is being
    moved waits until the store's clock has been set.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awake: set[str] = set()
        self._running: set[str] = set()
        self._again: set[str] = set()
        self._until: dict[str, float] = {}
        self._moved = asyncio.Event()
        self._moved.set()
        self._changed = asyncio.Event()
        self.answers = 0
        """How many activities have ended."""
        self.failures: list[str] = []
        """What activities raised, by type: a fault of the worker's."""

    # For whoever moves the time

    async def all_asleep(self) -> None:
        """Return once every workflow sleeps, and none should have woken by now."""
        while True:
            self._changed.clear()
            now = self._now()
            self._awake |= {name for name, until in self._until.items() if until <= now}
            if not self._awake:
                return
            await self._changed.wait()

    def awake(self) -> list[str]:
        """Those that do not sleep."""
        return sorted(self._awake)

    def next_in(self) -> float | None:
        """Seconds until the first one wakes; None when there is none."""
        return min(self._until.values()) - self._now() if self._until else None

    def hold(self) -> None:
        """Time is about to be moved."""
        self._moved.clear()

    def go(self) -> None:
        """It has been, and the clocks are set."""
        self._moved.set()

    # What is seen

    def woken(self, workflow_id: str) -> None:
        """It was started or got a signal. One that comes during its activity makes it ask again after that."""
        self._awake.add(workflow_id)
        if workflow_id in self._running:
            self._again.add(workflow_id)

    def not_woken(self, workflow_id: str) -> None:
        """The call failed: it was started before, or is not there."""
        self._again.discard(workflow_id)
        if workflow_id not in self._running:
            self._awake.discard(workflow_id)
            self._changed.set()

    def begins(self, workflow_id: str) -> None:
        """Its activity begins."""
        self._awake.add(workflow_id)
        self._running.add(workflow_id)

    def ends(self, workflow_id: str, seconds: float | None) -> None:
        """Its activity has ended: it sleeps for ``seconds``, or has ended (None)."""
        self.answers += 1
        self._running.discard(workflow_id)
        self._until.pop(workflow_id, None)
        if seconds is not None:
            self._until[workflow_id] = self._now() + max(SHORTEST_SLEEP, seconds)
        if seconds is None or workflow_id not in self._again:
            self._awake.discard(workflow_id)
        self._again.discard(workflow_id)
        self._changed.set()

    def _now(self) -> float:
        return self._clock.now().timestamp()

    async def moved(self) -> None:
        """Wait while time is being moved."""
        await self._moved.wait()

    # Temporal's side

    def intercept_client(self, next: temporalio.client.OutboundInterceptor) -> temporalio.client.OutboundInterceptor:  # noqa: A002
        """See :class:`temporalio.client.Interceptor`."""
        return _Calls(next, self)

    def intercept_activity(
        self,
        next: temporalio.worker.ActivityInboundInterceptor,  # noqa: A002
    ) -> temporalio.worker.ActivityInboundInterceptor:
        """See :class:`temporalio.worker.Interceptor`."""
        return _Activities(next, self)


class _Calls(temporalio.client.OutboundInterceptor):
    def __init__(self, following: temporalio.client.OutboundInterceptor, watch: Watch) -> None:
        super().__init__(following)
        self._watch = watch

    async def start_workflow(
        self,
        input: temporalio.client.StartWorkflowInput,  # noqa: A002
    ) -> temporalio.client.WorkflowHandle[Any, Any]:
        if input.workflow != WORKFLOW_NAME:
            return await super().start_workflow(input)
        # Before the call: its first activity may end before the call does.
        self._watch.woken(input.id)
        try:
            return await super().start_workflow(input)
        except Exception:
            self._watch.not_woken(input.id)
            raise

    async def signal_workflow(self, input: temporalio.client.SignalWorkflowInput) -> None:  # noqa: A002
        self._watch.woken(input.id)
        try:
            await super().signal_workflow(input)
        except Exception:
            self._watch.not_woken(input.id)
            raise


class _Activities(temporalio.worker.ActivityInboundInterceptor):
    def __init__(self, following: temporalio.worker.ActivityInboundInterceptor, watch: Watch) -> None:
        super().__init__(following)
        self._watch = watch

    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:  # noqa: A002
        workflow_id = activity.info().workflow_id
        assert workflow_id is not None
        await self._watch.moved()
        if activity.info().activity_type not in _ASKING:
            return await super().execute_activity(input)
        self._watch.begins(workflow_id)
        seconds: float | None = LONGEST_FAULT_SLEEP
        try:
            answer = await super().execute_activity(input)
            seconds = None if isinstance(answer, Ended | Missing) else answer.seconds
        except Exception as error:
            self._watch.failures.append(type(error).__name__)
            raise
        finally:
            self._watch.ends(workflow_id, seconds)
        return answer
