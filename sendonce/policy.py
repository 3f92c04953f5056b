"""Retry policies, lanes and limits. Pure: time, attempt numbers and randomness are passed in."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sendonce.errors import ConfigurationError

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
LONGEST_DELAY = 7 * DAY
"""No wait between two attempts is longer than this many seconds, whatever a policy or a provider asks for."""

UnknownPolicy = Literal["hold", "resend"]
"""What happens to a mail that was offered and stays unanswered when no replay is possible.

``hold``: wait for evidence, with an alarm; an operator decides. ``resend``: offer it once more, after the answer
timer counted from begin, knowing that this may be a second copy; then hold.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a deferred mail is tried again, and when it is given up.

    Either ``delays``, a list of seconds (the last one repeats), or exponential: ``base * factor ** (n - 1)``, at most
    ``cap``. ``jitter`` spreads each delay by up to that fraction, upwards only, so that a delay is never shorter than
    said. It is given up after ``max_attempts`` counted attempts, or when the next try would come later than
    ``max_age`` seconds after the first one. RFC 5321 4.5.4.1 advises 4-5 days for mail between hosts; mail that
    somebody is waiting for wants less.

    Bounds: delays 0.25 s to 7 days, factor 1 to 100, jitter 0 to 1, max_attempts 1 to 1000.
    Raises :class:`~sendonce.errors.ConfigurationError` when a value is out of bounds.
    """

    delays: tuple[float, ...] = ()
    base: float = 30.0
    factor: float = 2.0
    cap: float = HOUR
    jitter: float = 0.1
    max_attempts: int = 12
    max_age: float = DAY

    def __post_init__(self) -> None:
        checks = {
            "delays": (_delays(self.delays), "numbers of seconds from 0.25 to 604800 (7 days)"),
            "base": (_within(self.base, 0.25, LONGEST_DELAY), "seconds from 0.25 to 604800 (7 days)"),
            "factor": (_within(self.factor, 1, 100), "a number from 1 to 100"),
            "cap": (_within(self.cap, 0.25, LONGEST_DELAY), "seconds from 0.25 to 604800 (7 days)"),
            "jitter": (_within(self.jitter, 0, 1), "a fraction from 0 to 1"),
            "max_attempts": (_whole(self.max_attempts, 1, 1000), "a whole number from 1 to 1000"),
            "max_age": (_within(self.max_age, 1, 365 * DAY), "seconds from 1 to 31536000 (365 days)"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ConfigurationError(f"retry policy: {name} = {getattr(self, name)!r} is out of bounds: {wanted}")
        object.__setattr__(self, "delays", tuple(float(d) for d in self.delays))

    def delay(self, attempt: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after counted attempt number ``attempt`` (from 1), jitter included.

        >>> RetryPolicy(base=30, factor=2, cap=3600, jitter=0).delay(3)
        120.0
        >>> RetryPolicy(delays=(5, 30), jitter=0).delay(9)
        30.0
        """
        n = max(1, attempt)
        if self.delays:
            plain = self.delays[min(n, len(self.delays)) - 1]
        elif self.factor == 1 or self.base >= self.cap:
            plain = min(self.base, self.cap)
        else:
            # The exponent is capped where the cap is reached: no overflow for any attempt number.
            steps = min(n - 1, math.ceil(math.log(self.cap / self.base, self.factor)))
            plain = min(self.cap, self.base * self.factor**steps)
        spread = plain * self.jitter * (rng or random).random()
        return min(LONGEST_DELAY, plain + spread)

    def after(
        self, attempt: int, age: float, *, retry_after: float | None = None, rng: random.Random | None = None
    ) -> float | None:
        """Seconds until the next try, or None when the limits are reached.

        ``age`` is seconds since the first attempt, pauses of the account not counted. A provider's ``retry_after``
        can only lengthen the wait, never beyond :data:`LONGEST_DELAY` and never beyond ``max_age``: a provider that
        asks for too much gets one more try at the end, it does not use up the whole policy.
        """
        if attempt >= self.max_attempts:
            return None
        wait, left = self.delay(attempt, rng), self.max_age - age
        if not wait <= left:
            return None
        if retry_after is not None and _finite(retry_after):
            wait = max(wait, min(retry_after, LONGEST_DELAY, left))
        return wait

    def horizon(self) -> float:
        """The longest time, in seconds, from the first try to the last one this policy can make."""
        total = 0.0
        for n in range(1, self.max_attempts):
            step = self.delay(n, _NoJitter())
            if total + step > self.max_age:
                break
            total += step
        return total

    def warnings(self, *, key_window: float | None = None) -> list[str]:
        """What in this policy can never act, as sentences for the start-up log; empty when all of it can.

        ``key_window``: seconds in which a replay may begin, the provider's window less the margin; None: there are no
        replays.
        """
        found = []
        first = self.delay(1, _NoJitter())
        if self.max_attempts > 1 and first > self.max_age:
            found.append(
                f"the first retry comes after {first:g} s, beyond max_age {self.max_age:g} s: nothing is retried"
            )
        elif self.delays and sum(self.delays) > self.max_age:
            found.append(
                f"delays add up to {sum(self.delays):g} s, beyond max_age {self.max_age:g} s: the last never act"
            )
        if self.delays and len(self.delays) > self.max_attempts - 1:
            found.append(f"max_attempts {self.max_attempts} uses only the first {self.max_attempts - 1} delays")
        if key_window is not None and first > key_window:
            found.append(
                f"the first retry comes after {first:g} s, beyond the {key_window:g} s in which the provider's key can "
                "be used again: an unanswered mail can never be replayed"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The form kept in ``email.retry`` (jsonb). Inverse of :meth:`from_json`."""
        return {**asdict(self), "delays": list(self.delays)}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> RetryPolicy:
        """Read :meth:`to_json`'s form; members may be missing. Raises ConfigurationError for an unknown one."""
        unknown = set(body) - set(cls.__dataclass_fields__)
        if unknown:
            raise ConfigurationError(f"retry policy: unknown member {sorted(unknown)[0]!r}")
        return cls(**body)


class _NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


def _within(value: float, low: float, high: float) -> bool:
    return _finite(value) and low <= value <= high


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _delays(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(_within(d, 0.25, LONGEST_DELAY) for d in value)


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How one lane treats its mail. A message may bring its own ``retry`` and ``unknown``."""

    name: str
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    unknown: UnknownPolicy = "hold"
    unknown_days: float = 7.0
    """An unknown that nobody settled is closed after this many days, marked ``maybe_accepted``. 1/24 to 365."""
    answer_seconds: float = 600.0
    """How long the answer to an offer is awaited. RFC 5321 4.5.3.2.6 sets 10 minutes at the final dot and warns that
    less makes extra copies; a shorter timer trades that for an earlier ``unknown``. 1 to 3600."""
    greylist_delays: tuple[float, ...] = (30, 60, 120, 300, 600)
    """Seconds after the first, second … time a server defers the mail as a stranger's (greylisting, usually for one to
    five minutes), instead of the retry policy's; each 0.25 s to 7 days. A message's own ``retry`` wins."""
    rate_share: float = 0.0
    """The part of each rate of an account that only this lane may use, besides what all share: 0 to 0.9. A part of
    less than one of the rate's count is none."""
    urgent: bool = False
    """Whether its mail may use the connections that an account keeps free."""
    places: int = 20
    """Transmissions at once per account and worker process (bulkhead). 1 to 1000."""
    content_days: float | None = None
    """Days after which the content of a mail that is final is erased, instead of ``[retention] content_days``; 0: at
    once, by the next round of the upkeep. 0 to 3650. None: as there."""

    def __post_init__(self) -> None:
        checks = {
            "unknown": (self.unknown in ("hold", "resend"), "hold or resend"),
            "unknown_days": (_within(self.unknown_days, 1 / 24, 365), "days from 1/24 to 365"),
            "answer_seconds": (_within(self.answer_seconds, 1, 3600), "seconds from 1 to 3600"),
            "greylist_delays": (_delays(self.greylist_delays), "numbers of seconds from 0.25 to 604800 (7 days)"),
            "rate_share": (_within(self.rate_share, 0, 0.9), "a number from 0 to 0.9"),
            "urgent": (isinstance(self.urgent, bool), "true or false"),
            "places": (_whole(self.places, 1, 1000), "a whole number from 1 to 1000"),
            "content_days": (self.content_days is None or _within(self.content_days, 0, 3650), "days from 0 to 3650"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ConfigurationError(
                    f"lane {self.name!r}: {name} = {getattr(self, name)!r} is out of bounds: {wanted}"
                )
        object.__setattr__(self, "greylist_delays", tuple(float(d) for d in self.greylist_delays))


DEFAULT_LANES: dict[str, LanePolicy] = {
    # A login code: seconds and minutes; after half an hour nobody waits for it any more.
    "critical": LanePolicy(
        "critical",
        RetryPolicy(delays=(2, 5, 15, 30, 60, 120, 300), max_attempts=12, max_age=30 * MINUTE),
        rate_share=0.2,
        urgent=True,
    ),
    # An order confirmation: minutes, then hours, for two days.
    "default": LanePolicy(
        "default",
        RetryPolicy(base=30, factor=2.5, cap=2 * HOUR, max_attempts=30, max_age=2 * DAY),
        rate_share=0.1,
    ),
    # A report: RFC 5321 4.5.4.1's own pace, half an hour and more, for five days.
    "bulk": LanePolicy(
        "bulk",
        RetryPolicy(base=30 * MINUTE, factor=1.5, cap=4 * HOUR, max_attempts=60, max_age=5 * DAY),
        # However many codes there are, it never stands still.
        rate_share=0.1,
    ),
}
"""The lanes that exist without any settings, served in this order."""
