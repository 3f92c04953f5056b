"""Judges what was counted: mail that is due for too long, and accounts whose mail piles up."""

from __future__ import annotations

from dataclasses import dataclass

from sendonce.store import Store
from sendonce.store.conditions import BACKLOG, OVERDUE
from sendonce.store.gauges import Sample

GROWTH = 1.5
"""A backlog has grown when it is that many times what it was ten minutes before."""

CALM = 0.8
"""What was too much is over below this part of the limit, so that it does not come and go."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too much."""

    oldest_due_seconds: float = 900.0
    """The oldest mail of a lane may be due for so long. 0: for ever."""
    backlog_mails: int = 10_000
    """So many mails of an account may be due before their growth is an alarm. 0: any number."""
    old_transaction_seconds: float = 900.0
    """A transaction of the database, whoever's it is, may be open for so long. 0: for ever."""


class Lateness:
    """Raises ``overdue`` for lanes and ``backlog`` for accounts, and ends them."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def judge(self, sample: Sample) -> None:
        """Once for each count, by the process that made it."""
        await self._judge_lanes(sample)
        await self._judge_accounts(sample)

    async def _judge_lanes(self, sample: Sample) -> None:
        limit = self._limits.oldest_due_seconds
        oldest = sample.oldest_by_lane()
        for lane, seconds in oldest.items():
            if limit and seconds > limit:
                detail = f"lane {lane}: the oldest mail has been due for {seconds:.0f} seconds"
                await self._store.begin_condition(OVERDUE, lane, detail)
        for lane in await self._store.conditions(OVERDUE):
            if not limit or oldest.get(lane, 0.0) <= limit * CALM:
                await self._store.end_condition(OVERDUE, lane, f"lane {lane}: in time again")

    async def _judge_accounts(self, sample: Sample) -> None:
        limit = self._limits.backlog_mails
        due = sample.due_by_account()
        if limit and sample.before is not None:
            for account, count in due.items():
                before = sample.before.get(account, 0)
                if count > limit and count > before * GROWTH:
                    detail = f"{count} mails are due, {before} were ten minutes before"
                    await self._store.begin_condition(BACKLOG, account, detail, account=account)
        for account in await self._store.conditions(BACKLOG):
            if not limit or due.get(account, 0) <= limit * CALM:
                await self._store.end_condition(BACKLOG, account, f"{due.get(account, 0)} mails are due")
