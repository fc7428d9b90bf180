"""The Responses wire, for the laws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from support import strategies as some
from support.laws.case import Json, Projected, WireCase, counts_of, values_of
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

WIRE, ITEM = "openai_responses", "openai_responses.item"

own_thinking = st.builds(
    lambda name, text, data: Thinking(
        text,
        data=data,
        provider=WIRE,
        extras={
            WIRE: json.dumps(
                {"id": name, "summary": [{"type": "summary_text", "text": text}] if text else []},
                separators=(",", ":"),
                ensure_ascii=False,
            )
        },
    ),
    some.words,
    some.texts,
    st.none() | some.texts,
)
items = st.sampled_from(
    [
        Opaque(WIRE, "compaction", '{"type":"compaction","id":"c","encrypted_content":"x"}'),
        Opaque(WIRE, "web_search_call", '{"type":"web_search_call","id":"w","status":"completed"}'),
        Opaque(WIRE, "input_audio", '{"type":"input_audio","data":"x"}'),
        Opaque(WIRE, "additional_tools", '{"type":"additional_tools","role":"developer"}'),
    ]
)
output_messages = st.builds(
    lambda name, text, phase: Text(
        text, {WIRE: '{"annotations":[]}', ITEM: f'{{"id":"{name}","phase":"{phase}"}}'}
    ),
    some.words,
    some.texts,
    st.sampled_from(["commentary", "final_answer"]),
)
answers: st.SearchStrategy[Message] = st.builds(
    lambda parts: Message(role="assistant", parts=tuple(parts)),
    st.lists(
        st.one_of(
            own_thinking,
            output_messages,
            st.builds(Text, some.texts, st.just({WIRE: '{"annotations":[]}'})),
            st.builds(Refusal, some.texts),
            st.builds(
                ToolCall, some.words, some.words, some.arguments, st.just({WIRE: '{"id":"fc"}'})
            ),
            items.filter(lambda item: item.kind != "input_audio"),
        ),
        max_size=4,
    ),
)
others: st.SearchStrategy[Message] = st.builds(
    lambda part: Message(role="user", parts=(Text("so"), part, Text("well"))), items
)
turns = st.lists(st.lists(some.messages | answers | others, max_size=4), min_size=1, max_size=4)


tokens = st.integers(0, 10**6)
replies = st.builds(
    lambda parts, usage, stop: Reply(
        id="resp_1",
        model="gpt-5.6",
        message=Message(id="resp_1", role="assistant", parts=parts),
        stop_reason=stop,
        usage=usage,
    ),
    st.lists(
        st.one_of(
            output_messages,
            st.builds(Text, some.texts, st.just({WIRE: '{"annotations":[]}'})),
            own_thinking,
            st.builds(
                ToolCall, some.words, some.words, some.arguments, st.just({WIRE: '{"id":"fc"}'})
            ),
            st.builds(Refusal, some.texts, st.just({ITEM: '{"id":"r"}'})),
            st.just(Opaque(WIRE, "web_search_call", '{"type":"web_search_call","id":"w"}')),
        ),
        max_size=5,
    ).map(tuple),
    st.builds(
        Usage,
        uncached=tokens,
        read=tokens,
        written=st.fixed_dictionaries(
            {}, optional={"30m": st.integers(1, 99), "12h": st.integers(1, 99)}
        )
        | st.just({"unsplit": 7}),
        output=tokens,
        reasoning=tokens,
    ),
    st.sampled_from(["end", "length", "refusal"]),
)


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────


def find_markers(body: Json) -> list[tuple[Json, Json]]:
    found = []
    for item in body["input"]:
        inside = item.get("content") or item.get("output") or ()
        found += [p for p in inside if isinstance(p, dict) and "prompt_cache_breakpoint" in p]
    assert json.dumps(body).count("prompt_cache_breakpoint") == len(found)
    return [(part, part["prompt_cache_breakpoint"]) for part in found]


def check_marked(part: Json) -> None:
    assert part["type"].startswith("input_")
    assert part.get("text") != ""


def check_body(body: Json) -> None:
    assert '"cache_control":' not in json.dumps(body)
    for item in body["input"]:
        if item["type"] == "message" and item["role"] != "assistant":
            assert isinstance(item["content"], list)


# ── What the wire can express ────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[Projected]:
    return projected(call.ir.body_chat())


def read_back(messages: Sequence[Message]) -> list[Projected]:
    return [(message.role, list(message.parts)) for message in without_places(messages)]


def projected(conversation: Sequence[Message]) -> list[tuple[str, list[Part]]]:
    """The messages as this wire can say them: who speaks is decided item by item, and what the
    assistant encoded in a row is one message."""
    messages: list[tuple[str, list[Part]]] = []
    for index, message in enumerate(conversation):
        inside = False
        for at, part in enumerate(message.parts):
            found = _meant(part, message, at, inside)
            if found is None or (
                isinstance(part, Thinking) and not _followed(conversation, index, at)
            ):
                continue
            role, meant, content = found
            begins = not inside or ITEM in (getattr(part, "extras", None) or ())
            goes_on = role == "assistant" and messages and messages[-1][0] == "assistant"
            if goes_on and isinstance(meant, Text) and not meant.extras and not inside:
                meant = _apart(meant, messages[-1][1])
            if goes_on or (content and not begins):
                messages[-1][1].append(meant)
            else:
                messages.append((role, [meant]))
            inside = content
    return messages


def _followed(conversation: Sequence[Message], index: int, at: int) -> bool:
    """Whether the next item that is no reasoning is one of the model's."""
    rest = [(p, conversation[index]) for p in conversation[index].parts[at + 1 :]]
    rest += [(p, message) for message in conversation[index + 1 :] for p in message.parts]
    for part, message in rest:
        found = None if isinstance(part, Thinking) else _meant(part, message, 0, False)
        if found is not None:
            return found[0] == "assistant"
    return False


def _apart(part: Text, before: list[Part]) -> Text:
    """Plain text after a message that it could belong to is kept apart."""
    for other in reversed(before):
        if isinstance(other, ToolCall | Thinking | Opaque):
            break
        if ITEM in (other.extras or ()):
            return Text(part.text, {ITEM: "{}"})
    return part


def _meant(part: Part, message: Message, at: int, inside: bool) -> tuple[str, Part, bool] | None:
    role = {"tool": "user"}.get(message.role, message.role)
    said_by_model = role == "assistant"
    match part:
        case ToolCall():
            return "assistant", part, False
        case ToolResult():
            content = (Text(part.content),) if isinstance(part.content, str) else part.content
            kept = tuple(p for p in map(_input, content) if p is not None)
            return "tool", ToolResult(part.call_id, kept), False
        case Thinking():
            return ("assistant", part, False) if part.provider == WIRE else None
        case Opaque() if part.provider != WIRE:
            return None
        case Opaque(kind="input_audio"):
            return role, part, True
        case Opaque():
            app = part.kind == "additional_tools"
            return "user" if app else "assistant", part, False
        case Text() if said_by_model:
            extras = part.extras or {}
            if not extras and not inside:
                return role, part, False  # a message by itself
            if not inside and ITEM not in extras:
                part = Text(part.text, {**extras, ITEM: "{}"})
            return role, part, True
        case Refusal() if said_by_model:
            return (role, part, True) if inside else (role, Text(part.text), False)
        case _ if said_by_model:
            return None
        case _:
            meant = _input(part)
            return None if meant is None else (role, meant, True)


def _input(part: Any) -> Any:
    match part:
        case Text():
            return part
        case Refusal():
            return Text(part.text)
        case Image() | Document() if getattr(part.source, "provider", "openai") != "openai":
            return None
        case Image():
            return Image(part.source, "auto")
        case Document():
            name = {"application/pdf": "document.pdf"}
            media = getattr(part.source, "media_type", None)
            title = part.title
            if title is None and hasattr(part.source, "data"):
                title = name.get(media or "", "document")
            return Document(part.source, title)
        case _:
            return None


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def check_reply(reply: Reply, read: Reply) -> None:
    called = any(isinstance(part, ToolCall) for part in reply.message.parts)
    assert plain(read.message.parts) == plain(reply.message.parts)
    assert read.stop_reason == (
        "tool_calls" if called and reply.stop_reason == "end" else reply.stop_reason
    )
    assert counts_of(read.usage) == counts_of(reply.usage)


def plain(parts: Sequence[Part]) -> list[Part]:
    """The parts without the items that were generated for them."""
    return [
        Text(part.text, {WIRE: (part.extras or {})[WIRE]}) if isinstance(part, Text) else part
        for part in parts
    ]


def usage(
    uncached: int, read: int, written: dict[WriteTtl, int], output: int, reasoning: int
) -> tuple[Json, Usage]:
    encoded = {
        "input_tokens": uncached + read + sum(written.values()),
        "input_tokens_details": {
            "cached_tokens": read,
            "cache_write_tokens": sum(written.values()),
            "cache_write_tokens_details": {f"ttl_{ttl}_tokens": n for ttl, n in written.items()},
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }
    return encoded, Usage(
        uncached=uncached, read=read, written=written, output=output, reasoning=reasoning
    )


CASE = WireCase(
    name=WIRE,
    provider="openai",
    models=("gpt-5.6", "gpt-5", "gpt-4o"),
    turns=turns,
    markers={
        "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
        "30m": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}',
    },
    marked_models=("gpt-5.6",),
    find_markers=find_markers,
    check_marked=check_marked,
    check_body=check_body,
    params=st.builds(
        Params,
        max_tokens=st.none() | st.just(5),
        metadata=st.none() | st.just({"team": "a"}),
        stream=st.booleans(),
    ),
    project=project,
    read_back=read_back,
    strips_system=True,
    separate_blocks=lambda model: model == "gpt-5.6",
    replies=replies,
    check_reply=check_reply,
    usages=st.builds(
        usage,
        tokens,
        tokens,
        st.fixed_dictionaries({"30m": st.integers(1, 99), "12h": st.integers(1, 99)}),
        tokens,
        tokens,
    ),
    reply_with_usage=lambda usage: {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5.6",
        "status": "completed",
        "output": [],
        "usage": usage,
    },
    values=values_of(
        "type role content text model input output tools instructions id name arguments call_id"
        " usage output_index content_index delta item part response error status summary"
        " encrypted_content prompt_cache_breakpoint prompt_cache_options",
        "message function_call function_call_output reasoning input_text output_text refusal"
        " input_image input_file response response.output_item.added response.output_item.done"
        " response.completed response.output_text.delta error user assistant developer",
        max_size=5,
        max_leaves=25,
    ),
    request_templates=(b"%b", b'{"model":"m","input":%b}', b'{"model":"m","input":[%b]}'),
    reply_templates=(b"%b", b'{"id":"r","model":"m","output":[%b]}'),
    stream_templates=(
        b"data: %b\n\n",
        b'data: {"type":"response.output_item.added","item":%b}\n\n',
        b'data: {"type":"response.output_item.done","output_index":0,"item":%b}\n\n',
        b'data: {"type":"response.completed","response":%b}\n\n',
    ),
)
