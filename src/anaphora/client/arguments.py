"""Checks of the arguments that an app passes, and the files that it names. An error names the
argument at fault."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar, get_args

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidConfig, InvalidRequest, InvalidTool
from anaphora.prompt import PromptBlock, PromptCachePlan, PromptIR, Segment
from anaphora.redaction import shown_value
from anaphora.tools import ToolRegistry
from anaphora.tools.functions import is_async
from anaphora.values import (
    AnyTool,
    Conversation,
    Extras,
    Message,
    MessageLike,
    ProviderTool,
    SegmentRole,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.values.codec import loads
from anaphora.wire import WIRES
from anaphora.wire.message_dicts import read_message, read_tool
from anaphora.yaml_values import nearest

from .content import FixedTools, ToolSet, wrong_type
from .options import StateText, SystemPrompt, Tools

T = TypeVar("T")

_TOOLS = get_args(AnyTool)
_HISTORY = SegmentRole.CONVERSATION


def watchers_of(watchers: object) -> list[Any]:
    if isinstance(watchers, Iterable) and not isinstance(watchers, str | bytes | Mapping):
        return [callback_of(each, f"watchers[{index}]") for index, each in enumerate(watchers)]
    name = getattr(watchers, "__name__", "…") if callable(watchers) else "…"
    raise InvalidRequest(
        f"must be a list of functions, not {type(watchers).__name__}; write watchers=[{name}]",
        path="watchers",
    )


def audit_of(audit: Any) -> Any:
    """The checked audit log, which gets each call when it ends."""
    if audit is None or (callable(getattr(audit, "call_ended", None)) and hasattr(audit, "check")):
        return audit
    if isinstance(audit, str | PurePath):
        reason = "must be a log, not its path; write audit=anaphora.audit.AuditLog(…)"
        raise InvalidRequest(reason, path="audit")
    raise wrong_type("an anaphora.audit.AuditLog", audit, "audit")


def wrong_client(name: str, value: object) -> InvalidConfig:
    """The error of a constructor without a configuration, with what to write instead."""
    given = shown_value(value) if isinstance(value, str) else type(value).__name__
    return InvalidConfig(
        f"{name}({'' if value is None else given}) has no providers: write {name}.from_env() for"
        f" keys in the environment, {name}.from_config('llm.yaml') for a configuration, or"
        " anaphora.complete(model, content) for a single call"
    )


def not_copyable(client: object) -> TypeError:
    """The TypeError that `pickle` and `copy` expect."""
    name = type(client).__name__
    return TypeError(f"a {name} cannot be copied or pickled; make one in each process")


def items_of(items: Iterable[T], kind: type[T], wanted: str, path: str) -> tuple[T, ...]:
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise wrong_type(wanted, items, path)
    checked = tuple(items)
    for index, item in enumerate(checked):
        if not isinstance(item, kind):
            raise wrong_type(f"a {kind.__name__}", item, f"{path}[{index}]")
    return checked


def state_of(value: Any) -> StateText:
    """Text at the end of every call, or a function that returns it."""
    if value is None or isinstance(value, str):
        return value
    if callable(value):
        if is_async(value):
            raise InvalidRequest(
                "an async function cannot be called here; await it before the turn and assign the"
                " result: chat.state = await …",
                path="state",
            )
        state: StateText = value
        return state
    raise wrong_type("a text or a function that returns one", value, "state")


def state_text(value: Any) -> str | None:
    """The checked result of a function that is given as `state`."""
    if value is None or isinstance(value, str):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidRequest(
        f"the function must return a text, and returned {type(value).__name__}", path="state"
    )


def flag_of(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"must be True or False, not {shown_value(value)}", path=path)
    return value


def extras_of(extras: Any) -> Extras | None:
    """Request fields by wire, as JSON text; dictionaries are encoded."""
    if extras is None:
        return None
    if not isinstance(extras, Mapping):
        raise wrong_type('a dict: {"anthropic": {"field": …}}', extras, "extras")
    checked: dict[str, str] = {}
    for name, fields in extras.items():
        path = f"extras.{name}"
        if isinstance(fields, Mapping):
            fields = canonical.dumps(dict(fields), path=path).decode()
        if not isinstance(fields, str):
            raise wrong_type(
                'a dict of fields or their JSON text, as in {"anthropic": {"field": …}}',
                fields,
                path,
            )
        if name not in WIRES and (near := nearest(str(name), WIRES)):
            raise InvalidRequest(f"there is no such wire; did you mean {near}?", path=path)
        if not isinstance(loads(fields, path=path), dict):
            raise InvalidRequest("must be a JSON object", path=path)
        checked[name] = fields
    return checked


def history_of(
    system: SystemPrompt | None, messages: Conversation | Iterable[MessageLike]
) -> tuple[SystemPrompt | None, Conversation]:
    """The system prompt and the history of a session: see `with_leading_system`."""
    if isinstance(messages, Conversation):
        return system, messages
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise wrong_type("a list of messages", messages, "messages")
    given = tuple(messages)
    read = tuple(read_message(each, f"messages[{index}]") for index, each in enumerate(given))
    system, rest = with_leading_system(system, given, read)
    return system, Conversation(rest)


def with_leading_system(
    system: SystemPrompt | None, given: object, messages: tuple[Message, ...]
) -> tuple[SystemPrompt | None, tuple[Message, ...]]:
    """The system prompt with the leading system messages after it, and the other messages. Only
    dictionaries are moved: a `Message` stays in place."""
    items = (given,) if isinstance(given, Mapping) else given
    blocks: list[PromptBlock] = []
    count = 0
    if isinstance(items, Sequence) and not isinstance(items, str):
        for item, message in zip(items, messages, strict=False):
            texts = [part for part in message.parts if isinstance(part, Text)]
            if not isinstance(item, Mapping) or message.role != "system":
                break
            if len(texts) < len(message.parts):
                break
            count += 1
            blocks += [PromptBlock("system", text.text, extras=text.extras) for text in texts]
    if not blocks:
        return system, messages[count:]
    if not system and len(blocks) == 1 and blocks[0].extras is None:
        return blocks[0].text, messages[count:]
    first = [PromptBlock("system", system)] if isinstance(system, str) and system else system
    labelled = [
        msgspec.structs.replace(block, label=f"message{index}")
        for index, block in enumerate(blocks)
    ]
    return (*(first or ()), *labelled), messages[count:]


def tools_of(tools: Tools | None) -> ToolSet:
    """A registry is used directly, so tools added to it later count. A list that contains functions
    or registries becomes a registry; a list of only `Tool`s keeps its order."""
    if tools is None:
        return ToolSet()
    if isinstance(tools, ToolRegistry):
        return ToolSet(tools, tools)
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        hint = f"; write tools=[{_name(tools)}]" if callable(tools) else ""
        raise InvalidRequest(
            f"must be a list of functions and Tools, or a ToolRegistry, not"
            f" {type(tools).__name__}{hint}",
            path="tools",
        )
    given = tuple(
        read_tool(tool, f"tools[{index}]") if isinstance(tool, Mapping) else tool
        for index, tool in enumerate(tools)
    )
    if all(isinstance(tool, _TOOLS) for tool in given):
        return ToolSet(FixedTools(_distinct(given)))
    registry = ToolRegistry()
    others: list[ProviderTool] = []
    for index, tool in enumerate(given):
        path = f"tools[{index}]"
        try:
            # Tools of different providers may share a name: each is sent to its provider only.
            if isinstance(tool, ProviderTool):
                others.append(tool)
            elif isinstance(tool, ToolRegistry):
                registry.add_all(tool)
            elif isinstance(tool, Tool) or callable(tool):
                registry.add(tool)
            else:
                raise wrong_type("a function, a Tool or a ToolRegistry", tool, path)
        except InvalidTool as error:
            where = error.path.removeprefix("tools.")
            reason = error.reason.partition("; pass replace=True")[0]
            raise InvalidTool(reason, path=f"{path}.{where}" if where else path) from None
    return ToolSet(FixedTools((*registry.current, *others)) if others else registry, registry)


def _distinct(tools: tuple[Any, ...]) -> tuple[AnyTool, ...]:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, Tool):
            if tool.name in names:
                path = f"tools[{index}]"
                raise InvalidTool(f"there is already a tool `{tool.name}`", path=path)
            names.add(tool.name)
    return tools


def _name(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__)


def prompt_from(
    system: SystemPrompt | None,
    cache: PromptCachePlan | None,
    messages: Sequence[Message] = (),
) -> PromptIR:
    if cache is not None and not isinstance(cache, PromptCachePlan):
        raise wrong_type("a PromptCachePlan", cache, "cache")
    return PromptIR(
        system_text=system if isinstance(system, str) else "",
        system_blocks=(
            ()
            if system is None or isinstance(system, str)
            else items_of(system, PromptBlock, "a text or blocks", "system")
        ),
        segments=(Segment.of(_HISTORY, *messages),) if messages else (),
        cache=cache or PromptCachePlan(),
    )


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
    if value not in get_args(choices):
        raise InvalidRequest(f"must be one of {', '.join(get_args(choices))}", path=path)


def seconds_of(value: Any, path: str) -> float | None:
    """A time limit in seconds; 0 expires at once."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidRequest(f"must be a number of seconds, not {shown_value(value)}", path=path)
    if value < 0:
        raise InvalidRequest(f"must be ≥ 0, got {value:g}", path=path)
    return value


def prompts_of(prompts: Any) -> Iterable[Any]:
    """The prompts of a fan-out."""
    if prompts is None:
        raise InvalidRequest("is missing; write client.map([…], model=…)", path="prompts")
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise InvalidRequest(
            f"must be a list of prompts, not {shown_value(prompts)}; for one prompt, use complete",
            path="prompts",
        )
    return prompts


def check_results(messages: Sequence[Message]) -> None:
    """Raises if a tool call has no result before the next message."""
    open_calls: dict[str, ToolCall] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                open_calls.pop(part.call_id, None)
        if message.role != "tool" and open_calls:
            break
        open_calls |= {part.id: part for part in message.parts if isinstance(part, ToolCall)}
    for call in open_calls.values():
        raise missing_result(call)


def missing_result(call: ToolCall) -> InvalidRequest:
    return InvalidRequest(
        f"the tool call {call.name!r} ({call.id}) has no result yet; send"
        f" ToolResult({call.id!r}, …) first, or let `run()` of a session run the tools",
        path="content",
    )


#: No provider takes a larger request.
MAX_FILE_BYTES = 50 * 2**20


def read_file(path: str | Path) -> bytes:
    """The content; an error names the path."""
    if not isinstance(path, str | Path):
        raise InvalidRequest(f"must be a path, not {type(path).__name__}", path="path")
    place = str(path)
    try:
        file = Path(path).expanduser()
        if not file.exists():
            raise InvalidRequest("there is no such file", path=place)
        if not file.is_file():
            raise InvalidRequest("is not a file", path=place)
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidRequest(f"cannot be read: {reason}", path=place) from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(
            f"is larger than {MAX_FILE_BYTES >> 20} MB, which no provider takes in a request;"
            " upload it to the provider and use its FileId, or a URL",
            path=place,
        )
    return data
