"""Turns of a conversation on one wire, as one tree of this project reads and sends them.

Run as a process of its own with `PYTHONPATH` at that tree; it takes a job a line and answers with
the CPU seconds of a turn. A turn is: read the body, strictly; what it asks for; its chunks; and the
bytes to send.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

Json = dict[str, Any]
#: Reads a body and returns the bytes to send.
Turn = Callable[[bytes], bytes]

PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
    "bedrock": "/model/us.anthropic.claude-sonnet-4-5-20250929-v1:0/converse",
}
MODELS = {"anthropic": "claude-sonnet-4-5"}
#: Turns of a conversation that are measured.
MEASURED = 6
_TEXT = "abcdefghij klmnop qrstu " * 38


def bodies(name: str, size: int) -> list[bytes]:
    """A conversation of about that many bytes, and its next turns. On wires with markers the last
    message is marked, as programs do."""
    turns: list[list[Json]] = []
    while sum(len(json.dumps(each)) for turn in turns[:-MEASURED] for each in turn) < size:
        turns.append(_TURNS[name](f"t{len(turns)}", {"path": f"src/{len(turns)}.py"}))
    known = len(turns) - MEASURED
    return [_body(name, turns[: known + more]) for more in range(MEASURED + 1)]


def _body(name: str, turns: list[list[Json]]) -> bytes:
    messages = [json.loads(json.dumps(each)) for turn in turns for each in turn]
    if name == "anthropic":
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return json.dumps({"model": MODELS[name], "max_tokens": 10, "messages": messages}).encode()
    if name == "bedrock":
        messages[-1]["content"].append({"cachePoint": {"type": "default"}})
        return json.dumps({"messages": messages, "inferenceConfig": {"maxTokens": 10}}).encode()
    if name == "gemini":
        return json.dumps({"contents": messages}).encode()
    if name == "openai_responses":
        return json.dumps({"model": "gpt-5", "max_output_tokens": 16, "input": messages}).encode()
    return json.dumps({"model": "gpt-4o", "max_tokens": 10, "messages": messages}).encode()


def _anthropic(call_id: str, arguments: Json) -> list[Json]:
    call = {"type": "tool_use", "id": call_id, "name": "read", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": _TEXT}
    return [
        {"role": "user", "content": [{"type": "text", "text": _TEXT}]},
        {"role": "assistant", "content": [{"type": "text", "text": _TEXT}, call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": _TEXT}]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ]


def _converse(call_id: str, arguments: Json) -> list[Json]:
    call = {"toolUseId": call_id, "name": "read", "input": arguments}
    result = {"toolUseId": call_id, "content": [{"text": _TEXT}], "status": "success"}
    return [
        {"role": "user", "content": [{"text": _TEXT}]},
        {"role": "assistant", "content": [{"text": _TEXT}, {"toolUse": call}]},
        {"role": "user", "content": [{"toolResult": result}]},
        {"role": "assistant", "content": [{"text": _TEXT}]},
        {"role": "user", "content": [{"text": "Go on."}]},
    ]


def _chat(call_id: str, arguments: Json) -> list[Json]:
    function = {"name": "read", "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "user", "content": _TEXT},
        {"role": "assistant", "content": _TEXT, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call_id, "content": _TEXT},
        {"role": "assistant", "content": _TEXT},
        {"role": "user", "content": "Go on."},
    ]


def _responses(call_id: str, arguments: Json) -> list[Json]:
    call = {"call_id": call_id, "name": "read", "arguments": json.dumps(arguments)}
    return [
        {"role": "user", "content": _TEXT},
        {"role": "assistant", "content": _TEXT},
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": call_id, "output": _TEXT},
        {"role": "assistant", "content": _TEXT},
        {"role": "user", "content": "Go on."},
    ]


def _gemini(_: str, arguments: Json) -> list[Json]:
    call = {"name": "read", "args": arguments}
    result = {"name": "read", "response": {"result": _TEXT}}
    return [
        {"role": "user", "parts": [{"text": _TEXT}]},
        {"role": "model", "parts": [{"text": _TEXT}, {"functionCall": call}]},
        {"role": "user", "parts": [{"functionResponse": result}]},
        {"role": "model", "parts": [{"text": _TEXT}]},
        {"role": "user", "parts": [{"text": "Go on."}]},
    ]


_TURNS = {
    "anthropic": _anthropic,
    "openai_chat": _chat,
    "openai_responses": _responses,
    "gemini": _gemini,
    "bedrock": _converse,
}


def turn_before(name: str) -> Turn:
    """In a tree that walks over the bytes of a body."""
    from anaphora.rendered import Plan

    wire: Any = import_module("anaphora.wire")
    DecodedBody = import_module("anaphora.wire.elements").DecodedBody
    read_facts = import_module("anaphora.wire.facts.reading").read_facts
    AppBodies = import_module("anaphora.daemon.endpoints.body").AppBodies
    memory, codec, path = AppBodies(), wire.get(name), PATHS[name]
    held: list[Any] = []

    def turn(body: bytes) -> bytes:
        read = memory.read("app", name, body)
        read_facts(name, read.members, path, (), read.elements)
        rendered = codec.split(DecodedBody(read.members, read.elements), (), path)
        held[:] = [rendered]  # the chunks of the turn before are found as long as it is kept
        plan = Plan(marks=rendered.marks)
        sent = wire.splice(body, plan, wire=name, path=path, rendered=rendered, replace=True)
        memory.keep(read, read.facts(refers=False))
        return bytes(sent.body)

    return turn


def turn_now(name: str) -> Turn:
    from anaphora import catalog, wire
    from anaphora.rendered import Plan
    from anaphora.wire.cutting import as_sent
    from anaphora.wire.known_requests import KnownRequests
    from anaphora.wire.permissions.content import read_content
    from anaphora.wire.permissions.fields import read_facts
    from anaphora.wire.strict_json import decode_strict

    requests, codec, path = KnownRequests(1 << 30), wire.get(name), PATHS[name]
    profile = as_sent(catalog.profile(wire.provider_of(name), MODELS.get(name, "m")))

    def turn(body: bytes) -> bytes:
        reading = requests.read(body, name, path, "app", decode_strict)
        content = read_content(name, reading.call)
        read_facts(name, reading.members(), content, path)
        rendered = codec.render(reading.call, profile, reading.previous)
        reading.keep_rendered(rendered)
        return b"".join(codec.assemble(rendered, Plan(marks=rendered.marks)).body)

    return turn


def main() -> None:
    make = turn_now
    try:
        import anaphora.wire.known_requests  # noqa: F401
    except ImportError:
        make = turn_before
    made: dict[tuple[str, int], list[bytes]] = {}
    for line in sys.stdin:
        name, size, cold = json.loads(line)
        sent = made.get((name, size)) or made.setdefault((name, size), bodies(name, size))
        print(min(_times(make, name, sent, cold)), flush=True)


def _times(
    make: Callable[[str], Turn], name: str, sent: list[bytes], cold: bool
) -> Iterator[float]:
    turn = make(name)
    if not cold:
        turn(sent[0])
    for body in sent[1:]:
        if cold:
            turn = make(name)
        begin = time.process_time()
        turn(body)
        yield time.process_time() - begin


if __name__ == "__main__":
    main()
