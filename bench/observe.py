"""What `anaphora.observe` adds to a call of the official SDKs, beside the same SDK without it.

    python bench/observe.py [--rounds 60]

A conversation of 42 messages, about 42 KB, with tools and a system prompt, one turn after it was
sent with 40; each round is another conversation. A transport in the process answers at once, so
that the CPU time is that of the SDK and of the observation. Plain and observed clients take turns,
and medians are compared.

- `anthropic_added_ms`, `openai_added_ms`: CPU time that a call takes more, in milliseconds.
- `stream_added_share`: the same for a stream of 500 deltas, as a share of the SDK's own time.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import anthropic
import httpx2
import openai
from _bytecode import compiled
from _client_answers import ANSWERS
from _client_bodies import body
from _client_workload import PATHS

import anaphora

DELTAS = 500


class Chunks(httpx2.SyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks


class Answering(httpx2.BaseTransport):
    """Answers by path, with a stream where the request asks for one."""

    def __init__(self, answers: dict[str, bytes], streams: dict[str, list[bytes]]) -> None:
        self._answers, self._streams = answers, streams

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if b'"stream":true' in request.content:
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, stream=Chunks(self._streams[path]))
        headers = {"content-type": "application/json"}
        return httpx2.Response(200, headers=headers, stream=Chunks([self._answers[path]]))


def stream_of_anthropic() -> list[bytes]:
    message = json.loads(ANSWERS[PATHS["anthropic"]])
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    text = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": "some words "}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": text},
        *[{"type": "content_block_delta", "index": 0, "delta": delta}] * DELTAS,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


def stream_of_openai() -> list[bytes]:
    whole = json.loads(ANSWERS[PATHS["openai_chat"]])
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": 1}
    head["model"] = whole["model"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": "some words "}] * DELTAS
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({**head, "choices": [], "usage": whole["usage"]})
    return [
        *(f"data: {json.dumps(each)}\n\n".encode() for each in chunks),
        b"data: [DONE]\n\n",
    ]


def clients() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """By the SDK's name: the wire, and what makes a call method for an HTTP client."""

    def of_anthropic(http: Any) -> Any:
        return anthropic.Anthropic(api_key="k", http_client=http)

    def of_openai(http: Any) -> Any:
        return openai.OpenAI(api_key="k", http_client=http)

    return {"anthropic": ("anthropic", of_anthropic), "openai": ("openai_chat", of_openai)}


def create(client: Any, wire: str) -> Callable[..., Any]:
    found: Callable[..., Any] = (
        client.messages.create if wire == "anthropic" else client.chat.completions.create
    )
    return found


def conversation(wire: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request of 42 messages and the one before it; each number is another conversation."""
    whole = deepcopy(body(wire))
    for message in whole["messages"]:
        for part in message["content"]:
            if isinstance(part, dict) and "text" in part:
                part["text"] = f"{number} {part['text']}"
    before = {**whole, "messages": whole["messages"][:-2]}
    return before, whole


def cpu_ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return 1000 * (time.process_time() - began)


def drained(create: Callable[..., Any], request: dict[str, Any]) -> int:
    return sum(1 for _ in create(**request, stream=True))


def measured(name: str, rounds: int) -> dict[str, float]:
    wire, make = clients()[name]
    streams = {
        PATHS["anthropic"]: stream_of_anthropic(),
        PATHS["openai_chat"]: stream_of_openai(),
    }
    answering = Answering(ANSWERS, streams)
    verdicts: list[Any] = []
    plain = make(httpx2.Client(transport=answering))
    observed = make(httpx2.Client(transport=answering))
    anaphora.observe(observed, on_verdict=verdicts.append)
    times: dict[str, list[float]] = {"plain": [], "observed": [], "stream": [], "teed": []}
    both = (("plain", "stream", create(plain, wire)), ("observed", "teed", create(observed, wire)))
    for number in range(rounds):
        before, request = conversation(wire, number)
        for single, streamed, call in both if number % 2 else reversed(both):
            call(**before)
            gc.collect()
            gc.disable()
            spent = cpu_ms(lambda: call(**request))  # noqa: B023
            in_stream = cpu_ms(lambda: drained(call, request))  # noqa: B023
            gc.enable()
            if number >= rounds // 6:  # after the first ones
                times[single].append(spent)
                times[streamed].append(in_stream)
    if len(verdicts) != 3 * rounds or verdicts[-1].usage is None:
        raise SystemExit(f"{len(verdicts)} verdicts, the last one: {verdicts[-1]}")
    return {each: statistics.median(times[each]) for each in times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    compiled()
    size = len(json.dumps(body("anthropic")))
    print(f"{rounds} conversations, 42 messages, {size / 1000:.0f} KB; CPU time of a call in ms\n")
    print(
        f"{'':12}{'plain':>8}{'observed':>10}{'added':>8}{'stream':>10}{'observed':>10}{'added':>8}"
    )
    result: dict[str, float] = {}
    shares = []
    for name in clients():
        found = measured(name, rounds)
        added = found["observed"] - found["plain"]
        share = found["teed"] / found["stream"] - 1
        row = f"{found['plain']:8.2f}{found['observed']:10.2f}{added:8.2f}"
        print(f"{name:12}{row}{found['stream']:10.2f}{found['teed']:10.2f}{share:8.1%}")
        result[f"{name}_added_ms"] = round(added, 3)
        shares.append(share)
    result["stream_added_share"] = round(max(shares), 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
