"""How fast a provider account may be used, and the slots that keep to it. Pure: the time is passed in.

A rate is a promise about every window of its length, not about windows that begin on the hour: of the slots given out,
never more than ``count`` lie in any ``seconds``. Within a second or a minute slots are also spread, so that a backlog
does not go out in one burst at its beginning.

Lanes may have a share of each rate to themselves. A lane takes from its own share and from the common one, never from
another lane's: so a login code finds a slot whatever bulk mail is waiting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sendonce.errors import ConfigurationError

AHEAD_SECONDS = 1.0
"""Slots are given out at most so long before their time: whoever comes later with more right finds the next ones."""

VOID_SECONDS = 2.0
"""A slot that was not used so long after its time is lost."""

_UNITS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
_FORM = re.compile(r"(\d{1,9})\s*/\s*(\d{0,4})\s*(s|min|h|day)(?:\s+burst\s+(\d{1,9}))?")
_PARTS = 100
"""A window is counted in so many parts: it may seem longer by one of them, never shorter."""

_SPREAD_UP_TO = 60.0
"""Rates of longer windows are quotas: as fast as it comes, until they are used up."""

COMMON = ""
"""The share of every lane that has none, and what the others may take when theirs is used up."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` in any ``seconds``, of which at most ``burst`` at once."""

    count: int
    seconds: float
    burst: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        """``14/s``, ``100/min``, ``50000/day``, ``30/10s``, ``100/min burst 20``; units s, min, h, day.

        The burst is 1 to the count; by default a tenth of the count up to a minute, all of it beyond. Raises
        :class:`~sendonce.errors.ConfigurationError`.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ConfigurationError(f"{text!r} is no rate; write 14/s, 100/min, 50000/day or 100/min burst 20")
        count, times, unit, burst = found.groups()
        seconds = float(int(times or 1) * _UNITS[unit])
        if not int(count) or not 0 < seconds <= 31 * 86400:
            raise ConfigurationError(f"{text!r} is no rate: it needs a count above 0, and a time up to 31 days")
        usual = max(1, int(count) // 10) if seconds <= _SPREAD_UP_TO else int(count)
        rate = cls(int(count), seconds, int(burst) if burst else usual)
        if not 1 <= rate.burst <= rate.count:
            raise ConfigurationError(f"{text!r}: the burst is 1 to {rate.count}")
        return rate

    def __str__(self) -> str:
        """Names the window that is counted: a rate whose count changes goes on with what was used."""
        return f"{self.seconds:g}"

    def part(self, share: float) -> Rate:
        """That share of the rate; its count may be 0."""
        count = math.floor(self.count * share + 1e-9)
        return Rate(count, self.seconds, max(1, min(count, math.ceil(self.burst * share))))

    def less(self, parts: Iterable[Rate]) -> Rate:
        """What these parts leave of it."""
        count = self.count - sum(part.count for part in parts)
        return Rate(count, self.seconds, max(1, min(count, self.burst)))


@dataclass(frozen=True, slots=True)
class DomainLimit:
    """How fast the mail of one account may go to one destination domain."""

    rates: tuple[Rate, ...] = ()
    """By all processes together."""
    at_once: int | None = None
    """Transmissions at once in one worker process; None: as many as the lanes' places."""


def pool_name(account: str, domain: str = "") -> str:
    """Under which the slots of an account are kept, or those of one of its destination domains."""
    return f"{account}@{domain}" if domain else account


@dataclass(slots=True)
class _Window:
    """The slots of one rate: when the next one is to come for the sake of spreading, and how many lie where."""

    rate: Rate
    next_at: float
    parts: dict[int, int]

    @classmethod
    def of(cls, rate: Rate, kept: Any) -> _Window:
        next_at, parts = kept if kept else (0.0, {})
        return cls(rate, float(next_at), {int(number): int(count) for number, count in parts.items()})

    def keep(self) -> Any:
        return [self.next_at, {str(number): count for number, count in self.parts.items()}]

    @property
    def _part(self) -> float:
        return self.rate.seconds / _PARTS

    def forget(self, now: float) -> None:
        """Let go of what lies in no window that is still to come."""
        self.parts = {number: n for number, n in self.parts.items() if self._free_at(number) > now}

    def _free_at(self, number: int) -> float:
        """When the slots of this part stop counting."""
        return (number + 1) * self._part + self.rate.seconds

    def earliest(self, at: float) -> float:
        """The first moment from ``at`` on at which there is a slot."""
        if self.rate.burst < self.rate.count:
            spread = self.rate.seconds / self.rate.count
            at = max(at, self.next_at - (self.rate.burst - 1) * spread)
        while True:
            counting = {number: n for number, n in self.parts.items() if self._free_at(number) > at}
            if sum(counting.values()) < self.rate.count:
                return at
            at = self._free_at(min(counting))

    def take(self, at: float) -> None:
        """Use the slot."""
        number = math.floor(at / self._part)
        self.parts[number] = self.parts.get(number, 0) + 1
        self.next_at = max(self.next_at, at) + self.rate.seconds / self.rate.count


@dataclass(frozen=True, slots=True)
class Slots:
    """What was given out."""

    at: tuple[float, ...]
    """Times, in order; as many as asked for, or fewer."""
    next_at: float
    """When to ask for more. Not before now."""


def shares(rates: Sequence[Rate], wanted: Mapping[str, float]) -> dict[str, list[Rate]]:
    """The rates of each lane that has a share (by name) and of :data:`COMMON`, in the order of ``rates``.

    A lane whose share comes to less than one of any count has none: the common one is its own too.
    """
    own = {lane: [rate.part(share) for rate in rates] for lane, share in wanted.items() if share > 0}
    own = {lane: parts for lane, parts in own.items() if all(part.count for part in parts)}
    left = [rate.less(parts[n] for parts in own.values()) for n, rate in enumerate(rates)]
    if any(rate.count < 1 for rate in left):
        raise ConfigurationError("the lanes' shares leave nothing of a rate for the others")
    return {**own, COMMON: left}


def reserve(
    state: Mapping[str, Any], pools: Mapping[str, Sequence[Rate]], lane: str, wanted: int, now: float
) -> tuple[Slots, dict[str, Any]]:
    """Give ``lane`` up to ``wanted`` slots of the next :data:`AHEAD_SECONDS`; also returns the state to keep.

    ``pools`` comes from :func:`shares`. ``state`` is what was kept before (JSON), ``{}`` at first.
    """
    windows = {
        pool: [_Window.of(rate, state.get(pool, {}).get(str(rate))) for rate in rates] for pool, rates in pools.items()
    }
    for several in windows.values():
        for window in several:
            window.forget(now)
    mine = [windows[pool] for pool in (lane, COMMON) if pool in windows]
    taken: list[float] = []
    while True:
        # The earlier one, its own before the common one.
        at, pool = min(((_earliest(several, now), n) for n, several in enumerate(mine)), key=lambda found: found)
        if len(taken) == wanted or at > now + AHEAD_SECONDS:
            break
        for window in mine[pool]:
            window.take(at)
        taken.append(at)
    kept = {pool: {str(w.rate): w.keep() for w in several} for pool, several in windows.items()}
    return Slots(tuple(sorted(taken)), max(now, at)), kept


def _earliest(windows: Sequence[_Window], now: float) -> float:
    """The first moment at which all of them have a slot."""
    at = now
    while True:
        later = max(window.earliest(at) for window in windows)
        if later <= at:
            return at
        at = later
