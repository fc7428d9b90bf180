"""Converts requests of a dialect: parameters in the provider's own fields and values, markers, and
reasoning.

Before a call is rendered, its parameters are moved into the wire's extras (or a header) by the row;
after a request is parsed, they are moved back. So no wire depends on a dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Dialect
from anaphora.catalog.dialect_rows import ParamPlace
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    MarkRequest,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    Reasoning,
)
from anaphora.values import Extras, Message, Notice, Opaque, Part, Thinking, ToolResult, Ttl
from anaphora.wire.markers import DialectMarkers, marked_message, take_dialect_marker
from anaphora.wire.openai import MESSAGE_KEY
from anaphora.wire.params import PARAM_GROUPS, Param, foreign_tier_notices
from anaphora.wire.parts import merge_fields
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_members,
    encode_members,
    extras_of,
    object_members,
    request_error,
)

_CHAT = "openai_chat"
#: The kind of an opaque part that holds fields of its message.
_MESSAGE_FIELDS = "message"
#: Gateways to Claude models take Anthropic's markers in requests of Chat.
_HOST_MARKERS: tuple[DialectMarkers, ...] = (
    {
        "5m": {"cache_control": {"type": "ephemeral"}},
        "1h": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    },
    {"5m": {"cache_control": {"type": "ephemeral", "ttl": "5m"}}},
)

T = TypeVar("T")
Header = tuple[str, str]

#: Names in the cache rules of parameters that affect a cache.
_CACHE_PARAMS = {
    "tool_choice": "tool_choice",
    "tool_choice.parallel": "parallel_tools",
    "reasoning.mode": "thinking",
    "reasoning.budget_tokens": "thinking",
    "reasoning.effort": "effort",
    "verbosity": "verbosity",
    "output": "output_format",
    "service_tier": "service_tier",
    "cache.key": "cache_key",
}
_TYPES: dict[str, Any] = {
    **{field.name: field.type for field in msgspec.structs.fields(Params)},
    **{f"reasoning.{field.name}": field.type for field in msgspec.structs.fields(Reasoning)},
    **{f"cache.{field.name}": field.type for field in msgspec.structs.fields(PromptCachePlan)},
    "tool_choice": Literal["auto", "required", "none"],
    "tool_choice.parallel": bool,
}


class EncodedParams(msgspec.Struct, frozen=True):
    """A call with the provider's parameters in its extras, and those that are sent elsewhere."""

    call: Call
    headers: tuple[Header, ...] = ()
    cache_params: tuple[tuple[str, bytes], ...] = ()
    notices: tuple[Notice, ...] = ()


def encode_params(call: Call, dialect: Dialect) -> EncodedParams:
    """The call with its parameters in the provider's fields."""
    headers: list[Header] = []
    cache_params: dict[str, bytes] = {}
    notices: list[Notice] = []
    body: dict[str, Any] = {}
    for name in dialect.fields:
        value, place = _value(call, name), dialect.place(name)
        if value is None or (place is not None and _is_left_to_wire(call, name, value, place)):
            continue
        call = _set(call, name, None)
        path = Param(name).path
        if place is None or (place.closed and value not in place.values):
            reason = "no such field" if place is None else f"no value for {value}"
            notices.append(Param(name, reason=f"{dialect.provider} has {reason}").notice())
            continue
        encoded = _their_value(value, place)
        ours = _our_value(encoded, place)
        if isinstance(value, str) and value not in (ours, encoded):
            # Two of our values map to one of theirs, which is read back as the first in the row.
            reason = f"{dialect.provider} does not distinguish {value} from {ours}"
            notices.append(Notice("param_changed", reason, path))
        if place.header:
            text = encoded if isinstance(encoded, str) else dumps(encoded).decode()
            headers.append((place.header, text))
        else:
            _put(body, place.at, encoded, path)
        rule = _CACHE_PARAMS.get(name)
        if rule is not None:
            cache_params[rule] = cache_params.get(rule, b"") + dumps(encoded, path=path)
    if body:
        call = msgspec.structs.replace(call, extras=_with(call.extras, dialect.wire, body))
    return EncodedParams(call, tuple(headers), tuple(cache_params.items()), tuple(notices))


def decode_params(call: Call, dialect: Dialect) -> Call:
    """The call of a parsed request, with the provider's fields as parameters."""
    text = (call.extras or {}).get(dialect.wire)
    if text is None or not dialect.fields:
        return call
    body = object_members(text.encode(), "extras", request_error)
    changed = False
    for name in dialect.fields:
        place = dialect.place(name)
        if place is None or not place.at or _value(call, name) is not None:
            continue
        field, _, inner = place.at.partition(".")
        if field not in body:
            continue
        whole = msgspec.json.decode(body[field])
        try:
            value = msgspec.convert(_our_value(_find(whole, inner), place), _TYPES[name])
        except msgspec.ValidationError:
            continue  # an unknown value stays in the extras
        if value is None:
            continue
        call = _set(call, name, value)
        changed = True
        if inner:
            _drop(whole, inner)
        if inner and whole:
            body[field] = msgspec.Raw(dumps(whole))
        else:
            del body[field]
    return _with_extras(call, dialect.wire, body) if changed else call


def _is_left_to_wire(call: Call, name: str, value: Any, place: ParamPlace) -> bool:
    """Whether the wire encodes the value itself: a tool choice without a value in the row, and
    another provider's tier, which the wire leaves out."""
    if name == "tool_choice":
        return value not in place.values
    if name != "service_tier" or not foreign_tier_notices(call):
        return False
    return bool(place.values) and value not in (*place.values, *place.values.values())


def _their_value(value: Any, place: ParamPlace) -> Any:
    if isinstance(value, bool):
        return place.values.get("true" if value else "false", value)
    return place.values.get(value, value) if isinstance(value, str) else value


def _our_value(value: Any, place: ParamPlace) -> Any:
    for ours, theirs in place.values.items():
        if theirs == value and type(theirs) is type(value):
            return ours
    return value


def _value(call: Call, name: str) -> Any:
    """The value in the call; of a tool choice its mode, unless it names a tool."""
    value = Param(name).value(call)
    if name == "tool_choice" and value is not None:
        return value.mode if value.name is None else None
    return value


def _set(call: Call, name: str, value: Any) -> Call:
    group, _, field = name.partition(".")
    if group == "cache":
        ir = msgspec.structs.replace(call.ir, cache=_with_field(call.ir.cache, field, value))
        return msgspec.structs.replace(call, ir=ir)
    kind = PARAM_GROUPS.get(group)
    if kind is not None:
        unset = kind()
        changed = _with_field(getattr(call.params, group) or unset, field or "mode", value)
        value = None if value is None and changed == unset else changed
    return msgspec.structs.replace(call, params=_with_field(call.params, group, value))


def _with_field(holder: T, name: str, value: Any) -> T:
    """A copy with this value in the field; None sets the field's default."""
    if value is None:
        fields = msgspec.structs.fields(holder)  # type: ignore[arg-type]
        value = next(field.default for field in fields if field.name == name)
    return msgspec.structs.replace(holder, **{name: value})  # type: ignore[type-var]


def _put(body: dict[str, Any], field: str, value: Any, path: str) -> None:
    *outer, name = field.split(".")
    for level in outer:
        body = body.setdefault(level, {})
    if name in body:
        raise InvalidRequest(f"another parameter sets {field} already", path=path)
    body[name] = value


def _find(value: Any, field: str) -> Any:
    for level in field.split(".") if field else ():
        if not isinstance(value, dict) or level not in value:
            return None
        value = value[level]
    return value


def _drop(body: dict[str, Any], field: str) -> None:
    """Remove a field, and the objects around it that become empty."""
    name, _, rest = field.partition(".")
    if rest:
        _drop(body[name], rest)
    if not rest or not body[name]:
        del body[name]


def _with(extras: Extras | None, wire: str, more: dict[str, Any]) -> Extras:
    """The extras with more fields for the wire; a field that is there already is an error."""
    path = f"extras.{wire}"
    body = object_members(((extras or {}).get(wire) or "{}").encode(), "extras", request_error)
    for name, value in more.items():
        raw = dumps(value, path=path)
        if name in body:
            raw = merge_fields(bytes(body[name]), raw, f"{path}.{name}")
        body[name] = msgspec.Raw(raw)
    return {**(extras or {}), wire: encode_members(body).decode()}


def _with_extras(item: T, wire: str, members: Members) -> T:
    """A call, a block or a part with these extras of the wire in place of its own."""
    extras: Extras = getattr(item, "extras", None) or {}
    others = {name: text for name, text in extras.items() if name != wire}
    extras = {**others, **(extras_of(wire, members) or {})}
    return msgspec.structs.replace(item, extras=extras or None)  # type: ignore[type-var]


def separate_unsupported(body: bytes, dialect: Dialect) -> tuple[bytes, Members]:
    """The body without the fields that the provider does not support, and those fields. A call with
    such a parameter is rendered without it; a request that was sent with the field keeps it, as an
    unknown field."""
    names = [name for name in dialect.fields if dialect.fields[name] is False]
    names = [name for name in names if name != "tool_choice" and string(name) in body]
    if not names:
        return body, {}
    try:
        members = decode_members(body)
    except DECODE_ERRORS:
        return body, {}  # the wire reports the error
    separate = {name: members.pop(name) for name in names if name in members}
    return encode_members(members), {n: raw for n, raw in separate.items() if bytes(raw) != b"null"}


def with_unsupported(call: Call, dialect: Dialect, members: Members) -> Call:
    """The call with these members among the extras of its wire."""
    if not members:
        return call
    known = decode_members((call.extras or {}).get(dialect.wire, "{}"))
    return _with_extras(call, dialect.wire, known | members)


def decode_marks(call: Call, wire: str, markers: DialectMarkers) -> Call:
    """The call with the markers in the extras of its parts moved to the caller's marks. A marker in
    another form than the row's stays in the extras."""
    reader = _MarkReader(wire, markers)
    ir = call.ir.revised(reader.message, reader.block)
    found = reader.marks + [BlockMark(reader.texts[-1], ttl) for ttl in reader.on_last]
    if not found:
        return call
    marks = sorted((*ir.cache.marks, *found), key=marked_message)
    plan = msgspec.structs.replace(ir.cache, marks=tuple(marks))
    return msgspec.structs.replace(call, ir=msgspec.structs.replace(ir, cache=plan))


class _MarkReader:
    """Removes markers from the extras of one call."""

    def __init__(self, wire: str, markers: DialectMarkers) -> None:
        self._wire = wire
        self._markers = markers
        self.marks: list[MarkRequest] = []
        self.texts: list[int] = []
        """The blocks with text."""
        self.on_last: list[Ttl] = []
        """TTLs of markers on their message, which mark its last block."""

    def message(self, message: Message) -> Message:
        before = len(self.marks)
        parts = tuple(self._part(part, message.id, (i,)) for i, part in enumerate(message.parts))
        fields = (self._message_fields(part, message.id) for part in parts)
        kept = tuple(part for part in fields if part is not None)
        if len(self.marks) == before:
            return message
        return msgspec.structs.replace(message, parts=kept)

    def block(self, index: int, block: PromptBlock) -> PromptBlock:
        if block.text.strip():
            self.texts.append(index)
        block = self._unmarked(block, lambda ttl: BlockMark(index, ttl))
        if block.extras is None or MESSAGE_KEY not in block.extras:
            return block
        fields = decode_members(block.extras[MESSAGE_KEY])
        ttl = take_dialect_marker(fields, self._markers)
        if ttl is None:
            return block
        self.on_last.append(ttl)
        return _with_extras(block, MESSAGE_KEY, fields)

    def _part(self, part: Any, message_id: str, path: tuple[int, ...]) -> Any:
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            inner = [self._part(p, message_id, (*path, i)) for i, p in enumerate(part.content)]
            part = msgspec.structs.replace(part, content=tuple(inner))
        return self._unmarked(part, lambda ttl: PartMark(message_id, path, ttl))

    def _message_fields(self, part: Part, message_id: str) -> Part | None:
        """The fields of a message without its marker, which marks the message's last part."""
        if not isinstance(part, Opaque) or part.provider != self._wire:
            return part
        if part.kind != _MESSAGE_FIELDS:
            return part
        fields = decode_members(part.json)
        ttl = take_dialect_marker(fields, self._markers)
        if ttl is None:
            return part
        self.marks.append(PartMark(message_id, (), ttl))
        if not fields:
            return None
        return msgspec.structs.replace(part, json=encode_members(fields).decode())

    def _unmarked(self, item: T, mark: Callable[[Ttl], MarkRequest]) -> T:
        extras = getattr(item, "extras", None)
        if extras is None or self._wire not in extras:
            return item
        fields = decode_members(extras[self._wire])
        ttl = take_dialect_marker(fields, self._markers)
        if ttl is None:
            return item
        self.marks.append(mark(ttl))
        return _with_extras(item, self._wire, fields)


def host_marks(call: Call) -> Call:
    """A call read from Chat, with the markers of gateways moved to the caller's marks."""
    for markers in _HOST_MARKERS:
        call = decode_marks(call, _CHAT, markers)
    return call


def own_part(part: Part, dialect: Dialect) -> Part:
    """The part, with the host's name if it is reasoning. Chat hosts send reasoning as plain text in
    a field that OpenAI does not have; it is sent back only to the same host."""
    if dialect.wire != _CHAT or not isinstance(part, Thinking) or part.provider != _CHAT:
        return part
    extras = part.extras or {}
    fields = decode_members(extras.get(_CHAT, "{}"))
    fields["host"] = msgspec.Raw(msgspec.json.encode(dialect.provider))
    return msgspec.structs.replace(part, extras={**extras, _CHAT: encode_members(fields).decode()})


def own_message(message: Message, dialect: Dialect) -> Message:
    if Thinking not in map(type, message.parts):
        return message
    parts = tuple(own_part(part, dialect) for part in message.parts)
    return msgspec.structs.replace(message, parts=parts)


def own_call(call: Call, dialect: Dialect) -> Call:
    """A call that was sent to the host: its reasoning is the host's."""
    if dialect.wire != _CHAT:
        return call
    messages = call.ir.body_chat()
    if Thinking not in {type(part) for message in messages for part in message.parts}:
        return call
    ir = call.ir.revised(lambda message: own_message(message, dialect))
    return call if ir is call.ir else msgspec.structs.replace(call, ir=ir)
