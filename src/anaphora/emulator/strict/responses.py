"""What OpenAI rejects on Responses. An error names the parameter, and has a code."""

from __future__ import annotations

from anaphora import errors
from anaphora.catalog.api_limits import output_limits
from anaphora.emulator.exchange import nested
from anaphora.wire.openai_responses import fields as responses

from . import (
    CheckedRequest,
    Object,
    WireChecks,
    check_fields,
    check_media,
    members_by_type,
    rejected,
    responses_media,
    text,
    too_long,
)
from .openai import (
    STRICT_SCHEMAS,
    check_output,
    check_tools,
    missing,
    model_required,
    names_json,
    sampling,
    stream_options,
    tool_choice,
    unknown_parameter,
)

RESPONSES = responses.TABLE.names(beta=False) - responses.CODEX - {"logprobs"}
INPUT_TOKENS = responses.TABLE.names(beta=False, counted=True) | {"personality"}
ITEMS = members_by_type(responses.ITEMS)
_ITEMS = {kind: fields | responses.CODEX_ITEM for kind, fields in ITEMS.items()}


_MESSAGES = {"message"}
#: The fields that name objects stored by OpenAI.
_STORED = ("previous_response_id", "conversation", "prompt")


def _responses_fields(request: CheckedRequest) -> None:
    # A stored prompt may name the model, and counting needs none.
    if not request.counts and not request.body.get("prompt"):
        model_required(request)
    if "response_format" in request.body:  # mkht/PSOpenAI#44
        message = (
            "Unsupported parameter: 'response_format'. In the Responses API, this parameter has "
            "moved to 'text.format'."
        )
        raise rejected(message, param="response_format", code="unsupported_parameter")
    known = INPUT_TOKENS if request.counts else RESPONSES | responses.CODEX
    check_fields([(request.body, known, "")], unknown_parameter)


def _item_fields(request: CheckedRequest) -> None:
    for index, item in request.messages:
        known = _ITEMS.get(_kind(item))
        if known is not None and not item.keys() <= known:
            check_fields([(item, known, f"input[{index}].")], unknown_parameter)


def _kind(item: Object) -> str:
    """The type of an item; messages and references need not state it."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else "item_reference"


def _item_order(request: CheckedRequest) -> None:
    """Calls and their outputs, reasoning and the item after it, compaction at the end."""
    items = [(_kind(item), item) for _, item in request.messages]
    if {kind for kind, _ in items} <= _MESSAGES:
        return
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
    """Every call has its output and every output its call, unless the provider stores the other: in
    an earlier response, a conversation or a reference. continuedev/continue#10092,
    bytedance/trae-agent#245."""
    # A tool search may also have a function's output.
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
    if "text" not in request.body:
        return
    is_json = nested(request.body, "text", "format", "type") == "json_object"
    stored = any(request.body.get(name) for name in _STORED)
    if is_json and not stored and not names_json(request, request.body.get("input")):
        raise rejected(
            "Response input messages must contain the word 'json' in some form to use"
            " 'text.format' of type 'json_object'.",
            param="input",
        )
    if nested(request.body, "text", "format", "type") == "json_schema":
        for path in ("text.format.name", "text.format.schema"):
            if not nested(request.body, *path.split(".")):
                raise missing(path)


def _responses_schemas(request: CheckedRequest) -> None:
    """The code: mavam/pi-web-providers#14."""
    if request.facts.provider not in STRICT_SCHEMAS:
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


def _tool_choice(request: CheckedRequest) -> None:
    """Codex sends auto with every request."""
    tool_choice(request, without_tools=(None, "auto", "none"))


def _overflow(request: CheckedRequest) -> None:
    if request.body.get("truncation") != "auto":
        too_long(request, param="input")


RESPONSES_CHECKS = WireChecks(
    messages_field="input",
    checks=(
        _responses_fields,
        _item_fields,
        _continuation,
        _item_order,
        check_media(responses_media),
        _text_format,
        _responses_schemas,
        _shortest_answer,
        sampling,
        stream_options,
        _tool_choice,
        _overflow,
    ),
    provider_checks=(_shortest_answer, _responses_schemas),
)
