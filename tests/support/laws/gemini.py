"""Gemini, for the laws. It has no markers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from support import strategies as some
from support.laws.case import Json, Projected, WireCase, every_form, turns_with, values_of

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
    ResultPart,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)

MODEL = "gemini-2.5-flash"
SIGNED = {"gemini": '{"thoughtSignature":"c2ln"}'}

own_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(
        Opaque,
        st.just("gemini"),
        st.just("executableCode"),
        st.just('{"executableCode":{"code":"1","language":"PYTHON"}}'),
    ),
    st.builds(Opaque, st.just("gemini"), st.just("content"), st.just('{"mood":"calm"}')),
    st.builds(Thinking, some.texts, st.none() | st.just("c2ln"), provider=st.just("gemini")),
    st.builds(Text, some.texts, st.just(SIGNED)),
    st.builds(ToolCall, some.words, some.words, some.arguments, st.just(SIGNED)),
    st.builds(Image, st.just(FileId("google", "gs://bucket/a", "image/png"))),
    st.builds(Audio, st.builds(Bytes, st.binary(max_size=5), st.just("audio/wav"))),
)
tokens = st.integers(0, 10_000)
replies = st.builds(
    Reply,
    id=some.words,
    model=some.words,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        parts=st.lists(some.assistant_parts | own_parts, max_size=4).map(tuple),
    ),
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "refusal"]),
    usage=st.builds(Usage, uncached=tokens, read=st.none() | tokens, output=tokens),
)


def check_body(body: Json) -> None:
    assert '"cache_control":' not in json.dumps(body)


# ── What the wire can express ────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[Projected]:
    """User and model, results together, no ids of messages."""
    encoded: list[Projected] = []
    names: dict[str, str] = {}
    last = ""
    for message in call.ir.body_chat():
        names |= {p.id: p.name for p in message.parts if isinstance(p, ToolCall)}
        fields = [p for p in message.parts if is_fields(p)]
        found = [sent(p, names) for p in message.parts if not is_fields(p)]
        parts = [p for p in found if p is not None]
        assistant = message.role == "assistant"
        if not parts or (assistant and all(isinstance(p, Thinking) for p in parts)):
            continue  # reasoning alone is left out
        if message.role == last == "tool" and not fields:
            encoded[-1][1].extend(parts)
        else:
            encoded.append(("assistant" if assistant else "user", parts))
        last = message.role
    return encoded


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == ("gemini", "content")


def sent(part: Part, names: dict[str, str]) -> Part | None:
    if isinstance(part, Refusal):
        return Text(part.text)
    if isinstance(part, Opaque):
        return part if part.provider == "gemini" else None
    if isinstance(part, Thinking):
        if part.data is not None and not part.text and part.signature is None:
            return None
        return Thinking(part.text, part.signature, provider="gemini")
    if isinstance(part, ToolCall):
        if part.arguments == "not json":
            return msgspec.structs.replace(part, arguments='{"invalid_arguments":"not json"}')
        return msgspec.structs.replace(part, arguments=part.arguments or "{}")
    if isinstance(part, ToolResult):
        return result(part, names.get(part.call_id, part.call_id))
    encoded: Part | None = media(part)
    return encoded


def media(part: Any) -> Any:
    if isinstance(part, Image):
        source = typed(part.source, "image/png")
        return None if source is None else Image(source)
    if isinstance(part, Document):
        source = typed(part.source, "application/pdf")
        return None if source is None else Document(source)
    if isinstance(part, Audio):
        if isinstance(part.source, Bytes) and part.source.media_type != "audio/wav":
            return None
        source = typed(part.source, "audio/mpeg")
        return None if source is None else Audio(source)
    return part


def typed(source: Source, media_type: str) -> Source | None:
    if isinstance(source, Url):
        return Url(source.url, media_type)
    return None if isinstance(source, FileId) and source.provider != "google" else source


def result(part: ToolResult, name: str) -> ToolResult:
    content: str | tuple[ResultPart, ...] = part.content
    if not isinstance(content, str):
        texts = [p.text for p in content if isinstance(p, Text)]
        others = [media(p) for p in content if not isinstance(p, Text)]
        beside = [p for p in others if p is not None]
        text = "\n\n".join(texts)
        parts = (Text(text), *beside) if texts or part.error else tuple(beside)
        content = parts if beside else text
    return ToolResult(part.call_id, content, part.error, name)


def read_back(messages: Sequence[Message]) -> list[Projected]:
    return [(m.role, [p for p in m.parts if not is_fields(p)]) for m in messages]


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def check_reply(reply: Reply, read: Reply) -> None:
    assert read.usage.input == reply.usage.input


def usage(
    uncached: int, read: int | None, tools: int | None, candidates: int, thoughts: int | None
) -> tuple[Json, Usage]:
    prompt = uncached + (read or 0)
    encoded = {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": read,
        "toolUsePromptTokenCount": tools,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + (tools or 0) + candidates + (thoughts or 0),
    }
    return encoded, Usage(
        uncached=uncached + (tools or 0),
        read=read,
        written=None,  # not reported, which differs from zero
        output=candidates + (thoughts or 0),
        reasoning=thoughts,
    )


def stream_forms(stream: bytes) -> st.SearchStrategy[bytes]:
    """Server-sent events, or one JSON list."""
    chunks = [event.replace(b"data: ", b"") for event in stream.split(b"\n\n") if event]
    return every_form(stream) | st.just(b"[" + b",\r\n".join(chunks) + b"]")


CASE = WireCase(
    name="gemini",
    provider="google",
    models=(MODEL,),
    turns=turns_with(own_parts),
    check_body=check_body,
    path=f"/v1beta/models/{MODEL}:generateContent",
    params=st.builds(
        Params,
        max_tokens=st.none() | st.just(5),
        seed=st.none() | st.just(1),
        top_k=st.none() | st.just(3),
        stop=st.sampled_from([(), ("END",)]),
        metadata=st.none() | st.just({"team": "a"}),
    ),
    project=project,
    read_back=read_back,
    exact_paths=True,
    strict_tools=False,
    replies=replies,
    alike=lambda reply: (reply.text, reply.tool_calls, reply.stop_reason, reply.usage),
    check_reply=check_reply,
    usages=st.builds(
        usage, tokens, st.none() | tokens, st.none() | tokens, tokens, st.none() | tokens
    ),
    reply_with_usage=lambda usage: {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "x"}]}, "finishReason": "STOP"}
        ],
        "usageMetadata": usage,
    },
    stream_forms=stream_forms,
    values=values_of(
        "model contents role parts text thought thoughtSignature functionCall name args id"
        " functionResponse response output error inlineData mimeType data fileData fileUri tools"
        " functionDeclarations function_declarations parameters googleSearch systemInstruction"
        " system_instruction toolConfig functionCallingConfig mode generationConfig thinkingConfig"
        " thinkingLevel thinkingBudget responseMimeType responseSchema candidates content"
        " finishReason index usageMetadata promptTokenCount promptFeedback blockReason code status"
        " details message",
        max_leaves=14,
    ),
    request_templates=(
        b"%b",
        b'{"contents":[{"parts":[{"text":"x"},%b]}]}',
        b'{"contents":[{"parts":[{"text":"x"}]}],"tools":[%b]}',
    ),
    reply_templates=(b"%b", b'{"candidates":[{"content":{"parts":[%b]}}]}'),
    stream_templates=(b"data: %b\n\n", b"%b"),
)
