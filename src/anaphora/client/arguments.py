"""Checks of the arguments that an app passes: an error names the argument at fault."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.prompt import Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.values import AnyTool, Conversation, Message, Tool

#: `stream` is decided by awaiting a turn or iterating over it.
_PARAMS = frozenset(Params.__struct_fields__) - {"stream"}
_PLAIN = (str, int, float, type(None))
_TOOLS = get_args(AnyTool)


def wrong_type(wanted: str, value: object, path: str) -> InvalidRequest:
    """The error for an argument of the wrong type."""
    return InvalidRequest(f"must be {wanted}, not {type(value).__name__}", path=path)


def params_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Checked parameters by name."""
    unknown = sorted(set(params) - _PARAMS)
    if unknown:
        raise InvalidRequest(
            f"no such parameter; there are {', '.join(sorted(_PARAMS))}", path=unknown[0]
        )
    try:
        converted = msgspec.convert(params, Params)
    except msgspec.ValidationError as problem:
        reason, _, place = str(problem).partition(" - at `$.")
        raise InvalidRequest(reason, path=f"params.{place.removesuffix('`')}") from None
    # A number stays as it was given: 1 and 1.0 are different bytes.
    return {
        name: value if isinstance(value, _PLAIN) else getattr(converted, name)
        for name, value in params.items()
    }


def with_params(params: Params | None, more: Mapping[str, Any]) -> Params:
    """Parameters, with others that go before them."""
    if params is None:
        params = Params()
    elif not isinstance(params, Params):
        raise wrong_type("Params", params, "params")
    return msgspec.structs.replace(params, **params_of(more)) if more else params


def messages_given(messages: Iterable[Message], path: str) -> tuple[Message, ...]:
    if isinstance(messages, str | Mapping):
        raise wrong_type("messages", messages, path)
    checked = tuple(messages)
    for index, message in enumerate(checked):
        if not isinstance(message, Message):
            raise wrong_type("a Message", message, f"{path}[{index}]")
    return checked


def conversation_of(messages: Conversation | Iterable[Message]) -> Conversation:
    if isinstance(messages, Conversation):
        return messages
    return Conversation(messages_given(messages, "messages"))


def tools_of(tools: Iterable[AnyTool]) -> tuple[AnyTool, ...]:
    checked = tuple(tools) if isinstance(tools, Iterable) else (tools,)
    names: set[str] = set()
    for index, tool in enumerate(checked):
        path = f"tools[{index}]"
        if not isinstance(tool, _TOOLS):
            hint = "; a function goes into a ToolRegistry" if callable(tool) else ""
            raise InvalidRequest(f"must be a Tool, not {type(tool).__name__}{hint}", path=path)
        # Tools of different providers may share a name: each is sent to its provider only.
        if isinstance(tool, Tool):
            if tool.name in names:
                raise InvalidRequest(f"there is already a tool `{tool.name}`", path=path)
            names.add(tool.name)
    return checked


def prompt_from(
    system: str | Sequence[PromptBlock] | None, cache: PromptCachePlan | None
) -> PromptIR:
    """The prompt that the keywords of a session stand for."""
    if cache is not None and not isinstance(cache, PromptCachePlan):
        raise wrong_type("a PromptCachePlan", cache, "cache")
    return PromptIR(
        system_text=system if isinstance(system, str) else "",
        system_blocks=() if system is None or isinstance(system, str) else _blocks(system),
        cache=cache or PromptCachePlan(),
    )


def _blocks(system: Sequence[PromptBlock]) -> tuple[PromptBlock, ...]:
    if not isinstance(system, Iterable):
        raise wrong_type("a text or blocks", system, "system")
    blocks = tuple(system)
    for index, block in enumerate(blocks):
        if not isinstance(block, PromptBlock):
            raise wrong_type("a PromptBlock", block, f"system[{index}]")
    return blocks


def callback_of(value: Any, path: str) -> Any:
    """A function that is called and not awaited, or None."""
    if value is None:
        return None
    call = value if inspect.isroutine(value) else getattr(value, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(call):
        raise InvalidRequest(
            "an async function would never be awaited here; give a plain function, which may put"
            " the value into a queue or create a task",
            path=path,
        )
    if not callable(value):
        raise wrong_type("a function", value, path)
    return value


def choice_of(value: Any, choices: Any, path: str) -> None:
    """Raises unless the value is one of a `Literal`'s."""
    if value not in get_args(choices):
        raise InvalidRequest(f"must be one of {', '.join(get_args(choices))}", path=path)


def seconds_of(value: Any, path: str) -> float | None:
    """A time limit in seconds; 0 is over at once."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidRequest(f"must be a number of seconds, not {value!r}", path=path)
    if value < 0:
        raise InvalidRequest(f"must be ≥ 0, got {value:g}", path=path)
    return value
