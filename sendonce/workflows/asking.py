"""What people may write into an update of a mail's workflow, and what is refused before it is kept anywhere.

An update that is refused here leaves no event, so nothing that it holds is kept in Temporal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import ApplicationError

from sendonce.workflows.port import INVALID

DECISIONS = ("sent", "not-sent", "resend")

_BY = re.compile(r"[\w .-]{1,60}")
_BECAUSE = re.compile(r"[^@\x00-\x1f\x7f-\x9f\u2028\u2029]{1,300}")
_ACTION_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")

_RULES = {
    "by": (_BY, "your name: letters, digits, spaces, points and dashes, at most 60, no address"),
    "because": (_BECAUSE, "a reason: one line of at most 300 characters, without an @: it is kept in Temporal"),
    "action_id": (_ACTION_ID, "at most 200 letters, digits, points, colons and dashes"),
    "decision": (re.compile("|".join(DECISIONS)), f"one of {', '.join(DECISIONS)}"),
}


@dataclass(frozen=True)
class Ask:
    """The input of an update."""

    by: str = ""
    because: str = ""
    action_id: str = ""
    decision: str = ""


def read(given: Any, *, decides: bool = False) -> Ask:
    """The input as it was typed into the UI. Raises ApplicationError that says what is wrong, and quotes nothing.

    ``decides``: a decision is asked for, which somebody must answer for.
    """
    members = ("by", "because", "action_id", *(("decision",) if decides else ()))
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise _invalid(f"write a JSON object with {', '.join(members)}")
    if not given.keys() <= set(members):
        raise _invalid(f"there are only the members {', '.join(members)}")
    for name in members:
        pattern, rule = _RULES[name]
        value = given.get(name, "")
        if not isinstance(value, str) or (value and not pattern.fullmatch(value)):
            raise _invalid(f"{name}: {rule}")
    found = Ask(**given)
    if decides and not (found.decision and found.by and found.because):
        raise _invalid('decision, by and because are needed: {"decision": "sent", "by": "…", "because": "…"}')
    return found


def _invalid(what: str) -> ApplicationError:
    return ApplicationError(what, type=INVALID, non_retryable=True)
