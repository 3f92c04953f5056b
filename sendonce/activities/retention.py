"""The upkeep that Temporal starts: one round as an activity, and the schedule that starts it.

Nothing here is needed to deliver mail. While Temporal is away nothing is erased, and afterwards what is due is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta

import psycopg
from temporalio import activity
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from sendonce.policy import LanePolicy
from sendonce.retention import Retention
from sendonce.store import Store
from sendonce.workflows.upkeep import UPKEEP_NAME, UpkeepSteps, Went, upkeep_id

logger = logging.getLogger(__name__)

ROUND_SECONDS = 5.0
"""After so long a round ends and says whether something is left."""
LOOK_SECONDS = 600.0
"""Between two looks whether the schedule is still there."""
RETRY_SECONDS = 30.0


class Rounds(UpkeepSteps):
    """The activity."""

    def __init__(self, store: Store, rules: Retention, lanes: Mapping[str, LanePolicy], worker: str) -> None:
        """``lanes`` are all of the installation."""
        self._store = store
        self._rules = rules
        self._lanes = lanes
        self._worker = worker

    @activity.defn(name="upkeep")
    async def round(self) -> Went:
        """Erase what is due, for a few seconds."""
        end = time.monotonic() + ROUND_SECONDS
        try:
            over, done = await self._store.upkeep(
                self._rules, self._lanes, actor=self._worker, leave=lambda: time.monotonic() > end
            )
        except (psycopg.OperationalError, TimeoutError) as error:
            logger.warning("upkeep: the store cannot be reached (%s)", type(error).__name__)
            return Went(away=True)
        if any(asdict(done).values()):
            logger.info("upkeep: %s", " ".join(f"{name}={count}" for name, count in asdict(done).items()))
        return Went(over, False, done.contents, done.mails, done.alarms, done.keys, done.erased)


async def keep_schedule(client: Client, prefix: str, rules: Retention) -> None:
    """See to it that the schedule is there, and at the first time that it is as the settings say, until cancelled.

    Whether somebody has paused it is left as it is.
    """
    settled = away = False
    while True:
        try:
            await settle_schedule(client, prefix, rules, update=not settled)
            settled, away = True, False
        except Exception as error:
            if not away:
                reason = error.status.name if isinstance(error, RPCError) else type(error).__name__
                logger.warning("the schedule of the upkeep cannot be looked at (%s); trying on", reason)
            away = True
        await asyncio.sleep(RETRY_SECONDS if away else LOOK_SECONDS)


async def settle_schedule(client: Client, prefix: str, rules: Retention, *, update: bool = True) -> None:
    """Create the schedule ``<prefix>/upkeep``; when it is there, ``update`` it. Raises RPCError."""
    name = upkeep_id(prefix)
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(UPKEEP_NAME, id=name, task_queue=name),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(minutes=rules.every_minutes))]),
        # One at a time; what was missed is done by the next one.
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(minutes=max(1.0, rules.every_minutes))
        ),
    )
    try:
        await client.create_schedule(name, schedule, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        if not update:
            return
        try:
            await client.get_schedule_handle(name).update(lambda found: _updated(found, schedule))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            # Somebody has deleted it in between.
            await client.create_schedule(name, schedule, trigger_immediately=True)


def _updated(found: ScheduleUpdateInput, wanted: Schedule) -> ScheduleUpdate | None:
    there = found.description.schedule
    same = there.spec.intervals == wanted.spec.intervals and there.policy == wanted.policy
    if same and isinstance(there.action, ScheduleActionStartWorkflow) and there.action.workflow == UPKEEP_NAME:
        return None
    # Its state is the operators': they may have paused it.
    wanted.state = there.state
    return ScheduleUpdate(wanted)
