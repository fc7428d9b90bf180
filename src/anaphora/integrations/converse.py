"""Bedrock's Converse as Anthropic's Messages API, for the judge.

Converse writes blocks as `{"text": …}`, a marker as a block `cachePoint` after the one that it
marks, and parameters in groups. Fields without a counterpart keep their names, so that changes are
detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

_Object = dict[str, Any]
_ENCODER = msgspec.json.Encoder()

_INFERENCE = {
    "maxTokens": "max_tokens",
    "temperature": "temperature",
    "topP": "top_p",
    "stopSequences": "stop_sequences",
}
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheWriteInputTokens": "cache_creation_input_tokens",
}
_WRITTEN = "cacheWriteInputTokens"
#: Fields of a request that are read by name, or say nothing about the prompt.
_READ = frozenset(
    "messages system inferenceConfig toolConfig additionalModelRequestFields outputConfig modelId"
    " additionalModelResponseFieldPaths requestMetadata performanceConfig".split()
)
_REFUSED = ("guardrail_intervened", "content_filtered")
_DOCUMENTS = {"pdf": "application/pdf"}


def _decoded(data: bytes) -> _Object:
    value: _Object = msgspec.json.decode(data, type=dict[str, Any])
    return value


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


def as_messages(body: bytes, model: str) -> bytes:
    """A request in Anthropic's format; if it is not a Converse request, it is returned
    unchanged."""
    try:
        return _ENCODER.encode(_request(_decoded(body), model))
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        return body


def _request(body: _Object, model: str) -> _Object:
    request: _Object = {"model": model}
    for name, value in (body.get("inferenceConfig") or {}).items():
        request[_INFERENCE.get(name, name)] = value
    tools = body.get("toolConfig") or {}
    if tools.get("tools"):
        request["tools"] = _marked(tools["tools"], _tool)
    if tools.get("toolChoice"):
        ((kind, value),) = tools["toolChoice"].items()
        request["tool_choice"] = {"type": kind, **value}
    if body.get("system"):
        request["system"] = _marked(body["system"], _block)
    request["messages"] = [
        {**message, "content": _marked(message["content"], _block)}
        for message in body.get("messages") or ()
    ]
    for name, value in _output(body.get("outputConfig") or {}).items():
        request.setdefault("output_config", {})[name] = value
    for name, value in (body.get("additionalModelRequestFields") or {}).items():
        both = isinstance(value, dict) and isinstance(request.get(name), dict)
        request[name] = {**request[name], **value} if both else value
    request |= {name: value for name, value in body.items() if name not in _READ}
    return request


def _marked(blocks: Iterable[_Object], read: Any) -> list[_Object]:
    """The blocks, each with the marker that follows it."""
    found: list[_Object] = []
    for block in blocks:
        if "cachePoint" not in block:
            found.append(read(block))
        elif found:
            ttl = block["cachePoint"].get("ttl")
            found[-1]["cache_control"] = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    return found


def _tool(tool: _Object) -> _Object:
    if "toolSpec" not in tool:
        ((kind, value),) = tool.items()
        return {"type": kind, **value}
    spec = dict(tool["toolSpec"])
    schema = spec.pop("inputSchema")["json"]
    return {**spec, "input_schema": schema}


def _block(block: _Object) -> _Object:
    ((kind, value),) = block.items()
    if kind == "text":
        return {"type": "text", "text": value}
    if kind == "toolUse":
        return {
            "type": "tool_use",
            "id": value["toolUseId"],
            "name": value["name"],
            "input": value["input"],
        }
    if kind == "toolResult":
        failed = {"is_error": True} if value.get("status") == "error" else {}
        content = _marked(value["content"], _block)
        return {
            "type": "tool_result",
            "tool_use_id": value["toolUseId"],
            "content": content,
            **failed,
        }
    if kind == "json":
        return {"type": "text", "text": _ENCODER.encode(value).decode()}
    if kind == "reasoningContent":
        return _thinking(value)
    if kind in ("image", "document") and "bytes" in (value.get("source") or {}):
        media = _DOCUMENTS.get(value["format"], f"{kind}/{value['format']}")
        source = {"type": "base64", "media_type": media, "data": value["source"]["bytes"]}
        titled = {"title": value["name"]} if "name" in value else {}
        return {"type": kind, "source": source, **titled}
    return {"type": kind, **value} if isinstance(value, dict) else {"type": kind, "value": value}


def _thinking(value: _Object) -> _Object:
    if "redactedContent" in value:
        return {"type": "redacted_thinking", "data": value["redactedContent"]}
    text = value["reasoningText"]
    return {
        "type": "thinking",
        "thinking": text["text"],
        "signature": text.get("signature") or "",
    }


def _output(config: _Object) -> _Object:
    found: _Object = {"effort": config["effort"]} if "effort" in config else {}
    if "textFormat" in config:
        schema = config["textFormat"]["structure"]["jsonSchema"]["schema"]
        found["format"] = {"type": "json_schema", "schema": msgspec.Raw(schema.encode())}
    return found


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def as_message(data: bytes, model: str) -> bytes:
    """A response in Anthropic's format; an error or an invalid body is returned unchanged."""
    try:
        body = _decoded(data)
        content = [_block(block) for block in body["output"]["message"]["content"]]
        message = _message(model, content, body.get("usage") or {})
        return _ENCODER.encode({**message, "stop_reason": _reason(body["stopReason"])})
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        return data


def _message(model: str, content: list[_Object], usage: _Object) -> _Object:
    return {
        "id": "",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: _Object) -> _Object:
    found = {ours: usage[name] for name, ours in _USAGE.items() if name in usage}
    details = usage.get("cacheDetails") or ()
    by_ttl = {f"ephemeral_{each['ttl']}_input_tokens": each["inputTokens"] for each in details}
    if by_ttl and sum(by_ttl.values()) == usage.get(_WRITTEN):
        found["cache_creation"] = by_ttl
    return found


def _reason(reason: str) -> str:
    return "refusal" if reason in _REFUSED else reason


def as_events(frames: Iterable[tuple[str, bytes]], model: str) -> bytes:
    """A stream as Anthropic's server-sent events. Without its `metadata`, which holds the usage
    and comes last, it is cut off."""
    try:
        events = [(kind, _decoded(payload)) for kind, payload in frames]
        return b"".join(_events(events, model))
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        return b""


def _events(events: list[tuple[str, _Object]], model: str) -> Iterator[bytes]:
    usage = next((event["usage"] for kind, event in events if kind == "metadata"), None)
    reason = next((event["stopReason"] for kind, event in events if kind == "messageStop"), None)
    yield _sent("message_start", message=_message(model, [], usage or {}))
    started: set[int] = set()
    for kind, event in events:
        index = event.get("contentBlockIndex", 0)
        if kind == "contentBlockStart":
            ((name, value),) = event["start"].items()
            started.add(index)
            yield _sent("content_block_start", index=index, content_block=_empty(name, value))
        elif kind == "contentBlockDelta":
            delta = event["delta"]
            if index not in started:  # text and reasoning begin without an event
                started.add(index)
                block = _first_block(delta)
                yield _sent("content_block_start", index=index, content_block=block)
            if (sent := _delta(delta)) is not None:
                yield _sent("content_block_delta", index=index, delta=sent)
        elif kind == "contentBlockStop":
            yield _sent("content_block_stop", index=index)
    if usage is not None and reason is not None:
        output = {"output_tokens": usage["outputTokens"]}
        delta = {"stop_reason": _reason(reason), "stop_sequence": None}
        yield _sent("message_delta", delta=delta, usage=output)
        yield _sent("message_stop")


def _sent(kind: str, **fields: Any) -> bytes:
    data = _ENCODER.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _empty(name: str, value: _Object) -> _Object:
    block = {**value, "input": {}} if name == "toolUse" else value
    return _block({name: block})


def _first_block(delta: _Object) -> _Object:
    if "reasoningContent" not in delta:
        return {"type": "text", "text": ""}
    redacted = delta["reasoningContent"].get("redactedContent")
    if redacted is not None:
        return {"type": "redacted_thinking", "data": redacted}
    return {"type": "thinking", "thinking": "", "signature": ""}


def _delta(delta: _Object) -> _Object | None:
    if "text" in delta:
        return {"type": "text_delta", "text": delta["text"]}
    if "toolUse" in delta:
        return {"type": "input_json_delta", "partial_json": delta["toolUse"]["input"]}
    reasoning = delta.get("reasoningContent") or {}
    if "text" in reasoning:
        return {"type": "thinking_delta", "thinking": reasoning["text"]}
    if "signature" in reasoning:
        return {"type": "signature_delta", "signature": reasoning["signature"]}
    return None
