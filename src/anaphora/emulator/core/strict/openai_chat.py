"""What OpenAI refuses on Chat Completions."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.errors import Upstream

from . import openai
from .case import Case, Object, inside, objects, rejected, too_long, unknown, word
from .known import openai as known
from .reading import Talk

#: How many answers may be asked for: thisisartium/continuous-alignment-testing#25.
MOST_ANSWERS = 128


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str


TALK = Talk("messages", msgspec.json.Decoder(_Plain).decode)


def required(case: Case) -> Upstream | None:
    if "messages" not in case.body:
        return openai.missing("messages")
    if case.body["messages"] == []:
        reason = "Expected an array with minimum length 1, but got an empty array instead."
        return rejected(
            f"Invalid 'messages': empty array. {reason}", param="messages", code="empty_array"
        )
    return None


def unknown_fields(case: Case) -> Upstream | None:
    if (field := unknown(case.body, known.CHAT)) is not None:
        return openai.unknown_parameter(field)
    for at, message in case.unusual:
        fields = known.MESSAGES.get(word(message.get("role")))
        if fields is not None and (field := unknown(message, fields)) is not None:
            return openai.unknown_parameter(f"messages[{at}].{field}")
        content = message.get("content")
        for place, part in objects(content) if isinstance(content, list) else ():
            fields = known.PARTS.get(word(part.get("type")))
            if fields is not None and (field := unknown(part, fields)) is not None:
                return openai.unknown_parameter(f"messages[{at}].content[{place}].{field}")
    return None


def roles(case: Case) -> Upstream | None:
    for at, message in case.unusual:
        role = message.get("role")
        if role is None:
            return openai.missing(f"messages[{at}].role")
        if word(role) not in known.MESSAGES:
            *others, last = (f"'{each}'" for each in known.MESSAGES)
            told = f"Supported values are: {', '.join(others)}, and {last}."
            message_text = f"Invalid value: '{role}'. {told}"
            return rejected(message_text, param=f"messages[{at}].role", code="invalid_value")
    return None


def tool_messages(case: Case) -> Upstream | None:
    """Calls and their answers: sdcb/chats#132; without an id: langchain-ai/langchain#22600."""
    if not any("tool_calls" in each or each.get("role") == "tool" for _, each in case.unusual):
        return None
    open_calls: list[str] = []
    answerable: set[str] = set()
    for at, message in case.messages:
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not call_id:
                return _without_id(at)
            if word(call_id) not in answerable:
                return _without_call(at)
            open_calls = [each for each in open_calls if each != word(call_id)]
            continue
        if open_calls:
            return _unanswered(at, open_calls)
        open_calls = _calls(message)
        answerable = set(open_calls)
    return _unanswered(len(case.said), open_calls) if open_calls else None


def _calls(message: Object) -> list[str]:
    return [word(call.get("id")) for _, call in objects(message.get("tool_calls"))]


def _without_id(at: int) -> Upstream:
    message = (
        "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
    )
    return rejected(message, param=f"messages.[{at}].tool_call_id")


def _without_call(at: int) -> Upstream:
    message = (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
        "with 'tool_calls'."
    )
    return rejected(message, param=f"messages.[{at}].role")


def _unanswered(at: int, calls: list[str]) -> Upstream:
    message = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{', '.join(calls)}"
    )
    return rejected(message, param=f"messages.[{at}].role")


def audio(case: Case) -> Upstream | None:
    """Recorded 400s of gpt-5-mini: sound is for the models that are made for it."""
    able = case.profile.capabilities
    if able is None or not able.verified or "audio" in able.value:
        return None
    for at, message in case.unusual:
        content = objects(message.get("content"))
        if content and any(part.get("type") == "input_audio" for _, part in content):
            told = "Content blocks are expected to be either text or image_url type."
            param = f"messages[{at}]"
            return rejected(f"Invalid '{param}'. {told}", param=param, code="invalid_value")
    return None


def answers(case: Case) -> Upstream | None:
    found = case.body.get("n")
    if not isinstance(found, int) or 1 <= found <= MOST_ANSWERS:
        return None
    return openai.below("n", 1, found) if found < 1 else openai.above("n", MOST_ANSWERS, found)


def response_format(case: Case) -> Upstream | None:
    """openai/openai-python#1632; databricks/databricks-ai-bridge#211."""
    if inside(case.body, "response_format", "type") != "json_schema":
        return None
    schema = inside(case.body, "response_format", "json_schema")
    if schema is None:
        return openai.missing("response_format.json_schema")
    return None if inside(schema, "name") else openai.missing("response_format.json_schema.name")


def limit_field(case: Case) -> Upstream | None:
    """The SDK's docstring: `max_tokens` is not compatible with o-series models; gpt-5 and later
    refuse it too (decolua/9router#560)."""
    if case.body.get("max_tokens") is None or not case.profile.can("reasoning"):
        return None
    return openai.unsupported("max_tokens", " Use 'max_completion_tokens' instead.")


def stop(case: Case) -> Upstream | None:
    if case.body.get("stop") is None or not case.profile.refuses("stop"):
        return None
    return openai.unsupported("stop")


def overflow(case: Case) -> Upstream | None:
    return too_long(case, "openai", "openai_chat", param="messages")


CHECKS = (
    openai.model_named,
    required,
    unknown_fields,
    roles,
    tool_messages,
    audio,
    answers,
    response_format,
    limit_field,
    openai.sampling,
    stop,
    openai.stream_options,
    openai.tool_choice,
    overflow,
)
