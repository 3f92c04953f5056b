"""What a process can tell Prometheus. Labels are bounded: an account or lane that is not configured is ``other``.

Counters and histograms are about what this process did since it started; gauges over the store are about all of it, and
come from the one count that all processes share.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sendonce.activities.pulse import Pulse
from sendonce.errors import InvalidEmail
from sendonce.outcome import AttemptResult
from sendonce.stages import Stage
from sendonce.store.gauges import Sample
from sendonce.store.records import Claimed, Finished, Standing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OTHER = "other"
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
ATTEMPTS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30)


@dataclass
class Seen:
    """What was seen last of what is measured now and then, replaced as a whole: it is read by another thread."""

    sample: Sample | None = None
    sampled_at: float = 0.0
    pools: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    in_flight: int = 0


class Metrics:
    """The instruments of one process."""

    def __init__(
        self, pulse: Pulse, seen: Seen, *, accounts: Collection[str], lanes: Collection[str], clock: Callable[[], float]
    ) -> None:
        """``clock`` is the one that ``seen.sampled_at`` was read from."""
        self._accounts = frozenset(accounts)
        self._lanes = frozenset(lanes)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_Gauges(pulse, seen, self._account, self._lane, sorted(lanes), clock))
        self._accepted = Histogram(
            "sendonce_accepted_seconds",
            "From enqueueing a mail, or from its send_after, until all of it was accepted, by this process's clock",
            ["lane"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._attempts = Histogram(
            "sendonce_attempts_to_success",
            "Attempts of a mail, counted ones, until it was accepted",
            ["lane"],
            buckets=ATTEMPTS,
            registry=self.registry,
        )
        self._replies = Counter(
            "sendonce_replies",
            "Outcomes by recipient, with the class of the reply: 2xx, 4xx, 5xx, or none",
            ["account", "outcome", "reply"],
            registry=self.registry,
        )
        self._unknown = Counter(
            "sendonce_unknowns", "Attempts that were offered and not answered", ["account"], registry=self.registry
        )
        self._no_slot = Counter(
            "sendonce_rate_waits",
            "Times that a mail that was due waited for a slot of a rate",
            ["account", "lane"],
            registry=self.registry,
        )
        self._messages = Counter(
            "sendonce_alarm_messages",
            "Messages about alarms that a sink was sent: arrived, or failed and tried again",
            ["sink", "result"],
            registry=self.registry,
        )

    def settled(self, claimed: Claimed, result: AttemptResult, standing: Standing) -> None:
        """An attempt was recorded."""
        account = self._account(claimed.account)
        unanswered = False
        for outcome in result.outcomes.values():
            code = outcome.reply.code
            reply = f"{code // 100}xx" if 200 <= code < 600 else "none"
            self._replies.labels(account, outcome.kind, reply).inc()
            unanswered = unanswered or outcome.kind == "unanswered"
        if unanswered:
            self._unknown.labels(account).inc()
        if isinstance(standing, Finished) and standing.stage is Stage.SENT and not standing.partial:
            lane = self._lane(claimed.lane)
            self._attempts.labels(lane).observe(standing.attempts)
            self._accepted.labels(lane).observe(_waited(claimed))

    def no_slot(self, account: str, lane: str) -> None:
        """A mail that was due had to wait for a slot."""
        self._no_slot.labels(self._account(account), self._lane(lane)).inc()

    def told(self, sink: str, arrived: bool) -> None:
        """A sink was told, or could not be."""
        self._messages.labels(sink, "arrived" if arrived else "failed").inc()

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)

    def _account(self, name: str) -> str:
        return name if name in self._accounts else OTHER

    def _lane(self, name: str) -> str:
        return name if name in self._lanes else OTHER


def _waited(claimed: Claimed) -> float:
    since = claimed.created_at
    if not isinstance(claimed.content, InvalidEmail) and claimed.content.send_after is not None:
        since = max(since, claimed.content.send_after)
    return max(0.0, (datetime.now(UTC) - since).total_seconds())


class _Gauges(Collector):
    def __init__(
        self,
        pulse: Pulse,
        seen: Seen,
        account: Callable[[str], str],
        lane: Callable[[str], str],
        lanes: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._pulse = pulse
        self._lanes = lanes
        self._seen = seen
        self._account = account
        self._lane = lane
        self._clock = clock
        try:
            self._version = version("sendonce")
        except PackageNotFoundError:
            self._version = "unknown"

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        build = GaugeMetricFamily("sendonce_build_info", "The release that runs", labels=["version", "python"])
        build.add_metric([self._version, platform.python_version()], 1)
        yield build
        pulse, seen = self._pulse, self._seen
        for name, what, value in (
            ("sendonce_store_up", "1: the last heartbeat reached the store", pulse.store_up),
            ("sendonce_temporal_up", "1: Temporal answered when it was last asked", pulse.temporal_up),
            ("sendonce_attempts_in_flight", "Attempts that run in this process", seen.in_flight),
        ):
            yield GaugeMetricFamily(name, what, value=float(value))
        loops = GaugeMetricFamily("sendonce_loop_age_seconds", "Since a loop came round last", labels=["loop"])
        dead = GaugeMetricFamily("sendonce_loop_dead", "1: a loop does not come round any more", labels=["loop"])
        for name, beat in pulse.beats().items():
            loops.add_metric([name], beat.age)
            dead.add_metric([name], float(beat.age > beat.patience))
        yield from (loops, dead)
        pools = GaugeMetricFamily(
            "sendonce_pool_connections", "Connections to the store: used, idle, most", labels=["pool", "state"]
        )
        for pool, states in seen.pools.items():
            for state, count in states.items():
                pools.add_metric([pool, state], count)
        yield pools
        if seen.sample is not None:
            yield from self._of_store(seen.sample, seen.sampled_at)

    def _of_store(self, sample: Sample, sampled_at: float) -> Iterable[Metric]:
        age = sample.age + self._clock() - sampled_at
        yield GaugeMetricFamily("sendonce_sample_age_seconds", "Since the store was counted last", value=age)
        outstanding: dict[tuple[str, str, str], int] = {}
        due: dict[tuple[str, str], int] = {}
        for one in sample.outstanding:
            lane, account = self._lane(one.lane), self._account(one.account)
            outstanding[lane, account, one.stage] = outstanding.get((lane, account, one.stage), 0) + one.count
            due[lane, account] = due.get((lane, account), 0) + one.due
        # Zero is a value: a series that ends when its lane is empty cannot be compared.
        oldest = dict.fromkeys(self._lanes, 0.0)
        for name, seconds in sample.oldest_by_lane().items():
            oldest[self._lane(name)] = max(seconds, oldest.get(self._lane(name), 0.0))
        yield _family(
            "sendonce_outstanding", "Mails that are not final", ("lane", "account", "stage"), outstanding.items()
        )
        yield _family("sendonce_due", "Mails that could be tried now and are not", ("lane", "account"), due.items())
        yield _family(
            "sendonce_oldest_due_seconds",
            "For how long the oldest mail has been due",
            ("lane",),
            [((lane,), seconds) for lane, seconds in oldest.items()],
        )
        yield _family(
            "sendonce_alarms_open",
            "Alarms that nothing has ended",
            ("kind",),
            [((kind,), count) for kind, count in sample.alarms.items()],
        )


def _family(
    name: str, what: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
