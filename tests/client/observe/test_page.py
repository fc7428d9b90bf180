"""docs/observability.md lists exactly the exported names."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from support.records import FULL, LOST
from support.tables import each_row

from anaphora.client.observe import Meters, Metrics
from anaphora.client.observe.export import fields
from anaphora.client.observe.otel import end_attributes, failure_attributes, start_attributes

PAGE = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()

#: With everything that a record can hold.
WHOLE = msgspec.structs.replace(FULL, error="Overloaded", saved=-FULL.saved if FULL.saved else None)


def table(head: str) -> list[list[str]]:
    """The rows below the table's head, each as the code words of its cells."""
    (found,) = re.findall(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [line.strip("|").split("|") for line in found.splitlines()]
    return [[" ".join(re.findall(r"`([^`]+)`", cell)) for cell in row] for row in rows]


def names(head: str) -> list[str]:
    return [row[0] for row in table(head)]


def test_every_attribute_of_a_span_is_in_the_table() -> None:
    listed = names("attribute")
    assert sorted(listed) == sorted({**start_attributes(WHOLE), **end_attributes(WHOLE)})


def test_every_attribute_of_an_event_is_in_the_table() -> None:
    assert sorted(names("event attribute")) == sorted(failure_attributes(WHOLE.attempts[0], 1))


def test_every_histogram_is_in_the_table() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    Meters(provider.get_meter("test"))(WHOLE)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert sorted(names("histogram")) == sorted(metric.name for metric in scope.metrics)


def test_every_metric_is_in_the_table_with_its_labels() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for record in (FULL, WHOLE, LOST, msgspec.structs.replace(FULL, operation="prewarm")):
        metrics(record)
    found = {}
    for metric in registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        assert metric.samples, f"no record of these tests counts in {name}"
        found[name] = " ".join(key for key in metric.samples[0].labels if key != "le")
    assert {row[0]: row[1] for row in table("metric")} == found


@each_row("key", re.findall(r"(\w+)=", PAGE.partition("## Log lines")[2]))
def test_every_documented_key_of_the_line_exists(key: str) -> None:
    assert key in fields(FULL)
