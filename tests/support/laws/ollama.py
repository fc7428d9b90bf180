"""Ollama's wire, for the laws. It has no markers."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from support import strategies as some
from support.laws.case import (
    Json,
    Projected,
    WireCase,
    turns_with,
    values_of,
)

from anaphora.prompt import Call, OutputSchema, Params, Reasoning
from anaphora.values import (
    Bytes,
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
)

PNG = Bytes(b"\x89PNG\r\n\x1a\n..", "image/png")

own_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Image, st.just(PNG)),
    st.builds(Opaque, st.just("ollama"), st.just("image"), st.just('{"data":"not base64"}')),
    st.builds(Opaque, st.just("ollama"), st.just("message"), st.just('{"name":"n"}')),
    st.builds(Opaque, st.just("ollama"), st.just("x"), st.just('{"type":"x"}')),
    st.builds(Thinking, some.texts, provider=st.just("ollama")),
    st.builds(
        ToolCall,
        some.words,
        some.words,
        some.arguments,
        st.just({"ollama.form": '{"missing":["id"],"index":0}'}),
    ),
)
tokens = st.integers(0, 10_000)
replies = st.builds(
    Reply,
    id=st.just(""),
    model=some.words,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        parts=st.lists(some.assistant_parts | own_parts, max_size=4).map(tuple),
    ),
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "refusal"]),
    usage=st.builds(Usage, uncached=tokens, output=tokens),
    extras=st.none() | st.just({"ollama": '{"created_at":"2026-01-01T00:00:00Z","x":[1]}'}),
)


def check_body(body: Json) -> None:
    for message in body["messages"]:
        assert isinstance(message["content"], str)


# ── What the wire can express ────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[Projected]:
    """No ids, a message for each text of a user's and each result, one text of the assistant's,
    images before text, fields with the first."""
    encoded: list[Projected] = []
    calls: dict[str, ToolCall] = {}
    for message in call.ir.body_chat():
        parts, fields = message.parts, [p for p in message.parts if is_fields(p)][:1]
        if message.role == "assistant":
            calls = {p.id: p for p in parts if isinstance(p, ToolCall)}
            encoded += sent("assistant", assistant(parts), fields)
            continue
        if message.role in ("user", "tool"):
            results = [p for p in parts if isinstance(p, ToolResult)]
            encoded += [("tool", [result(p, calls.get(p.call_id))]) for p in results]
        role = "system" if message.role == "system" else "user"
        for group in apart(parts):
            encoded += sent(role, group, fields)
            fields = []
    return encoded


def sent(role: str, parts: list[Any], fields: list[Part]) -> list[Projected]:
    """An empty text is encoded only where nothing else is."""
    if not parts:
        return []
    rest = [part for part in parts if part != Text("")] or [Text("")]
    return [(role, [*rest, *fields])]


def assistant(parts: tuple[Part, ...]) -> list[Any]:
    thinking = "".join(p.text for p in parts if isinstance(p, Thinking) and p.provider == "ollama")
    texts = [p.text for p in parts if isinstance(p, Text | Refusal)]
    calls = [p for p in parts if isinstance(p, ToolCall)]
    images = [p for p in parts if is_image(p)]
    if thinking and not (calls or images or any(texts)):
        return []  # cut off inside its reasoning
    found: list[Any] = [Thinking(thinking, provider="ollama")] if thinking else []
    found += [image(p) for p in images]
    found += [Text("".join(texts))] if texts else []
    return found + [tool_call(p) for p in calls]


def apart(parts: tuple[Part, ...]) -> list[list[Any]]:
    groups: list[list[Any]] = []
    images: list[Any] = []
    for part in parts:
        if isinstance(part, Text):
            groups.append([*images, part])
            images = []
        elif is_image(part):
            images.append(image(part))
    if images and groups:
        groups[-1] = [*groups[-1][:-1], *images, groups[-1][-1]]
    elif images:
        groups.append(images)
    return groups


def result(part: ToolResult, call: ToolCall | None) -> Any:
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    text = "".join(p.text for p in content if isinstance(p, Text))
    images = [image(p) for p in content if is_image(p)]
    return ("result", part.name or (call.name if call else None), text, images)


def tool_call(part: ToolCall) -> Any:
    arguments = part.arguments.strip()
    if not arguments:
        arguments = "{}"
    elif not arguments.startswith("{"):
        arguments = json.dumps({"invalid_arguments": part.arguments}, separators=(",", ":"))
    made_up = part.extras is not None
    return ("call", None if made_up else part.id, part.name, arguments)


def is_image(part: Any) -> bool:
    if isinstance(part, Opaque):
        return (part.provider, part.kind) == ("ollama", "image")
    return isinstance(part, Image) and isinstance(part.source, Bytes)


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == ("ollama", "message")


def image(part: Any) -> Any:
    """An image's data: nothing else of it is encoded."""
    if isinstance(part, Opaque):
        return ("image", json.loads(part.json)["data"])
    return ("image", base64.b64encode(part.source.data).decode())


def read_part(part: Part) -> Any:
    if isinstance(part, ToolCall):
        return tool_call(part)
    if is_image(part):
        return image(part)
    if isinstance(part, ToolResult):
        return result(part, None)
    return part


def read_back(messages: Sequence[Message]) -> list[Projected]:
    return [(m.role, [read_part(p) for p in m.parts]) for m in messages]


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def alike(reply: Reply) -> Any:
    """White space in arguments is the model's; a line break in it would end the line."""
    calls = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
    return reply.text, calls, reply.stop_reason, reply.usage


def check_reply(reply: Reply, read: Reply) -> None:
    """Cached tokens are not reported."""
    assert (read.usage.input, read.usage.output) == (reply.usage.input, reply.usage.output)
    assert (read.usage.read, read.usage.written) == (None, None)


def usage(prompt: int | None, output: int | None) -> tuple[Json, Usage]:
    return {"prompt_eval_count": prompt, "eval_count": output}, Usage(
        uncached=prompt, output=output
    )


fields_of_messages: st.SearchStrategy[Json] = st.dictionaries(
    st.sampled_from("role content thinking images tool_calls tool_name tool_call_id x".split()),
    st.sampled_from(["assistant", "tool", "user", "", None, 1, [], ["QUJD"], {}]),
    max_size=5,
)

CASE = WireCase(
    name="ollama",
    provider="ollama",
    models=("qwen3",),
    turns=turns_with(own_parts),
    check_body=check_body,
    params=st.builds(
        Params,
        max_tokens=st.none() | st.integers(0, 999),
        temperature=st.none() | st.sampled_from([0.0, 0.5]),
        top_p=st.none() | st.just(0.9),
        top_k=st.none() | st.just(40),
        seed=st.none() | st.just(7),
        frequency_penalty=st.none() | st.just(0.5),
        presence_penalty=st.none() | st.just(0.5),
        stop=st.sampled_from([(), ("END",), ("a", "b")]),
        reasoning=st.none()
        | st.sampled_from([Reasoning("enabled"), Reasoning("disabled"), Reasoning(effort="max")]),
        output=st.none() | st.builds(OutputSchema, some.schemas),
        stream=st.booleans(),
    ),
    project=project,
    read_back=read_back,
    strict_tools=False,
    separate_blocks=lambda model: False,
    replies=replies,
    alike=alike,
    check_reply=check_reply,
    usages=st.builds(usage, st.none() | st.integers(0, 9999), st.none() | st.integers(0, 9999)),
    reply_with_usage=lambda usage: {
        "model": "m",
        "message": {"role": "assistant", "content": "x"},
        "done": True,
        **usage,
    },
    stream_forms=st.just,
    values=values_of(
        "model messages role content thinking images tool_calls function name arguments id index"
        " tool_name tool_call_id tools type parameters stream format think options num_predict stop"
        " keep_alive message done done_reason created_at error prompt_eval_count eval_count"
        " logprobs",
        max_leaves=12,
    )
    | fields_of_messages,
    request_templates=(b"%b", b'{"model":"","messages":[%b]}'),
    reply_templates=(b"%b", b'{"model":"m","message":%b,"done":true}'),
    stream_templates=(
        b"%b\n",
        b'{"message":%b}\n',
        b'{"message":%b,"done":true}\n',
        b'{"message":%b,"done":false,"created_at":%b}\n',
    ),
)
