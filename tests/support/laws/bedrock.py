"""Converse, for the laws. A marker is a block of its own."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from support import strategies as some
from support.laws.anthropic import append, strip_reasoning
from support.laws.case import Json, Projected, WireCase, counts_of, turns_with, values_of

from anaphora.prompt import Call, Params
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    Refusal,
    Reply,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
    Usage,
    WriteTtl,
)
from anaphora.wire.bedrock.media import document_name
from anaphora.wire.eventstream import encode_event

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
#: Of a family that takes no markers.
LLAMA = "meta.llama3-8b-instruct-v1:0"

GUARDED = '{"guardContent":{"text":{"text":"hm"}}}'
CITED = {"bedrock": '{"citationsContent":{"citations":[{"title":"a"}]}}'}
own_parts: st.SearchStrategy[Part] = st.one_of(
    st.just(Opaque("bedrock", "guardContent", GUARDED)),
    st.just(Opaque("bedrock", "message", '{"mood":"calm"}')),
    st.builds(Thinking, some.texts, st.none() | st.just("c2ln"), provider=st.just("bedrock")),
    st.builds(lambda data: Thinking(data=data, provider="bedrock"), some.words),
    st.builds(Text, some.texts, st.just(CITED)),
    st.builds(
        ToolCall,
        some.words,
        some.words,
        some.arguments,
        st.just({"bedrock": '{"toolUse":{"type":"x"}}'}),
    ),
    st.builds(Audio, st.builds(Bytes, st.binary(max_size=5), st.just("audio/wav"))),
)
tokens, counts = st.integers(0, 10**6), st.none() | st.integers(0, 10**6)
replies = st.builds(
    lambda parts, usage, stop: Reply(
        id="",
        model="",
        message=Message(id="", role="assistant", parts=parts),
        stop_reason=stop,
        usage=usage,
    ),
    st.lists(
        st.one_of(
            st.builds(Text, some.texts),
            st.builds(Text, some.texts, st.just(CITED)),
            st.builds(ToolCall, some.words, some.words, st.sampled_from(['{"a": 1}', "{}"])),
            st.builds(Thinking, some.texts.filter(bool), st.none(), provider=st.just("bedrock")),
            st.builds(Thinking, some.texts, some.words, provider=st.just("bedrock")),
            st.builds(
                lambda data: Thinking(data=base64.b64encode(data).decode(), provider="bedrock"),
                st.binary(min_size=1, max_size=9),
            ),
            st.just(Opaque("bedrock", "video", '{"video":{"format":"mp4"}}')),
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
    ),
    st.sampled_from(["end", "length", "tool_calls", "refusal", "stop_sequence"]),
)


def find_markers(body: Json) -> list[tuple[Json, Json]]:
    found: list[tuple[Json, Json]] = []
    lists = [body.get("toolConfig", {}).get("tools", []), body.get("system", [])]
    for blocks in [*lists, *(message["content"] for message in body["messages"])]:
        for at, block in enumerate(blocks):
            if "cachePoint" in block:
                found.append((blocks[at - 1], block))
    return found


def check_marked(block: Json) -> None:
    assert len(block) == 1
    assert not {"reasoningContent", "cachePoint", "audio"} & {*block}
    assert block.get("text") != ""


def check_body(body: Json) -> None:
    assert "model" not in body
    roles = [message["role"] for message in body["messages"]]
    assert all(isinstance(message["content"], list) for message in body["messages"])
    assert all(one != two for one, two in itertools.pairwise(roles)) or any(
        message.keys() - {"role", "content"} for message in body["messages"]
    )


# ── What the wire can express ────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[Projected]:
    """User and assistant, messages of one role merged, no ids; system text among the messages may
    be user text. Reasoning that nothing of the assistant follows is left out."""
    encoded: list[Projected] = []
    claude = call.model == CLAUDE
    for message in call.ir.body_chat():
        assistant = message.role == "assistant"
        found = [sent(part, claude) for part in message.parts]
        parts = [part for part in found if part is not None]
        if parts and not assistant:
            strip_reasoning(encoded)
        append(encoded, "assistant" if assistant else "user", parts)
    strip_reasoning(encoded)
    return [(role, parts) for role, parts in encoded if parts]


def sent(part: Any, claude: bool) -> Any:
    match part:
        case Refusal():
            return Text(part.text) if part.text.strip() else None
        case Text(extras=extras) if extras is not None:
            return part
        case Text():
            return part if part.text.strip() or (claude and part.text) else None
        case Opaque():
            return part if part.provider == "bedrock" and part.kind != "message" else None
        case Image() | Document() | Audio():
            return media(part)
        case Thinking():
            return thought(part, claude)
        case ToolCall(arguments="not json"):
            return ToolCall(part.id, part.name, '{"invalid_arguments":"not json"}', part.extras)
        case ToolCall(arguments=""):
            return ToolCall(part.id, part.name, "{}", part.extras)
        case ToolResult():
            content = (Text(part.content),) if isinstance(part.content, str) else part.content
            inner = (sent(p, False) for p in content)
            return ToolResult(part.call_id, joined([p for p in inner if p is not None]), part.error)
    return part


def joined(parts: list[Any]) -> Any:
    """One text is the content itself."""
    if not parts:
        return ""
    only = parts[0]
    return only.text if parts == [only] and isinstance(only, Text) else tuple(parts)


def media(part: Any) -> Any:
    source = part.source
    if isinstance(source, Url) or (isinstance(source, FileId) and source.provider != "bedrock"):
        return None
    if isinstance(part, Audio):
        return part if source.media_type == "audio/wav" else None
    return part if isinstance(part, Image) else Document(source, document_name(part, []))


def thought(part: Thinking, claude: bool) -> Thinking | None:
    if part.data is not None and part.signature is None:
        return Thinking(data=part.data, provider="bedrock")
    if (claude and not part.signature) or not (part.text or part.signature is not None):
        return None
    return Thinking(part.text, part.signature, provider="bedrock")


def read_back(messages: Sequence[Message]) -> list[Projected]:
    encoded: list[Projected] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        parts = [p for p in message.parts if not (isinstance(p, Opaque) and p.kind == "message")]
        append(encoded, role, parts)
    return encoded


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def check_reply(reply: Reply, read: Reply) -> None:
    assert read.message == reply.message
    assert read.stop_reason == reply.stop_reason
    assert counts_of(read.usage) == counts_of(reply.usage)


def usage(
    uncached: int, read: int | None, written: dict[WriteTtl, int] | None, output: int
) -> tuple[Json, Usage]:
    encoded: Json = {"inputTokens": uncached, "outputTokens": output}
    if read is not None:
        encoded["cacheReadInputTokens"] = read
    if written is not None:
        encoded["cacheWriteInputTokens"] = sum(written.values())
        encoded["cacheDetails"] = [
            {"ttl": ttl, "inputTokens": count} for ttl, count in written.items()
        ]
    return encoded, Usage(uncached=uncached, read=read, written=written, output=output)


def framed(line: bytes) -> bytes:
    kind, _, payload = line.partition(b" ")
    return encode_event(kind.decode(), payload)


CASE = WireCase(
    name="bedrock",
    provider="bedrock",
    models=(CLAUDE,),
    turns=turns_with(own_parts),
    markers={
        "1h": b',{"cachePoint":{"type":"default","ttl":"1h"}}',
        "5m": b',{"cachePoint":{"type":"default"}}',
    },
    marked_models=(CLAUDE,),
    find_markers=find_markers,
    check_marked=check_marked,
    check_body=check_body,
    path="/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
    relaxed=lambda profile: msgspec.structs.replace(profile, converse_refusals=None),
    params=st.builds(
        Params,
        max_tokens=st.just(64),
        temperature=st.none() | st.just(0.5),
        stop=st.sampled_from([(), ("END",)]),
        metadata=st.none() | st.just({"team": "a"}),
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
        "output": {"message": {"role": "assistant", "content": [{"text": "x"}]}},
        "stopReason": "end_turn",
        "usage": usage,
    },
    stream_forms=st.just,
    values=values_of(
        "messages role content text toolUse toolUseId name input toolResult status json image format"
        " source bytes s3Location uri document citationsContent citations reasoningContent"
        " reasoningText signature redactedContent cachePoint type ttl system toolConfig tools"
        " toolSpec inputSchema toolChoice auto any tool inferenceConfig maxTokens outputConfig"
        " textFormat additionalModelRequestFields thinking output message stopReason usage"
        " inputTokens start delta contentBlockIndex citation",
        max_leaves=14,
    ),
    request_templates=(
        b"%b",
        b'{"messages":[{"role":"user","content":[{"text":"x"},%b]}]}',
        b'{"messages":[{"role":"user","content":[{"text":"x"}]}],"toolConfig":{"tools":[%b]}}',
    ),
    reply_templates=(b"%b", b'{"output":{"message":{"content":[%b]}}}'),
    stream_templates=(
        b"contentBlockDelta %b",
        b'contentBlockDelta {"contentBlockIndex":1,"delta":%b}',
        b"contentBlockStart %b",
        b'contentBlockStart {"start":%b}',
        b"messageStop %b",
        b"metadata %b",
        b"unheardOf %b",
    ),
    framed=framed,
)
UNMARKED = dataclasses.replace(
    CASE,
    models=(LLAMA,),
    marked_models=(),
    markers={},
    path="/model/meta.llama3-8b-instruct-v1:0/converse",
)
