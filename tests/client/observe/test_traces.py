"""One span for each call: by the conventions, with the record's times, below the caller's span."""

from __future__ import annotations

import enum
from types import ModuleType
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, StaticSampler
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from support.records import ANSWERED, AT, BARE, FAILED, FULL, LOST

from anaphora import catalog
from anaphora.catalog.dialect_rows import otel_provider
from anaphora.client.observe import Traces
from anaphora.client.response import BlockShare, Record
from anaphora.values import StopReason


class Watched:
    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = provider.get_tracer("test")
        self.traces = Traces(self.tracer)

    def span(self, record: Record) -> ReadableSpan:
        self.exporter.clear()
        self.traces(record)
        (span,) = self.exporter.get_finished_spans()
        return span

    def attributes(self, record: Record) -> dict[str, Any]:
        return dict(self.span(record).attributes or {})


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_all_attributes_of_a_call(watched: Watched) -> None:
    span = watched.span(FULL)
    assert (span.name, span.kind) == ("chat claude-sonnet-4-5", SpanKind.CLIENT)
    assert span.start_time == AT * 10**9
    assert span.end_time == (AT + 4) * 10**9
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-sonnet-4-5",
        "gen_ai.request.max_tokens": 1024,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "claude-sonnet-4-5-20250929",
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 3.0,
        "gen_ai.usage.input_tokens": 1000,  # all of it, as the conventions want
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 700,
        "gen_ai.usage.cache_creation.input_tokens": 270,
        "gen_ai.usage.reasoning.output_tokens": 20,
        "server.address": "api.anthropic.com",
        "server.port": 443,
        "anaphora.provider": "main",
        "anaphora.wire": "anthropic",
        "anaphora.request_id": "req_2",
        "anaphora.attempts": 2,
        "anaphora.queued_seconds": 0.5,
        "anaphora.cache.predicted_tokens": 700,
        "anaphora.cache.result": "partial",
        "anaphora.cache.cause": "system_changed",
        "anaphora.cache.lost_tokens": 200,
        "anaphora.cache.lost_usd": 0.0006,
        "anaphora.cache.change.kind": "text_edited",
        "anaphora.cache.change.label": "memory",
        "anaphora.cost_usd": 0.0021,
        "anaphora.saved_usd": 0.0019,
        "anaphora.blocks.labels": ("tool search", "guide", "memory", "conversation"),
        "anaphora.blocks.tokens": (100, 500, 200, 200),
        "anaphora.notices": ("marker_dropped",),
    }


def test_unknown_values_are_left_out(watched: Watched) -> None:
    assert watched.attributes(BARE) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ollama",
        "gen_ai.request.model": "qwen3:8b",
        "server.address": "localhost",
        "anaphora.provider": "local",
        "anaphora.wire": "openai_chat",
        "anaphora.attempts": 0,
        "anaphora.queued_seconds": 0,
    }


def test_failed_attempts_are_events(watched: Watched) -> None:
    (event,) = watched.span(FULL).events
    assert event.name == "anaphora.attempt.failed"
    assert event.timestamp == (AT + 0.75) * 10**9
    assert dict(event.attributes or {}) == {
        "error.type": "Overloaded",
        "http.response.status_code": 529,
        "gen_ai.request.model": "claude-sonnet-4-5",
        "anaphora.provider": "main",
        "anaphora.request_id": "req_1",
        "anaphora.attempt.number": 1,
        "anaphora.attempt.seconds": 0.25,
        "anaphora.attempt.queued_seconds": 0.5,
        "anaphora.attempt.wait_seconds": 1.25,
    }
    fallback = msgspec.structs.replace(FAILED, provider="spare", error="Transport", status=None)
    moved = msgspec.structs.replace(FULL, attempts=(FAILED, fallback, ANSWERED))
    assert [
        ((event.attributes or {})["anaphora.provider"], (event.attributes or {})["error.type"])
        for event in watched.span(moved).events
    ] == [("main", "Overloaded"), ("spare", "Transport")]


def test_failed_call_has_error_status_without_the_message(watched: Watched) -> None:
    span = watched.span(LOST)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert (span.attributes or {})["error.type"] == "Overloaded"


def test_the_callers_span_is_the_parent(watched: Watched) -> None:
    alone = watched.span(FULL)
    assert alone.parent is None
    with watched.tracer.start_as_current_span("agent turn") as outer:
        below = watched.span(FULL)
        assert below.parent is not None
        assert below.parent.span_id == outer.get_span_context().span_id


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
def test_unsampled_call_exports_nothing(sampler: StaticSampler) -> None:
    watched = Watched(sampler)
    watched.traces(FULL)
    assert watched.exporter.get_finished_spans() == ()


def test_global_tracer_is_the_default_and_needs_no_sdk() -> None:
    Traces()(FULL)


def test_prewarm_is_its_own_operation(watched: Watched) -> None:
    assert watched.span(msgspec.structs.replace(FULL, operation="prewarm")).name == (
        "prewarm claude-sonnet-4-5"
    )


@pytest.mark.parametrize(
    "stop, expected",
    [
        ("end", "stop"),
        ("stop_sequence", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_call"),
        ("refusal", "content_filter"),
        ("pause", "pause"),
    ],
)
def test_finish_reasons(watched: Watched, stop: StopReason, expected: str) -> None:
    found = watched.attributes(msgspec.structs.replace(FULL, stop_reason=stop))
    assert found["gen_ai.response.finish_reasons"] == (expected,)


def test_blocks_past_the_64th_are_one(watched: Watched) -> None:
    many = tuple(BlockShare(label=f"b{n}", section="system", tokens=1) for n in range(70))
    found = watched.attributes(msgspec.structs.replace(FULL, blocks=many))
    assert found["anaphora.blocks.labels"] == (*(f"b{n}" for n in range(64)), "other")
    assert found["anaphora.blocks.tokens"] == (*[1] * 64, 6)


def values_in(*modules: ModuleType) -> set[str]:
    return {value for module in modules for value in vars(module).values() if type(value) is str}


def test_other_attributes_are_names_of_the_conventions(watched: Watched) -> None:
    conventions = values_in(gen_ai_attributes, error_attributes, http_attributes, server_attributes)
    span = watched.span(msgspec.structs.replace(FULL, error="Timeout"))
    names = {*(span.attributes or {}), *(span.events[0].attributes or {})}
    foreign = {name for name in names if not name.startswith("anaphora.")}
    assert len(foreign) > 15
    assert foreign <= conventions


#: In the conventions' own repository, but not yet in the package.
NEWER = {"moonshot_ai"}


def test_every_provider_has_the_conventions_name_where_there_is_one() -> None:
    known: type[enum.Enum] = gen_ai_attributes.GenAiProviderNameValues
    conventions = {member.value for member in known} | NEWER
    ours = {row.provider for row in catalog.dialects().rows}
    named = {system: otel_provider(system, "") for system in ours}
    assert {system for system, name in named.items() if name in conventions} == {
        *("anthropic", "azure", "bedrock", "deepseek", "google", "groq"),
        *("mistral", "moonshot", "openai", "xai"),
    }
    assert otel_provider("google", "europe-west1-aiplatform.googleapis.com") == "gcp.vertex_ai"
    assert otel_provider("google", "generativelanguage.googleapis.com") == "gcp.gemini"
