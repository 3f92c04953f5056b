"""The upkeep: round after round until everything that is due has gone. Started by a schedule; it knows no mail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

UPKEEP_NAME = "Upkeep"
"""The workflow's type, as the Temporal UI shows it."""

ROUND_TIMEOUT = timedelta(minutes=2)
"""For one round, which takes a few seconds."""

MANY_EVENTS = 1000
"""A history of so many events is continued as new."""


def upkeep_id(prefix: str) -> str:
    """The id of the schedule, and its task queue. No key holds a slash, so it is never the workflow of a mail.

    >>> upkeep_id("sendonce")
    'sendonce/upkeep'
    """
    return f"{prefix}/upkeep"


@dataclass(frozen=True)
class Went:
    """What one round, or all of them, did: how many of what."""

    over: bool = True
    """Nothing was left, or the store was away: the schedule comes again."""
    away: bool = False
    """The store could not be reached."""
    contents: int = 0
    """Mails whose content was erased."""
    mails: int = 0
    """Mails of which nothing but the key is left."""
    alarms: int = 0
    keys: int = 0
    """Keys that were forgotten."""
    erased: int = 0
    """Mails out of which a person was taken who had been erased while they were in flight."""

    def __add__(self, other: Went) -> Went:
        return Went(
            other.over,
            self.away or other.away,
            self.contents + other.contents,
            self.mails + other.mails,
            self.alarms + other.alarms,
            self.keys + other.keys,
            self.erased + other.erased,
        )


class UpkeepSteps:
    """The activity as the workflow sees it; ``sendonce.activities.retention`` implements it."""

    @activity.defn(name="upkeep")
    async def round(self) -> Went:
        """One round of a few seconds. Can be cut anywhere, and repeated."""
        raise NotImplementedError


@workflow.defn(name=UPKEEP_NAME)
class Upkeep:
    """Erases content, empties mails, finishes erasures; what is due is decided by the worker's settings."""

    @workflow.run
    async def run(self) -> Went:
        """Round after round until nothing is left."""
        went = Went(over=False)
        while not went.over:
            if workflow.info().get_current_history_length() >= MANY_EVENTS:
                workflow.continue_as_new()
            went += await workflow.execute_local_activity_method(
                UpkeepSteps.round,
                start_to_close_timeout=ROUND_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        return went
