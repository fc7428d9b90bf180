"""The conventions' histograms, with their boundaries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from support.records import BARE, FULL, LOST

from anaphora.client.observe import Meters
from anaphora.client.response import Record

CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "anthropic",
    "gen_ai.request.model": "claude-sonnet-4-5",
    "gen_ai.response.model": "claude-sonnet-4-5-20250929",
    "server.address": "api.anthropic.com",
    "server.port": 443,
}


def measured(*records: Record) -> dict[str, list[HistogramDataPoint]]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meters = Meters(provider.get_meter("test"))
    for record in records:
        meters(record)
    data = reader.get_metrics_data()
    provider.shutdown()
    out: dict[str, list[HistogramDataPoint]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points: Any = metric.data.data_points
                out[metric.name] = list(points)
    return out


def test_tokens_by_type() -> None:
    points = measured(FULL, FULL)["gen_ai.client.token.usage"]
    assert {str((p.attributes or {})["gen_ai.token.type"]): (p.count, p.sum) for p in points} == {
        "input": (2, 2000),
        "output": (2, 100),
    }
    assert dict(points[0].attributes or {}) == {**CALL, "gen_ai.token.type": "input"}
    assert list(points[0].explicit_bounds) == [
        *(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576),
        *(4194304, 16777216, 67108864),
    ]


def test_duration_by_outcome() -> None:
    good, bad = measured(FULL, LOST)["gen_ai.client.operation.duration"]
    assert (good.sum, dict(good.attributes or {})) == (4.0, CALL)
    assert (bad.sum, (bad.attributes or {})["error.type"]) == (1.0, "Overloaded")
    assert good.explicit_bounds == pytest.approx(
        [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
    )


def test_only_streams_have_a_time_to_first_chunk() -> None:
    single = msgspec.structs.replace(FULL, streamed=False)
    (point,) = measured(FULL, single)["gen_ai.client.operation.time_to_first_chunk"]
    assert (point.count, point.sum) == (1, 3.0)


def test_unreported_tokens_are_not_counted() -> None:
    assert set(measured(BARE)) == {"gen_ai.client.operation.duration"}


def test_names_are_those_of_the_conventions() -> None:
    assert set(measured(FULL)) == {
        gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE,
        gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION,
        gen_ai_metrics.GEN_AI_CLIENT_OPERATION_TIME_TO_FIRST_CHUNK,
    }


def test_models_are_bounded() -> None:
    many = (msgspec.structs.replace(BARE, model=f"m{n}") for n in range(230))
    points = measured(*many)["gen_ai.client.operation.duration"]
    counted = {str((p.attributes or {})["gen_ai.request.model"]): p.count for p in points}
    assert (len(counted), counted["other"]) == (201, 30)


def test_global_meter_is_the_default_and_needs_no_sdk() -> None:
    Meters()(FULL)
