"""Parameters that a provider says in its own words.

Before a call is rendered they are taken out of it and put into the wire's extras (or into a header)
as the row says; after a request is parsed they are taken out of the extras again. So no wire knows
of any dialect.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import msgspec

from anaphora.canonical import dumps
from anaphora.catalog import Dialect, ParamPlace
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptCachePlan, Reasoning, ToolChoice
from anaphora.values import Extras, Notice
from anaphora.wire.params import foreign_tier_notices
from anaphora.wire.reading import DECODE_ERRORS

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


class Said(msgspec.Struct, frozen=True):
    """A call without what its provider says in other words, and those words."""

    call: Call
    headers: tuple[Header, ...] = ()
    cache_params: tuple[tuple[str, bytes], ...] = ()
    notices: tuple[Notice, ...] = ()


def say(call: Call, dialect: Dialect) -> Said:
    """The call in the provider's words."""
    if not dialect.fields:
        return Said(call)
    headers: list[Header] = []
    cache_params: dict[str, bytes] = {}
    notices: list[Notice] = []
    body: dict[str, Any] = {}
    for param in dialect.fields:
        value = _get(call, param)
        if _unasked(param, value):
            continue
        place = dialect.place(param)
        if place is not None and _is_the_wires(call, param, place):
            continue
        call = _set(call, param, None)
        path = param if param.startswith("cache.") else f"params.{param}"
        if place is None:
            code = "cache_option_left_out" if param.startswith("cache.") else "param_left_out"
            notices.append(Notice(code, f"{dialect.provider} has no such field; left out", path))
            continue
        if place.closed and value not in place.values:
            why = f"{dialect.provider} has no word for {value}; left out"
            notices.append(Notice("param_left_out", why, path))
            continue
        word = place.values.get(value, value) if isinstance(value, str) else value
        if isinstance(value, bool):
            word = place.values.get("true" if value else "false", value)
        if isinstance(value, str) and (heard := _ours(word, place)) != value:
            # Two of our words are one of theirs: it means the first in the row.
            why = f"{dialect.provider} does not tell {value} from {heard}"
            notices.append(Notice("param_changed", why, path))
        if place.header:
            headers.append((place.header, word if isinstance(word, str) else dumps(word).decode()))
        else:
            _put(body, place.at, word, path)
        name = _CACHE_PARAMS.get(param)
        if name is not None:
            cache_params[name] = cache_params.get(name, b"") + dumps(word, path=path)
    if body:
        call = msgspec.structs.replace(call, extras=_with(call.extras, dialect.wire, body))
    return Said(call, tuple(headers), tuple(cache_params.items()), tuple(notices))


def hear(call: Call, dialect: Dialect) -> Call:
    """The call that a request in the provider's words makes."""
    text = (call.extras or {}).get(dialect.wire)
    if text is None or not dialect.fields:
        return call
    body = _members(text)
    heard = False
    for param in dialect.fields:
        place = dialect.place(param)
        if place is None or not place.at or not _unasked(param, _get(call, param)):
            continue
        field, _, inner = place.at.partition(".")
        if field not in body:
            continue
        whole = msgspec.json.decode(body[field])
        found = _find(whole, inner)
        try:
            value = msgspec.convert(_ours(found, place), _TYPES[param])
        except msgspec.ValidationError:
            continue  # a word that is not known stays what it is
        if value is None:
            continue
        call = _set(call, param, value)
        heard = True
        if inner:
            _drop(whole, inner)
        if inner and whole:
            body[field] = msgspec.Raw(dumps(whole))
        else:
            del body[field]
    if not heard:
        return call
    extras = {name: said for name, said in (call.extras or {}).items() if name != dialect.wire}
    if body:
        extras[dialect.wire] = _text(body)
    return msgspec.structs.replace(call, extras=extras or None)


def _is_the_wires(call: Call, param: str, place: ParamPlace) -> bool:
    """Words that the wire deals with itself: a choice of tools that has no other word here, and a
    tier of somebody else's, which the wire leaves out."""
    value = _get(call, param)
    if param == "tool_choice":
        return value not in place.values
    if param != "service_tier" or not foreign_tier_notices(call):
        return False
    return bool(place.values) and value not in (*place.values, *place.values.values())


def _ours(word: Any, place: ParamPlace) -> Any:
    for ours, theirs in place.values.items():
        if theirs == word and type(theirs) is type(word):
            return ours
    return word


# ── Parameters by name ───────────────────────────────────────────────────────────────────────────


def _get(call: Call, param: str) -> Any:
    if param == "tool_choice":
        choice = call.params.tool_choice
        return None if choice is None or choice.name is not None else choice.mode
    group, name = _levels(param)
    if not name:
        return getattr(call.params, group)
    holder: Any = call.ir.cache if group == "cache" else getattr(call.params, group)
    return None if holder is None else getattr(holder, name)


@functools.cache
def _levels(param: str) -> tuple[str, str]:
    """Asked at every turn for every parameter that the row names."""
    group, _, name = param.partition(".")
    return group, name


def _unasked(param: str, value: Any) -> bool:
    """Whether nobody asked for it. Cache options are off by default; a parameter that is off was
    turned off."""
    return value is None or value == () or (value is False and param.startswith("cache."))


def _set(call: Call, param: str, value: Any) -> Call:
    group, _, name = param.partition(".")
    replace = msgspec.structs.replace
    if group == "cache":
        plan = replace(call.ir.cache, **{name: _or_default(PromptCachePlan, name, value)})
        return replace(call, ir=replace(call.ir, cache=plan))
    params = call.params
    if param == "tool_choice":
        old = params.tool_choice
        kept = None if old is None else old.parallel
        choice = None
        if value is not None or kept is not None:
            choice = ToolChoice(value or "auto", None, kept)
        return replace(call, params=replace(params, tool_choice=choice))
    if group == "tool_choice":
        choice = replace(params.tool_choice or ToolChoice(), parallel=value)
        empty = choice == ToolChoice() and value is None
        return replace(call, params=replace(params, tool_choice=None if empty else choice))
    if group == "reasoning":
        asked = replace(params.reasoning or Reasoning(), **{name: value})
        return replace(
            call, params=replace(params, reasoning=None if asked == Reasoning() else asked)
        )
    return replace(call, params=replace(params, **{group: _or_default(Params, group, value)}))


def _or_default(kind: Any, name: str, value: Any) -> Any:
    if value is not None:
        return value
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == name)


# ── Fields by path ───────────────────────────────────────────────────────────────────────────────


def _put(body: dict[str, Any], at: str, value: Any, path: str) -> None:
    *outer, name = at.split(".")
    for level in outer:
        body = body.setdefault(level, {})
    if name in body:
        raise InvalidRequest(f"another parameter says {at} already", path=path)
    body[name] = value


def _find(value: Any, at: str) -> Any:
    for level in at.split(".") if at else ():
        if not isinstance(value, dict) or level not in value:
            return None
        value = value[level]
    return value


def _drop(body: dict[str, Any], at: str) -> None:
    """Takes a field out, and the objects around it that are empty then."""
    name, _, rest = at.partition(".")
    if rest:
        _drop(body[name], rest)
    if not rest or not body[name]:
        del body[name]


def _with(extras: Extras | None, wire: str, more: dict[str, Any]) -> Extras:
    """The extras with more fields for the wire; a field that is there already is an error."""
    path = f"extras.{wire}"
    body = _members((extras or {}).get(wire) or "{}")
    for name, value in more.items():
        if name in body:
            value = _merged(msgspec.json.decode(body[name]), value, f"{path}.{name}")
        body[name] = msgspec.Raw(dumps(value, path=path))
    return {**(extras or {}), wire: _text(body)}


def _merged(came: Any, more: Any, path: str) -> Any:
    if not isinstance(came, dict) or not isinstance(more, dict):
        why = "a parameter of the call says this already; take one of them out"
        raise InvalidRequest(why, path=path)
    whole = dict(came)
    for name, value in more.items():
        whole[name] = _merged(came[name], value, f"{path}.{name}") if name in came else value
    return whole


def _members(text: str) -> dict[str, msgspec.Raw]:
    """The fields of an object, each as it came."""
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS as problem:
        raise InvalidRequest(f"not a JSON object: {problem}", path="extras") from None


def _text(body: dict[str, msgspec.Raw]) -> str:
    return msgspec.json.encode(body).decode()
