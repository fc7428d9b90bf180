"""The Anthropic wire, for the laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from support import strategies as some
from support.laws.case import Json, Projected, WireCase, counts_of, values_of

from anaphora.prompt import Call, Params
from anaphora.values import (
    Audio,
    Document,
    Image,
    Message,
    Opaque,
    Refusal,
    Reply,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    WriteTtl,
)

counts = st.none() | st.integers(0, 10**6)
tokens = st.integers(0, 10**6)
replies = st.builds(
    lambda parts, usage, stop: Reply(
        id="msg_1",
        model="claude-sonnet-4-5",
        message=Message(id="msg_1", role="assistant", parts=parts),
        stop_reason=stop,
        usage=usage,
    ),
    st.lists(
        st.one_of(
            st.builds(Text, some.texts.filter(lambda t: bool(t.strip()))),
            st.builds(ToolCall, some.words, some.words, st.sampled_from(['{"a": 1}', "{}"])),
            st.builds(Thinking, some.texts, some.texts, st.none(), st.just("anthropic")),
            st.builds(lambda data: Thinking(data=data, provider="anthropic"), some.texts),
            st.just(Opaque("anthropic", "server_tool_use", '{"type":"server_tool_use","id":"x"}')),
        ),
        max_size=5,
    ).map(tuple),
    st.builds(
        Usage,
        uncached=tokens,
        read=counts,
        written=st.none()
        | st.fixed_dictionaries({}, optional={"5m": st.integers(1, 99), "1h": st.integers(1, 99)})
        | st.just({"unsplit": 7}),
        output=tokens,
        reasoning=counts,
    ),
    st.sampled_from(["end", "length", "tool_calls", "refusal", "pause"]),
)


def find_markers(body: Json) -> list[tuple[Json, Json]]:
    found: list[tuple[Json, Json]] = []

    def visit(block: Json) -> None:
        if isinstance(block.get("content"), list):
            for inner in block["content"]:
                visit(inner)
        if "cache_control" in block:
            found.append((block, block["cache_control"]))

    for block in [*body.get("tools", []), *body.get("system", []), *body["messages"]]:
        visit(block)
    return found


def check_marked(block: Json) -> None:
    assert block.get("type") not in ("thinking", "redacted_thinking")
    assert block.get("text") != ""


def check_body(body: Json) -> None:
    for message in body["messages"]:
        assert isinstance(message["content"], list)


# ── What the wire can express ────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[Projected]:
    """User and assistant, messages of one role merged, no ids; system text among the messages may
    be user text. Reasoning that nothing of the assistant follows is left out."""
    encoded: list[Projected] = []
    for message in call.ir.body_chat():
        assistant = message.role == "assistant"
        found = [sent(part, assistant) for part in message.parts]
        parts = [part for part in found if part is not None]
        if parts and not assistant:
            strip_reasoning(encoded)
        append(encoded, "assistant" if assistant else "user", parts)
    strip_reasoning(encoded)
    return [(role, parts) for role, parts in encoded if parts]


def append(encoded: list[Projected], role: str, parts: list[Any]) -> None:
    if encoded and encoded[-1][0] == role:
        encoded[-1][1].extend(parts)
    elif parts:
        encoded.append((role, list(parts)))


def strip_reasoning(encoded: list[Projected]) -> None:
    if encoded and encoded[-1][0] == "assistant":
        parts = encoded[-1][1]
        blank = len(parts)
        while blank and isinstance(parts[blank - 1], Text) and not parts[blank - 1].text.strip():
            blank -= 1
        while blank and isinstance(parts[blank - 1], Thinking):
            blank -= 1
            del parts[blank:]
        if not parts:
            encoded.pop()


def sent(part: Any, assistant: bool) -> Any:
    match part:
        case Refusal():
            return sent(Text(part.text), False)
        case Text():
            return part if part.text and (assistant or not part.text.isspace()) else None
        case Audio():
            return None
        case Opaque():
            return part if part.provider == "anthropic" else None
        case Image() | Document() if getattr(part.source, "provider", "anthropic") != "anthropic":
            return None
        case Thinking(signature="") | Thinking(signature=None, data=None):
            return None
        case Thinking(signature=None):
            return Thinking(data=part.data, provider="anthropic")
        case Thinking():
            return Thinking(part.text, part.signature, provider="anthropic")
        case ToolCall(arguments="not json"):
            return ToolCall(part.id, part.name, '{"invalid_arguments":"not json"}')
        case ToolCall(arguments=""):
            return ToolCall(part.id, part.name, "{}")
        case ToolResult():
            content = (Text(part.content),) if isinstance(part.content, str) else part.content
            inner = tuple(p for p in content if sent(p, False) is not None)
            return ToolResult(part.call_id, inner, part.error)
    return part


def read_back(messages: Sequence[Message]) -> list[Projected]:
    encoded: list[Projected] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        append(encoded, role, list(message.parts))
    return encoded


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def check_reply(reply: Reply, read: Reply) -> None:
    assert read.message == reply.message
    assert read.stop_reason == reply.stop_reason
    assert counts_of(read.usage) == counts_of(reply.usage)


def usage(
    uncached: int, read: int | None, written: dict[WriteTtl, int] | None, output: int
) -> tuple[Json, Usage]:
    encoded: Json = {"input_tokens": uncached, "output_tokens": output}
    if read is not None:
        encoded["cache_read_input_tokens"] = read
    if written is not None:
        encoded["cache_creation_input_tokens"] = sum(written.values())
        encoded["cache_creation"] = {
            f"ephemeral_{ttl}_input_tokens": count for ttl, count in written.items()
        }
    return encoded, Usage(uncached=uncached, read=read, written=written, output=output)


CASE = WireCase(
    name="anthropic",
    provider="anthropic",
    models=some.CLAUDE_MODELS,
    turns=some.turns,
    markers={
        "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
        "5m": b',"cache_control":{"type":"ephemeral"}',
    },
    marked_models=some.CLAUDE_MODELS,
    find_markers=find_markers,
    check_marked=check_marked,
    check_body=check_body,
    params=st.builds(
        Params, max_tokens=st.just(64), stop=st.sampled_from([(), ("END",)]), stream=st.booleans()
    ),
    project=project,
    read_back=read_back,
    exact_paths=True,
    split_keeps_bytes=False,
    replies=replies,
    check_reply=check_reply,
    usages=st.builds(
        usage,
        tokens,
        counts,
        st.none() | st.fixed_dictionaries({"5m": st.integers(1, 99), "1h": st.integers(1, 99)}),
        tokens,
    ),
    reply_with_usage=lambda usage: {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": "end_turn",
        "usage": usage,
    },
    values=values_of(
        "type role content text model max_tokens messages tools system id name input usage index"
        " delta content_block message error source cache_control stop_reason"
    ),
    request_templates=(b"%b", b'{"model":"m","max_tokens":1,"messages":[%b]}'),
    stream_templates=(
        b"data: %b\n\n",
        b"event: content_block_start\ndata: %b\n\n",
        b"event: message_start\ndata: %b\n\n",
    ),
)
