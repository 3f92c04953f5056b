"""How a mail ended, and who is to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BeforeValidator

from sendonce.checked import Checked, short_line
from sendonce.errors import InvalidEmail
from sendonce.stages import Stage

WORKFLOW_ID_LIMIT = 1000
"""Characters of a workflow's id, as Temporal limits them."""
SIGNAL_LIMIT = 200


def _required(value: object) -> object:
    if not value:
        raise ValueError("must not be empty")
    if isinstance(value, str) and "@" in value:
        raise ValueError("must hold no @: it is written to logs, as keys are, and no address may be")
    return value


class SignalWorkflow(Checked):
    """Tell a workflow of your own how the mail ended: ``on_final=SignalWorkflow(workflow_id=…, signal=…)``.

    The signal's argument is a :class:`sendonce.workflow.EmailFinal`. It is delivered at least once, in the worker's
    namespace; a workflow that is gone raises one alarm and stops nobody.
    """

    workflow_id: Annotated[str, BeforeValidator(_required), short_line(WORKFLOW_ID_LIMIT)]
    """At most 1000 characters, without ``@``; whichever run of it is the current one."""
    signal: Annotated[str, BeforeValidator(_required), short_line(SIGNAL_LIMIT)]
    """The signal's name, at most 200 characters, without ``@``."""


OnFinal = Literal["take"] | SignalWorkflow
"""``"take"``: :func:`sendonce.take_finals` hands it over."""


def read_on_final(value: object) -> OnFinal | None:
    """What a caller or the stored form says. Raises ValueError."""
    if value is None or value == "take" or isinstance(value, SignalWorkflow):
        return value
    if isinstance(value, Mapping):
        try:
            return SignalWorkflow(**value)
        except (InvalidEmail, TypeError):
            pass
    raise ValueError('must be "take" or a SignalWorkflow')


@dataclass(frozen=True, slots=True)
class Final:
    """How a mail ended."""

    account: str
    key: str
    email_id: UUID
    stage: Stage
    """``sent``, ``failed``, ``dead``, ``expired`` or ``cancelled``."""
    partial: bool
    """Sent, and not to everybody."""
    maybe_accepted: bool
    """An offer was never answered: somebody may have the mail, although it did not end as ``sent``."""
    attempts: int
    """Counted ones."""
    code: int | None
    """Of the last reply, if there was one."""
    enhanced: str | None
    """Its enhanced status code (RFC 3463)."""
    superseded_by: str | None
    """The key of the newer mail of its topic that takes its place."""
    at: datetime
    """When, by the store's clock, in UTC."""
    id: int | None = None
    """Of what :func:`sendonce.take_finals` hands over: unique for ever. A mail has more than one end when it is
    requeued, or when a proof says later that it was accepted after all."""
