"""A single answer of Anthropic's, read into a `Reply` without losing anything.

Known blocks take a strict, typed path; a block with fields nobody knows yet keeps them as extras,
and a block of an unknown type is carried along whole. Arguments stay the text they came in.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import (
    Extras,
    Message,
    Opaque,
    Part,
    Reply,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from anaphora.values.usage import WriteTtl

from .blocks import WIRE

_STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}

_Fields = dict[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(_Fields).decode


def read_reply(body: bytes) -> Reply:
    """The answer in `body`. `Parse` names the field that is missing or not what it should be."""
    fields = _object(body, "$")
    if (kind := _text(fields, "type", "$")) != "message":
        raise Parse(f"expected a message, not {kind!r}", path="$.type")
    reply_id, model = _text(fields, "id", "$"), _text(fields, "model", "$")
    stop = _optional_text(fields, "stop_reason", "$")
    content = _array(fields, "content", "$")
    parts = tuple(read_block(raw, f"$.content[{at}]") for at, raw in enumerate(content))
    if (role := _text(fields, "role", "$")) != "assistant":
        raise Parse(f"expected the assistant's message, not {role!r}", path="$.role")
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=parts),
        stop=_STOPS.get(stop or "", "other"),
        stop_raw=stop,
        stop_sequence=_optional_text(fields, "stop_sequence", "$"),
        usage=read_usage(bytes(fields["usage"]), "$.usage") if "usage" in fields else Usage(),
        extras=_rest(
            fields,
            "id type role model content stop_reason stop_sequence usage",
        ),
    )


def read_block(raw: msgspec.Raw, path: str) -> Part:
    """One content block as a part."""
    fields = _object(bytes(raw), path)
    kind = _text(fields, "type", path)
    if kind == "text":
        return Text(_text(fields, "text", path), _rest(fields, "type text"))
    if kind == "tool_use":
        arguments = _required(fields, "input", path)
        return ToolCall(
            id=_text(fields, "id", path),
            name=_text(fields, "name", path),
            arguments=bytes(arguments).decode(),
            extras=_rest(fields, "type id name input"),
        )
    if kind == "thinking":
        return Thinking(
            text=_text(fields, "thinking", path),
            signature=_text(fields, "signature", path),
            provider=WIRE,
            extras=_rest(fields, "type thinking signature"),
        )
    if kind == "redacted_thinking":
        return Thinking(
            data=_text(fields, "data", path), provider=WIRE, extras=_rest(fields, "type data")
        )
    return Opaque(provider=WIRE, kind=kind, json=bytes(raw).decode())


class _Creation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class _Details(msgspec.Struct, frozen=True):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _Creation | None = None
    output_tokens_details: _Details | None = None


def read_usage(raw: bytes, path: str) -> Usage:
    """Anthropic's counts are a partition already; what it does not mention stays unknown."""
    try:
        told = msgspec.json.decode(raw, type=_Usage)
    except msgspec.DecodeError as problem:
        raise Parse(str(problem), path=path) from None
    details = told.output_tokens_details
    return Usage(
        uncached=told.input_tokens,
        read=told.cache_read_input_tokens,
        written=_written(told),
        output=told.output_tokens,
        reasoning=details.thinking_tokens if details is not None else None,
        raw=raw.decode(),
    )


def _written(told: _Usage) -> dict[WriteTtl, int] | None:
    split = told.cache_creation
    total = told.cache_creation_input_tokens
    if split is None:
        return None if total is None else {"unsplit": total} if total else {}
    by_ttl: dict[WriteTtl, int] = {
        "1h": split.ephemeral_1h_input_tokens,
        "5m": split.ephemeral_5m_input_tokens,
    }
    if total is not None and (rest := total - sum(by_ttl.values())) > 0:
        by_ttl["unsplit"] = rest
    return {ttl: count for ttl, count in by_ttl.items() if count}


def _object(data: bytes, path: str) -> _Fields:
    try:
        return _decode_fields(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Parse(f"not a JSON object: {problem}", path=path) from None


def _required(fields: _Fields, name: str, path: str) -> msgspec.Raw:
    if name not in fields:
        raise Parse("is missing", path=f"{path}.{name}")
    return fields[name]


def _typed(fields: _Fields, name: str, path: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(_required(fields, name, path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Parse(str(problem), path=f"{path}.{name}") from None


def _text(fields: _Fields, name: str, path: str) -> str:
    text: str = _typed(fields, name, path, str)
    return text


def _optional_text(fields: _Fields, name: str, path: str) -> str | None:
    text: str | None = _typed(fields, name, path, str | None) if name in fields else None
    return text


def _array(fields: _Fields, name: str, path: str) -> list[msgspec.Raw]:
    items: list[msgspec.Raw] = _typed(fields, name, path, list[msgspec.Raw])
    return items


def _rest(fields: _Fields, known: str) -> Extras | None:
    """The fields without a name here, as they came and in the order they came."""
    names = known.split()
    inner = [dumps(name) + b":" + bytes(raw) for name, raw in fields.items() if name not in names]
    return {WIRE: (b"{" + b",".join(inner) + b"}").decode()} if inner else None
