"""The Chat Completions wire, for the laws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from support import strategies as some
from support.laws.case import Json, Projected, WireCase, counts_of, turns_with, values_of
from support.system_place import without_places

from anaphora.prompt import Call, Params
from anaphora.values import (
    Document,
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
    Usage,
    WriteTtl,
)
from anaphora.wire.openai_chat.types import LISTED

WIRE = "openai_chat"

own_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Opaque, st.just(WIRE), st.just("x"), st.just('{"type":"x","a":[1]}')),
    st.builds(Opaque, st.just(WIRE), st.just("message"), st.just('{"name":"n"}')),
    st.builds(
        Thinking,
        some.texts,
        provider=st.just(WIRE),
        extras=st.sampled_from(["reasoning", "reasoning_content", "content"]).map(
            lambda field: {WIRE: f'{{"field":"{field}"}}'}
        ),
    ),
)
tokens = st.integers(0, 10_000)
replies = st.builds(
    Reply,
    id=some.words,
    model=some.words,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        parts=st.lists(some.assistant_parts, max_size=4).map(tuple),
    ),
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "refusal"]),
    usage=st.builds(Usage, uncached=tokens, read=st.none() | tokens, output=tokens),
)


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────


def find_markers(body: Json) -> list[tuple[Json, Json]]:
    assert "prompt_cache_breakpoint" not in json.dumps(body.get("tools", []))
    return [
        (part, part["prompt_cache_breakpoint"])
        for message in body["messages"]
        for part in message.get("content") or ()
        if isinstance(part, dict) and "prompt_cache_breakpoint" in part
    ]


def check_marked(part: Json) -> None:
    assert part["type"] in ("text", "image_url", "file", "input_audio")
    assert part.get("text") != ""


def check_body(body: Json) -> None:
    assert '"cache_control":' not in json.dumps(body)
    for message in body["messages"]:
        content = message.get("content", [])
        if body["model"] == "gpt-5.6" and message["role"] != "assistant":
            assert isinstance(content, list)
        elif isinstance(content, list):  # a lone text is a string
            assert len(content) != 1 or {*content[0]} != {"type", "text"}


# ── What the wire can express ────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[Projected]:
    """No ids, one role a message, results first, text before calls, message fields last."""
    encoded: list[Projected] = []
    for message in call.ir.body_chat():
        fields = [p for p in message.parts if is_fields(p)]
        if message.role == "assistant":
            sent = [p for p in message.parts if in_assistant(p)]
            thinking = [p for p in sent if isinstance(p, Thinking)]
            content = [p for p in sent if not isinstance(p, Thinking | ToolCall)]
            calls = [p for p in sent if isinstance(p, ToolCall)]
            if content or calls or fields:  # reasoning alone is left out
                encoded.append(("assistant", comparable([*thinking, *content, *calls])))
            continue
        if message.role in ("user", "tool"):
            results = [part for part in message.parts if isinstance(part, ToolResult)]
            encoded += [("tool", comparable([plain_result(part)])) for part in results]
        role = "system" if message.role == "system" else "user"
        parts = [named(p) for p in message.parts if in_list(p, role)]
        if parts:
            encoded.append((role, comparable(parts)))
    return encoded


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == (WIRE, "message")


def in_assistant(part: Part) -> bool:
    if isinstance(part, Opaque):
        return part.provider == WIRE and not is_fields(part)
    if isinstance(part, Thinking):
        return part.provider == WIRE
    return isinstance(part, Text | Refusal | ToolCall)


def in_list(part: Part, role: str) -> bool:
    if isinstance(part, Text):
        return True
    if isinstance(part, Opaque):
        return part.provider == WIRE and not is_fields(part)
    if role != "user" or not isinstance(part, Image | Document):
        return False
    kind = type(part.source).__name__
    if isinstance(part, Image):
        return kind != "FileId"
    return kind == "Bytes" or getattr(part.source, "provider", "") == "openai"


def named(part: Part) -> Part:
    if isinstance(part, Document) and part.title is None and hasattr(part.source, "data"):
        pdf = getattr(part.source, "media_type", "") == "application/pdf"
        return Document(part.source, "document.pdf" if pdf else "document")
    return part


def plain_result(part: ToolResult) -> ToolResult:
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    texts = tuple(p for p in content if isinstance(p, Text) or in_list(p, "tool"))
    return ToolResult(part.call_id, texts or (Text(""),))


def comparable(parts: Sequence[Part]) -> list[Any]:
    """Reasoning in one field is one text, wherever in the message it stood."""
    texts: dict[str, str] = {}
    others: list[Any] = []
    for part in parts:
        if isinstance(part, Thinking) and part.extras is not None:
            field = json.loads(part.extras[WIRE])["field"]
            texts[field] = texts.get(field, "") + part.text
        elif isinstance(part, Text) and part.extras == LISTED:
            others.append(Text(part.text))  # a lone text, as a list
        elif not is_fields(part):
            others.append(plain_result(part) if isinstance(part, ToolResult) else part)
    return [texts, *others]


def read_back(messages: Sequence[Message]) -> list[Projected]:
    return [(m.role, comparable(m.parts)) for m in without_places(messages)]


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def check_reply(reply: Reply, read: Reply) -> None:
    assert counts_of(read.usage) == counts_of(reply.usage)


def usage(uncached: int, read: int | None, written: int | None, output: int) -> tuple[Json, Usage]:
    encoded = {
        "prompt_tokens": uncached + (read or 0) + (written or 0),
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }
    by_ttl: dict[WriteTtl, int] | None = (
        None if written is None else {"30m": written} if written else {}
    )
    return encoded, Usage(uncached=uncached, read=read, written=by_ttl, output=output)


CASE = WireCase(
    name=WIRE,
    provider="openai",
    models=("gpt-5.6", "gpt-5", "gpt-4o"),
    turns=turns_with(own_parts),
    markers={
        "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
        "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    },
    marked_models=("gpt-5.6",),
    find_markers=find_markers,
    check_marked=check_marked,
    check_body=check_body,
    params=st.builds(
        Params, max_tokens=st.none() | st.just(5), seed=st.none() | st.just(1), stream=st.booleans()
    ),
    project=project,
    read_back=read_back,
    replies=replies,
    alike=lambda reply: (reply.text, reply.tool_calls, reply.stop_reason, reply.usage),
    check_reply=check_reply,
    usages=st.builds(usage, tokens, st.none() | tokens, st.none() | tokens, tokens),
    reply_with_usage=lambda usage: {
        "id": "r",
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        ],
        "usage": usage,
    },
    values=values_of(
        "model messages role content type text tool_calls function name arguments id choices delta"
        " message index usage prompt_tokens error code finish_reason tools stop image_url url"
        " refusal reasoning prompt_cache_breakpoint mode thinking",
        max_leaves=12,
    ),
    request_templates=(b"%b", b'{"model":"m","messages":[%b]}'),
    reply_templates=(b"%b", b'{"id":"r","model":"m","choices":[{"message":%b}]}'),
    stream_templates=(
        b"data: %b\n\n",
        b'data: {"id":"r","model":"m","choices":[{"index":0,"delta":%b}]}\n\n',
    ),
)
