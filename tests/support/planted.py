"""One small conversation on every wire, to be broken on purpose in one place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.cache.verdict import SentCall, Verdict, judge
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import Usage
from anaphora.wire.cutting import cut

Json = dict[str, Any]

#: Longer than any provider's minimum.
GUIDE = "Answer in short sentences. " + "Look before you leap, and say what you saw. " * 300

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"


class Place(NamedTuple):
    """A wire, a provider that uses it, and one of its models."""

    wire: str
    provider: str
    model: str


PLACES = {
    "anthropic": Place("anthropic", "anthropic", "claude-sonnet-4-5"),
    "openai_chat": Place("openai_chat", "openai", "gpt-5"),
    "openai_responses": Place("openai_responses", "openai", "gpt-5"),
    "gemini": Place("gemini", "google", "gemini-2.5-pro"),
    "deepseek": Place("deepseek", "deepseek", "deepseek-v4-pro"),
    "minimax": Place("minimax/anthropic", "minimax", "MiniMax-M2.7"),
}


def spec() -> Json:
    """A prompt, independent of the wire."""
    return {
        "system": ["You are the agent of request 3f9a21c4. Today is 2026-11-15.", GUIDE],
        "tools": [_tool("read"), _tool("search"), _tool("write")],
        "messages": [
            ("user", ["What is in the file?"]),
            ("assistant", ["It holds 3 lines."]),
            ("user", ["And in the picture?", {"image": PNG}]),
            ("assistant", ["A cat, on a mat."]),
            ("user", ["Which colour is it?"]),
        ],
        "params": {},
    }


def grown(before: Json) -> Json:
    """The same, one turn later."""
    after: Json = copy.deepcopy(before)
    after["messages"] += [("assistant", ["It is grey."]), ("user", ["Thank you. And the mat?"])]
    return after


def _tool(name: str) -> Json:
    properties = {"path": {"type": "string"}, "limit": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return {"name": name, "description": f"Can {name}.", "schema": schema}


# ── Request bodies ───────────────────────────────────────────────────────────────────────────────


def _anthropic(prompt: Json, model: str) -> Json:
    system = [{"type": "text", "text": text} for text in prompt["system"]]
    messages = [
        {"role": role, "content": [_anthropic_part(part) for part in parts]}
        for role, parts in prompt["messages"]
    ]
    tools = [
        {"name": t["name"], "description": t["description"], "input_schema": t["schema"]}
        for t in prompt["tools"]
    ]
    marker = {"type": "ephemeral"}
    if prompt.get("marked", True):
        if system:
            system[-1]["cache_control"] = marker
        messages[-1]["content"][-1]["cache_control"] = marker
    return {
        "model": model,
        "max_tokens": 64,
        "tools": tools,
        "system": system,
        "messages": messages,
        **prompt["params"],
    }


def _anthropic_part(part: Any) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if "image" in part:
        source = {"type": "base64", "media_type": "image/png", "data": part["image"]}
        return {"type": "image", "source": source}
    return dict(part)


def _chat(prompt: Json, model: str) -> Json:
    messages: list[Json] = []
    if prompt["system"]:
        parts = [{"type": "text", "text": text} for text in prompt["system"]]
        messages.append({"role": "system", "content": parts})
    for role, parts in prompt["messages"]:
        if role == "assistant":
            messages.append({"role": role, "content": "".join(parts)})
        else:
            messages.append({"role": role, "content": [_chat_part(part) for part in parts]})
    tools = [
        {
            "type": "function",
            "function": {
                "name": t["name"],
                "description": t["description"],
                "parameters": t["schema"],
            },
        }
        for t in prompt["tools"]
    ]
    return {"model": model, "messages": messages, "tools": tools, **prompt["params"]}


def _chat_part(part: Any) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part['image']}"}}


def _responses(prompt: Json, model: str) -> Json:
    items: list[Json] = []
    if prompt["system"]:
        parts = [{"type": "input_text", "text": text} for text in prompt["system"]]
        items.append({"role": "developer", "content": parts})
    for role, parts in prompt["messages"]:
        kind = "output_text" if role == "assistant" else "input_text"
        items.append({"role": role, "content": [_responses_part(part, kind) for part in parts]})
    tools = [
        {
            "type": "function",
            "name": t["name"],
            "description": t["description"],
            "parameters": t["schema"],
        }
        for t in prompt["tools"]
    ]
    return {"model": model, "input": items, "tools": tools, **prompt["params"]}


def _responses_part(part: Any, kind: str) -> Json:
    if isinstance(part, str):
        return {"type": kind, "text": part}
    return {"type": "input_image", "image_url": f"data:image/png;base64,{part['image']}"}


def _gemini(prompt: Json, model: str) -> Json:
    roles = {"user": "user", "assistant": "model"}
    contents = [
        {"role": roles[role], "parts": [_gemini_part(part) for part in parts]}
        for role, parts in prompt["messages"]
    ]
    declared = [
        {"name": t["name"], "description": t["description"], "parametersJsonSchema": t["schema"]}
        for t in prompt["tools"]
    ]
    body: Json = {"contents": contents, **prompt["params"]}
    if declared:
        body["tools"] = [{"functionDeclarations": declared}]
    if prompt["system"]:
        body["systemInstruction"] = {"parts": [{"text": text} for text in prompt["system"]]}
    return body


def _gemini_part(part: Any) -> Json:
    if isinstance(part, str):
        return {"text": part}
    return {"inlineData": {"mimeType": "image/png", "data": part["image"]}}


_ENCODERS: dict[str, Callable[[Json, str], Json]] = {
    "anthropic": _anthropic,
    "openai_chat": _chat,
    "openai_responses": _responses,
    "gemini": _gemini,
    "deepseek": _chat,
    "minimax/anthropic": _anthropic,
}


def body(place: Place, prompt: Json, model: str | None = None, **dumping: Any) -> bytes:
    result = _ENCODERS[place.wire](prompt, model or place.model)
    return json.dumps(result, **{"separators": (",", ":"), **dumping}).encode()


def split(place: Place, data: bytes, model: str | None = None) -> Rendered:
    path = f"/v1beta/models/{model or place.model}:generateContent"
    rendered = cut(wire.get(place.wire), data, path if place.wire == "gemini" else "")
    return replace(rendered, bytes_per_token=4.0)


def verdict_of(place: Place, before: Rendered, after: Rendered, **known: Any) -> Verdict:
    """The verdict on two requests a minute apart; nothing of the second was read, unless given.
    With `read=None` it read what the rules allow."""
    rules = catalog.rules(place.provider, place.model, before.wire)
    total = Counts(before).total
    grown_to = Counts(after).total
    kept = (total + rules.offset) // rules.granule_tokens.value * rules.granule_tokens.value
    kept -= rules.offset
    wrote = rules.slots.value > 0 and bool(before.marks)
    first = Usage(uncached=0, read=0, written={"5m": kept}, output=1)
    if not wrote:
        first = Usage(uncached=total, read=0, output=1)
    read = known.pop("read", 0)
    given = known.pop("usage", None)
    one = SentCall(rendered=before, **{"at": 1000.0, "usage": first, **known.pop("earlier", {})})
    two = SentCall(rendered=after, **{"at": 1060.0, **known.pop("later", {})})
    if read is None:
        read = judge(one, two, rules, **known).predicted or 0
    if two.usage is None:
        usage = given or Usage(uncached=grown_to - read, read=read, output=1)
        two = replace(two, usage=usage)
    return judge(one, two, rules, **known)
