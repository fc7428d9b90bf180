"""OpenTelemetry spans and histograms, by its conventions for generative AI.

A span is made when the call is over, with the record's times. Its parent is the current span of the
code that awaits the call.

Attribute names are literals, since the package that defines them is private and changes; a test
compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from anaphora.cache.verdict.values import CHANGES
from anaphora.catalog.dialect_rows import otel_provider
from anaphora.client.response import Attempt, Record
from anaphora.values import StopReason
from anaphora.version import __version__

from .export import (
    OTHER,
    BoundedNames,
    address,
    block_label,
    error_type,
    fields,
    label,
    missing_extra,
    queued,
    shares,
    word,
)

try:
    from opentelemetry import metrics, trace
except ModuleNotFoundError as error:
    raise missing_extra(
        error, "traces and meters", module="opentelemetry", package="opentelemetry-api"
    ) from None

Attribute: TypeAlias = str | bool | int | float | list[str] | list[int]
Attributes: TypeAlias = dict[str, Attribute]

#: Blocks per span; backends truncate longer lists.
_MAX_BLOCKS = 64

#: Model names per histogram; each further one is `other`.
_MAX_MODELS = 200

#: The boundaries that the conventions ask for.
_TOKENS = [float(4**power) for power in range(14)]
_SECONDS = [0.01 * 2**power for power in range(14)]

#: The conventions' finish reasons; others have none and keep ours.
_FINISH_REASONS: dict[StopReason, str] = {
    "end": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_call",
    "refusal": "content_filter",
}


#: The attributes for fields of a log line.
_ATTRIBUTES = {
    "provider": "anaphora.provider",
    "wire": "anaphora.wire",
    "attempts": "anaphora.attempts",
    "answered_by": "gen_ai.response.model",
    "request_id": "anaphora.request_id",
    "output": "gen_ai.usage.output_tokens",
    "read": "gen_ai.usage.cache_read.input_tokens",
    "written": "gen_ai.usage.cache_creation.input_tokens",
    "predicted": "anaphora.cache.predicted_tokens",
    "verdict": "anaphora.cache.result",
    "cause": "anaphora.cache.cause",
    "lost": "anaphora.cache.lost_tokens",
    "cost_usd": "anaphora.cost_usd",
    "saved": "anaphora.saved_usd",
}


class Traces:
    """Records spans with a tracer, by default that of the global tracer provider."""

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = trace.get_tracer("anaphora", __version__) if tracer is None else tracer

    def __call__(self, record: Record) -> None:
        first = start_attributes(record)
        span = self._tracer.start_span(
            f"{record.operation} {first['gen_ai.request.model']}",
            kind=trace.SpanKind.CLIENT,
            attributes=first,
            start_time=_nanoseconds(record.at),
        )
        if span.is_recording():
            _fill(span, record)
        span.end(_nanoseconds(record.at + record.seconds))


class Meters:
    """Records histograms with a meter, by default that of the global meter provider."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        if meter is None:
            meter = metrics.get_meter("anaphora", __version__)
        self._models = BoundedNames(_MAX_MODELS)

        def histogram(name: str, unit: str, help: str, buckets: list[float]) -> metrics.Histogram:
            return meter.create_histogram(
                f"gen_ai.client.{name}", unit, help, explicit_bucket_boundaries_advisory=buckets
            )

        used = "Number of input and output tokens used."
        first = "Time from sending a streaming request to the first chunk of its response."
        took = "GenAI operation duration."
        self._tokens = histogram("token.usage", "{token}", used, _TOKENS)
        self._seconds = histogram("operation.duration", "s", took, _SECONDS)
        self._first = histogram("operation.time_to_first_chunk", "s", first, _SECONDS)

    def __call__(self, record: Record) -> None:
        shared = start_attributes(record)
        shared["gen_ai.request.model"] = self._models(word(record.model))
        if record.answered_by is not None:
            shared["gen_ai.response.model"] = self._models(word(record.answered_by))
        for kind, tokens in (("input", record.usage.input), ("output", record.usage.output)):
            if tokens is not None:
                self._tokens.record(tokens, {**shared, "gen_ai.token.type": kind})
        if record.streamed and record.first is not None:
            self._first.record(record.first, shared)
        if (error := error_type(record.error)) is not None:
            shared = {**shared, "error.type": error}
        self._seconds.record(record.seconds, shared)


def _fill(span: trace.Span, record: Record) -> None:
    span.set_attributes(end_attributes(record))
    for number, attempt in enumerate(record.attempts, 1):
        if attempt.error is not None:
            span.add_event(
                "anaphora.attempt.failed",
                failure_attributes(attempt, number),
                _nanoseconds(attempt.at + attempt.seconds),
            )
    if record.error is not None:
        # Without a description: it would be the error's message.
        span.set_status(trace.StatusCode.ERROR)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def start_attributes(record: Record) -> Attributes:
    """The attributes for samplers and histograms."""
    host, port = address(record.host)
    out: Attributes = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": word(otel_provider(record.system, host)),
        "gen_ai.request.model": word(record.model),
        "server.address": host,
    }
    if port is not None:
        out["server.port"] = port
    return out


def end_attributes(record: Record) -> Attributes:
    """The attributes that are known when the call is over."""
    known, usage, verdict = fields(record), record.usage, record.verdict
    change = None if verdict is None else verdict.change
    lost_usd = None if verdict is None else verdict.cost_usd
    stop = record.stop_reason
    by_label = shares(record.blocks, _MAX_BLOCKS)
    changed: Attributes = {}
    if change is not None:
        changed["anaphora.cache.change.kind"] = change.kind if change.kind in CHANGES else OTHER
        changed["anaphora.cache.change.label"] = block_label(change.label, change.section)
    return changed | _known(
        {
            **{attribute: known.get(name) for name, attribute in _ATTRIBUTES.items()},
            "anaphora.queued_seconds": queued(record),
            "error.type": error_type(record.error),
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.request.temperature": record.temperature,
            "gen_ai.response.id": _word(record.response_id),
            "gen_ai.request.stream": record.streamed or None,
            "gen_ai.response.time_to_first_chunk": record.first if record.streamed else None,
            "gen_ai.response.finish_reasons": stop and [_FINISH_REASONS.get(stop, stop)],
            # The conventions also count cached input as input.
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "anaphora.cache.lost_usd": None if lost_usd is None else float(lost_usd),
            "anaphora.blocks.labels": list(by_label) or None,
            "anaphora.blocks.tokens": list(by_label.values()) or None,
            "anaphora.notices": [word(notice.code) for notice in record.notices] or None,
        }
    )


def failure_attributes(attempt: Attempt, number: int) -> Attributes:
    """A failed attempt: its error class, not the message."""
    return _known(
        {
            "error.type": error_type(attempt.error) or OTHER,
            "gen_ai.request.model": word(attempt.model),
            "anaphora.provider": label(attempt.provider),
            "anaphora.attempt.number": number,
            "anaphora.attempt.seconds": attempt.seconds,
            "anaphora.attempt.queued_seconds": attempt.queued,
            "http.response.status_code": attempt.status,
            "anaphora.request_id": _word(attempt.request_id),
            "anaphora.attempt.wait_seconds": attempt.wait,
        }
    )


def _known(attributes: Mapping[str, Attribute | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _word(text: str | None) -> str | None:
    return None if text is None else word(text)
