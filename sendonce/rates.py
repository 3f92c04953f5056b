"""How fast a provider account may be used, and the slots that keep to it. Pure: the time is passed in.

A slot is the right to begin one attempt at a moment.

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
            raise ConfigurationError(f"{text!r} is no rate; write 14/s, 100/min, 3000/h, 50000/day or 100/min burst 20")
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

    @property
    def spread(self) -> float:
        """Seconds from one to the next, if they are spread evenly."""
        return self.seconds / self.count

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
    def of(cls, rate: Rate, kept: Any, now: float) -> _Window:
        """What was kept, without what lies in no window that is still to come.

        What seems to lie further ahead than slots are given was taken before the clock stepped back: it counts as
        taken now, and stops nobody for longer than a window.
        """
        next_at, parts = kept or (0.0, {})
        window = cls(rate, min(float(next_at), now + AHEAD_SECONDS + rate.burst * rate.spread), {})
        last = math.floor((now + AHEAD_SECONDS) / window._part) + 1
        for number, count in parts.items():
            at = int(number) if int(number) <= last else math.floor(now / window._part)
            if window._free_at(at) > now:
                window.parts[at] = window.parts.get(at, 0) + int(count)
        return window

    def keep(self) -> Any:
        return [self.next_at, {str(number): count for number, count in self.parts.items()}]

    @property
    def _part(self) -> float:
        return self.rate.seconds / _PARTS

    def _free_at(self, number: int) -> float:
        """When the slots of this part stop counting."""
        return (number + 1) * self._part + self.rate.seconds

    def earliest(self, at: float, *, spread: bool) -> float:
        """The first moment from ``at`` on at which there is a slot; ``spread``: and it is time for one."""
        if spread and self.rate.burst < self.rate.count:
            at = max(at, self.next_at - (self.rate.burst - 1) * self.rate.spread)
        while True:
            counting = {number: n for number, n in self.parts.items() if self._free_at(number) > at}
            if sum(counting.values()) < self.rate.count:
                return at
            at = self._free_at(min(counting))

    def take(self, at: float) -> None:
        """Use the slot."""
        number = math.floor(at / self._part)
        self.parts[number] = self.parts.get(number, 0) + 1
        self.next_at = max(self.next_at, at) + self.rate.spread


@dataclass(frozen=True, slots=True)
class Pools:
    """One account's rates, or one destination's: all of them, and how they are shared out."""

    rates: tuple[Rate, ...]
    parts: Mapping[str, tuple[Rate, ...]]
    """By lane those that have a share, and under :data:`COMMON` what is left for all; in the order of ``rates``."""


@dataclass(frozen=True, slots=True)
class Slots:
    """What was given out."""

    at: tuple[float, ...]
    """Times, in order; as many as asked for, or fewer."""
    next_at: float
    """When to ask for more. Not before now."""


def shares(rates: Sequence[Rate], wanted: Mapping[str, float]) -> Pools:
    """Share the rates out among the lanes, by name.

    A lane whose share comes to less than one of any count has none: the common one is its own too. Each part has a
    burst of its own. Raises :class:`~sendonce.errors.ConfigurationError` when nothing is left for all.
    """
    own = {lane: tuple(rate.part(share) for rate in rates) for lane, share in wanted.items() if share > 0}
    own = {lane: parts for lane, parts in own.items() if all(part.count for part in parts)}
    left = tuple(rate.less(parts[n] for parts in own.values()) for n, rate in enumerate(rates))
    if any(rate.count < 1 for rate in left):
        raise ConfigurationError("the lanes' rate_shares leave nothing of a rate for all")
    return Pools(tuple(rates), {**own, COMMON: left})


def reserve(state: Mapping[str, Any], pools: Pools, lane: str, wanted: int, now: float) -> tuple[Slots, dict[str, Any]]:
    """Give ``lane`` up to ``wanted`` slots of the next :data:`AHEAD_SECONDS`; also returns the state to keep.

    ``state`` is what was kept before (JSON), ``{}`` at first. What it holds of rates and shares that are not these, a
    process with other settings has written: it is kept until it counts no more, and the whole of each rate is counted
    besides the shares, so that a change of either gives nobody more than the rate.
    """
    kept = _still_counting(state, now)
    whole = [_Window.of(rate, kept.get(_WHOLE, {}).get(str(rate)), now) for rate in pools.rates]
    windows = {
        pool: [_Window.of(rate, kept.get(pool, {}).get(str(rate)), now) for rate in rates]
        for pool, rates in pools.parts.items()
    }
    mine = [windows[pool] for pool in (lane, COMMON) if pool in windows]
    taken: list[float] = []
    while True:
        # The earlier one, its own before the common one.
        at, pool = min((_earliest(several, whole, now), n) for n, several in enumerate(mine))
        if len(taken) == wanted or at > now + AHEAD_SECONDS:
            break
        for window in (*mine[pool], *whole):
            window.take(at)
        taken.append(at)
    for name, several in {**windows, _WHOLE: whole}.items():
        kept.setdefault(name, {}).update({str(w.rate): w.keep() for w in several})
    return Slots(tuple(sorted(taken)), max(now, at)), kept


_WHOLE = "*"
"""The windows of the rates as they are, whoever took the slots. No lane has such a name."""


def _still_counting(state: Mapping[str, Any], now: float) -> dict[str, dict[str, Any]]:
    """The state without windows in which nothing lies any more."""
    found: dict[str, dict[str, Any]] = {}
    for pool, windows in state.items():
        for seconds, kept in windows.items():
            # Any rate of that length tells what still counts.
            window = _Window.of(Rate(1, float(seconds), 1), kept, now)
            if window.parts:
                found.setdefault(pool, {})[seconds] = kept
    return found


def _earliest(windows: Sequence[_Window], whole: Sequence[_Window], now: float) -> float:
    """The first moment at which all of them have a slot. Only the lane's own are spread: another one's slots that lie
    ahead do not put off whoever has a right to the next.
    """
    at = now
    while True:
        later = max(
            *(window.earliest(at, spread=True) for window in windows),
            *(window.earliest(at, spread=False) for window in whole),
        )
        if later <= at:
            return at
        at = later
