"""Tells alarms to sinks, each sink by a loop of its own: one that is slow or away delays none of the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from sendonce.activities.failures import where
from sendonce.store import Store
from sendonce.store.alarm_delivery import TAKEN_AT_ONCE
from sendonce.watching.sinks import Sink, SinkFailed

logger = logging.getLogger(__name__)

REPEAT_SECONDS = (60.0, 300.0, 900.0, 3600.0)
"""After the first message about alarms of one kind and account, the next ones come no sooner than this."""

RETRY_FIRST, RETRY_CAP = 5.0, 900.0
"""Seconds until a message that did not arrive is tried again: doubled each time, up to the cap."""

ROUND_SECONDS = 20.0
"""A round begins no further message after so long."""

LEASE_MARGIN = 30.0
"""Seconds that a message stays ours beyond the sink's own time: for the two statements around it."""


class Teller:
    """The rounds of one process."""

    def __init__(
        self,
        store: Store,
        sinks: Sequence[Sink],
        *,
        repeat_seconds: Sequence[float] = REPEAT_SECONDS,
        counted: Callable[[str, bool], None] = lambda _sink, _arrived: None,
    ) -> None:
        """``repeat_seconds``: the least waits between messages about the same, the last one repeating; after the
        longest of them without such alarms the first one is told at once again. ``counted`` hears of each try.
        """
        self._store = store
        self._audiences = [sink.audience for sink in sinks]
        self._repeat = tuple(repeat_seconds)
        self._counted = counted
        self._failing: set[str] = set()

    async def take(self) -> None:
        """Take what is new into the sinks' notices."""
        while await self._store.take_alarms(self._audiences, quiet_seconds=max(self._repeat)) == TAKEN_AT_ONCE:
            pass

    async def tell(self, sink: Sink) -> None:
        """Tell this sink what is due, until something fails or the round is over."""
        end = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < end:
            notice = await self._store.lease_notice(sink.audience.name, sink.timeout + LEASE_MARGIN)
            if notice is None:
                return
            try:
                await sink.tell(notice)
            except Exception as error:
                wait = min(RETRY_CAP, RETRY_FIRST * 2.0 ** min(notice.failures, 16))
                self._say(sink.audience.name, str(error) if isinstance(error, SinkFailed) else where(error), wait)
                await self._store.notice_failed(notice, wait_seconds=wait)
                return
            self._say(sink.audience.name, "", 0.0)
            wait = self._repeat[min(notice.told, len(self._repeat) - 1)]
            await self._store.notice_told(notice, wait_seconds=wait)

    def _say(self, name: str, why: str, wait: float) -> None:
        """Log when a sink begins to fail, and when it works again."""
        self._counted(name, not why)
        if why and name not in self._failing:
            self._failing.add(name)
            logger.warning("alarms cannot be told: sink=%s why=%s; next try in %.0f s, and so on", name, why, wait)
        elif not why and name in self._failing:
            self._failing.discard(name)
            logger.warning("alarms are told again: sink=%s", name)
