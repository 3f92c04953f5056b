"""Judges transactions that have been open for long, whoever's they are: one alarm for each while it lasts."""

from __future__ import annotations

from sendonce.store import Store
from sendonce.store.conditions import OLD_TRANSACTION
from sendonce.store.transactions import Transaction


class OldTransactions:
    """Raises ``old_transaction``, and ends it when the transaction has ended."""

    def __init__(self, store: Store, limit_seconds: float) -> None:
        """``limit_seconds``: how long a transaction may be open. 0: for ever."""
        self._store = store
        self._limit = limit_seconds

    async def judge(self) -> None:
        """Look at the server's sessions, once."""
        old = {_about(one): one for one in await self._store.old_transactions(self._limit)} if self._limit else {}
        for about, one in old.items():
            await self._store.begin_condition(OLD_TRANSACTION, about, _detail(one))
        for about in await self._store.conditions(OLD_TRANSACTION) - old.keys():
            await self._store.end_condition(OLD_TRANSACTION, about, f"{about.rpartition(' ')[0]}: it has ended")


def _about(one: Transaction) -> str:
    # A process id comes again; one that began at the same microsecond does not.
    return f"{_whose(one)} {one.began:.6f}"


def _detail(one: Transaction) -> str:
    application = f", application_name '{one.application}'" if one.application else ""
    return f"{_whose(one)}: open for {one.age:.0f} seconds{application}, {one.state}"


def _whose(one: Transaction) -> str:
    return f"pid {one.pid}" if one.pid is not None else "prepared transaction"
