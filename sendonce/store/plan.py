"""What comes next for a mail, by all that is known of it: the stage, the wait, the next generation. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sendonce.errors import ConfigurationError
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Deferred, NotOffered, Outcome, Refused
from sendonce.policy import LanePolicy, RetryPolicy
from sendonce.stages import Limits, RecipientStage, RecipientView, Stage, Verdict, email_stage, next_generation
from sendonce.store.mail import Mail

ASKED_FIRST = 20.0
"""Seconds from the beginning of an unknown until the one resend of the policy: its provider is asked before."""

LAST_REPLAY = 60.0
"""Seconds before the end of the time for replays: no wish of the provider puts the mail's next try off beyond that."""

UNCOUNTED_DELAY = 5.0
"""Seconds until the next try after an attempt that is not counted."""


def counts(outcome: Outcome) -> bool:
    """Does this outcome use up one of the mail's attempts?"""
    if isinstance(outcome, NotOffered):
        return outcome.counted
    return outcome.kind != "account_fault"


def counted(outcomes: Collection[Outcome]) -> bool:
    """Does an attempt with these outcomes use up one of the mail's attempts?

    Not when it only met the server's limit of recipients and served some of them: each such attempt serves more.
    """
    return any(counts(o) for o in outcomes) and not _goes_on(outcomes)


def _goes_on(outcomes: Collection[Outcome]) -> bool:
    beyond = any(isinstance(o, Deferred) and o.beyond_limit for o in outcomes)
    return beyond and any(isinstance(o, (Accepted, Refused)) for o in outcomes)


def _greylisted(outcomes: Collection[Outcome]) -> bool:
    deferred = [o for o in outcomes if isinstance(o, Deferred)]
    return bool(deferred) and all(o.greylisted for o in deferred)


@dataclass
class Plan:
    """What is to be written."""

    verdict: Verdict
    wait: float | None
    """Seconds until the next attempt; None: held, or final."""
    generation: int
    open_ordinals: list[int]
    attempts: int
    code: int | None
    enhanced: str | None


def make_plan(
    mail: Mail,
    views: dict[int, RecipientView],
    lane: LanePolicy,
    result: AttemptResult | None,
    *,
    exhausted: bool,
) -> Plan:
    """The plan after ``result``, an attempt's own news, or None when nothing was tried."""
    row, now = mail.row, mail.row["now"]
    retry = _retry(row, lane)
    tried = [a for a in mail.attempts if a["counted"] and a["number"] > row["requeue_floor"]]
    if tried and row["first_attempt_at"] is None:
        row["first_attempt_at"], row["pause_base"] = tried[0]["claimed_at"], row["paused"]
    age = _age(row)
    stages = [v.stage for v in views.values()]
    unanswered = RecipientStage.UNANSWERED in stages
    cancelled = row["cancel_requested_at"] is not None
    expired = row["expires_at"] is not None and row["expires_at"] <= now

    wait: float | None
    news = list(result.outcomes.values()) if result is not None else []
    # What the provider wishes of the whole account is a matter of its pause: the mail may go by another one.
    wishes = (getattr(o, "retry_after", None) or 0.0 for o in news if not isinstance(o, AccountFault))
    wished = max(wishes, default=0.0)
    if result is None and row["next_attempt_at"] is not None:
        # Nothing was tried: what was planned stands.
        wait = max(0.0, (row["next_attempt_at"] - now).total_seconds())
    elif _goes_on(news):
        wait = 0.0
    elif not tried:
        wait = UNCOUNTED_DELAY if result is not None else 0.0
    elif result is None or counted(news):
        wait = retry.after(len(tried), age, retry_after=wished)
        if wait is not None and row["retry"] is None and _greylisted(news):
            wait = _greylist_wait(mail, lane, wait, wished, left=retry.max_age - age)
    else:
        wait = max(UNCOUNTED_DELAY, min(wished, retry.cap))
    limits = Limits(
        cancelled=cancelled,
        expired=expired,
        exhausted=exhausted or wait is None,
        unknown_closed=row["close_at"] is not None and row["close_at"] <= now,
    )
    verdict = email_stage(stages, limits)
    generation = next_generation(row["generation"], mail.facts, views)
    if verdict.stage is Stage.UNKNOWN:
        own = retry.after(len(tried), age) if wished and wait is not None else wait
        wait = _unknown_wait(row, lane, wait, own, stopped=cancelled or expired)
    elif verdict.stage.final:
        wait = None
    elif wait is not None and row["expires_at"] is not None:
        # Wake at the deadline at the latest, to say that it has passed.
        wait = min(wait, (row["expires_at"] - now).total_seconds())
    shown = result.first_reply() if result is not None else None
    assert unanswered or verdict.stage is not Stage.UNKNOWN
    return Plan(
        verdict,
        wait,
        generation,
        [o for o, v in views.items() if v.stage in _OPEN],
        len(tried),
        (shown.code or None) if shown else row["last_code"],
        (shown.enhanced or None) if shown else row["last_enhanced"],
    )


def _age(row: dict[str, Any]) -> float:
    """Seconds since the first counted attempt, without those in which the account was paused."""
    if row["first_attempt_at"] is None:
        return 0.0
    age = row["now"] - row["first_attempt_at"] - (row["paused"] - row["pause_base"])
    return max(0.0, float(age.total_seconds()))


def too_old_in(row: dict[str, Any], lane: LanePolicy, seconds: float) -> bool:
    """Will a mail that has been tried be beyond its largest age then?"""
    return row["first_attempt_at"] is not None and _age(row) + seconds > _retry(row, lane).max_age


def _greylist_wait(mail: Mail, lane: LanePolicy, wait: float, wished: float, *, left: float) -> float:
    """The lane's own early delays for a server that defers strangers; afterwards, and at its end, its usual ones."""
    times = sum(1 for facts in mail.facts if _greylisted(facts.answers.values()))
    if times > len(lane.greylist_delays):
        return wait
    early = max(lane.greylist_delays[times - 1], wished)
    return early if early <= left else wait


def _retry(row: dict[str, Any], lane: LanePolicy) -> RetryPolicy:
    try:
        return RetryPolicy.from_json(row["retry"]) if row["retry"] else lane.retry
    except ConfigurationError:
        # Written past the typed API. The content is refused for it; concluding must not fail on it.
        return lane.retry


_OPEN = (RecipientStage.OUTSTANDING, RecipientStage.DEFERRED, RecipientStage.UNANSWERED)


def _unknown_wait(
    row: dict[str, Any], lane: LanePolicy, wait: float | None, own: float | None, *, stopped: bool
) -> float | None:
    """Until the replay under the provider's key, or the one resend of the policy; None: held.

    ``own``: the wait without the provider's wish, which could put the mail off until nothing can be replayed.
    """
    if stopped or wait is None:
        return None
    now = row["now"]
    if row["replay_until"] is not None:
        left = float((row["replay_until"] - now).total_seconds())
        if wait < left:
            return wait
        if own is not None and own < left:
            return max(own, left - LAST_REPLAY)
    if (row["unknown_policy"] or lane.unknown) == "resend" and row["resends"] == 0 and row["answer_by"] is not None:
        # The resend is tried until it is begun, by the retry policy like every try. A provider that can be asked is
        # asked first: what it knows is worth more than a second copy.
        silent = float((now - (row["unknown_since"] or now)).total_seconds())
        return max(wait, float((row["answer_by"] - now).total_seconds()), ASKED_FIRST - silent)
    return None
