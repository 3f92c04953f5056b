"""Urgent lanes first: how many other mails a process starts at once, so that a login code does not wait for them.

Lanes have queues and places of their own, and yet share processors: those of the worker, of Temporal and of the store.
The more mails are under way at once, the longer each takes. While urgent mail comes, the time from its start to the
first line of its attempt says how busy everything is: others are started as many at once as leave that time about as it
is when there is nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

LEAST = 2
"""Mails of another lane at once, however busy everything is: none starves."""

MOST = 20
"""Mails of a lane that are being started at once. A burst inside Temporal costs more than the same rows waiting in the
store."""

PATIENCE = 1.5
"""How many times the usual an urgent mail may take to get under way, before others are to be fewer."""

SLACK_SECONDS = 0.005
"""What a time may differ from another without meaning anything."""

STEP = 0.5
"""So many more at once after each urgent mail that got under way in time although as many as may be were beside it."""

RECOVERY_SECONDS = 5.0
"""Where no urgent mail comes any more, others may be one more at once each time that this passes."""

FORGET = 1.002
"""What the usual time is multiplied with each second until a shorter one is seen: a machine may become slower."""

KEPT = 1000
"""Urgent mails that are awaited at most: those that another process got never arrive here."""


class Precedence:
    """What one process knows of its urgent mail, and what follows for all other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._size = float(MOST)
        self._changed_at = self._halved_at = self._usual_at = clock()
        self._usual = float("inf")
        self._used_up = False
        self._left: dict[UUID, float] = {}

    @property
    def at_once(self) -> int:
        """How many mails of a lane that is not urgent may be under way at once now: :data:`LEAST` to :data:`MOST`."""
        return int(self._size_at(self._clock()))

    def used_up(self) -> None:
        """There is more to start than :attr:`at_once` lets."""
        self._used_up = True

    def leaves(self, email_id: UUID) -> None:
        """An urgent mail's workflow is about to be started."""
        now = self._clock()
        if self._size_at(now) >= MOST:
            # How busy everything is becomes known with its arrival, which is too late for this one.
            self._set(LEAST, now)
            self._halved_at = now
        self._left[email_id] = now
        if len(self._left) > KEPT:
            del self._left[next(iter(self._left))]

    def arrives(self, email_id: UUID) -> None:
        """An urgent mail's attempt begins in this process."""
        left, now = self._left.pop(email_id, None), self._clock()
        if left is None:
            return
        took, usual = now - left, self._usual * FORGET ** (now - self._usual_at)
        if took <= usual:
            self._usual, self._usual_at, usual = took, now, took
        size = self._size_at(now)
        if took > PATIENCE * usual + SLACK_SECONDS:
            # Once for all that were under way together.
            if left >= self._halved_at:
                self._set(size / 2, now)
                self._halved_at = now
        elif self._used_up:
            # What nobody needed has not been tried.
            self._set(size + STEP, now)
        else:
            self._set(size, now)

    def _size_at(self, now: float) -> float:
        recovered = (now - self._changed_at) / RECOVERY_SECONDS if self._size < MOST else 0.0
        return min(float(MOST), self._size + recovered)

    def _set(self, size: float, now: float) -> None:
        self._size, self._changed_at, self._used_up = max(float(LEAST), min(float(MOST), size)), now, False
