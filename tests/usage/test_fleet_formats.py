"""The same conversations in each log format have the same causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.fleet_logs import FORMATS, SCRIPTS, runs, spend_log
from support.planted_runs import PlantedRun

from anaphora.errors import InvalidRequest
from anaphora.traffic.log_formats import calls_in
from anaphora.usage.fleet import usage_of_logs


@pytest.fixture(scope="module")
def planted() -> list[PlantedRun]:
    return runs("openai_chat")


@pytest.mark.parametrize("stored", ["lines", "Parquet"])
@pytest.mark.parametrize("name", FORMATS)
def test_causes_are_found_in_each_format(
    tmp_path: Path, planted: list[PlantedRun], name: str, stored: str
) -> None:
    file = tmp_path / "log.jsonl"
    lines = [
        json.dumps(FORMATS[name](exchange, f"c-{number}"))
        for number, run in enumerate(planted)
        for exchange in run.exchanges
    ]
    file.write_text("\n".join(lines))
    if stored == "Parquet":
        source, file = file, tmp_path / "log.parquet"
        with duckdb.connect() as database:
            read = f"read_json_auto('{source}', sample_size=-1)"
            database.execute(f"COPY (SELECT * FROM {read}) TO '{file}' (FORMAT parquet)")
    report = usage_of_logs([str(file)], by="project")
    assert not report.problems
    assert report.total.calls == len(lines)
    assert [(row.name, row.programs) for row in report.rows] == [("team", (name,))]
    assert {row.cause for row in report.causes or ()} == set(filter(None, SCRIPTS.values()))
    billed = sum(call.usage.input or 0 for run in planted for call in run.calls)
    total = report.total
    assert total.uncached + total.read + total.written_5m == billed
    assert total.usd > 0
    assert total.unpriced == 0


def test_calls_without_prompts_are_summed(tmp_path: Path, planted: list[PlantedRun]) -> None:
    file = tmp_path / "spend.jsonl"
    exchanges = planted[0].exchanges
    file.write_text("\n".join(json.dumps(spend_log(each, "s")) for each in exchanges))
    report = usage_of_logs([str(file)], by="model")
    assert (report.total.calls, report.causes) == (len(exchanges), ())
    assert report.total.read == sum(call.usage.read or 0 for call in planted[0].calls)
    assert report.total.usd > 0


def test_camel_case_and_texts_of_langfuse() -> None:
    observation = {
        "type": "GENERATION",
        "traceId": "t",
        "startTime": "2026-11-18T10:00:00Z",
        "model": "claude-sonnet-4-5",
        "modelParameters": {"max_tokens": 9},
        "input": [{"role": "user", "content": "Hello"}],
        "output": "Good day",
        "usageDetails": {"input": 3, "cache_read_input_tokens": 7, "output": 2},
    }
    (call,) = calls_in(observation)
    assert call["provider"] == "anthropic"
    usage = call["response"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (3, 7)
    assert call["response"]["content"] == [{"type": "text", "text": "Good day"}]
    assert [*calls_in({**observation, "type": "SPAN"})] == []


def test_typed_events_of_telemetry() -> None:
    """Events have their attributes in OTLP's types, not as JSON text."""
    text = {"kvlistValue": {"values": [_pair("type", "text"), _pair("content", "Hello")]}}
    message = {"values": [_pair("role", "user"), {"key": "parts", "value": _list(text)}]}
    attributes = [
        _pair("gen_ai.request.model", "gpt-4.1"),
        _pair("gen_ai.system", "openai"),
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}},
        {"key": "gen_ai.input.messages", "value": _list({"kvlistValue": message})},
    ]
    record = {"observedTimeUnixNano": "1795025109473289711", "attributes": attributes}
    (call,) = calls_in({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    assert call["request"]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    ]
    assert call["time"] == pytest.approx(1795025109.473)


def test_two_spans_of_one_call_count_once(tmp_path: Path, planted: list[PlantedRun]) -> None:
    line = FORMATS["opentelemetry"](planted[0].exchanges[0], "c")
    bare = json.loads(json.dumps(line))
    (span,) = bare["resourceSpans"][0]["scopeSpans"][0]["spans"]
    hidden = ("gen_ai.input.messages", "gen_ai.tool.definitions")
    span["attributes"] = [each for each in span["attributes"] if each["key"] not in hidden]
    file = tmp_path / "spans.jsonl"
    file.write_text(f"{json.dumps(bare)}\n{json.dumps(line)}\n")
    assert usage_of_logs([str(file)]).total.calls == 1


def test_unknown_format_names_those_that_are_known() -> None:
    with pytest.raises(InvalidRequest, match=r"no known log format; understood are audit rows, .*"):
        [*calls_in({"something": "else"})]


def _pair(key: str, text: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": text}}


def _list(value: Any) -> dict[str, Any]:
    return {"arrayValue": {"values": [value]}}
