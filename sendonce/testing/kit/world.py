"""What a test has in hand: a store, an outbox, a provider, a mailbox, and the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg

from sendonce.errors import ConfigurationError
from sendonce.testing.kit.arrivals import Arrivals
from sendonce.testing.kit.clock import Clock, seconds_of, spoken
from sendonce.testing.kit.loop import BackgroundLoop
from sendonce.testing.kit.outbox import Outbox, listed, outbox_of
from sendonce.testing.kit.playing import play
from sendonce.testing.kit.provider import Provider
from sendonce.testing.kit.settings import KitSettings

if TYPE_CHECKING:
    from sendonce.testing.kit.delivery import Delivery

_START_OR_STOP = 60.0
"""Seconds on the wall within which Temporal and a worker start, and end."""


class Sendonce:
    """One installation for one test. Nothing is delivered, and no time passes but by the clock on the wall, until the
    test calls :meth:`deliver`, :meth:`skip` or :meth:`run_until_idle`; the first of them starts Temporal and a worker.

    The calls block, in async tests too: the work is done in another thread.
    """

    def __init__(
        self, database_url: str, settings: KitSettings, loop: BackgroundLoop, *, patience: float = 30.0
    ) -> None:
        """``patience``: seconds on the wall until a call is given up."""
        self.database_url = database_url
        """The store's database, for an engine of the test's own."""
        self.patience = patience
        self.settings = settings
        self._loop = loop
        self._clock = Clock()
        self.mailbox = Arrivals(self._why_not)
        """What arrived, at whichever provider."""
        self.providers: Mapping[str, Provider] = MappingProxyType(
            {
                name: play(name, kind, self._clock, self.mailbox)
                for name, kind in settings.accounts.items()
                if isinstance(kind, str)
            }
        )
        """By account, those that are played."""
        self._delivery: Delivery | None = None

    # What there is

    @property
    def provider(self) -> Provider:
        """The provider of the account ``default``, or of the only account."""
        found = self.providers.get("default") or (next(iter(self.providers.values()), None))
        if found is None or ("default" not in self.providers and len(self.providers) > 1):
            names = ", ".join(self.providers) or "none"
            raise ConfigurationError(f"there is no account 'default' whose provider is played; there are: {names}")
        return found

    @cached_property
    def outbox(self) -> Outbox:
        """What was enqueued and committed."""
        return outbox_of(self.database_url, self.settings.library())

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection to the store whose transaction is committed at the end, and rolled back by an exception."""
        with psycopg.connect(self.database_url) as connection:
            yield connection

    def now(self) -> datetime:
        """The present of the test: the wall's, and what was skipped. Aware, UTC."""
        return self._clock.now()

    @property
    def temporal_address(self) -> str:
        """``host:port`` of the Temporal server, for a client of the application's own. Starts it."""
        return self._running().address

    # What a test does

    def deliver(self) -> None:
        """Deliver what is due now, as a worker would: to the first answer. No time is skipped.

        Fails with the story of every mail when that takes longer than :attr:`patience`.
        """
        __tracebackhide__ = True
        self._do("deliver", "settle")

    def skip(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let so much time pass. Whatever falls due on the way is done, each at its time."""
        __tracebackhide__ = True
        self._do("skip", "skip", seconds_of(days=days, hours=hours, minutes=minutes, seconds=seconds))

    def run_until_idle(self, *, days: float = 30) -> None:
        """Let time pass until no mail is going to be tried again: sent, given up, or waiting for a person.

        Fails with the story of every mail when some still is to be tried after so many days.
        """
        __tracebackhide__ = True
        if not self._do("run_until_idle", "until_idle", days * 86400.0):
            raise AssertionError(f"not idle after {days:g} days; {self.explain()}")

    def explain(self) -> str:
        """How things stand, for people: mails, providers, alarms."""
        return "\n".join([listed(self.outbox), *self._surroundings()])

    def close(self) -> None:
        """End what runs. The fixture does it."""
        if self._delivery is not None:
            delivery, self._delivery = self._delivery, None
            self._loop.run(delivery.stop(), _START_OR_STOP)

    # How

    def _running(self) -> Delivery:
        if self._delivery is None:
            from sendonce.testing.kit.delivery import Delivery

            self._delivery = Delivery(self.database_url, self.settings, self._clock, self.providers)
            try:
                self._loop.run(self._delivery.start(), _START_OR_STOP)
            except BaseException:
                self.close()
                raise
        return self._delivery

    def _do(self, verb: str, name: str, *arguments: float) -> Any:
        __tracebackhide__ = True
        delivery = self._running()
        try:
            return self._loop.run(getattr(delivery, name)(*arguments), self.patience)
        except TimeoutError:
            awake = ", ".join(delivery.watch.awake()) or "none"
            raise AssertionError(
                f"{verb} did not end within {self.patience:g} s; mails in work: {awake}; {self.explain()}"
            ) from None

    def _why_not(self, to: str | None, subject: str) -> str:
        wanted = f"no mail to {to}" if to else "no mail"
        wanted += f" whose subject contains {subject!r}" if subject else ""
        mine = [mail for mail in self.outbox if to is None or to in mail.recipients]
        lines = [wanted]
        if mine:
            lines.append(listed(mine))
        elif to is not None and len(self.outbox):
            lines += ["nothing was enqueued to this mailbox", listed(self.outbox)]
        else:
            lines.append(listed([]))
        if len(self.mailbox):
            lines.append("arrived:" + "".join(f"\n  {mail}" for mail in self.mailbox))
        return "\n".join([*lines, *self._surroundings()])

    def _surroundings(self) -> list[str]:
        lines = []
        for name, provider in self.providers.items():
            whose = "provider" if len(self.providers) == 1 else f"provider of {name}"
            lines.append(f"{whose} {provider.state()}")
        if self._delivery is None:
            lines.append("nothing was delivered yet: call deliver(), skip(hours=…) or run_until_idle()")
            return lines
        if self._clock.ahead >= 1:
            lines.append(f"skipped so far: {spoken(self._clock.ahead)}")
        for kind, account, detail in self._loop.run(self._delivery.alarms(), self.patience):
            lines.append("alarm: " + " ".join(part for part in (kind, account, detail) if part))
        lines += [f"the worker failed: {name}" for name in self._delivery.watch.failures]
        return lines
