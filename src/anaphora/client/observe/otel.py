"""A span for each call, by OpenTelemetry's conventions for generative AI.

The span is made when the call is over, with the times that the record gives. Its parent is the span
that is current where the watcher is called, which is where the call was awaited.
"""

from __future__ import annotations

from anaphora import __version__
from anaphora.client.response import Record

from .attributes import ending, failing, starting
from .extras import explained

try:
    from opentelemetry import trace
except ModuleNotFoundError as problem:
    raise explained(
        problem, "traces", module="opentelemetry", package="opentelemetry-api"
    ) from None


class Traces:
    """Watches with a tracer; without one, the tracer of the provider that is set globally."""

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = trace.get_tracer("anaphora", __version__) if tracer is None else tracer

    def __call__(self, record: Record) -> None:
        first = starting(record)
        span = self._tracer.start_span(
            f"{record.operation} {first['gen_ai.request.model']}",
            kind=trace.SpanKind.CLIENT,
            attributes=first,
            start_time=_nanoseconds(record.at),
        )
        if span.is_recording():
            _fill(span, record)
        span.end(_nanoseconds(record.at + record.seconds))


def _fill(span: trace.Span, record: Record) -> None:
    span.set_attributes(ending(record))
    for number, attempt in enumerate(record.attempts, 1):
        if attempt.error is not None:
            span.add_event(
                "anaphora.attempt.failed",
                failing(attempt, number),
                _nanoseconds(attempt.at + attempt.seconds),
            )
    if record.error is not None:
        # Without a description: it would be the error's message.
        span.set_status(trace.StatusCode.ERROR)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
