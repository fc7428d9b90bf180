"""What an app hands over, looked at before anything is made of it: a mistake is named by its field,
not by whatever trips over it later."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.prompt import Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.values import AnyTool, Conversation, Message, Tool

#: Whether an answer comes in pieces is decided by how its turn is made.
_PARAMS = frozenset(Params.__struct_fields__) - {"stream"}
_PLAIN = (str, int, float, type(None))
_TOOLS = get_args(AnyTool)


def params_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, each of the kind that it has to be."""
    unknown = sorted(set(given) - _PARAMS)
    if unknown:
        raise InvalidRequest(
            f"no such parameter; there are {', '.join(sorted(_PARAMS))}", path=unknown[0]
        )
    try:
        read = msgspec.convert(given, Params)
    except msgspec.ValidationError as problem:
        reason, _, place = str(problem).partition(" - at `$.")
        raise InvalidRequest(reason, path=f"params.{place.removesuffix('`')}") from None
    # A number stays as it was said: 1 and 1.0 are different bytes.
    return {
        name: value if isinstance(value, _PLAIN) else getattr(read, name)
        for name, value in given.items()
    }


def with_params(params: Params | None, more: Mapping[str, Any]) -> Params:
    """Parameters, and others that go before them."""
    if params is None:
        params = Params()
    elif not isinstance(params, Params):
        raise InvalidRequest(f"Params, not {type(params).__name__}", path="params")
    return msgspec.structs.replace(params, **params_of(more)) if more else params


def messages_given(messages: Iterable[Message], path: str) -> tuple[Message, ...]:
    """What is said already."""
    if isinstance(messages, str | Mapping):
        raise InvalidRequest(f"several messages, not {type(messages).__name__}", path=path)
    given = tuple(messages)
    for index, message in enumerate(given):
        if not isinstance(message, Message):
            raise InvalidRequest(
                f"a Message, not {type(message).__name__}", path=f"{path}[{index}]"
            )
    return given


def conversation_of(messages: Conversation | Iterable[Message]) -> Conversation:
    if isinstance(messages, Conversation):
        return messages
    return Conversation(messages_given(messages, "messages"))


def tools_of(tools: Iterable[AnyTool]) -> tuple[AnyTool, ...]:
    given = tuple(tools) if isinstance(tools, Iterable) else (tools,)
    for index, tool in enumerate(given):
        if not isinstance(tool, _TOOLS):
            told = "; a function goes into a ToolRegistry" if callable(tool) else ""
            raise InvalidRequest(f"a Tool, not {type(tool).__name__}{told}", path=f"tools[{index}]")
    seen: set[str] = set()
    for index, tool in enumerate(given):
        # Providers' own tools may share a name: each is said to its provider only.
        if isinstance(tool, Tool):
            if tool.name in seen:
                raise InvalidRequest(
                    f"there is already a tool `{tool.name}`", path=f"tools[{index}]"
                )
            seen.add(tool.name)
    return given


def blocks_of(system: Sequence[PromptBlock] | None) -> tuple[PromptBlock, ...]:
    if system is None:
        return ()
    if not isinstance(system, Iterable):
        raise InvalidRequest(f"a text or blocks, not {type(system).__name__}", path="system")
    blocks = tuple(system)
    for index, block in enumerate(blocks):
        if not isinstance(block, PromptBlock):
            raise InvalidRequest(
                f"a PromptBlock, not {type(block).__name__}", path=f"system[{index}]"
            )
    return blocks


def prompt_from(
    system: str | Sequence[PromptBlock] | None, cache: PromptCachePlan | None
) -> PromptIR:
    """The prompt that the keywords of a session stand for."""
    if cache is not None and not isinstance(cache, PromptCachePlan):
        raise InvalidRequest(f"must be a PromptCachePlan, not {type(cache).__name__}", path="cache")
    return PromptIR(
        system_text=system if isinstance(system, str) else "",
        system_blocks=() if isinstance(system, str) else blocks_of(system),
        cache=cache or PromptCachePlan(),
    )


def callback_of(value: Any, path: str) -> Any:
    """A function that is called without being awaited, or None."""
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
        raise InvalidRequest(f"must be a function, not {type(value).__name__}", path=path)
    return value


def seconds_of(value: Any, path: str) -> float | None:
    """A time that somebody gives something; none at all is possible, and is over at once."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidRequest(f"a number of seconds, not {value!r}", path=path)
    if value < 0:
        raise InvalidRequest(f"not before now: {value:g} s", path=path)
    return value
