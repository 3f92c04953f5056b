"""From an update of a workflow to the store, which decides whether it may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from uuid import UUID

from sendonce.policy import LanePolicy
from sendonce.store import Store, actions
from sendonce.workflows.port import Acted, Action

DONE = {
    "retry_now": "it is tried now",
    "cancel": "it is withdrawn",
    "resolve:sent": "recorded: it was sent",
    "resolve:not-sent": "recorded: it was not sent; it is tried again within its limits",
    "resolve:resend": "recorded: it is sent once more",
}
"""What was done, in words."""


async def act(store: Store, lanes: Mapping[str, LanePolicy], call: Action) -> Acted:
    """Carry the action out. Who asked is who they say they are: the log says so."""
    if call.action not in actions.ACTIONS:
        raise LookupError(call.action)
    came = await store.act(
        UUID(call.ticket.email_id),
        cast(actions.Action, call.action),
        action_id=call.action_id,
        lanes=lanes,
        actor=f"temporal-ui:{call.by or 'unnamed'}",
        because=call.because,
    )
    if came.answer == actions.DONE:
        return Acted(True, DONE[call.action], came.stage)
    return Acted(False, f"{actions.REFUSALS[came.answer]} (it is {came.stage or 'gone'})", came.stage)
