"""How a process is watched, whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sendonce.watching.lateness import Limits
from sendonce.watching.sinks import Sink
from sendonce.watching.telling import REPEAT_SECONDS


@dataclass(frozen=True, slots=True)
class Watching:
    """Everything has a default: alarms are logged, and nothing listens."""

    listen: tuple[str, int] | None = None
    """Host and port of ``/metrics``, ``/healthz`` and ``/readyz``; None: nobody can ask."""
    sdk_metrics: str | None = None
    """``host:port`` where the Temporal SDK of this process shows its own metrics, which ``/metrics`` then repeats."""
    sample_seconds: float = 15.0
    """The store is counted at most this often, by all processes together."""
    sinks: tuple[Sink, ...] = ()
    """Whom alarms are told besides the log."""
    repeat_seconds: tuple[float, ...] = REPEAT_SECONDS
    """The least waits between messages about alarms of one kind and account; the last one repeats."""
    limits: Limits = field(default_factory=Limits)
    """When mail is late, and when there is too much of it."""
    trace_exporter: str | None = None
    """Entry point of OpenTelemetry's exporter for traces; None: there are no traces."""
    trace_service: str = "sendonce"
    """``service.name`` of the traces."""
