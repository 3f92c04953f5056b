"""Which loops of this process come round, and what it can reach: in memory, to be written down and shown by others."""

from __future__ import annotations

import time
from collections.abc import Callable

from sendonce.store.heartbeats import Beat


class Pulse:
    """Signs of life of one process. ``clock`` gives seconds that never jump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loops: dict[str, tuple[float, float]] = {}
        self.store_up = False
        """The last statement of the heartbeat reached the store."""
        self.temporal_up = False
        """Temporal answered when it was last asked."""
        self.ready = False
        """Everything runs: from the start of the Temporal workers to the wish to stop."""
        self.stopping = False

    def expect(self, name: str, patience: float) -> None:
        """From now on this loop is dead when it does not come round within ``patience`` seconds."""
        self._loops[name] = (self._clock(), patience)

    def beat(self, name: str) -> None:
        """The loop came round. One that is not expected is none of ours any more."""
        if name in self._loops:
            self._loops[name] = (self._clock(), self._loops[name][1])

    def forget(self, name: str) -> None:
        """The loop has ended in order."""
        self._loops.pop(name, None)

    def beats(self) -> dict[str, Beat]:
        """When each loop came round, by name."""
        now = self._clock()
        return {name: Beat(now - at, patience) for name, (at, patience) in list(self._loops.items())}

    def dead(self) -> list[str]:
        """The loops that do not come round, in order of their names."""
        return sorted(name for name, one in self.beats().items() if one.age > one.patience)
