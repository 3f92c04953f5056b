"""The caller's span as text, so that the row can carry it: https://www.w3.org/TR/trace-context/#traceparent-header."""

from __future__ import annotations

import sys


def current_traceparent() -> str | None:
    """The active span of OpenTelemetry, if the application uses that and is in one; else None.

    Nothing is imported: where nobody has loaded OpenTelemetry there is no span, and this costs one look-up.

    >>> current_traceparent()
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"
