"""What crosses between a workflow and its worker: ids, codes and stages, never an address, a subject or reply text.

Every member of a union carries its ``kind``: plain dataclasses are decoded by first fit, the tag makes it exact.
Times are durations in seconds: the workflow's clock is another clock than the store's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from temporalio import activity

WORKFLOW_NAME = "EmailDelivery"
"""The workflow's type, as the Temporal UI shows it."""

WAKE_SIGNAL = "wake"
"""The signal that pokes a workflow; its argument is a :class:`Wake`."""

NO_SUCH_ROW = "no_such_row"
"""The failure type of a workflow that found no row. The other types are the final stages."""


def workflow_id(key: str, account: str = "default") -> str:
    """The workflow's id: the key, and the account behind it when it is another than the default.

    A key holds no ``@``, so two mails never share an id.

    >>> workflow_id("order-7"), workflow_id("order-7", "bulk")
    ('order-7', 'order-7@bulk')
    """
    return key if account == "default" else f"{key}@{account}"


def task_queue(prefix: str, lane: str) -> str:
    """The task queue of one lane."""
    return f"{prefix}-{lane}"


@dataclass(frozen=True)
class Finding:
    """One recipient's outcome in codes only; the same members as :mod:`sendonce.outcome`, without the text."""

    ordinal: int
    kind: str
    code: int = 0
    enhanced: str = ""
    provider_id: str = ""
    replayed: bool = False
    counted: bool = True
    retry_after: float | None = None


@dataclass(frozen=True)
class Carried:
    """What an attempt found out and the store could not be told yet; the workflow carries it to the next attempt."""

    attempt_id: str
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Ticket:
    """Which mail: the workflow's whole input."""

    email_id: str
    key: str
    lane: str
    account: str = "default"
    carried: list[Carried] = field(default_factory=list)
    """What the run before could not record; empty but after continue-as-new."""

    @property
    def workflow_id(self) -> str:
        """The id of the mail's workflow."""
        return workflow_id(self.key, self.account)


@dataclass(frozen=True)
class AttemptCall:
    """Input of one attempt. ``carried`` is recorded in the store before anything else happens."""

    ticket: Ticket
    carried: list[Carried] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """The store says that the mail is final."""

    stage: str
    code: int = 0
    enhanced: str = ""
    partial: bool = False
    maybe_accepted: bool = False
    attempts: int = 0
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True)
class Sleep:
    """Not now: ask again after ``seconds``, or when woken. ``why`` is a code such as ``deferred`` or ``unknown``."""

    seconds: float
    why: str
    stage: str = ""
    code: int = 0
    enhanced: str = ""
    attempts: int = 0
    recorded: bool = True
    """False when the store could not be reached, so that what was carried must be carried on."""
    kind: Literal["sleep"] = "sleep"


@dataclass(frozen=True)
class InFlight:
    """The transmission goes on in the worker process, which wakes the workflow; ``seconds`` is the safety timer."""

    seconds: float
    stage: str = ""
    kind: Literal["in_flight"] = "in_flight"


@dataclass(frozen=True)
class Unrecorded:
    """The attempt has its answer, and the store could not be told: carry it, and ask again after ``seconds``."""

    carried: Carried
    seconds: float
    kind: Literal["unrecorded"] = "unrecorded"


@dataclass(frozen=True)
class Missing:
    """There is no such row: it was never committed, or belongs to another installation."""

    kind: Literal["missing"] = "missing"


AttemptAnswer = Ended | Sleep | InFlight | Unrecorded | Missing


@dataclass(frozen=True)
class Wake:
    """The poke. It may carry what the store could not be told."""

    carried: list[Carried] = field(default_factory=list)


@dataclass(frozen=True)
class Withdrawal:
    """Input of ``withdraw``: the workflow was cancelled, so the mail is withdrawn unless it was offered."""

    ticket: Ticket
    actor: str = "workflow"


@dataclass(frozen=True)
class Sent:
    """Result of a completed workflow, and the second witness should the store ever forget."""

    email_id: str
    code: int = 0
    partial: bool = False
    attempts: int = 0


class DeliverySteps:
    """The activities of a delivery as the workflow sees them; ``sendonce.activities.attempt`` implements them."""

    @activity.defn(name="attempt")
    async def attempt(self, call: AttemptCall) -> AttemptAnswer:
        """Record what is carried, then claim and transmit if the mail is due. Never raises for an expected outcome."""
        raise NotImplementedError

    @activity.defn(name="withdraw")
    async def withdraw(self, call: Withdrawal) -> AttemptAnswer:
        """Ask the store to cancel the mail; what has been offered is not cut."""
        raise NotImplementedError
