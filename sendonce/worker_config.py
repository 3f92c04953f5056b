"""Everything that a worker process needs to know, whoever starts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg_pool import AsyncConnectionPool
from temporalio.converter import PayloadCodec

from sendonce.activities.continuity import Failover
from sendonce.activities.rotation import Rotation
from sendonce.activities.transmission import Fills
from sendonce.activities.transports.base import Transport
from sendonce.errors import ConfigurationError
from sendonce.policy import DEFAULT_LANES, LanePolicy
from sendonce.rates import DomainLimit, Pools, Rate, pool_name, shares
from sendonce.retention import Retention
from sendonce.store import Store
from sendonce.store.migrate import check
from sendonce.store.pool import DatabaseUrl, current
from sendonce.store.pooling import Pooler, check_pooler
from sendonce.watching.config import Watching
from sendonce.workflows.port import task_queue


@dataclass(frozen=True)
class WorkerConfig:
    """Everything a worker process needs; times in seconds."""

    database_url: DatabaseUrl = field(repr=False)
    """What libpq takes, or what gives it for each new connection."""
    transports: Mapping[str, Transport]
    """By account name."""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Account by account, the one that takes over while it is paused, for mail that it certainly has not accepted."""
    rates: Mapping[str, tuple[Rate, ...]] = field(default_factory=dict)
    """Account by account, how fast it may be used by all processes together; all of its rates hold."""
    domains: Mapping[str, Mapping[str, DomainLimit]] = field(default_factory=dict)
    """By account and destination domain, how fast and how many at once."""
    temporal: Mapping[str, Any] = field(default_factory=lambda: {"target_host": "localhost:7233"}, repr=False)
    """Arguments of ``temporalio.client.Client.connect``; the data converter is ours."""
    lanes: Mapping[str, LanePolicy] = field(default_factory=lambda: DEFAULT_LANES)
    """All lanes of the installation, in the order in which they are served."""
    served: tuple[str, ...] = ()
    """The lanes that this process serves; empty: all."""
    task_queue_prefix: str = "sendonce"
    worker_id: str = ""
    """Who this process is in the store's records. Default: host, process id and a random part."""
    failover: Failover = "halt"
    """What happens when a standby was promoted: see :class:`~sendonce.activities.continuity.Continuity`."""
    pooler: Pooler = "none"
    """A pooler between this process and the server, by the mode it pools in."""
    rotated: Callable[[], Rotation] | None = None
    """Says what was rotated since the last call. None: nothing ever is."""
    pool_size: int = 10
    """Connections, besides one for leases, two that watch and one that listens. At least 2."""
    lease_seconds: float = 20.0
    """How long a claim stands without renewal."""
    renew_seconds: float = 5.0
    """Between two renewals; at most half of what the lease leaves after its margin, so that one may be missed."""
    hand_off_seconds: float | None = 2.0
    """How long an activity waits for its attempt, which then goes on by itself; below the 10 s of a workflow task.

    None: as long as it takes. For a server that skips time, which stands still only while an activity runs.
    """
    drain_seconds: float = 30.0
    """How long a stopping process waits for answers before it cuts what is left."""
    with_starter: bool = True
    """Start workflows from this process too."""
    poll_seconds: float = 1.0
    """The longest time until the starter sees a committed row without a notification."""
    notify: bool = True
    """Listen for notifications."""
    overdue_seconds: float = 60.0
    """A due mail whose workflow has shown no sign of life for so long is started again."""
    window_margin: float = 300.0
    """No replay is begun so shortly before the end of the provider's key window."""
    templates: Fills | None = None
    """A :class:`~sendonce.templates.Templates`. None: mail that names a template waits, with an alarm."""
    template_patience: float = 86400.0
    """Seconds after which a mail whose template stays missing or broken is dead."""
    breaker_mails: int = 10
    """After failures of so many different mails in a row, the account is paused as an outage."""
    redirect_all_to: str | None = field(default=None, repr=False)
    """A mailbox that gets every mail instead of its recipients (those outside ``allowed_domains``, if any)."""
    retention: Retention | None = None
    """What is erased when. None: nothing is, and there is no upkeep."""
    payload_codec: PayloadCodec | None = field(default=None, repr=False)
    """What encrypts the payloads that Temporal gets."""
    allowed_domains: tuple[str, ...] | None = None
    """The only recipient domains that are served, in A-labels and lower case; None: all."""
    watching: Watching = field(default_factory=Watching, repr=False)
    """Whom alarms are told, and where metrics, health and traces can be had."""

    sandboxed: bool = False
    """Run workflows in the SDK's sandbox, which finds code that would not replay. Ours are tested in it and replayed;
    in production it costs a tenth of a worker's processor time and finds nothing."""

    def __post_init__(self) -> None:
        for lane in self.served:
            if lane not in self.lanes:
                raise ConfigurationError(f"there is no lane {lane!r} to serve; lanes: {', '.join(self.lanes)}")
        self.pools()
        for account, fallback in self.fallbacks.items():
            if fallback == account or not {account, fallback} <= self.transports.keys():
                raise ConfigurationError(f"account {account!r} cannot fall back to {fallback!r}: name another account")

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each account's effective settings."""
        return {name: transport.settings_digest for name, transport in self.transports.items()}

    @property
    def listens(self) -> bool:
        """Whether notifications can be listened for: a pooler by transaction passes none on."""
        return self.notify and self.pooler != "transaction"

    @property
    def kept_days(self) -> float | None:
        """How long after its end a mail is certainly known; None: for ever, at least its key."""
        forgets = self.retention is not None and self.retention.forget_keys_days is not None
        return self.retention.record_days if self.retention is not None and forgets else None

    def store(self, pool: AsyncConnectionPool) -> Store:
        """The store as these settings use it."""
        askable = [name for name, transport in self.transports.items() if transport.capability.look_up]
        return Store(pool, self.digests, self.fallbacks, self.pools(), self.at_once(), askable)

    def pools(self) -> dict[str, Pools]:
        """What has rates, by name: those of each lane that has a share of them, and of all others."""
        wanted = {name: lane.rate_share for name, lane in self.lanes.items()}
        found = dict(self.rates)
        for account, domains in self.domains.items():
            found |= {pool_name(account, domain): limit.rates for domain, limit in domains.items()}
        try:
            return {name: shares(rates, wanted) for name, rates in found.items() if rates}
        except ConfigurationError as error:
            given = ", ".join(f"{lane} {share:g}" for lane, share in wanted.items() if share)
            raise ConfigurationError(f"rates of {', '.join(sorted(found))}: {error} ({given})") from None

    def at_once(self) -> dict[str, dict[str, int]]:
        """By account and destination domain, how many transmissions this process may have at once."""
        return {
            account: {domain: limit.at_once for domain, limit in domains.items() if limit.at_once is not None}
            for account, domains in self.domains.items()
        }

    async def check_store(self) -> None:
        """Raise :class:`~sendonce.errors.StoreNotReady` unless the schema is the one this release needs, and
        ConfigurationError for a pooler that the settings do not name. A store that is away raises
        :class:`psycopg.OperationalError`.
        """
        url = await current(self.database_url)()
        await asyncio.to_thread(check_pooler, url, self.pooler)
        await asyncio.to_thread(check, url)

    def task_queues(self) -> list[str]:
        """The task queues of all lanes."""
        return [task_queue(self.task_queue_prefix, name) for name in self.lanes]

    def served_lanes(self) -> list[LanePolicy]:
        """The lanes of this process, in order."""
        return [lane for name, lane in self.lanes.items() if not self.served or name in self.served]
