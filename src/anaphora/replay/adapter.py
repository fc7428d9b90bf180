"""Recording and replaying of adapters, by model and prompt hash.

    recording = RecordingAdapter(ClientAdapter(client, "anthropic-default", "claude"), "recordings")
    await recording.complete(request)

    replay = ReplayAdapter("recordings")
    await replay.complete(request)       the recorded response; its raw_hash is that of the fixture

A whole response and a stream are separate recordings; if only one was recorded, the other is
converted from it. A repeated request gets the recorded responses in their order, and then the last
one again, or with `repeat="never"` the error `NoFixture`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import msgspec
from blake3 import blake3

from anaphora.canonical import dumps
from anaphora.client.adapter import (
    AdapterDeadline,
    LlmAdapter,
    LlmRequest,
    LlmResponse,
    StreamChunk,
    TokenUsage,
)
from anaphora.errors import (
    AnaphoraError,
    FixtureIntegrityFailed,
    InvalidJson,
    InvalidRequest,
    NoFixture,
)
from anaphora.values.codec import loads

from .fixture import Fixture, FixturePiece
from .redact import Redaction, fixture_of
from .store import FixtureStore

_Kind = Literal["complete", "stream"]
_JSON = (("content-type", "application/json"),)
_LINES = (("content-type", "application/x-ndjson"),)


class _Payload(msgspec.Struct, kw_only=True):
    """A recorded response."""

    text: str
    parsed_json: Any = None
    model: str
    usage: TokenUsage | None = None


_payload = msgspec.json.Decoder(_Payload)
_chunk = msgspec.json.Decoder(StreamChunk)


class RecordingAdapter(LlmAdapter):
    """Records the responses of another adapter. A response that cannot be recorded is still
    returned; `failures` and a warning have the reason."""

    def __init__(
        self,
        adapter: LlmAdapter,
        folder: str | os.PathLike[str] | FixtureStore,
        *,
        redaction: Redaction | None = None,
    ) -> None:
        self._adapter = adapter
        self._store = _opened(folder, create=True)
        self._redaction = Redaction() if redaction is None else redaction
        self.failures: list[AnaphoraError] = []
        """Why responses were not recorded."""

    @property
    def adapter_id(self) -> str:
        return self._adapter.adapter_id

    def __repr__(self) -> str:
        return f"<RecordingAdapter of {self._adapter.adapter_id}, {self._store.folder}>"

    async def complete(self, request: LlmRequest) -> LlmResponse:
        started = time.monotonic()
        response = await self._adapter.complete(request)
        payload = {
            "text": response.text,
            "parsed_json": response.parsed_json,
            "model": response.model,
            "usage": None if response.usage is None else msgspec.to_builtins(response.usage),
        }
        piece = FixturePiece(time.monotonic() - started, dumps(payload))
        await self._record(request, "complete", [piece])
        return response

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        """The stream is recorded when it has ended, unless the caller stops before."""
        started = time.monotonic()
        pieces: list[FixturePiece] = []
        chunks = self._adapter.stream(request)
        try:
            async for chunk in chunks:
                line = dumps(msgspec.to_builtins(chunk)) + b"\n"
                pieces.append(FixturePiece(time.monotonic() - started, line))
                if chunk.finish_reason is not None:
                    await self._record(request, "stream", pieces)
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def _record(
        self, request: LlmRequest, kind: _Kind, pieces: Sequence[FixturePiece]
    ) -> None:
        try:
            await asyncio.to_thread(self._add, request, kind, tuple(pieces))
        except AnaphoraError as problem:
            self.failures.append(problem)
            warnings.warn(f"not recorded: {problem}", RuntimeWarning, stacklevel=3)

    def _add(self, request: LlmRequest, kind: _Kind, pieces: tuple[FixturePiece, ...]) -> None:
        received = Fixture(
            key=_key(request, kind),
            provider=self.adapter_id,
            model=request.model,
            method="LLM",
            path=kind,
            request=request.canonical(),
            headers=_JSON if kind == "complete" else _LINES,
            pieces=pieces,
            recorded=time.time(),
        )
        self._store.add(fixture_of(received, redaction=self._redaction))


class ReplayAdapter(LlmAdapter):
    """Responds from a folder of recordings, which is verified when the adapter is created."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | FixtureStore,
        *,
        adapter_id: str = "replay",
        repeat: Literal["last", "never"] = "last",
        pace: bool = False,
        signed_by: str | None = None,
    ) -> None:
        """`pace` waits as long as the provider did. `signed_by` requires a signature with that
        public key."""
        if repeat not in ("last", "never"):
            raise InvalidRequest("must be last or never", path="repeat")
        self._store = _opened(folder, signed_by=signed_by)
        self._id = adapter_id
        self._repeat = repeat
        self._pace = pace
        self._asked: dict[str, int] = {}
        self._mutex = threading.Lock()

    @property
    def adapter_id(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"<ReplayAdapter {self._store.folder}, {len(self._store)} fixtures>"

    async def complete(self, request: LlmRequest) -> LlmResponse:
        fixture = self._look_up(request, "complete")
        if self._pace and fixture.pieces:
            deadline = AdapterDeadline(request.timeout_ms)
            await deadline.apply(asyncio.sleep(fixture.pieces[-1].seconds))
        if fixture.path == "stream":
            text = "".join(chunk.delta for chunk in _chunks(fixture))
            parsed = None if request.json_schema is None else _parsed(text)
            model, usage = fixture.model, None
        else:
            stored = _decoded(fixture)
            text, parsed, model = stored.text, stored.parsed_json, stored.model
            usage = stored.usage
        return LlmResponse(
            text=text, parsed_json=parsed, model=model, usage=usage, raw_hash=fixture.raw_hash
        )

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        fixture = self._look_up(request, "stream")
        if fixture.path == "complete":
            chunks = [StreamChunk(_decoded(fixture).text, "stop")]
        else:
            chunks = _chunks(fixture)
        deadline = AdapterDeadline(request.timeout_ms)
        now = 0.0
        for chunk, piece in zip(chunks, fixture.pieces, strict=True):
            if self._pace:
                await deadline.apply(asyncio.sleep(max(0.0, piece.seconds - now)))
                now = max(now, piece.seconds)
            yield chunk

    def _look_up(self, request: LlmRequest, kind: _Kind) -> Fixture:
        other: _Kind = "stream" if kind == "complete" else "complete"
        for each in (kind, other):
            key = _key(request, each)
            if fixtures := self._store.by_key(key):
                with self._mutex:
                    number = self._asked.get(key, 0)
                    self._asked[key] = number + 1
                if number < len(fixtures):
                    return fixtures[number]
                if self._repeat == "last":
                    return fixtures[-1]
        raise NoFixture(model=request.model, prompt_hash=request.prompt_hash())


def _key(request: LlmRequest, kind: _Kind) -> str:
    return blake3(dumps(["adapter", kind, request.model, request.prompt_hash()])).hexdigest()


def _opened(
    folder: str | os.PathLike[str] | FixtureStore,
    *,
    create: bool = False,
    signed_by: str | None = None,
) -> FixtureStore:
    if isinstance(folder, FixtureStore):
        return folder
    return FixtureStore.open(folder, create=create, signed_by=signed_by)


def _decoded(fixture: Fixture) -> _Payload:
    try:
        return _payload.decode(fixture.payload)
    except msgspec.DecodeError as problem:
        raise _not_a_response(fixture, problem) from None


def _chunks(fixture: Fixture) -> list[StreamChunk]:
    try:
        return [_chunk.decode(piece.data) for piece in fixture.pieces]
    except msgspec.DecodeError as problem:
        raise _not_a_response(fixture, problem) from None


def _not_a_response(fixture: Fixture, problem: Exception) -> FixtureIntegrityFailed:
    return FixtureIntegrityFailed(f"{fixture!r}: not a response of an adapter: {problem}")


def _parsed(text: str) -> Any:
    try:
        return loads(text)
    except InvalidJson:
        return None
