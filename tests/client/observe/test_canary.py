"""No prompt text, reply text or key is exported in a span, a metric or a log line.

Every text in a record is replaced by a canary but for the app's own names; a field that `Record` gets
later is replaced, too, without anybody thinking of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from support.canaries import KEY, NAMES, PROMPT, WORDS, replaced
from support.records import FULL, LOST
from support.tables import each_row

from anaphora.client.observe import Logs, Meters, Metrics, Traces
from anaphora.client.response import Record


def spans(record: Record) -> str:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Traces(provider.get_tracer("test"))(record)
    (span,) = exporter.get_finished_spans()
    return str(span.to_json())


def meters(record: Record) -> str:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    Meters(provider.get_meter("test"))(record)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return data.to_json()


def exposition(record: Record) -> str:
    registry = CollectorRegistry()
    Metrics(registry)(record)
    return generate_latest(registry).decode()


def logged(record: Record) -> str:
    class Keeps(logging.Handler):
        def emit(self, found: logging.LogRecord) -> None:
            kept.append(f"{found.getMessage()} {vars(found)}")

    kept: list[str] = []
    logger = logging.Logger("alone")
    logger.addHandler(Keeps())
    Logs(logger)(record)
    (text,) = kept
    return text


EXPORTS: list[Callable[[Record], str]] = [spans, meters, exposition, logged]


@each_row("export", EXPORTS)
@each_row("record", [FULL, LOST], ids=["answered", "failed"])
@each_row("canary, keep", [(PROMPT, NAMES), (KEY, NAMES | WORDS)], ids=["prompt", "key"])
def test_no_text_is_exported(
    export: Callable[[Record], str], record: Record, canary: str, keep: set[str]
) -> None:
    planted = replaced(record, canary, keep)
    assert "CANARY" in repr(planted)
    assert "CANARY" not in export(planted)


@pytest.mark.parametrize("export", [spans, meters, logged])
def test_no_credential_of_a_url_is_exported(export: Callable[[Record], str]) -> None:
    host = f"user:{KEY}@proxy.local:8443"
    exported = export(msgspec.structs.replace(FULL, host=host))
    assert "proxy.local" in exported
    assert "CANARY" not in exported


def test_every_text_field_holds_a_canary() -> None:
    """The test above is worth as much as this list is long."""
    planted = replaced(FULL, PROMPT, NAMES)
    verdict = planted.verdict
    assert {
        planted.attempts[0].reason,
        planted.notices[0].message,
        planted.notices[0].path,
        planted.usage.raw,
        verdict.causes[0].text,
        verdict.change.before,
        verdict.change.after,
        verdict.change.detail,
        verdict.change.path,
        verdict.diagnosis.code,
        planted.response_id,
        planted.answered_by,
    } == {PROMPT}


@pytest.mark.parametrize("export", EXPORTS)
def test_application_names_are_exported(export: Callable[[Record], str]) -> None:
    """So that the tests above do not pass because nothing leaves at all."""
    assert "claude-sonnet-4-5" in export(FULL)
