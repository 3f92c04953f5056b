"""The numbers that the project holds itself to, made from one run: ratios, because machines differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.latency import BARE, Latencies
from bench.peers import DBOS
from bench.reuse import Reuse
from bench.scale import Way
from bench.soak import Soak
from bench.steps import Steps
from bench.store import LOOK, StoreTimes
from bench.throughput import FLOOR, NAIVE, OURS, Throughput


@dataclass
class Measured:
    """One run. None: that section did not run."""

    throughput: Throughput | None = None
    latencies: Latencies | None = None
    neighbour: list[float] | None = None
    """Seconds of mails beside a relay that stalls."""
    store: StoreTimes | None = None
    soak: Soak | None = None
    scale: dict[str, Way] | None = None
    """By how many processes there were."""
    reuse: Reuse | None = None
    steps: Steps | None = None


RATIOS = (
    "engine_cpu_vs_empty",
    "throughput_vs_empty",
    "throughput_vs_naive",
    "throughput_vs_dbos",
    "cpu_vs_naive",
    "own_cpu_s_per_1000",
    "idle_p50_ms",
    "idle_p99_ms",
    "flood_p99_over_idle_p99",
    "store_1m_over_10k",
    "soak_rss_growth",
    "worker_rss_mb",
)


def ratios(found: Measured) -> dict[str, float | None]:
    """One number for each of :data:`RATIOS`, rounded; None for what was not measured."""
    values: dict[str, float | None] = dict.fromkeys(RATIOS)
    if (throughput := found.throughput) is not None:
        values["engine_cpu_vs_empty"] = throughput.ratio(OURS, FLOOR, lambda one: one.cpu["Temporal"])
        values["throughput_vs_empty"] = throughput.ratio(OURS, FLOOR, lambda one: one.per_second)
        values["throughput_vs_naive"] = throughput.ratio(OURS, NAIVE, lambda one: one.per_second)
        values["throughput_vs_dbos"] = throughput.ratio(OURS, DBOS, lambda one: one.per_second)
        values["cpu_vs_naive"] = throughput.ratio(OURS, NAIVE, lambda one: one.cpu_total)
        values["own_cpu_s_per_1000"] = throughput.middle(OURS, lambda one: one.cpu_own)
        values["worker_rss_mb"] = throughput.middle(OURS, lambda one: one.memory["worker"])
    if (latencies := found.latencies) is not None:
        values["idle_p50_ms"] = latencies.ms("alone critical", 0.5)
        values["idle_p99_ms"] = latencies.ms("alone critical", 0.99)
        values["flood_p99_over_idle_p99"] = _divided(
            latencies.ms("flood critical", 0.99), latencies.ms("alone critical", 0.99)
        )
    if found.store is not None:
        # Of all operations the one that grows most.
        values["store_1m_over_10k"] = max(found.store.ratios("1m", "10k").values(), default=None)
    if found.soak is not None:
        values["soak_rss_growth"] = found.soak.growth
        values["worker_rss_mb"] = found.soak.worker_peak_mb
    return {name: None if value is None else round(value, 3) for name, value in values.items()}


def _divided(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


@dataclass(frozen=True, slots=True)
class Goal:
    """One number and its limit."""

    what: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """None: it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def goals(found: Measured) -> list[Goal]:
    """Every goal, with what was measured."""
    ratio: Mapping[str, float | None] = ratios(found)
    latencies, store, soak = found.latencies or Latencies(), found.store or StoreTimes(), found.soak
    return [
        Goal("Temporal's CPU, of that of an empty workflow", ratio["engine_cpu_vs_empty"], 1.1),
        Goal("throughput, of empty workflows", ratio["throughput_vs_empty"], 0.65, at_least=True),
        Goal("throughput, of naive Temporal", ratio["throughput_vs_naive"], 1.8, at_least=True),
        Goal("throughput, of DBOS", ratio["throughput_vs_dbos"], 1.0, at_least=True),
        Goal("CPU of all processes, of naive Temporal's", ratio["cpu_vs_naive"], 0.55),
        Goal("CPU of worker, starter and store client, s per 1,000", ratio["own_cpu_s_per_1000"], 9.0),
        Goal("latency alone, p50, ms", ratio["idle_p50_ms"], 25.0),
        Goal(
            "latency alone, p99, of that of the bare path",
            _divided(ratio["idle_p99_ms"], latencies.ms(BARE, 0.99)),
            3.0,
        ),
        Goal("login code beside a flood, p99, of its p99 alone", ratio["flood_p99_over_idle_p99"], 2.0),
        Goal("login code beside a flood, longest, ms", latencies.ms("flood critical", 1.0), 1000.0),
        Goal("store with 1,000,000 mails, of that with 10,000", ratio["store_1m_over_10k"], 1.2),
        Goal("rows the starter looks at and marks, per second", store.per_second("1m", LOOK), 1000.0, at_least=True),
        Goal("memory of the worker, growth in the soak", ratio["soak_rss_growth"], 0.05),
        Goal("memory of the worker, MB", ratio["worker_rss_mb"], 150.0),
        Goal("claim at the end of the soak, of that at its start", soak.claim_growth if soak else None, 1.2),
    ]
