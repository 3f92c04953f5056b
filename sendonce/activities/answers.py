"""From the store's words to the workflow's, and back: codes only."""

from __future__ import annotations

import random
from typing import assert_never

from sendonce.activities.failures import safe_code
from sendonce.outcome import AttemptResult, Outcome, outcome_from_json
from sendonce.stages import Stage
from sendonce.store.records import Busy, Finished, Held, NoSuchRow, Paused, Standing, Wait
from sendonce.workflows.port import AttemptAnswer, Carried, Ended, Finding, Missing, Sleep


def to_answer(standing: Standing | Paused, *, tried: bool = False, askable: bool = False) -> AttemptAnswer:
    """What the workflow does next. ``tried``: an attempt was made. ``askable``: look-ups ask about an unknown."""
    match standing:
        case Finished():
            return Ended(
                str(standing.stage),
                standing.code,
                safe_code(standing.enhanced),
                standing.partial,
                standing.maybe_accepted,
                standing.attempts,
                tried=tried,
            )
        case Wait() | Held():
            return Sleep(
                standing.seconds,
                safe_code(standing.why) or "held",
                str(standing.stage),
                standing.code,
                safe_code(standing.enhanced),
                standing.attempts,
                tried=tried,
                held=isinstance(standing, Held),
                awaits=_awaits(standing, askable),
            )
        case Busy():
            return Sleep(standing.seconds, "busy", str(standing.stage))
        case Paused():
            # Spread out, or everybody would ask again in the second in which the probe is due.
            return Sleep(standing.seconds * random.uniform(1.0, 1.25), "paused")
        case NoSuchRow():
            return Missing()
        case _:
            assert_never(standing)


def _awaits(standing: Wait | Held, askable: bool) -> str:
    if standing.stage is not Stage.UNKNOWN:
        return ""
    if isinstance(standing, Wait):
        return standing.awaits
    return "look_up" if askable else "operator"


def to_carried(attempt_id: str, result: AttemptResult) -> Carried:
    """An outcome that the workflow can carry: the reply's text stays behind."""
    return Carried(attempt_id, [_finding(ordinal, outcome) for ordinal, outcome in sorted(result.outcomes.items())])


def _finding(ordinal: int, outcome: Outcome) -> Finding:
    provider_id = str(getattr(outcome, "provider_id", ""))
    return Finding(
        ordinal,
        outcome.kind,
        outcome.reply.code,
        safe_code(outcome.reply.enhanced),
        safe_code(provider_id),
        bool(getattr(outcome, "replayed", False)),
        bool(getattr(outcome, "counted", True)),
        getattr(outcome, "retry_after", None),
    )


def from_carried(carried: Carried) -> AttemptResult:
    """The outcome that was carried. Raises ValueError for a kind that this release does not know."""
    return AttemptResult({f.ordinal: outcome_from_json(vars(f)) for f in carried.findings})
