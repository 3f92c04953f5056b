"""The time of a test: the present, and what the test has skipped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """One for each test; the store, Temporal and the playing providers keep to it."""

    def __init__(self) -> None:
        self.ahead = 0.0
        """Seconds that were skipped."""

    def now(self) -> datetime:
        """The present of the test. Aware, UTC."""
        return datetime.now(UTC) + timedelta(seconds=self.ahead)


def seconds_of(*, days: float, hours: float, minutes: float, seconds: float) -> float:
    """The sum in seconds. Raises ValueError unless it is above zero."""
    total = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    if total <= 0:
        raise ValueError("say how long: for example hours=3")
    return total


def spoken(seconds: float) -> str:
    """A duration as a person says it: ``45 s``, ``12 min``, ``2 h 30 min``, ``3 d 4 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
