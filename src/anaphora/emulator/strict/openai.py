"""What OpenAI rejects on its two wires. An error names the parameter, and has a code."""

from __future__ import annotations

from functools import partial
from typing import Any

from anaphora import errors
from anaphora.catalog.api_limits import output_limits
from anaphora.emulator.exchange import nested
from anaphora.errors import Upstream
from anaphora.wire.openai_chat import fields as chat
from anaphora.wire.openai_responses import fields as responses

from . import (
    CheckedRequest,
    Object,
    WireChecks,
    chat_media,
    check_fields,
    check_media,
    members_by_type,
    objects,
    rejected,
    responses_media,
    text,
    too_long,
)
from .schemas import check_output, check_tools

CHAT = chat.TABLE.names(beta=False)
MESSAGES = chat.TABLE.message_fields
PARTS = members_by_type(chat.TABLE.blocks)
RESPONSES = responses.TABLE.names(beta=False) - responses.CODEX - {"logprobs"}
INPUT_TOKENS = responses.TABLE.names(beta=False, counted=True) | {"personality"}
ITEMS = members_by_type(responses.ITEMS)
_ITEMS = {kind: fields | responses.CODEX_ITEM for kind, fields in ITEMS.items()}
#: The most replies to one request: thisisartium/continuous-alignment-testing#25.
_MAX_REPLIES = 128
#: The fields in which an assistant's message has content, and those of its reasoning.
_CONTENT = ("content", "tool_calls", "function_call", "audio", "refusal")
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_SYSTEM_ROLES = ("system", "developer")
#: Providers that hold strict schemas to OpenAI's rules: OpenAI, and Azure (moeru-ai/xsai#202).
_STRICT_SCHEMAS = ("openai", "azure")
#: The fields that name what OpenAI keeps.
_STORED = ("previous_response_id", "conversation", "prompt")


# ── Both wires ───────────────────────────────────────────────────────────────────────────────────


def _missing(param: str) -> Upstream:
    message = f"Missing required parameter: '{param}'."
    return rejected(message, param=param, code="missing_required_parameter")


def _unknown(path: str, field: str) -> Upstream:
    """openai/codex#10834, bestruirui/octopus#31."""
    param = path + field
    return rejected(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def _unsupported(param: str, more: str = "") -> Upstream:
    """appatalks/eva-agent#83, microsoft/clarity-agent#59."""
    message = f"Unsupported parameter: '{param}' is not supported with this model.{more}"
    return rejected(message, param=param, code="unsupported_parameter")


def _model(request: CheckedRequest) -> None:
    if not request.body.get("model"):
        raise rejected("you must provide a model parameter")


def _sampling(request: CheckedRequest) -> None:
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


def _stream_options(request: CheckedRequest) -> None:
    """The SDK's docstring: only with `stream: true`."""
    if request.body.get("stream_options") is not None and request.body.get("stream") is not True:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise rejected(message, param="stream_options")


def _tool_choice(request: CheckedRequest, without_tools: tuple[str | None, ...] = (None,)) -> None:
    """A choice needs tools (writer/writer-framework#1013), but for `without_tools`; and a name one
    of them."""
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
    _model(request)
    if "messages" not in request.body:
        raise _missing("messages")
    if request.body["messages"] == []:
        reason = "Expected an array with minimum length 1, but got an empty array instead."
        message = f"Invalid 'messages': empty array. {reason}"
        raise rejected(message, param="messages", code="empty_array")


def _chat_fields(request: CheckedRequest) -> None:
    rows: list[tuple[Object, frozenset[str] | None, str]] = [(request.body, CHAT, "")]
    for index, message in request.messages:
        path = f"messages[{index}]."
        rows.append((message, MESSAGES.get(text(message.get("role"))), path))
        parts = request.blocks(index, message)
        rows += [(part.raw, part.row.members, f"{part.path}.") for part in parts]
    check_fields(rows, _unknown)


def _roles(request: CheckedRequest) -> None:
    taken = request.profile.system_roles
    for index, message in request.messages:
        role, param = message.get("role"), f"messages[{index}].role"
        if role is None:
            raise _missing(param)
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
        open_calls = [text(call.get("id")) for _, call in objects(message.get("tool_calls"))]
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


def _names_json(request: CheckedRequest, *more: Any) -> bool:
    texts = list(more)
    for _, message in request.messages:
        texts += [message.get("content"), message.get("output")]
        texts += [part.get("text") for _, part in objects(message.get("content"))]
    return any(isinstance(each, str) and "json" in each.lower() for each in texts)


def _response_format(request: CheckedRequest) -> None:
    """openai/openai-python#1632; databricks/databricks-ai-bridge#211; mem0ai/mem0#3559."""
    output = request.body.get("response_format")
    if nested(output, "type") == "json_object" and not _names_json(request):
        raise rejected(
            "'messages' must contain the word 'json' in some form, to use 'response_format' of"
            " type 'json_object'.",
            param="messages",
        )
    if nested(output, "type") == "json_schema":
        if nested(output, "json_schema") is None:
            raise _missing("response_format.json_schema")
        if not nested(output, "json_schema", "name"):
            raise _missing("response_format.json_schema.name")


def _chat_schemas(request: CheckedRequest) -> None:
    if request.facts.provider not in _STRICT_SCHEMAS:
        return
    check_tools(request.body.get("tools"))
    output = nested(request.body, "response_format", "json_schema")
    check_output(output, "response_format", code=None)


def _features(request: CheckedRequest) -> None:
    """The SDK's docstring: `max_tokens` is not compatible with o-series models; gpt-5 and later
    reject it too (decolua/9router#560)."""
    if request.body.get("max_tokens") is not None and request.profile.can("reasoning"):
        raise _unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    _sampling(request)
    if request.body.get("stop") is not None and request.profile.refuses("stop"):
        raise _unsupported("stop")
    search = request.profile.web_search_options
    refused = search is not None and not search.value and request.profile.known
    if request.body.get("web_search_options") is not None and refused:  # BerriAI/litellm#12311
        raise _unknown("", "web_search_options")


def _deepseek_content(request: CheckedRequest) -> None:
    """DeepSeek's error for an assistant's message of reasoning alone, as its clients quote it."""
    if request.facts.provider != "deepseek":
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
        _roles,
        _tool_messages,
        _audio,
        check_media(chat_media),
        _replies,
        _response_format,
        _chat_schemas,
        _features,
        _stream_options,
        _tool_choice,
        partial(too_long, param="messages"),
    ),
    provider_checks=(_deepseek_content, _chat_schemas),
)


# ── Responses ────────────────────────────────────────────────────────────────────────────────────


def _responses_fields(request: CheckedRequest) -> None:
    # A stored prompt may name the model, and counting needs none.
    if not request.counts and not request.body.get("prompt"):
        _model(request)
    if "response_format" in request.body:  # mkht/PSOpenAI#44
        message = (
            "Unsupported parameter: 'response_format'. In the Responses API, this parameter has "
            "moved to 'text.format'."
        )
        raise rejected(message, param="response_format", code="unsupported_parameter")
    known = INPUT_TOKENS if request.counts else RESPONSES | responses.CODEX
    check_fields([(request.body, known, "")], _unknown)
    items = [(item, _ITEMS.get(_kind(item)), f"input[{i}].") for i, item in request.messages]
    check_fields(items, _unknown)


def _kind(item: Object) -> str:
    """The type of an item; messages and references need not state it."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else "item_reference"


def _item_order(request: CheckedRequest) -> None:
    """Calls and their outputs, reasoning and the item behind it, compaction at the end."""
    items = [(_kind(item), item) for _, item in request.messages]
    _tool_pairs(request, items)
    for index, (kind, item) in enumerate(items):
        if kind != "reasoning" or not item.get("id"):
            continue
        # A recorded 400: reasoning belongs to the item that the model gave after it, which has an
        # id or is a call; a plain assistant message is not that.
        after = next((each for each in items[index + 1 :] if each[0] != "reasoning"), ("", {}))
        kind, item_after = after
        given = bool(kind) and not kind.endswith("_output")
        if kind == "message":
            given = bool(item_after.get("id")) and item_after.get("role") == "assistant"
        if not given:
            reason = f"Item '{item['id']}' of type 'reasoning' was provided without its required"
            raise rejected(f"{reason} following item.", param="input")
    if any(kind == "compaction_trigger" for kind, _ in items[:-1]):  # PROVIDERS.md, 2b
        raise rejected("A compaction_trigger must be the last input item.", param="input")


def _tool_pairs(request: CheckedRequest, items: list[tuple[str, Object]]) -> None:
    """What an earlier response, a conversation or a reference holds is with the provider.
    continuedev/continue#10092, bytedance/trae-agent#245."""
    # A tool search may have a function's output too.
    calls = {text(item.get("call_id")) for kind, item in items if kind.endswith("_call")}
    outputs = {text(item.get("call_id")) for kind, item in items if not kind.endswith("_call")}
    stored = request.body.get("previous_response_id") or request.body.get("conversation")
    stored = stored or any(kind == "item_reference" for kind, _ in items)
    for kind, item in items:
        call_id = text(item.get("call_id"))
        if kind == "function_call_output" and not stored and call_id not in calls:
            reason = f"No tool call found for function call output with call_id {call_id}."
            raise rejected(reason, param="input")
        if kind == "function_call" and call_id not in outputs and not item.get("async"):
            raise rejected(f"No tool output found for function call {call_id}.", param="input")


def _continuation(request: CheckedRequest) -> None:
    """`previous_response_id` excludes a conversation (the SDK's docstring), and what is not
    stored cannot be continued (PROVIDERS.md, section 9)."""
    previous = request.body.get("previous_response_id")
    if previous is None:
        return
    if request.body.get("conversation") is not None:
        message = (
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of them."
        )
        param = "previous_response_id"
        raise rejected(message, param=param, code="mutually_exclusive_parameters")
    if request.body.get("store") is False:
        raise errors.NotFound(
            f"Previous response with id '{previous}' not found.",
            status=400,
            code="previous_response_not_found",
            param="previous_response_id",
        )


def _text_format(request: CheckedRequest) -> None:
    """openai/openai-node#1404. In JSON mode, the word in `instructions` is not enough: reports of
    several apps. Stored items may have it."""
    is_json = nested(request.body, "text", "format", "type") == "json_object"
    stored = any(request.body.get(name) for name in _STORED)
    if is_json and not stored and not _names_json(request, request.body.get("input")):
        raise rejected(
            "Response input messages must contain the word 'json' in some form to use"
            " 'text.format' of type 'json_object'.",
            param="input",
        )
    if nested(request.body, "text", "format", "type") == "json_schema":
        for path in ("text.format.name", "text.format.schema"):
            if not nested(request.body, *path.split(".")):
                raise _missing(path)


def _responses_schemas(request: CheckedRequest) -> None:
    """The code: mavam/pi-web-providers#14."""
    if request.facts.provider not in _STRICT_SCHEMAS:
        return
    check_tools(request.body.get("tools"))
    output = nested(request.body, "text", "format")
    check_output(output, "text.format.schema", code="invalid_json_schema")


def _shortest_answer(request: CheckedRequest) -> None:
    """OpenAI's, earendil-works/pi#6265, and Azure's, vectorize-io/hindsight#58."""
    limits, given = output_limits(request.facts.wire), request.body.get("max_output_tokens")
    if request.facts.provider not in limits.rejected_by or not isinstance(given, int):
        return
    if given < limits.least_tokens:
        bound = f"Expected a value >= {limits.least_tokens}, but got {given} instead."
        message = f"Invalid 'max_output_tokens': integer below minimum value. {bound}"
        raise rejected(message, param="max_output_tokens", code="integer_below_min_value")


def _overflow(request: CheckedRequest) -> None:
    if request.body.get("truncation") != "auto":
        too_long(request, param="input")


RESPONSES_CHECKS = WireChecks(
    messages_field="input",
    checks=(
        _responses_fields,
        _continuation,
        _item_order,
        check_media(responses_media),
        _text_format,
        _responses_schemas,
        _shortest_answer,
        _sampling,
        _stream_options,
        # Codex sends auto with every request.
        partial(_tool_choice, without_tools=(None, "auto", "none")),
        _overflow,
    ),
    provider_checks=(_shortest_answer, _responses_schemas),
)
