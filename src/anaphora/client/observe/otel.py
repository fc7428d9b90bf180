"""OpenTelemetry spans and histograms, by its conventions for generative AI.

A span is made when the call is over, with the record's times. Its parent is the span that is
current where the call was awaited.

Attribute names are literals, since the package with the conventions' names is private and its names
move; a test compares them.
"""

from __future__ import annotations

from typing import TypeAlias

from anaphora import __version__
from anaphora.cache.verdict import Verdict
from anaphora.catalog import otel_provider
from anaphora.client.response import Attempt, Record
from anaphora.values import StopReason, Usage

from . import missing_extra
from .export import (
    OTHER,
    BoundedNames,
    address,
    block_label,
    error_type,
    label,
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
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "Time from sending a streaming request to the first chunk of its response.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

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
    out: Attributes = {
        "anaphora.provider": label(record.provider),
        "anaphora.wire": word(record.wire),
        "anaphora.attempts": len(record.attempts),
        "anaphora.queued_seconds": queued(record),
    }
    _put(out, "error.type", error_type(record.error))
    _put(out, "gen_ai.request.max_tokens", record.max_tokens)
    _put(out, "gen_ai.request.temperature", record.temperature)
    _put_word(out, "gen_ai.response.model", record.answered_by)
    _put_word(out, "gen_ai.response.id", record.response_id)
    _put_word(out, "anaphora.request_id", record.request_id)
    if record.streamed:
        out["gen_ai.request.stream"] = True
        _put(out, "gen_ai.response.time_to_first_chunk", record.first)
    if record.stop_reason is not None:
        out["gen_ai.response.finish_reasons"] = [
            _FINISH_REASONS.get(record.stop_reason, record.stop_reason)
        ]
    _put_usage(out, record.usage)
    _put(out, "anaphora.cache.predicted_tokens", record.predicted)
    if record.verdict is not None:
        _put_verdict(out, record.verdict)
    if record.cost_usd is not None:
        out["anaphora.cost_usd"] = float(record.cost_usd)
    if record.saved is not None:
        out["anaphora.saved_usd"] = float(record.saved)
    if record.blocks:
        by_label = shares(record.blocks, _MAX_BLOCKS)
        out["anaphora.blocks.labels"] = list(by_label)
        out["anaphora.blocks.tokens"] = list(by_label.values())
    if record.notices:
        out["anaphora.notices"] = [word(notice.code) for notice in record.notices]
    return out


def failure_attributes(attempt: Attempt, number: int) -> Attributes:
    """A failed attempt: its error class, not the message."""
    out: Attributes = {
        "error.type": error_type(attempt.error) or OTHER,
        "gen_ai.request.model": word(attempt.model),
        "anaphora.provider": label(attempt.provider),
        "anaphora.attempt.number": number,
        "anaphora.attempt.seconds": attempt.seconds,
        "anaphora.attempt.queued_seconds": attempt.queued,
    }
    _put(out, "http.response.status_code", attempt.status)
    _put_word(out, "anaphora.request_id", attempt.request_id)
    _put(out, "anaphora.attempt.wait_seconds", attempt.wait)
    return out


def _put_usage(out: Attributes, usage: Usage) -> None:
    # The conventions, too, count cached input as input.
    _put(out, "gen_ai.usage.input_tokens", usage.input)
    _put(out, "gen_ai.usage.output_tokens", usage.output)
    _put(out, "gen_ai.usage.cache_read.input_tokens", usage.read)
    _put(out, "gen_ai.usage.cache_creation.input_tokens", usage.written_total)
    _put(out, "gen_ai.usage.reasoning.output_tokens", usage.reasoning)


def _put_verdict(out: Attributes, verdict: Verdict) -> None:
    out["anaphora.cache.result"] = verdict.result
    out["anaphora.cache.lost_tokens"] = verdict.lost
    _put(out, "anaphora.cache.cause", verdict.cause)
    if verdict.cost_usd is not None:
        out["anaphora.cache.lost_usd"] = float(verdict.cost_usd)
    if (change := verdict.change) is not None:
        out["anaphora.cache.change.kind"] = change.kind
        out["anaphora.cache.change.label"] = block_label(change.label, change.section)


def _put(out: Attributes, key: str, value: Attribute | None) -> None:
    if value is not None:
        out[key] = value


def _put_word(out: Attributes, key: str, value: str | None) -> None:
    if value is not None:
        out[key] = word(value)
