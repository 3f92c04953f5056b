"""Traces from the span that enqueued a mail to the provider's answer; off unless an exporter is named.

The row carries the enqueueing span (W3C Trace Context); Temporal carries nothing of it. Every attempt is a span under
that one, with what is said to the provider as a span of its own. Attributes are names, numbers and codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from sendonce.activities.failures import safe_code
from sendonce.errors import ConfigurationError
from sendonce.outcome import AttemptResult
from sendonce.store.records import Claimed, Finished, Standing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORTERS = "opentelemetry_traces_exporter"
"""The entry point group in which OpenTelemetry's exporters are registered."""

FLUSH_SECONDS = 5.0
"""How long a process that ends waits for its last spans to be taken."""


class Tracing:
    """The spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._trace = trace
        self._tracer = provider.get_tracer("sendonce")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def attempting(self, claimed: Claimed) -> Iterator[None]:
        """One attempt: a span under the one that enqueued the mail."""
        carrier = {} if claimed.traceparent is None else {"traceparent": claimed.traceparent}
        with self._tracer.start_as_current_span(
            "sendonce.attempt",
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "sendonce.key": claimed.key,
                "sendonce.email_id": str(claimed.email_id),
                "sendonce.attempt": claimed.number,
                "sendonce.mode": claimed.mode,
                "sendonce.lane": claimed.lane,
                "sendonce.account": claimed.account,
            },
            # The text of an exception may quote a mail.
            record_exception=False,
            set_status_on_exception=False,
        ):
            yield

    @contextmanager
    def transmitting(self, claimed: Claimed) -> Iterator[None]:
        """What is said to the provider."""
        with self._tracer.start_as_current_span(
            "sendonce.transmit",
            kind=self._trace.SpanKind.CLIENT,
            attributes={"sendonce.account": claimed.account},
            record_exception=False,
            set_status_on_exception=False,
        ):
            yield

    def settled(self, result: AttemptResult, standing: Standing) -> None:
        """What came of the attempt whose span is active."""
        reply = result.first_reply()
        kinds = sorted({outcome.kind for outcome in result.outcomes.values()})
        span = self._trace.get_current_span()
        span.set_attributes(
            {
                "sendonce.outcome": ",".join(kinds),
                "sendonce.code": reply.code,
                "sendonce.enhanced": safe_code(reply.enhanced),
                "sendonce.final": isinstance(standing, Finished),
            }
        )
        if kinds != ["accepted"]:
            span.set_status(self._trace.StatusCode.ERROR, kinds[0] if kinds else "nothing")

    async def close(self) -> None:
        """Hand over the last spans, if somebody takes them."""
        closing = asyncio.ensure_future(asyncio.to_thread(self._provider.shutdown))
        await asyncio.wait({closing}, timeout=FLUSH_SECONDS)


def open_tracing(exporter: str, service: str) -> Tracing:
    """Traces by the exporter of this name, which reads its own settings (``OTEL_EXPORTER_OTLP_ENDPOINT`` and so on).

    Raises ConfigurationError when a package is missing.
    """
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError("[traces] needs OpenTelemetry: install sendonce[otel]") from None
    made = _exporter(exporter)
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(made))
    return Tracing(provider)


def _exporter(name: str) -> SpanExporter:
    found = {point.name: point for point in entry_points(group=EXPORTERS)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigurationError(
            f"[traces] there is no exporter {name!r}; installed: {known}. "
            "The package opentelemetry-exporter-otlp-proto-http brings 'otlp_proto_http'"
        )
    made: Any = found[name].load()
    exporter: SpanExporter = made()
    return exporter
