"""One answer as a stream of every wire that has an official SDK to read it, and the SDK reading it.

The SDKs get the bytes through an in-process transport, so that no socket is in the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anthropic as anthropic_sdk
import httpx2
import openai as openai_sdk
from google import genai
from google.genai import types

EVENTS = 2000
MODEL = "claude-sonnet-5-5"

#: Reads a stream to its end, as often as it is called.
Reads = Callable[[], None]


def streams() -> Iterator[tuple[str, str, list[bytes], Callable[[list[bytes]], Reads]]]:
    """The wire, the SDK, one piece of bytes for each event, and how the SDK reads pieces."""
    yield "anthropic", "anthropic", anthropic_stream(), anthropic_reads
    yield "openai_chat", "openai", openai_stream(), openai_reads
    yield "gemini", "google", gemini_stream(), gemini_reads


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def anthropic_stream() -> list[bytes]:
    message: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    block = {"type": "text", "text": ""}
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
    ]
    for word in _words():
        delta = {"type": "text_delta", "text": word}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    events.append({"type": "content_block_stop", "index": 0})
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": EVENTS}})
    events.append({"type": "message_stop"})
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def openai_stream() -> list[bytes]:
    def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "gpt-5",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    words = [chunk({"content": word}) for word in _words()]
    return [chunk({"role": "assistant"}), *words, chunk({}, "stop"), b"data: [DONE]\n\n"]


def gemini_stream() -> list[bytes]:
    """Every chunk says all that Gemini says of itself, and counts."""

    def chunk(at: int, word: str, **more: object) -> bytes:
        content = {"parts": [{"text": word}], "role": "model"}
        counts = {"promptTokenCount": 10, "candidatesTokenCount": at, "totalTokenCount": 10 + at}
        body = {
            "candidates": [{"content": content, "index": 0, **more}],
            "usageMetadata": counts,
            "modelVersion": "gemini-3-flash",
            "responseId": "resp_1",
        }
        return b"data: " + json.dumps(body).encode() + b"\r\n\r\n"

    words = [chunk(at, word) for at, word in enumerate(_words(), 1)]
    return [*words, chunk(EVENTS, "", finishReason="STOP")]


def _words() -> list[str]:
    return [f" word{at}" for at in range(EVENTS)]


# ── The SDKs ─────────────────────────────────────────────────────────────────────────────────────


def anthropic_reads(pieces: list[bytes]) -> Reads:
    client = anthropic_sdk.Anthropic(api_key="none", http_client=_transport(pieces))

    def read() -> None:
        stream = client.messages.create(
            model=MODEL,
            max_tokens=10,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
        )
        _read(stream)

    return read


def openai_reads(pieces: list[bytes]) -> Reads:
    client = openai_sdk.OpenAI(api_key="none", http_client=_transport(pieces))

    def read() -> None:
        stream = client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        _read(stream)

    return read


def gemini_reads(pieces: list[bytes]) -> Reads:
    http = types.HttpOptions(httpx_client=_transport(pieces))
    client = genai.Client(api_key="none", http_options=http)

    def read() -> None:
        _read(client.models.generate_content_stream(model="gemini-3-flash", contents="hi"))

    return read


def _read(stream: Iterable[Any]) -> None:
    assert sum(1 for _ in stream) > EVENTS


class _Pieces(httpx2.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


def _transport(pieces: list[bytes]) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=_Pieces(pieces), request=request)

    return httpx2.Client(transport=httpx2.MockTransport(answer))
