"""Requests of a dialect: parameters in the provider's own fields and values, and its markers.

Before a call is rendered its parameters move into the wire's extras (or a header) as the row says;
after a request is parsed they are taken out of the extras again. So no wire knows of any dialect.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Dialect, ParamPlace
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
    ToolChoice,
)
from anaphora.values import Extras, Message, Notice, Part, ToolResult, Ttl
from anaphora.wire.markers import DialectMarkers, take_dialect_marker
from anaphora.wire.params import foreign_tier_notices
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_members,
    encode_members,
    extras_of,
    object_members,
    request_error,
)

Header = tuple[str, str]

#: What the cache rules call the parameters that affect a cache.
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


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────


class EncodedParams(msgspec.Struct, frozen=True):
    """A call whose own parameters of the provider are in its extras, and what goes elsewhere."""

    call: Call
    headers: tuple[Header, ...] = ()
    cache_params: tuple[tuple[str, bytes], ...] = ()
    notices: tuple[Notice, ...] = ()


def encode_params(call: Call, dialect: Dialect) -> EncodedParams:
    """The call with its parameters in the provider's fields."""
    if not dialect.fields:
        return EncodedParams(call)
    headers: list[Header] = []
    cache_params: dict[str, bytes] = {}
    notices: list[Notice] = []
    body: dict[str, Any] = {}
    for param in dialect.fields:
        value = _get(call, param)
        if _is_unset(param, value):
            continue
        place = dialect.place(param)
        if place is not None and _is_left_to_wire(call, param, place):
            continue
        call = _set(call, param, None)
        path = param if param.startswith("cache.") else f"params.{param}"
        notice = _no_place(dialect.provider, param, place, value, path)
        if notice is not None or place is None:
            notices += [] if notice is None else [notice]
            continue
        encoded = _their_value(value, place)
        if isinstance(value, str) and (ours := _our_value(encoded, place)) != value:
            # Two of our values are one of theirs: it means the first in the row.
            reason = f"{dialect.provider} does not distinguish {value} from {ours}"
            notices.append(Notice("param_changed", reason, path))
        if place.header:
            text = encoded if isinstance(encoded, str) else dumps(encoded).decode()
            headers.append((place.header, text))
        else:
            _put(body, place.at, encoded, path)
        name = _CACHE_PARAMS.get(param)
        if name is not None:
            cache_params[name] = cache_params.get(name, b"") + dumps(encoded, path=path)
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
    for param in dialect.fields:
        place = dialect.place(param)
        if place is None or not place.at or not _is_unset(param, _get(call, param)):
            continue
        field, _, inner = place.at.partition(".")
        if field not in body:
            continue
        whole = msgspec.json.decode(body[field])
        try:
            value = msgspec.convert(_our_value(_find(whole, inner), place), _TYPES[param])
        except msgspec.ValidationError:
            continue  # an unknown value stays in the extras
        if value is None:
            continue
        call = _set(call, param, value)
        changed = True
        if inner:
            _drop(whole, inner)
        if inner and whole:
            body[field] = msgspec.Raw(dumps(whole))
        else:
            del body[field]
    if not changed:
        return call
    extras = {name: text for name, text in (call.extras or {}).items() if name != dialect.wire}
    return msgspec.structs.replace(
        call, extras=extras | (extras_of(dialect.wire, body) or {}) or None
    )


def _no_place(
    provider: str, param: str, place: ParamPlace | None, value: Any, path: str
) -> Notice | None:
    """The notice for a parameter or value that the provider does not have."""
    if place is None:
        code = "cache_option_left_out" if param.startswith("cache.") else "param_left_out"
        return Notice(code, f"{provider} has no such field; left out", path)
    if place.closed and value not in place.values:
        return Notice("param_left_out", f"{provider} has no value for {value}; left out", path)
    return None


def _is_left_to_wire(call: Call, param: str, place: ParamPlace) -> bool:
    """Values that the wire deals with itself: a tool choice that has no other value here, and
    another provider's tier, which the wire leaves out."""
    value = _get(call, param)
    if param == "tool_choice":
        return value not in place.values
    if param != "service_tier" or not foreign_tier_notices(call):
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


def _get(call: Call, param: str) -> Any:
    if param == "tool_choice":
        choice = call.params.tool_choice
        return None if choice is None or choice.name is not None else choice.mode
    group, _, name = param.partition(".")
    if not name:
        return getattr(call.params, group)
    holder: Any = call.ir.cache if group == "cache" else getattr(call.params, group)
    return None if holder is None else getattr(holder, name)


def _is_unset(param: str, value: Any) -> bool:
    """Cache options are off by default; a parameter that is off was turned off."""
    return value is None or value == () or (value is False and param.startswith("cache."))


def _set(call: Call, param: str, value: Any) -> Call:
    group, _, name = param.partition(".")
    replace = msgspec.structs.replace
    if group == "cache":
        plan = replace(call.ir.cache, **{name: _or_default(PromptCachePlan, name, value)})
        return replace(call, ir=replace(call.ir, cache=plan))
    params = call.params
    changed: dict[str, Any]
    if param == "tool_choice":
        parallel = None if params.tool_choice is None else params.tool_choice.parallel
        unset = value is None and parallel is None
        changed = {group: None if unset else ToolChoice(value or "auto", None, parallel)}
    elif group == "tool_choice":
        choice = replace(params.tool_choice or ToolChoice(), parallel=value)
        changed = {group: None if choice == ToolChoice() and value is None else choice}
    elif group == "reasoning":
        reasoning = replace(params.reasoning or Reasoning(), **{name: value})
        changed = {group: None if reasoning == Reasoning() else reasoning}
    else:
        changed = {group: _or_default(Params, group, value)}
    return replace(call, params=replace(params, **changed))


def _or_default(kind: Any, name: str, value: Any) -> Any:
    if value is not None:
        return value
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == name)


# ── Fields by path ───────────────────────────────────────────────────────────────────────────────


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
    """Takes a field out, and the objects around it that are empty then."""
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
        if name in body:
            value = _merged(msgspec.json.decode(body[name]), value, f"{path}.{name}")
        body[name] = msgspec.Raw(dumps(value, path=path))
    return {**(extras or {}), wire: encode_members(body).decode()}


def _merged(extra: Any, more: Any, path: str) -> Any:
    if not isinstance(extra, dict) or not isinstance(more, dict):
        reason = "a parameter of the call sets this already; take one of them out"
        raise InvalidRequest(reason, path=path)
    whole = dict(extra)
    for name, value in more.items():
        whole[name] = _merged(extra[name], value, f"{path}.{name}") if name in extra else value
    return whole


# ── Fields that the provider does not have ───────────────────────────────────────────────────────


def separate_unsupported(body: bytes, dialect: Dialect) -> tuple[bytes, Members]:
    """The body without the fields that the provider has no place for, and these. A call with such a
    parameter is rendered without it; a request that was sent with it all the same keeps it, as an
    unknown field."""
    names = [name for name in dialect.fields if dialect.fields[name] is False]
    names = [name for name in names if name != "tool_choice" and string(name) in body]
    if not names:
        return body, {}
    try:
        members = decode_members(body)
    except DECODE_ERRORS:
        return body, {}  # the wire reports what is wrong with it
    separate = {name: members.pop(name) for name in names if name in members}
    return encode_members(members), {n: raw for n, raw in separate.items() if bytes(raw) != b"null"}


def with_unsupported(call: Call, dialect: Dialect, members: Members) -> Call:
    """The call with these members among the extras of its wire."""
    if not members:
        return call
    extras = call.extras or {}
    known = decode_members(extras.get(dialect.wire, "{}"))
    more = extras_of(dialect.wire, known | members) or {}
    return msgspec.structs.replace(call, extras={**extras, **more})


# ── Markers in the provider's form ───────────────────────────────────────────────────────────────


def decode_marks(call: Call, wire: str, markers: DialectMarkers) -> Call:
    """The call with the markers among the extras of its parts as the caller's marks. A marker in
    another form than the row's stays where it is."""
    reader = _MarkReader(wire, markers)
    ir = call.ir.revised(reader.message, reader.block)
    if not reader.marks:
        return call
    plan = msgspec.structs.replace(ir.cache, marks=(*ir.cache.marks, *reader.marks))
    return msgspec.structs.replace(call, ir=msgspec.structs.replace(ir, cache=plan))


class _MarkReader:
    def __init__(self, wire: str, markers: DialectMarkers) -> None:
        self._wire = wire
        self._markers = markers
        self.marks: list[MarkRequest] = []

    def block(self, index: int, block: PromptBlock) -> PromptBlock:
        extras, ttl = self._without_marker(block.extras)
        if ttl is None:
            return block
        self.marks.append(BlockMark(index, ttl))
        return msgspec.structs.replace(block, extras=extras)

    def message(self, message: Message) -> Message:
        before = len(self.marks)
        parts = tuple(
            self._part(part, message.id, (index,)) for index, part in enumerate(message.parts)
        )
        if len(self.marks) == before:
            return message
        return msgspec.structs.replace(message, parts=parts)

    def _part(self, part: Any, message_id: str, path: tuple[int, ...]) -> Any:
        extras, ttl = self._without_marker(getattr(part, "extras", None))
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            inner: list[Part] = [
                self._part(each, message_id, (*path, index))
                for index, each in enumerate(part.content)
            ]
            part = msgspec.structs.replace(part, content=tuple(inner))
        if ttl is None:
            return part
        self.marks.append(PartMark(message_id, path, ttl))
        return msgspec.structs.replace(part, extras=extras)

    def _without_marker(self, extras: Extras | None) -> tuple[Extras | None, Ttl | None]:
        """The extras without the marker in them, and its TTL."""
        if extras is None or self._wire not in extras:
            return extras, None
        fields = decode_members(extras[self._wire])
        ttl = take_dialect_marker(fields, self._markers)
        if ttl is None:
            return extras, None
        rest = {name: text for name, text in extras.items() if name != self._wire}
        return rest | (extras_of(self._wire, fields) or {}) or None, ttl
