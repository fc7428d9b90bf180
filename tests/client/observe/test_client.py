"""Calls of a client to the emulator, with all watchers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest
from support.emulated_client import AT_ONCE

from anaphora import AsyncClient, emulator, errors
from anaphora.client.observe import Logs, Metrics, Traces, Watcher
from anaphora.client.response import Record

CANARY = "Canary-4711 is ill. "
KEY = "sk-canary-4711"


class Seen:
    """Everything that left."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.registry = CollectorRegistry()
        self.records: list[Record] = []
        self.watchers: list[Watcher] = [
            Traces(self.tracer),
            Metrics(self.registry),
            Logs(),
            self.records.append,
        ]

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(s for s in self.exporter.get_finished_spans() if s.name != "the app's")

    @property
    def text(self) -> str:
        spans = [str(span.to_json()) for span in self.spans]
        return "\n".join([*spans, generate_latest(self.registry).decode()])


@pytest.fixture(scope="module")
def running() -> Iterator[emulator.Emulator]:
    with emulator.running(emulator.EmulatorOptions(latency=AT_ONCE)) as emu:
        yield emu


@pytest.fixture
def seen() -> Seen:
    return Seen()


def client_of(url: str, seen: Seen, **provider: Any) -> AsyncClient:
    main = {"wire": "anthropic", "base_url": url, "key": {"env": "KEY"}, **provider}
    main.setdefault("model", "claude-sonnet-4-5")
    settings = {"providers": {"main": main}}
    return AsyncClient.from_config(settings, environ={"KEY": KEY}, watchers=seen.watchers)


def test_conversation_is_exported(
    running: emulator.Emulator, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> int:
        async with client_of(running.url, seen) as client:
            chat = client.session("main", system=CANARY * 600)
            with seen.tracer.start_as_current_span("the app's") as outer:
                await chat.send(f"Who is {CANARY}?")
                async for _ in chat.send(f"And why is {CANARY}?"):
                    pass
            return outer.get_span_context().span_id

    with caplog.at_level(logging.INFO, logger="anaphora.calls"):
        outer = asyncio.run(main())
    first, second = seen.spans
    assert [span.parent and span.parent.span_id for span in seen.spans] == [outer, outer]
    assert (first.attributes or {})["anaphora.cache.result"] == "first"
    assert (second.attributes or {})["anaphora.cache.result"] == "hit"
    assert (second.attributes or {})["gen_ai.request.stream"] is True
    assert [found.name for found in caplog.records] == ["anaphora.calls"] * 2
    assert "Canary" not in seen.text + caplog.text
    assert KEY not in seen.text + caplog.text
    assert KEY not in repr(seen.records)


def test_call_that_fails_on_every_attempt(
    running: emulator.Emulator, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"x-emulator-fault": "529"}
    retry = {"max_attempts": 2, "first_wait": 0.001}

    async def main() -> None:
        async with client_of(running.url, seen, headers=headers, retry=retry) as client:
            await client.complete(CANARY, "main")

    with caplog.at_level(logging.INFO), pytest.raises(errors.Overloaded):
        asyncio.run(main())
    (span,) = seen.spans
    assert span.status.status_code is StatusCode.ERROR
    assert [(event.attributes or {})["http.response.status_code"] for event in span.events] == [
        529,
        529,
    ]
    assert "Canary" not in seen.text + caplog.text
    assert KEY not in seen.text + caplog.text


def test_error_that_quotes_the_prompt_is_exported_without_it(
    running: emulator.Emulator, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    """The emulator, like the provider, names the field that it does not know."""
    word = "Canary4711"

    async def main() -> None:
        async with client_of(running.url, seen) as client:
            session = client.session("main", extras={"anthropic": f'{{"{word}":1}}'})
            await session.send("Hello?")

    with caplog.at_level(logging.INFO), pytest.raises(errors.RequestRejected, match=word):
        asyncio.run(main())
    (record,) = seen.records
    assert word in record.attempts[0].reason
    assert word not in seen.text + caplog.text
