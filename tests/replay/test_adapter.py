"""SPEC E2, E5: adapters are recorded and replayed by model and prompt hash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from anaphora import emulator
from anaphora.client.adapter import (
    ClientAdapter,
    LlmAdapter,
    LlmMessage,
    LlmRequest,
    LlmResponse,
    StreamChunk,
    TokenUsage,
)
from anaphora.client.client import AsyncClient
from anaphora.errors import FixtureIntegrityFailed, NoFixture, Timeout
from anaphora.replay import FixtureStore, RecordingAdapter, ReplayAdapter
from anaphora.replay.adapter import _key
from anaphora.replay.redact import Redaction

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.2",
    "openai_responses": "gpt-5.2",
    "gemini": "gemini-2.5-flash",
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def request(**changes: Any) -> LlmRequest:
    fields: dict[str, Any] = {"model": "m", "messages": (LlmMessage("user", "hello"),)}
    return LlmRequest(**{**fields, **changes})


class Counting(LlmAdapter):
    """Responds with the number of the call."""

    def __init__(self) -> None:
        self.calls = 0

    @property
    def adapter_id(self) -> str:
        return "counting"

    async def complete(self, request: LlmRequest) -> LlmResponse:
        self.calls += 1
        return LlmResponse(text=f"call {self.calls}", model="served", raw_hash="0" * 64)

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        self.calls += 1
        for delta in ("call ", f"{self.calls}"):
            yield StreamChunk(delta)
        yield StreamChunk("", "max_tokens")


async def streamed(adapter: LlmAdapter, one: LlmRequest) -> list[StreamChunk]:
    return [chunk async for chunk in adapter.stream(one)]


@pytest.fixture(scope="module")
def emu() -> Iterator[emulator.Emulator]:
    with emulator.running() as running:
        yield running


@pytest.mark.parametrize("wire", MODELS)
def test_every_wire_is_replayed_as_it_was(
    emu: emulator.Emulator, tmp_path: Path, wire: str
) -> None:
    provider = {"wire": wire, "base_url": emu.url, "key": {"env": "KEY"}}
    asked = request(model=MODELS[wire])
    formed = request(model=MODELS[wire], json_schema=SCHEMA)

    async def record() -> tuple[LlmResponse, LlmResponse, list[StreamChunk]]:
        config = {"providers": {"local": provider}}
        async with AsyncClient.from_config(config, environ={"KEY": "canary-key-12345"}) as client:
            adapter = RecordingAdapter(ClientAdapter(client, "local", "live"), tmp_path)
            assert adapter.adapter_id == "live"
            both = await adapter.complete(asked), await adapter.complete(formed)
            return *both, await streamed(adapter, asked)

    live, live_formed, live_chunks = asyncio.run(record())
    replay = ReplayAdapter(tmp_path)
    assert replay.adapter_id == "replay"
    response = asyncio.run(replay.complete(asked))
    (fixture,) = FixtureStore.open(tmp_path).by_key(_key(asked, "complete"))
    assert response.raw_hash == blake3(fixture.payload).hexdigest()
    assert (response.text, response.model, response.usage) == (live.text, live.model, live.usage)
    assert asyncio.run(replay.complete(formed)).parsed_json == live_formed.parsed_json
    assert asyncio.run(streamed(replay, asked)) == live_chunks
    for file in tmp_path.iterdir():
        assert b"canary" not in file.read_bytes()


def test_no_fixture_names_model_and_prompt_hash(tmp_path: Path) -> None:
    asyncio.run(RecordingAdapter(Counting(), tmp_path).complete(request()))
    replay = ReplayAdapter(tmp_path)
    for other in (request(model="n"), request(temperature=0.5), request(system="x")):
        with pytest.raises(NoFixture) as caught:
            asyncio.run(replay.complete(other))
        assert (caught.value.model, caught.value.prompt_hash) == (other.model, other.prompt_hash())
    assert asyncio.run(replay.complete(request(timeout_ms=1))).text == "call 1"


def test_the_same_request_gets_its_responses_in_order(tmp_path: Path) -> None:
    recording = RecordingAdapter(Counting(), tmp_path)

    async def texts(adapter: LlmAdapter, count: int) -> list[str]:
        return [(await adapter.complete(request())).text for _ in range(count)]

    assert asyncio.run(texts(recording, 2)) == ["call 1", "call 2"]
    assert asyncio.run(texts(ReplayAdapter(tmp_path), 3)) == ["call 1", "call 2", "call 2"]
    with pytest.raises(NoFixture):
        asyncio.run(texts(ReplayAdapter(tmp_path, repeat="never"), 3))


def test_stream_and_whole_response_stand_in_for_each_other(tmp_path: Path) -> None:
    whole, stream = request(system="whole"), request(system="stream")
    recording = RecordingAdapter(Counting(), tmp_path)
    asyncio.run(recording.complete(whole))
    asyncio.run(streamed(recording, stream))
    replay = ReplayAdapter(tmp_path)
    assert asyncio.run(streamed(replay, whole)) == [StreamChunk("call 1", "stop")]
    assert asyncio.run(streamed(replay, stream))[-1] == StreamChunk("", "max_tokens")
    assert asyncio.run(replay.complete(stream)).text == "call 2"


def test_stream_that_is_not_read_to_its_end_is_not_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        stream = RecordingAdapter(Counting(), tmp_path).stream(request())
        assert await anext(stream) == StreamChunk("call ")
        await stream.aclose()

    asyncio.run(main())
    assert len(FixtureStore.open(tmp_path)) == 0


def test_secrets_are_redacted_also_across_chunks(tmp_path: Path) -> None:
    redaction = Redaction(["call 1"], [r"cal+ [0-9]"])
    recording = RecordingAdapter(Counting(), tmp_path, redaction=redaction)
    assert "".join(c.delta for c in asyncio.run(streamed(recording, request()))) == "call 1"
    chunks = asyncio.run(streamed(ReplayAdapter(tmp_path), request()))
    assert "".join(chunk.delta for chunk in chunks) == "<secret>"
    (fixture,) = FixtureStore.open(tmp_path).by_key(_key(request(), "stream"))
    assert fixture.altered


def test_response_survives_a_recording_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = RecordingAdapter(Counting(), tmp_path)

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.warns(RuntimeWarning, match="not recorded: .*No space left on device"):
        response = asyncio.run(recording.complete(request()))
    assert response.text == "call 1"
    assert "No space left" in str(recording.failures[0])


def test_changed_fixture_is_not_served(tmp_path: Path) -> None:
    asyncio.run(RecordingAdapter(Counting(), tmp_path).complete(request()))
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(file.read_bytes().replace(b"call 1", b"call 9"))
    with pytest.raises(FixtureIntegrityFailed):
        ReplayAdapter(tmp_path)


def test_recorded_pace_is_limited_by_the_timeout(tmp_path: Path) -> None:
    class Slow(Counting):
        async def complete(self, request: LlmRequest) -> LlmResponse:
            await asyncio.sleep(0.05)
            usage = TokenUsage(1, 2)
            return LlmResponse(text="slow", model="m", raw_hash="0" * 64, usage=usage)

    asyncio.run(RecordingAdapter(Slow(), tmp_path).complete(request()))
    replay = ReplayAdapter(tmp_path, pace=True)
    assert asyncio.run(replay.complete(request())).usage == TokenUsage(1, 2)
    with pytest.raises(Timeout, match="10 ms"):
        asyncio.run(replay.complete(request(timeout_ms=10)))
