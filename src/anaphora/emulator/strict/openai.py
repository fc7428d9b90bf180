"""What OpenAI rejects on Chat Completions, and on both of its wires. An error names the parameter,
and has a code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from anaphora.emulator.exchange import nested
from anaphora.errors import Upstream
from anaphora.wire.openai_chat import fields as chat

from . import (
    CheckedRequest,
    Object,
    WireChecks,
    chat_media,
    check_fields,
    check_media,
    objects,
    rejected,
    text,
    too_long,
)

CHAT = chat.TABLE.names(beta=False)
MESSAGES = chat.TABLE.message_fields
#: The most replies to one request: thisisartium/continuous-alignment-testing#25.
_MAX_REPLIES = 128
#: The fields in which an assistant's message has content, and those of its reasoning.
_CONTENT = ("content", "tool_calls", "function_call", "audio", "refusal")
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_SYSTEM_ROLES = ("system", "developer")
#: Roles that every model takes.
_MODEL_ROLES = ("user", "assistant", "tool")
#: Providers that check strict schemas by OpenAI's rules: OpenAI, and Azure (moeru-ai/xsai#202).
STRICT_SCHEMAS = ("openai", "azure")
#: Providers that take no message of reasoning alone.
_NEEDS_CONTENT = ("deepseek",)


# ── Both wires ───────────────────────────────────────────────────────────────────────────────────


def missing(param: str) -> Upstream:
    message = f"Missing required parameter: '{param}'."
    return rejected(message, param=param, code="missing_required_parameter")


def unknown_parameter(path: str, field: str) -> Upstream:
    """openai/codex#10834, bestruirui/octopus#31."""
    param = path + field
    return rejected(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def _unsupported(param: str, more: str = "") -> Upstream:
    """appatalks/eva-agent#83, microsoft/clarity-agent#59."""
    message = f"Unsupported parameter: '{param}' is not supported with this model.{more}"
    return rejected(message, param=param, code="unsupported_parameter")


def model_required(request: CheckedRequest) -> None:
    if not request.body.get("model"):
        raise rejected("you must provide a model parameter")


def sampling(request: CheckedRequest) -> None:
    """Models that take only the default (the catalog's refusals): QwenLM/qwen-code#921."""
    highest, given = request.profile.max_temperature, request.body.get("temperature")
    if highest is not None and isinstance(given, int | float) and given > highest.value:
        bound = f"Expected a value <= {highest.value:g}, but got {given} instead."
        message = f"Invalid 'temperature': decimal above maximum value. {bound}"
        raise rejected(message, param="temperature", code="decimal_above_max_value")
    if not request.profile.refuses("altered_sampling"):
        return
    for field in ("temperature", "top_p"):
        value = request.body.get(field)
        if value is not None and value != 1:
            message = (
                f"Unsupported value: '{field}' does not support {value} with this model. Only the "
                "default (1) value is supported."
            )
            raise rejected(message, param=field, code="unsupported_value")


def stream_options(request: CheckedRequest) -> None:
    """The SDK's docstring: only with `stream: true`."""
    if request.body.get("stream_options") is not None and request.body.get("stream") is not True:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise rejected(message, param="stream_options")


def tool_choice(request: CheckedRequest, without_tools: tuple[str | None, ...] = (None,)) -> None:
    """A tool choice needs tools (writer/writer-framework#1013), except those in `without_tools`; a
    named tool must be one of them."""
    choice = request.body.get("tool_choice")
    tools = request.body.get("tools")
    if not tools and choice not in without_tools:
        message = (
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified."
        )
        raise rejected(message, param="tool_choice")
    name = nested(choice, "function", "name") or nested(choice, "name")
    named = nested(choice, "type") == "function" and name is not None
    if named and text(name) not in _tool_names(tools):
        reason = f"Tool choice '{name}' not found in 'tools' parameter."
        raise rejected(reason, param="tool_choice")


def _tool_names(tools: Any) -> set[str]:
    """The names of functions: inside `function` on Chat, and of Responses' tools and namespaces."""
    found: set[str] = set()
    for _, tool in objects(tools):
        found |= {text(tool.get("name")), text(nested(tool, "function", "name"))}
        found |= _tool_names(tool.get("tools"))
    return found


# ── Chat Completions ─────────────────────────────────────────────────────────────────────────────


def _required(request: CheckedRequest) -> None:
    model_required(request)
    if "messages" not in request.body:
        raise missing("messages")
    if request.body["messages"] == []:
        reason = "Expected an array with minimum length 1, but got an empty array instead."
        message = f"Invalid 'messages': empty array. {reason}"
        raise rejected(message, param="messages", code="empty_array")


def _chat_fields(request: CheckedRequest) -> None:
    check_fields([(request.body, CHAT, "")], unknown_parameter)


def _part_fields(request: CheckedRequest) -> None:
    """Unknown fields of messages are accepted: recorded calls with `name` in tool messages, or with
    LiteLLM's `provider_specific_fields`, were answered."""
    parts = itertools.chain.from_iterable(request.blocks.values())
    rows = ((part.raw, part.row.members, f"{part.path}.") for part in parts)
    check_fields(rows, unknown_parameter)


def _roles(request: CheckedRequest) -> None:
    taken = request.profile.system_roles
    for index, message in request.messages:
        role = message.get("role")
        if role in _MODEL_ROLES:
            continue
        param = f"messages[{index}].role"
        if role is None:
            raise missing(param)
        if text(role) not in MESSAGES:
            *others, last = (f"'{each}'" for each in MESSAGES)
            supported = f"Supported values are: {', '.join(others)}, and {last}."
            reason = f"Invalid value: '{role}'. {supported}"
            raise rejected(reason, param=param, code="invalid_value")
        if role in _SYSTEM_ROLES and taken is not None and role not in taken.value:
            # lobehub/lobehub#5704
            reason = f"Unsupported value: '{param}' does not support '{role}' with this model."
            raise rejected(reason, param=param, code="unsupported_value")


def _tool_messages(request: CheckedRequest) -> None:
    """Calls and their results: sdcb/chats#132; without an id: langchain-ai/langchain#22600."""
    open_calls: list[str] = []
    calls: set[str] = set()
    for index, message in request.messages:
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not call_id:
                reason = (
                    "Missing parameter 'tool_call_id': messages with role 'tool' must have a "
                    "'tool_call_id'."
                )
                raise rejected(reason, param=f"messages.[{index}].tool_call_id")
            if text(call_id) not in calls:
                reason = (
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'."
                )
                raise rejected(reason, param=f"messages.[{index}].role")
            open_calls = [each for each in open_calls if each != text(call_id)]
            continue
        if open_calls:
            raise _without_result(index, open_calls)
        if (given := message.get("tool_calls")) is None:
            calls = set()
            continue
        open_calls = [text(call.get("id")) for _, call in objects(given)]
        calls = set(open_calls)
    if open_calls:
        raise _without_result(len(request.messages), open_calls)


def _without_result(index: int, calls: list[str]) -> Upstream:
    message = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{', '.join(calls)}"
    )
    return rejected(message, param=f"messages.[{index}].role")


def _audio(request: CheckedRequest) -> None:
    """Recorded 400s of gpt-5-mini: audio is for the models that are made for it."""
    able = request.profile.capabilities
    if able is None or not able.verified or "audio" in able.value:
        return
    for index, message in request.messages:
        if index not in request.blocks:
            continue
        content = objects(message.get("content"))
        if any(part.get("type") == "input_audio" for _, part in content):
            reason = "Content blocks are expected to be either text or image_url type."
            param = f"messages[{index}]"
            raise rejected(f"Invalid '{param}'. {reason}", param=param, code="invalid_value")


def _replies(request: CheckedRequest) -> None:
    """thisisartium/continuous-alignment-testing#25."""
    n = request.body.get("n")
    if not isinstance(n, int) or 1 <= n <= _MAX_REPLIES:
        return
    bound, code = f"above maximum value. Expected a value <= {_MAX_REPLIES}", "above_max"
    if n < 1:
        bound, code = "below minimum value. Expected a value >= 1", "below_min"
    message = f"Invalid 'n': integer {bound}, but got {n} instead."
    raise rejected(message, param="n", code=f"integer_{code}_value")


def names_json(request: CheckedRequest, *more: Any) -> bool:
    texts = list(more)
    for _, message in request.messages:
        texts += [message.get("content"), message.get("output")]
        texts += [part.get("text") for _, part in objects(message.get("content"))]
    return any(isinstance(each, str) and "json" in each.lower() for each in texts)


def _response_format(request: CheckedRequest) -> None:
    """openai/openai-python#1632; databricks/databricks-ai-bridge#211; mem0ai/mem0#3559."""
    output = request.body.get("response_format")
    if output is None:
        return
    if nested(output, "type") == "json_object" and not names_json(request):
        raise rejected(
            "'messages' must contain the word 'json' in some form, to use 'response_format' of"
            " type 'json_object'.",
            param="messages",
        )
    if nested(output, "type") == "json_schema":
        if nested(output, "json_schema") is None:
            raise missing("response_format.json_schema")
        if not nested(output, "json_schema", "name"):
            raise missing("response_format.json_schema.name")


def _chat_schemas(request: CheckedRequest) -> None:
    if request.facts.provider not in STRICT_SCHEMAS:
        return
    check_tools(request.body.get("tools"))
    output = nested(request.body, "response_format", "json_schema")
    check_output(output, "response_format", code=None)


def _features(request: CheckedRequest) -> None:
    """The SDK's docstring: `max_tokens` is not compatible with o-series models; gpt-5 and later
    also reject it (decolua/9router#560)."""
    if request.body.get("max_tokens") is not None and request.profile.can("reasoning"):
        raise _unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    sampling(request)
    if request.body.get("stop") is not None and request.profile.refuses("stop"):
        raise _unsupported("stop")
    search = request.profile.web_search_options
    refused = search is not None and not search.value and request.profile.known
    if request.body.get("web_search_options") is not None and refused:  # BerriAI/litellm#12311
        raise unknown_parameter("", "web_search_options")


def _deepseek_content(request: CheckedRequest) -> None:
    """DeepSeek's error for an assistant's message of reasoning alone, as its clients quote it."""
    if request.facts.provider not in _NEEDS_CONTENT:
        return
    for index, message in request.messages:
        empty = all(message.get(name) is None for name in _CONTENT)
        assistant = message.get("role") == "assistant"
        if assistant and empty and any(message.get(name) for name in _REASONING):
            reason = "Invalid assistant message: content or tool_calls must be set"
            raise rejected(reason, param=f"messages[{index}]")


CHAT_CHECKS = WireChecks(
    messages_field="messages",
    checks=(
        _required,
        _chat_fields,
        _part_fields,
        _roles,
        _tool_messages,
        _audio,
        check_media(chat_media),
        _replies,
        _response_format,
        _chat_schemas,
        _features,
        stream_options,
        tool_choice,
        partial(too_long, param="messages"),
    ),
    provider_checks=(_deepseek_content, _chat_schemas),
)


# ── Strict schemas ───────────────────────────────────────────────────────────────────────────────
#
# Every object requires all of its properties, and forbids others.

#: Keywords whose values are schemas by name, one schema, and a list of schemas.
_NAMED, _SINGLE, _LISTED = ("properties", "$defs", "definitions"), ("items",), ("anyOf",)
_CLOSED = "'additionalProperties' is required to be supplied and to be false."
_COMPLETE = (
    "'required' is required to be supplied and to be an array including every key in properties."
)


def schema_problem(schema: Any) -> str:
    """The first problem of a strict schema, with its path; empty if it is valid.

    The wording is the service's: dottxt-ai/outlines#844, moeru-ai/xsai#202."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while waiting:
        context, found = waiting.pop()
        if not isinstance(found, dict):
            continue
        if (problem := _object_problem(found)) != "":
            return f"In context={context!r}, {problem}"
        children = [((*context, *path), child) for path, child in _children(found)]
        waiting += reversed(children)
    return ""


def _object_problem(schema: Object) -> str:
    kinds = schema.get("type")
    properties = schema.get("properties")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    if not is_object and not isinstance(properties, dict):
        return ""
    if schema.get("additionalProperties") is not False:
        return _CLOSED
    required = schema.get("required")
    names = set(map(text, required)) if isinstance(required, list) else set()
    given = properties if isinstance(properties, dict) else {}
    missing = next((name for name in given if name not in names), None)
    return "" if missing is None else f"{_COMPLETE} Missing '{missing}'."


def _children(schema: Object) -> Iterator[tuple[tuple[str, ...], Any]]:
    for keyword in _NAMED:
        value = schema.get(keyword)
        if isinstance(value, dict):
            yield from (((keyword, name), child) for name, child in value.items())
    for keyword in _SINGLE:
        yield (keyword,), schema.get(keyword)
    for keyword in _LISTED:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from (((keyword, str(at)), child) for at, child in enumerate(value))


def check_tools(tools: Any, path: str = "tools") -> None:
    """The parameters of strict functions: inside `function` on Chat, in the tool on Responses,
    whose namespaces hold tools."""
    for index, tool in objects(tools):
        place = f"{path}[{index}]"
        inner = tool.get("function")
        if isinstance(inner, dict):
            _check_function(inner, f"{place}.function.parameters")
        elif tool.get("type") == "function":
            _check_function(tool, f"{place}.parameters")
        check_tools(tool.get("tools"), f"{place}.tools")


def _check_function(function: Object, path: str) -> None:
    if function.get("strict") is not True or function.get("parameters") is None:
        return
    if problem := schema_problem(function["parameters"]):
        name = text(function.get("name"))
        message = f"Invalid schema for function '{name}': {problem}"
        raise rejected(message, param=path, code="invalid_function_parameters")


def check_output(output: Any, param: str, *, code: str | None) -> None:
    """A strict output format: an object with `name`, `schema` and `strict`."""
    if nested(output, "strict") is not True:
        return
    if problem := schema_problem(nested(output, "schema")):
        raise _output_error(text(nested(output, "name")), problem, param, code)


def _output_error(name: str, problem: str, param: str, code: str | None) -> Upstream:
    message = f"Invalid schema for response_format '{name}': {problem}"
    return rejected(message, param=param, code=code)
