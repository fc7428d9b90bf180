"""The parameters of a call, checked, with their short forms; and the call made from arguments.

    reasoning="high"           Reasoning(effort="high")
    tool_choice="required"     ToolChoice(mode="required"); also "auto", "none", "any"
    tool_choice="find"         ToolChoice(mode="tool", name="find")
    stop="END"                 ("END",)

Errors name the keyword and the value as the caller wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, Reasoning, ToolChoice
from anaphora.redaction import shown_value
from anaphora.values import AnyTool
from anaphora.yaml_values import nearest

from .arguments import check_results, extras_of, prompt_from, tools_of, with_leading_system
from .content import Content, messages_of
from .options import PARAM_KEYWORDS, TURN_KEYWORDS, CallOptions, check_keywords, refuse_both

_PLAIN = (str, int, float, type(None))
_RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}
_MINIMA = {"max_tokens": 1, "n": 1, "top_k": 0}
_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "True or False",
    "object": "a dict",
    "array": "a list",
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_MODES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}


def params_of(
    params: Mapping[str, Any],
    keywords: frozenset[str] = TURN_KEYWORDS,
    tools: Sequence[AnyTool] = (),
) -> dict[str, Any]:
    """Checked parameters. `keywords` are the candidates for a misspelled name; `tools` are those
    that a tool choice may name."""
    if not PARAM_KEYWORDS.issuperset(params):
        check_keywords(params, keywords)
    given = dict(params)
    if (reasoning := given.get("reasoning")) is not None:
        given["reasoning"] = _reasoning(reasoning)
    if (choice := given.get("tool_choice")) is not None:
        given["tool_choice"] = _tool_choice(choice, tools)
    if "stop" in given:
        given["stop"] = _stop(given["stop"])
    converted = _convert(given)
    check_ranges(given)
    # A number stays as it was given: 1 and 1.0 are different bytes.
    return {
        name: value if isinstance(value, _PLAIN) else getattr(converted, name)
        for name, value in given.items()
    }


def with_params(
    params: Params | None, options: Mapping[str, Any], tools: Sequence[AnyTool] = ()
) -> Params:
    """`params` with the parameters among the options."""
    changes: dict[str, Any] = {}
    if params is None:
        params = Params()
    else:
        if not isinstance(params, Params):
            raise InvalidRequest(
                f"must be Params, not {type(params).__name__}; write params=Params(…), or the"
                " keywords themselves",
                path="params",
            )
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(params).items()
            if name in PARAM_KEYWORDS and value is not None and value != ()
        }
    changes |= {name: value for name, value in options.items() if name in PARAM_KEYWORDS}
    if params.stream:  # awaiting a turn or iterating over it decides
        params = msgspec.structs.replace(params, stream=False)
    if not changes:
        return params
    return msgspec.structs.replace(params, **params_of(changes, tools=tools))


def check_ranges(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        if value is None or isinstance(value, str):
            continue
        if (bounds := _RANGES.get(name)) is not None and not bounds[0] <= value <= bounds[1]:
            low, high = bounds
            raise InvalidRequest(f"must be between {low} and {high}, got {value!r}", path=name)
        if (least := _MINIMA.get(name)) is not None and value < least:
            raise InvalidRequest(f"must be {least} or more, got {value!r}", path=name)


def check_temperature(params: Params, most: float, provider: str) -> None:
    """Some providers accept less than others."""
    value = params.temperature
    if isinstance(value, int | float) and not 0 <= value <= most:
        raise InvalidRequest(
            f"must be between 0 and {most:g} at {provider}, got {value!r}", path="temperature"
        )


def _convert(given: dict[str, Any]) -> Params:
    try:
        return msgspec.convert(given, Params)
    except msgspec.ValidationError as problem:
        reason, _, place = str(problem).partition(" - at `$.")
    name = place.removesuffix("`")
    if name in given and reason.startswith("Expected `"):
        kinds = reason.split("`")[1].split(" | ")
        wanted = " or ".join(_WANTED.get(kind, kind) for kind in kinds if kind != "null")
        reason = f"must be {wanted}, not {shown_value(given[name])}"
    raise InvalidRequest(reason, path=name)


def _reasoning(value: Any) -> Any:
    if isinstance(value, Reasoning):
        return value
    if isinstance(value, Mapping):
        if "type" in value:  # Anthropic's `thinking`
            value = {"mode": value["type"], **{n: v for n, v in value.items() if n != "type"}}
        return value
    if isinstance(value, str) and value in _EFFORTS:
        return Reasoning(effort=value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        hint = ""
    elif isinstance(value, int):
        hint = f"; write Reasoning(budget_tokens={value})"
    else:
        near = nearest(value, _EFFORTS)
        hint = f"; did you mean {near!r}?" if near else ""
    raise InvalidRequest(
        f"must be an effort ({', '.join(_EFFORTS)}) or a Reasoning, not {shown_value(value)}{hint}",
        path="reasoning",
    )


def _tool_choice(value: Any, tools: Sequence[AnyTool]) -> Any:
    if isinstance(value, ToolChoice):
        return value
    if isinstance(value, Mapping):
        return _choice_from(value, tools)
    names = [tool.name for tool in tools]
    if isinstance(value, str):
        if value in _MODES:
            return ToolChoice(mode=_MODES[value])
        if value in names:
            return ToolChoice(mode="tool", name=value)
    known = ", ".join((*_MODES, *names))
    near = nearest(value, (*_MODES, *names)) if isinstance(value, str) else ""
    hint = f"; did you mean {near!r}?" if near else ""
    raise InvalidRequest(
        f"must be a ToolChoice, or one of {known}, not {shown_value(value)}{hint}",
        path="tool_choice",
    )


def _choice_from(value: Mapping[str, Any], tools: Sequence[AnyTool]) -> Any:
    """The formats of the SDKs: `{"type": "function", "function": {"name": …}}`, `{"type": "tool",
    "name": …}`, `{"type": "any", "disable_parallel_tool_use": …}`."""
    if "type" not in value:
        return value
    kind, function = value["type"], value.get("function", value)
    if kind in ("function", "tool"):
        kind = function.get("name") if isinstance(function, Mapping) else None
    choice = _tool_choice(kind, tools)
    if (single := value.get("disable_parallel_tool_use")) is not None:
        choice = msgspec.structs.replace(choice, parallel=not single)
    return choice


def _stop(value: Any) -> Any:
    value = (value,) if isinstance(value, str) else value
    if isinstance(value, list | tuple) and "" in value:
        raise InvalidRequest("must not be an empty text", path="stop")
    return value


#: The field of a call for each keyword of `send`.
_PLACES_IN_CALL = {
    "system": "ir.system_text or ir.system_blocks",
    "tools": "tools",
    "cache": "ir.cache",
    "extras": "extras",
}


def call_of(content: Call | Content, model: str, options: CallOptions) -> Call:
    """The call made from the arguments of `send`."""
    if not isinstance(content, Call):
        if isinstance(content, Iterator):
            content = tuple(content)
        if content is None:
            raise InvalidRequest("is missing; give a text or messages", path="content")
        system, messages = with_leading_system(options.get("system"), content, messages_of(content))
        if not messages:
            raise InvalidRequest("there is no message besides the system prompt", path="content")
        if len(messages) > 1:
            check_results(messages)
        tools = tools_of(options.get("tools")).source.current
        return Call(
            ir=prompt_from(system, options.get("cache"), messages),
            model=model,
            tools=tools,
            params=with_params(options.get("params"), options, tools),
            extras=extras_of(options.get("extras")),
        )
    refuse_both(options, "a Call", _PLACES_IN_CALL)
    params = content.params
    if not PARAM_KEYWORDS.isdisjoint(options) or "params" in options:
        params = with_params(options.get("params", params), options, content.tools)
    elif params.stream:  # awaiting or iterating decides
        params = msgspec.structs.replace(params, stream=False)
    return content if params is content.params else msgspec.structs.replace(content, params=params)
