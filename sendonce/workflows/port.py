"""What crosses between a workflow and its worker: ids, codes and stages, never an address, a subject or reply text.

Every member of a union carries its ``kind``: plain dataclasses are decoded by first fit, the tag makes it exact.
Times are durations in seconds: the workflow's clock is another clock than the store's.
"""

# No "from __future__ import annotations" here: the SDK asks for the types of these fields at each call, and would
# read them from text each time.

from dataclasses import dataclass, field
from typing import Literal

from temporalio import activity

WORKFLOW_NAME = "EmailDelivery"
"""The workflow's type, as the Temporal UI shows it."""

WAKE_SIGNAL = "wake"
"""The signal that pokes a workflow; its argument is a :class:`Wake`."""

NO_SUCH_ROW = "no_such_row"
"""The failure type of a workflow that found no row. The other types are the final stages."""

REFUSED = "refused"
"""The failure type of an update that came too late, or that the mail's stage forbids."""

INVALID = "invalid"
"""The failure type of an update whose input cannot be read."""


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
class Seen:
    """One attempt as the workflow saw it, for people: codes and times only."""

    number: int
    """Of counted attempts, with this one. 0: one that is not counted."""
    at: float
    """Workflow time at which it was known, in seconds since 1970."""
    reply: str = ""
    then: str = ""
    """What came of it."""


@dataclass(frozen=True)
class Ticket:
    """Which mail: the workflow's whole input."""

    email_id: str
    key: str
    lane: str
    account: str = "default"
    carried: list[Carried] = field(default_factory=list)
    """What the run before could not record; empty but after continue-as-new."""
    attributes: bool = False
    """The namespace has Sendonce's search attributes. (An upsert of one that it does not have is tried for ever.)"""
    seen: list[Seen] = field(default_factory=list)
    """The last attempts of the runs before; empty but after continue-as-new."""

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
    tried: bool = False
    """This is what came of an attempt, counted or not."""


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
    tried: bool = False
    """This is what came of an attempt, counted or not."""
    held: bool = False
    """Nobody tries until somebody acts, or something is mended; ``why`` says what."""
    awaits: str = ""
    """Of an unknown: ``look_up``, ``replay`` (under the provider's key), ``resend`` (by policy), or ``operator``."""
    elsewhere: bool = False
    """What this worker's settings do not allow, another's may: a new run goes to whichever worker is free."""


@dataclass(frozen=True)
class InFlight:
    """The transmission goes on in the worker process, which wakes the workflow; ``seconds`` is the safety timer."""

    seconds: float
    stage: str = ""
    attempt_id: str = ""
    """Which attempt; empty while it is being claimed. Whoever reads the history can tell whether the store knows it."""
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
class Action:
    """Input of ``act``: what somebody asks of the mail by an update of its workflow."""

    ticket: Ticket
    action: str
    """One of :data:`sendonce.store.actions.ACTIONS`."""
    action_id: str
    """The same id again changes nothing, and is answered as before."""
    by: str = ""
    """Who it is, as they say."""
    because: str = ""


@dataclass(frozen=True)
class Acted:
    """What came of it."""

    done: bool
    said: str
    """In words, from a fixed set."""
    stage: str = ""
    """The mail's, afterwards."""
    again_in: float = 0.0
    """More than 0: the store cannot be reached, or the row is locked; ask again after so many seconds."""


@dataclass(frozen=True)
class Answered:
    """Result of an update, as the Temporal UI shows it."""

    said: str
    stage: str


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

    @activity.defn(name="act")
    async def act(self, call: Action) -> Acted:
        """Carry out what somebody asks of the mail, once; or say why not."""
        raise NotImplementedError


OUTCOME_WORKFLOW_NAME = "EmailOutcome"
"""The type of the workflow that waits for a mail's end on behalf of another."""

FINAL_SIGNAL = "sendonce-final"
"""The signal that tells such a workflow how the mail ended; its argument is an :class:`EmailFinal`."""


@dataclass(frozen=True)
class EmailFinal:
    """How a mail ended: what a workflow is told."""

    account: str
    key: str
    stage: str
    """``sent``, ``failed``, ``dead``, ``expired`` or ``cancelled``."""
    email_id: str = ""
    partial: bool = False
    """Sent, and not to everybody."""
    maybe_accepted: bool = False
    """An offer was never answered: somebody may have the mail, although it did not end as ``sent``."""
    attempts: int = 0
    """Counted ones."""
    code: int = 0
    """Of the last reply; 0: there was none."""
    enhanced: str = ""
    superseded_by: str = ""
    """The key of the newer mail of its topic that takes its place."""
    id: int = 0
    """Of this end of the mail, as a signal has it: the same signal twice has the same one. 0: no signal."""
    kind: Literal["final"] = "final"


@dataclass(frozen=True)
class Awaited:
    """Input of the workflow that waits: which mail."""

    key: str
    account: str = "default"


@dataclass(frozen=True)
class Watch:
    """Input of ``watch``: that workflow is to be told how the mail ends."""

    awaited: Awaited
    workflow_id: str


@dataclass(frozen=True)
class NotYet:
    """The mail has not ended. ``recorded``: the workflow will be told; False when the store could not be reached."""

    recorded: bool = True
    kind: Literal["not_yet"] = "not_yet"


WatchAnswer = EmailFinal | NotYet | Missing


class OutcomeSteps:
    """What that workflow asks; ``sendonce.activities.telling`` implements it."""

    @activity.defn(name="watch")
    async def watch(self, call: Watch) -> WatchAnswer:
        """How the mail ended, or have the workflow told when it does."""
        raise NotImplementedError
