"""Logs that LiteLLM and OpenTelemetry's instrumentation of the OpenAI SDK write themselves, and
files at an S3 server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fleet_logs import logged, runs
from support.waiting import until

from anaphora import emulator
from anaphora.usage.fleet import usage_of_logs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RULES = "You are a careful assistant. " * 400
TOOL = {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": TOOL}]
OTHER_TOOLS = [{"type": "function", "function": {**TOOL, "description": "Reads a file."}}]


@pytest.fixture(scope="module")
def emu() -> Iterator[emulator.Emulator]:
    with emulator.running() as running:
        yield running


def test_litellm(emu: emulator.Emulator, tmp_path: Path) -> None:
    litellm = pytest.importorskip("litellm")
    from litellm.integrations.custom_logger import CustomLogger

    lines: list[str] = []

    class Log(CustomLogger):
        async def async_log_success_event(
            self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
        ) -> None:
            lines.append(json.dumps(kwargs["standard_logging_object"], default=str))

    async def calls(model: str, base: str, system: Any) -> None:
        messages = [{"role": "system", "content": system}]
        for tools in (TOOLS, TOOLS, OTHER_TOOLS):
            messages.append({"role": "user", "content": "What is in the file?"})
            answer = await litellm.acompletion(
                model=model,
                messages=messages,
                tools=tools,
                api_base=base,
                api_key="sk-test",
                metadata={"session_id": f"session of {model}"},
            )
            text = answer.choices[0].message.content or "A file."
            messages.append({"role": "assistant", "content": text})

    async def run() -> None:
        marked = [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}]
        await calls("anthropic/claude-sonnet-4-5", emu.url, marked)
        await calls("openai/gpt-4.1", f"{emu.url}/v1", RULES)
        await until(lambda: len(lines) == 6, "all calls are logged")

    litellm.callbacks = [Log()]
    try:
        asyncio.run(run())
    finally:
        litellm.callbacks = []
    file = tmp_path / "litellm.jsonl"
    file.write_text("\n".join(lines))
    report = usage_of_logs([str(file)], by="session")
    assert not report.problems
    assert {row.name for row in report.programs} == {"litellm"}
    assert sorted(row.calls for row in report.rows) == [3, 3]
    (cause,) = report.causes or ()
    # OpenAI's cache has the tools after the system text, and read it again.
    assert (cause.cause, cause.calls) == ("tools_changed", 1)


def test_spans_of_an_sdk(emu: emulator.Emulator, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("opentelemetry.instrumentation.openai_v2")
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")
    import openai
    from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    file = tmp_path / "spans.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(str(file))))
    instrumentor = OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        with openai.OpenAI(api_key="k", base_url=f"{emu.url}/v1") as client:
            messages: list[Any] = [{"role": "system", "content": RULES}]
            for _ in range(2):
                messages.append({"role": "user", "content": "What is in the file?"})
                answer = client.chat.completions.create(model="gpt-4.1", messages=messages)
                text = answer.choices[0].message.content
                messages.append({"role": "assistant", "content": text})
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    report = usage_of_logs([str(file)], by="model")
    assert not report.problems
    assert [(row.name, row.calls) for row in report.rows] == [("gpt-4.1", 2)]
    assert report.total.uncached + report.total.read > 4000


def test_files_at_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in (
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        bucket = f"logs-{uuid.uuid4().hex[:8]}"
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=bucket)
        lines = [
            json.dumps(logged(exchange, f"c-{number}"))
            for number, run in enumerate(runs("openai_chat")[:3])
            for exchange in run.exchanges
        ]
        for number in range(2):
            body = "\n".join(lines[number::2]).encode()
            s3.put_object(Bucket=bucket, Key=f"day/{number}.jsonl", Body=body)
        out = f"s3://{bucket}/rows.parquet"
        report = usage_of_logs([f"s3://{bucket}/day/*.jsonl"], out=out, processes=1)
        assert report.total.calls == len(lines)
        assert usage_of_logs([out]).total.usd == report.total.usd
        assert usage_of_logs([f"s3://{bucket}/day"]).total.calls == len(lines)
    finally:
        server.stop()
