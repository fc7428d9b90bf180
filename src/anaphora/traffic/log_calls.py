"""A call of another program's log, in the form that `request_log` reads; also spans and events of
OpenTelemetry's GenAI conventions, as OTLP's JSON or as rows.

These logs have the prompt in the format of OpenAI's Chat Completions whatever the provider is, so
a request for a provider that caches at markers only is read in a dialect that has markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.log_lines import seconds

Fields: TypeAlias = dict[str, Any]

#: Reads Chat Completions with cache markers.
_WITH_MARKERS = "openrouter"


class LoggedBill(NamedTuple):
    uncached: int
    read: int | None
    written: int | None
    output: int

    def chat(self) -> Fields:
        read, written = self.read or 0, self.written or 0
        details = {"cached_tokens": self.read, "cache_write_tokens": self.written}
        return {
            "prompt_tokens": self.uncached + read + written,
            "completion_tokens": self.output,
            "total_tokens": self.uncached + read + written + self.output,
            "prompt_tokens_details": {k: v for k, v in details.items() if v is not None},
        }

    def responses(self) -> Fields:
        usage = self.chat()
        return {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": self.output,
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"cached_tokens": self.read or 0},
        }

    def messages(self) -> Fields:
        return {
            "input_tokens": self.uncached,
            "cache_read_input_tokens": self.read or 0,
            "cache_creation_input_tokens": self.written or 0,
            "output_tokens": self.output,
        }

    def audit(self) -> Fields:
        written = None if self.written is None else {"unsplit": self.written}
        fields = {"uncached": self.uncached, "read": self.read, "written": written}
        return {k: v for k, v in fields.items() if v is not None} | {"output": self.output}


def call_of(
    *,
    program: str,
    provider: str,
    model: str,
    messages: list[Any] | str | None,
    params: Fields,
    response: Fields,
    bill: LoggedBill | None,
    common: Fields,
    form: Literal["chat", "responses", "own"] = "chat",
    unmarked: bool = False,
) -> Iterator[Fields]:
    """A call whose prompt is known, else a row with its bill; nothing if it has neither. If the log
    leaves out cache markers (`unmarked`), one is at the end if the bill shows that there was
    one."""
    known = catalog.provider_named(provider) if provider else None
    common = {**common, "program": program}
    if messages is None or known is None:
        if bill is not None:
            yield _row(provider, model, bill, common)
        return
    if form == "own":
        body = {"model": model, **params, "messages": messages}
        yield {**common, "request": body, "response": response, "provider": known}
        return
    name, answer = "messages", _answer(response)
    if form == "responses":
        name = "input"
        answer = {**response, "object": "response", "status": "completed"}
        answer["usage"] = None if bill is None else bill.responses()
    elif bill is not None:
        answer["usage"] = bill.chat()
    marked = form == "chat" and catalog.rules(known, model).needs_marks
    if marked and unmarked and bill is not None and (bill.read or bill.written):
        _mark_last(messages)
    if marked and "claude" in model:
        body, answer = _as_claude(messages, params, answer, bill)
        fields = {"request": {"model": model, **body}, "response": answer, "provider": known}
        yield {**common, **fields, "dialect": "anthropic", "model": model}
        return
    wire = "openai_responses" if form == "responses" else _WITH_MARKERS if marked else "openai_chat"
    body = {"model": model, **params, name: messages}
    fields = {"request": body, "response": answer, "provider": known, "dialect": wire}
    yield {**common, **fields, "model": model}


def _as_claude(
    messages: list[Any] | str, params: Fields, answer: Fields, bill: LoggedBill | None
) -> tuple[Fields, Fields]:
    """A request and its answer in the form of Anthropic's API, whose cache has the tools before the
    system text."""
    system: list[Any] = []
    sent: list[Fields] = []
    for message in messages if isinstance(messages, list) else [{"content": messages}]:
        role, parts = message.get("role") or "user", _claude_parts(message)
        if role in ("system", "developer"):
            system += parts
        else:
            sent.append({"role": "user" if role == "tool" else role, "content": parts})
    tools = [object_of(tool.get("function")) for tool in params.get("tools") or ()]
    body = {
        "tools": [
            {
                "name": tool.get("name") or "",
                "description": tool.get("description") or "",
                "input_schema": tool.get("parameters") or {"type": "object"},
            }
            for tool in tools
        ],
        "system": system,
        "messages": sent,
        "max_tokens": 1,
    }
    said = answer["choices"][0].get("message") if answer.get("choices") else None
    text = object_of(said).get("content")
    reply = {
        "id": answer.get("id") or "",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}] if isinstance(text, str) and text else [],
        "stop_reason": "end_turn",
        "usage": None if bill is None else bill.messages(),
    }
    return {name: value for name, value in body.items() if value}, reply


def _claude_parts(message: Fields) -> list[Any]:
    content = message.get("content") or []
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [part if "text" in part else {"type": "text", "text": text_of(part)} for part in given]
    if message.get("role") == "tool":
        id = message.get("tool_call_id") or ""
        parts = [{"type": "tool_result", "tool_use_id": id, "content": parts}]
    for call in message.get("tool_calls") or ():
        function = object_of(call.get("function"))
        given, name = object_of(function.get("arguments")), function.get("name") or ""
        id = call.get("id") or ""
        parts.append({"type": "tool_use", "id": id, "name": name, "input": given})
    return parts


def _mark_last(messages: list[Any] | str) -> None:
    last = messages[-1] if isinstance(messages, list) else {}
    if isinstance(last.get("content"), str):
        last["content"] = [{"type": "text", "text": last["content"]}]
    if last.get("content"):
        last["content"][-1]["cache_control"] = {"type": "ephemeral"}


def _answer(response: Fields) -> Fields:
    """A reply of Chat Completions with the logged text."""
    if isinstance(response.get("choices"), list):
        return {k: v for k, v in response.items() if k != "usage"}
    output = response.get("output")
    message = output if isinstance(output, dict) and "role" in output else {}
    content = message.get("content", output)
    text = content if isinstance(content, str) else text_of(content) if content else ""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    id = response.get("id") or ""
    return {"id": id, "object": "chat.completion", "choices": [choice | {"finish_reason": "stop"}]}


def _row(provider: str, model: str, bill: LoggedBill, common: Fields) -> Fields:
    began, ended = seconds(common["time"]), seconds(common["end_time"])
    known = catalog.provider_named(provider) or provider
    taken = 0.0 if began is None or ended is None else max(0.0, ended - began)
    return {
        "row": "call",
        "at": 0.0 if began is None else began,
        "app": str(common["account"] or common["program"]),
        "adapter": common["program"],
        "provider": known,
        "system": known,
        "model": model,
        "response_id": common["id"],
        "seconds": taken,
        "usage": bill.audit(),
        "conversation": str(common["conversation"] or ""),
    }


def value_of(given: Any) -> Any:
    """A value that may be written as JSON text."""
    if isinstance(given, str) and given[:1] in "{[" and given:
        try:
            return msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return given
    return given


def object_of(given: Any) -> Fields:
    value = value_of(given)
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def first_of(fields: Fields, names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def either(fields: Fields, name: str) -> Any:
    """A field in snake case or in camel case."""
    head, *rest = name.split("_")
    return first_of(fields, (name, head + "".join(part.title() for part in rest)))


def count_of(fields: Fields, names: tuple[str, ...]) -> int | None:
    value = first_of(fields, names)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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
