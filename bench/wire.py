"""What reading costs: streams beside the official SDKs, requests beside `json.loads`.

    python bench/wire.py [--rounds 7]

CPU time, ratios measured in one run. The SDKs read the same bytes through an in-process transport,
so that no socket is in the way; ours reads them as a transport would hand them over.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import anthropic as anthropic_sdk
import httpx2
import openai as openai_sdk

from anaphora import wire
from anaphora.values import ReplyEnd

EVENTS = 2000
MODEL = "claude-sonnet-5-5"


def anthropic_stream() -> list[bytes]:
    """One piece of bytes for each event."""
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
    for at in range(EVENTS):
        delta = {"type": "text_delta", "text": f" word{at}"}
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

    words = [chunk({"content": f" word{at}"}) for at in range(EVENTS)]
    return [chunk({"role": "assistant"}), *words, chunk({}, "stop"), b"data: [DONE]\n\n"]


def large(pieces: list[bytes], size: int = 65536) -> list[bytes]:
    """The same bytes in large reads."""
    whole = b"".join(pieces)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def ours(name: str, pieces: list[bytes]) -> None:
    reader = wire.get(name).reader()
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.close()
    assert isinstance(events[-1], ReplyEnd)
    assert len(events) > EVENTS


class Pieces(httpx2.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


def transport(pieces: list[bytes]) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Pieces(pieces), request=request)

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def anthropic_reads(pieces: list[bytes]) -> Callable[[], None]:
    client = anthropic_sdk.Anthropic(api_key="none", http_client=transport(pieces))

    def read() -> None:
        stream = client.messages.create(
            model=MODEL,
            max_tokens=10,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
        )
        assert sum(1 for _ in stream) > EVENTS

    return read


def openai_reads(pieces: list[bytes]) -> Callable[[], None]:
    client = openai_sdk.OpenAI(api_key="none", http_client=transport(pieces))

    def read() -> None:
        stream = client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert sum(1 for _ in stream) > EVENTS

    return read


def request_of(name: str) -> bytes:
    """A request of 42 messages and about 40 KB, tool calls in it."""
    rng = random.Random(3)
    text = "".join(rng.choice("abcdefghij klmnop qrstu") for _ in range(900))
    messages: list[dict[str, object]] = []
    for at in range(14):
        arguments = {"path": f"src/{at}.py", "limit": at}
        messages.append({"role": "user", "content": text})
        if name == "anthropic":
            call = {"type": "tool_use", "id": f"t{at}", "name": "read", "input": arguments}
            content = [{"type": "text", "text": text}, call]
            result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": text}
            messages.append({"role": "assistant", "content": content})
            messages.append({"role": "user", "content": [result]})
        elif name == "openai_responses":
            call_id, said = f"t{at}", json.dumps(arguments)
            messages.append({"role": "assistant", "content": text})
            messages.append(
                {"type": "function_call", "call_id": call_id, "name": "read", "arguments": said}
            )
            messages.append({"type": "function_call_output", "call_id": call_id, "output": text})
        else:
            function = {"name": "read", "arguments": json.dumps(arguments)}
            calls = [{"id": f"t{at}", "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"t{at}", "content": text})
    if name == "openai_responses":
        body: dict[str, object] = {"model": "m", "max_output_tokens": 9, "input": messages}
    else:
        body = {"model": "m", "max_tokens": 10, "messages": messages}
    return json.dumps(body).encode()


def cpu(action: Callable[[], object], repeat: int = 1) -> float:
    begin = time.process_time()
    for _ in range(repeat):
        action()
    return (time.process_time() - begin) / repeat


def median(action: Callable[[], object], rounds: int, repeat: int = 1) -> float:
    action()
    return statistics.median(cpu(action, repeat) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="repetitions; medians are reported")
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")

    ratios: dict[str, float] = {}
    rivals = (
        ("anthropic", "stream_vs_anthropic_sdk", anthropic_stream(), anthropic_reads),
        ("openai_chat", "stream_vs_openai_sdk", openai_stream(), openai_reads),
    )
    for name, key, pieces, theirs in rivals:
        worst = float("inf")
        for cut, cut_pieces in (("per event", pieces), ("large reads", large(pieces))):
            mine = median(lambda: ours(name, cut_pieces), rounds, 5)  # noqa: B023
            sdk = median(theirs(cut_pieces), rounds)
            worst = min(worst, sdk / mine)
            print(
                f"{name:12} {EVENTS} events, {cut:12} {mine * 1e3:8.2f} ms"
                f"   SDK {sdk * 1e3:8.2f} ms   {sdk / mine:6.1f} times"
            )
        ratios[key] = round(worst, 1)
    slowest = 0.0
    for name in ("anthropic", "openai_chat", "openai_responses"):
        body = request_of(name)
        parse = median(lambda: wire.get(name).parse(body), rounds, 50)  # noqa: B023
        loads = median(lambda: json.loads(body), rounds, 50)  # noqa: B023
        slowest = max(slowest, parse / loads)
        print(
            f"{name:12} parse of {len(body) / 1e3:.0f} KB {parse * 1e6:12.0f} µs"
            f"   json.loads {loads * 1e6:8.0f} µs   {parse / loads:6.2f}"
        )
    ratios["parse_vs_json_loads"] = round(slowest, 3)
    print()
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
