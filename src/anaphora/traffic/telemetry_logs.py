"""Spans and events of OpenTelemetry's GenAI conventions, as OTLP's JSON or as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.log_lines import seconds

from .log_calls import Fields, LoggedBill, call_of, count_of, first_of, text_of, value_of

#: Names of GenAI systems that are not names of providers in the catalog.
_SYSTEMS = {
    "aws.bedrock": "bedrock",
    "az.ai.openai": "azure",
    "azure.ai.openai": "azure",
    "gcp.gemini": "google",
    "gcp.gen_ai": "google",
    "gcp.vertex_ai": "google",
    "mistral_ai": "mistral",
    "x_ai": "xai",
}
#: Operations that generate an answer.
_GENERATING = (None, "chat", "text_completion", "generate_content")
#: Columns of OpenTelemetry's spans and events that hold the attributes.
_ATTRIBUTES = ("attributes", "SpanAttributes", "LogAttributes", "span_attributes")


def is_telemetry(fields: Fields) -> bool:
    if "resourceSpans" in fields or "resourceLogs" in fields:
        return True
    attributes = value_of(first_of(fields, _ATTRIBUTES))
    return isinstance(attributes, dict | list) and "gen_ai." in str(attributes)[:100_000]


def calls_of_telemetry(fields: Fields) -> Iterator[Fields]:
    """A batch in OTLP's JSON, or a row with the attributes of one span or event."""
    if not ("resourceSpans" in fields or "resourceLogs" in fields):
        yield from _span(fields, _attributes(first_of(fields, ("ResourceAttributes", "resource"))))
        return
    for resource in (*fields.get("resourceSpans", ()), *fields.get("resourceLogs", ())):
        common = _attributes(resource.get("resource", {}).get("attributes"))
        for scope in (*resource.get("scopeSpans", ()), *resource.get("scopeLogs", ())):
            for span in (*scope.get("spans", ()), *scope.get("logRecords", ())):
                yield from _span(span, common)


def _span(span: Fields, resource: Fields) -> Iterator[Fields]:
    found = _attributes(first_of(span, _ATTRIBUTES))
    if "gen_ai.request.model" not in found:
        return
    if found.get("gen_ai.operation.name") not in _GENERATING or "error.type" in found:
        return
    system = str(first_of(found, ("gen_ai.provider.name", "gen_ai.system")) or "")
    whole, output = (found.get(f"gen_ai.usage.{name}_tokens") for name in ("input", "output"))
    read = count_of(found, ("gen_ai.usage.cache_read.input_tokens",))
    names = ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens")
    written = count_of(found, names)
    bill = None
    if isinstance(whole, int):
        uncached = max(0, whole - (read or 0) - (written or 0))
        bill = LoggedBill(uncached, read, written, output if isinstance(output, int) else 0)
    given = value_of(found.get("gen_ai.input.messages"))
    messages = None
    if isinstance(given, list):
        system_parts = value_of(found.get("gen_ai.system_instructions"))
        first = [{"role": "system", "parts": system_parts}] if system_parts else []
        messages = [each for one in (*first, *given) for each in _chat_messages(one)]
    tools = value_of(found.get("gen_ai.tool.definitions"))
    params: Fields = {"tools": [_chat_tool(tool) for tool in tools]} if tools else {}
    if effort := found.get("gen_ai.request.reasoning.level"):
        params["reasoning_effort"] = effort
    began, ended = _span_times(span)
    yield from call_of(
        program="opentelemetry",
        provider=_SYSTEMS.get(system, system),
        model=str(found["gen_ai.request.model"]),
        messages=messages or None,
        params=params,
        response={
            "id": found.get("gen_ai.response.id"),
            "output": _output_text(found.get("gen_ai.output.messages")),
        },
        bill=bill,
        unmarked=True,
        common={
            "id": found.get("gen_ai.response.id"),
            "time": began,
            "end_time": ended,
            "conversation": found.get("gen_ai.conversation.id") or "",
            "account": resource.get("service.name") or "",
        },
    )


def _span_times(span: Fields) -> tuple[float | None, float | None]:
    names = ("startTimeUnixNano", "start_time_unix_nano", "timeUnixNano", "observedTimeUnixNano")
    began = first_of(span, names)
    if began is not None:
        ended = first_of(span, ("endTimeUnixNano", "end_time_unix_nano"))
        return int(began) / 1e9, None if ended is None else int(ended) / 1e9
    moment = seconds(first_of(span, ("Timestamp", "timestamp", "start_time")))
    duration = span.get("Duration")
    ended = moment + duration / 1e9 if moment and isinstance(duration, int) else None
    return moment, ended


def _attributes(given: Any) -> Fields:
    """Attributes as an object, or as OTLP's list of keys and typed values."""
    given = value_of(given)
    if isinstance(given, dict):
        return given
    return {one["key"]: _typed(one.get("value")) for one in given or () if "key" in one}


def _typed(value: Any) -> Any:
    given: Fields = value if isinstance(value, dict) else {}
    kind = next((kind for kind, inner in given.items() if inner is not None), "")
    inner: Any = given.get(kind)
    match kind:
        case "intValue":
            return int(inner)
        case "arrayValue":
            return [_typed(each) for each in inner.get("values", ())]
        case "kvlistValue":
            return {one["key"]: _typed(one.get("value")) for one in inner.get("values", ())}
    return inner


def _chat_messages(message: Fields) -> Iterator[Fields]:
    """A message of the GenAI conventions as messages of Chat Completions."""
    texts, calls = [], []
    for part in message.get("parts") or ():
        match part.get("type"):
            case "tool_call":
                arguments = part.get("arguments")
                if not isinstance(arguments, str):
                    arguments = msgspec.json.encode(arguments).decode()
                function = {"name": part.get("name") or "", "arguments": arguments}
                calls.append({"id": part.get("id"), "type": "function", "function": function})
            case "tool_call_response":
                text = text_of(first_of(part, ("response", "result", "content")))
                yield {"role": "tool", "tool_call_id": part.get("id"), "content": text}
            case _:
                text = part.get("content")
                texts.append({"type": "text", "text": text_of(part if text is None else text)})
    if texts or calls:
        chat: Fields = {"role": message.get("role") or "user"}
        if texts:
            chat["content"] = texts
        yield chat | ({"tool_calls": calls} if calls else {})


def _chat_tool(tool: Fields) -> Fields:
    if "function" in tool:
        return tool
    schema = first_of(tool, ("parameters", "input_schema", "inputSchema"))
    function = {"name": tool.get("name") or "", "description": tool.get("description") or ""}
    return {"type": "function", "function": {**function, "parameters": schema or {}}}


def _output_text(given: Any) -> str:
    parts = [part for one in value_of(given) or () for part in one.get("parts") or ()]
    return "".join(part["content"] for part in parts if isinstance(part.get("content"), str))
