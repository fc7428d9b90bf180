"""What OpenAI refuses on Responses."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from anaphora import errors
from anaphora.errors import Upstream

from . import openai
from .case import Case, inside, rejected, too_long, unknown, word
from .known import openai as known
from .reading import Talk

#: Fields of Chat Completions that are somewhere else here: mkht/PSOpenAI#44.
_MOVED = {"response_format": "text.format"}


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str
    type: Literal["message"] = "message"


TALK = Talk("input", msgspec.json.Decoder(_Plain).decode)


def unknown_fields(case: Case) -> Upstream | None:
    for field, place in _MOVED.items():
        if field in case.body:
            message = (
                f"Unsupported parameter: '{field}'. In the Responses API, this parameter has moved "
                f"to '{place}'."
            )
            return rejected(message, param=field, code="unsupported_parameter")
    fields = known.INPUT_TOKENS if case.counts else known.RESPONSES
    if (field_found := unknown(case.body, fields)) is not None:
        return openai.unknown_parameter(field_found)
    for at, item in case.unusual:
        members = known.ITEMS.get(_kind(item))
        if members is not None and (name := unknown(item, members)) is not None:
            return openai.unknown_parameter(f"input[{at}].{name}")
    return None


def _kind(item: dict[str, Any]) -> str:
    """A message need not say that it is one, nor a reference."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else "item_reference"


def _only_talks(case: Case) -> bool:
    """Nothing but messages, which most requests are."""
    return all(_kind(item) == "message" for _, item in case.unusual)


def tool_pairs(case: Case) -> Upstream | None:
    """Calls and their outputs. What an earlier answer, a conversation or a reference holds is
    with the provider. continuedev/continue#10092, bytedance/trae-agent#245."""
    if _only_talks(case):
        return None
    items = [item for _, item in case.messages]
    # A tool search, too, may be answered with a function's output.
    called = {word(item.get("call_id")) for item in items if _kind(item).endswith("_call")}
    answered = {word(item.get("call_id")) for item in items if not _kind(item).endswith("_call")}
    stored = case.body.get("previous_response_id") or case.body.get("conversation")
    held = stored or any(_kind(item) == "item_reference" for item in items)
    for item in items:
        kind, call_id = _kind(item), word(item.get("call_id"))
        if kind == "function_call_output" and not held and call_id not in called:
            told = f"No tool call found for function call output with call_id {call_id}."
            return rejected(told, param="input")
        if kind == "function_call" and call_id not in answered and not item.get("async"):
            return rejected(f"No tool output found for function call {call_id}.", param="input")
    return None


def reasoning_followed(case: Case) -> Upstream | None:
    """A recorded 400: a reasoning item belongs to the item the model gave behind it, which has an
    id or is a call; a plain message of the assistant's is not that."""
    if _only_talks(case):
        return None
    items = [item for _, item in case.messages]
    for at, item in enumerate(items):
        if _kind(item) != "reasoning" or not item.get("id"):
            continue
        behind = next((each for each in items[at + 1 :] if _kind(each) != "reasoning"), None)
        if behind is None or not _is_output(behind):
            told = f"Item '{item['id']}' of type 'reasoning' was provided without its required"
            return rejected(f"{told} following item.", param="input")
    return None


def _is_output(item: dict[str, Any]) -> bool:
    """Whether an item can be the one that the model gave behind its reasoning."""
    kind = _kind(item)
    if kind == "message":
        return bool(item.get("id")) and item.get("role") == "assistant"
    return not kind.endswith("_output")


def compaction_last(case: Case) -> Upstream | None:
    """PROVIDERS.md, 2b: `compaction_trigger` must be last."""
    if _only_talks(case):
        return None
    items = [item for _, item in case.messages]
    if any(_kind(item) == "compaction_trigger" for item in items[:-1]):
        return rejected("A compaction_trigger must be the last input item.", param="input")
    return None


def continuation(case: Case) -> Upstream | None:
    """`previous_response_id` excludes a conversation (the SDK's docstring), and what is not
    stored cannot be continued (PROVIDERS.md, section 9)."""
    previous = case.body.get("previous_response_id")
    if previous is None:
        return None
    if case.body.get("conversation") is not None:
        message = (
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of them."
        )
        param = "previous_response_id"
        return rejected(message, param=param, code="mutually_exclusive_parameters")
    if case.body.get("store") is False:
        return errors.NotFound(
            f"Previous response with id '{previous}' not found.",
            status=400,
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return None


def text_format(case: Case) -> Upstream | None:
    """openai/openai-node#1404."""
    if inside(case.body, "text", "format", "type") != "json_schema":
        return None
    if not inside(case.body, "text", "format", "name"):
        return openai.missing("text.format.name")
    return (
        None
        if inside(case.body, "text", "format", "schema")
        else openai.missing("text.format.schema")
    )


def overflow(case: Case) -> Upstream | None:
    if case.body.get("truncation") == "auto":
        return None
    return too_long(case, "openai", "openai_responses", param="input")


def _model(case: Case) -> Upstream | None:
    """A stored prompt may name it, and counting does without."""
    return None if case.counts or case.body.get("prompt") else openai.model_named(case)


CHECKS = (
    _model,
    unknown_fields,
    continuation,
    tool_pairs,
    reasoning_followed,
    compaction_last,
    text_format,
    openai.sampling,
    openai.stream_options,
    openai.tool_choice,
    overflow,
)
